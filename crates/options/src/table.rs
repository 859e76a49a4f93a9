//! The table of options: memcached's and our own, a row each.
//!
//! Upstream:   nothing; it is data.
//! Downstream: `getopt.rs` finds a row by name, `apply.rs` lets it take effect, `text.rs` and
//!             `manual.rs` print it. What `-o` takes stands in `suboptions.rs`, in rows of the same
//!             kind of word.

use std::path::PathBuf;

use crate::apply::{Draft, Given, set};
use crate::serve::{EngineMode, IoChoice, Protocol, Reads};
use crate::{CalledAs, Command, EXIT_USAGE, OptionsError, THREADS_MAX, apply, text};

/// What an option takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Takes {
    /// No value.
    Nothing,
    /// Any text, called `.0` in help.
    Text(&'static str),
    /// A text that may be left out; a long option takes it after `=` only.
    OptionalText(&'static str),
    /// A whole number from `.1` to `.2`, called `.0` in help.
    Integer(&'static str, i64, i64),
    /// As `Integer`, and `.3` where it is left out.
    OptionalInteger(&'static str, i64, i64, i64),
    /// A number above `.1` and at most `.2`, called `.0` in help.
    Real(&'static str, f64, f64),
    /// One of these words.
    Word(&'static [&'static str]),
}

impl Takes {
    /// Whether an option of this kind is an error without a value.
    pub(crate) const fn needs_value(self) -> bool {
        !matches!(self, Self::Nothing | Self::OptionalText(_) | Self::OptionalInteger(..))
    }

    /// What follows a long name in help, `=` included; empty for none.
    pub(crate) fn suffix(self) -> String {
        match self {
            Self::Nothing => String::new(),
            Self::OptionalText(name) | Self::OptionalInteger(name, ..) => format!("[={name}]"),
            Self::Text(name) | Self::Integer(name, ..) | Self::Real(name, ..) => {
                format!("=<{name}>")
            }
            Self::Word(words) => format!("=<{}>", words.join("|")),
        }
    }
}

/// What an option does here.
#[derive(Clone, Copy)]
pub(crate) enum Class {
    /// What memcached does with it, or what its help says.
    Works,
    /// An option of Kachel's own.
    Own,
    /// It is read and checked, said back by `stats settings`, and has no effect; the word says why
    /// (I3).
    NoMeaning(&'static str),
    /// It is an error; the sentence says why (I2).
    Refused(&'static str),
    /// It is answered with a text, and nothing is started.
    Answers(fn(CalledAs) -> Command),
}

/// How a row takes effect.
pub(crate) type Effect = fn(&mut Draft, Given<'_>) -> Result<(), OptionsError>;

/// An option of the command line.
pub(crate) struct OptionRow {
    /// The letter after one dash.
    pub(crate) short: Option<char>,
    /// The name after two dashes; empty for none.
    pub(crate) long: &'static str,
    pub(crate) takes: Takes,
    /// In words, as help prints it; empty where there is none.
    pub(crate) default: &'static str,
    pub(crate) class: Class,
    /// One line.
    pub(crate) help: &'static str,
    pub(crate) effect: Effect,
}

/// A word of `-o`.
pub(crate) struct SuboptionRow {
    pub(crate) name: &'static str,
    pub(crate) takes: Takes,
    pub(crate) default: &'static str,
    pub(crate) class: Class,
    pub(crate) help: &'static str,
    pub(crate) effect: Effect,
}

const fn works(
    (short, long): (char, &'static str),
    takes: Takes,
    default: &'static str,
    help: &'static str,
    effect: Effect,
) -> OptionRow {
    OptionRow { short: Some(short), long, takes, default, class: Class::Works, help, effect }
}

const fn own(
    long: &'static str,
    takes: Takes,
    default: &'static str,
    help: &'static str,
    effect: Effect,
) -> OptionRow {
    OptionRow { short: None, long, takes, default, class: Class::Own, help, effect }
}

const fn no_meaning(
    (short, long): (char, &'static str),
    takes: Takes,
    default: &'static str,
    why: &'static str,
    help: &'static str,
    effect: Effect,
) -> OptionRow {
    OptionRow {
        short: Some(short),
        long,
        takes,
        default,
        class: Class::NoMeaning(why),
        help,
        effect,
    }
}

const fn refused(
    (short, long): (char, &'static str),
    takes: Takes,
    why: &'static str,
    help: &'static str,
) -> OptionRow {
    let class = Class::Refused(why);
    OptionRow { short: Some(short), long, takes, default: "", class, help, effect: nothing }
}

const fn answers(
    (short, long): (char, &'static str),
    answer: fn(CalledAs) -> Command,
    help: &'static str,
) -> OptionRow {
    let class = Class::Answers(answer);
    let takes = Nothing;
    OptionRow { short: Some(short), long, takes, default: "", class, help, effect: nothing }
}

/// The effect of rows that are refused or answered before it.
pub(crate) const fn nothing(_: &mut Draft, _: Given<'_>) -> Result<(), OptionsError> {
    Ok(())
}

use Takes::{Integer, Nothing, OptionalText, Real, Text, Word};

const I32_MAX: i64 = i32::MAX as i64;
const U32_MAX: i64 = u32::MAX as i64;
/// Most megabytes that `-m` takes, so that bytes fit an `i64`.
const MEGABYTES_MAX: i64 = i64::MAX >> 20;

/// Every option of the command line, in the order in which help prints them.
pub(crate) const OPTIONS: &[OptionRow] = &[
    // Where to listen.
    works(
        ('p', "port"),
        Integer("num", -1, 65535),
        "11211",
        "TCP port to listen on; 0: none, -1: a free one",
        |draft, given| set(&mut draft.port, given.integer()),
    ),
    works(
        ('U', "udp-port"),
        Integer("num", -1, 65535),
        "0, off",
        "UDP port to listen on; only 0 until UDP is built",
        |_, given| match given.integer::<i32>() {
            0 => Ok(()),
            port => Err(OptionsError::new(
                EXIT_USAGE,
                format!("-U {port}: UDP is not built yet; say -U 0 or leave it out."),
            )),
        },
    ),
    works(
        ('s', "unix-socket"),
        Text("file"),
        "",
        "unix socket to listen on, instead of TCP",
        |draft, given| set(&mut draft.unix_path, Some(given.text().to_string())),
    ),
    works(
        ('a', "unix-mask"),
        Text("mask"),
        "700",
        "who may use the unix socket: permission bits, in octal",
        apply::unix_mask,
    ),
    works(
        ('l', "listen"),
        Text("addr"),
        "127.0.0.1; called as memcached: every interface",
        "interface to listen on: address, name or *, with :port after it or not; a list or repeated; \
         IPv6 as [::1]:11211; proto[ascii]: before it",
        |draft, given| {
            draft.listen.push(given.text().to_string());
            Ok(())
        },
    ),
    works(
        ('b', "listen-backlog"),
        Integer("num", i32::MIN as i64, I32_MAX),
        "1024",
        "connections that the kernel keeps ready to be accepted",
        |draft, given| set(&mut draft.serve.backlog, given.integer()),
    ),
    works(
        ('B', "protocol"),
        Word(&["auto", "ascii", "binary"]),
        "auto",
        "protocol to speak; binary is not built yet",
        |draft, given| {
            set(
                &mut draft.serve.protocol,
                match given.text() {
                    "ascii" => Protocol::Ascii,
                    "binary" => Protocol::Binary,
                    _ => Protocol::Auto,
                },
            )
        },
    ),
    works(
        ('c', "conn-limit"),
        Integer("num", 1, I32_MAX),
        "1024",
        "connections at a time; the limit on open files is raised for them",
        |draft, given| set(&mut draft.serve.connections_max, given.integer()),
    ),
    // Memory.
    works(
        ('m', "memory-limit"),
        Integer("num", 0, MEGABYTES_MAX),
        "64",
        "megabytes for items, their index, and requests under way: one limit for the process",
        |draft, given| set(&mut draft.serve.memory_bytes, given.integer::<u64>() << 20),
    ),
    works(
        ('M', "disable-evictions"),
        Nothing,
        "off",
        "answer with an error when memory is spent, instead of evicting",
        |draft, _| set(&mut draft.serve.evict, false),
    ),
    works(
        ('I', "max-item-size"),
        Text("num[k|m|g]"),
        "1m",
        "bytes of the largest item, 1k to 1g, at most half of -m",
        apply::item_size,
    ),
    works(('C', "disable-cas"), Nothing, "off", "items without CAS token, 8 bytes smaller", {
        |draft, _| set(&mut draft.serve.cas, false)
    }),
    works(('k', "lock-memory"), Nothing, "off", "keep memory from being swapped out", {
        |draft, _| set(&mut draft.serve.lock_memory, true)
    }),
    works(('L', "enable-largepages"), Nothing, "off", "ask the kernel for huge pages", {
        |draft, _| set(&mut draft.serve.huge_pages, true)
    }),
    // Work.
    works(
        ('t', "threads"),
        Integer("num", 1, THREADS_MAX as i64),
        "as many as cores, by affinity and cgroup quota, if -m has room",
        "threads, each with its shard of the keys",
        |draft, given| set(&mut draft.serve.threads, Some(given.integer())),
    ),
    no_meaning(
        ('R', "max-reqs-per-event"),
        Integer("num", 1, I32_MAX),
        "20",
        "a connection's turn ends with what one tick received of it, at most 16 KiB",
        "requests of one connection before others have their turn",
        |draft, given| set(&mut draft.serve.requests_per_tick, given.integer()),
    ),
    own(
        "engine",
        Word(&["cache", "store", "tree", "flash", "rocksdb"]),
        "cache",
        "cache evicts when memory is spent, store refuses; the others are not built yet",
        |draft, given| match given.text() {
            "cache" => set(&mut draft.serve.engine, EngineMode::Cache),
            "store" => set(&mut draft.serve.engine, EngineMode::Store),
            engine => Err(not_built("engine", engine, "cache and store")),
        },
    ),
    own(
        "reads",
        Word(&["erew", "crew"]),
        "erew",
        "erew: a shard's own core reads it; crew (any core reads) is not built yet",
        |draft, given| match given.text() {
            "erew" => set(&mut draft.serve.reads, Reads::Erew),
            reads => Err(not_built("reads", reads, "erew")),
        },
    ),
    own(
        "io",
        Word(&["auto", "epoll", "uring"]),
        "auto",
        "how the kernel is asked: auto takes the best that it allows",
        |draft, given| {
            set(
                &mut draft.serve.io,
                match given.text() {
                    "epoll" => IoChoice::Epoll,
                    "uring" => IoChoice::Uring,
                    _ => IoChoice::Auto,
                },
            )
        },
    ),
    // What clients may do.
    works(('A', "enable-shutdown"), Nothing, "off", "answer the command \"shutdown\"", {
        |draft, _| set(&mut draft.serve.shutdown_allowed, true)
    }),
    works(('F', "disable-flush-all"), Nothing, "off", "refuse the command \"flush_all\"", {
        |draft, _| set(&mut draft.serve.flush_allowed, false)
    }),
    works(
        ('X', "disable-dumping"),
        Nothing,
        "on; called as memcached: off",
        "refuse \"stats cachedump\", \"stats detail\", \"lru_crawler metadump\" and \"mgdump\"",
        |draft, _| set(&mut draft.serve.dumps_allowed, false),
    ),
    own(
        "dumps",
        Nothing,
        "off; called as memcached: on",
        "answer what -X refuses: keys and prefixes become readable to every client",
        |draft, _| set(&mut draft.serve.dumps_allowed, true),
    ),
    // How slow clients may be. memcached has none of these limits.
    own(
        "line-timeout",
        Integer("seconds", 0, U32_MAX),
        "10",
        "close a client whose command line is not whole after so long; 0: never",
        |draft, given| set(&mut draft.serve.line_timeout_s, given.integer()),
    ),
    own(
        "block-timeout",
        Integer("seconds", 0, U32_MAX),
        "10",
        "close a client whose data block is not whole after so long and a second more for each 64 KiB \
         of it; 0: never",
        |draft, given| set(&mut draft.serve.block_timeout_s, given.integer()),
    ),
    own(
        "reader-timeout",
        Integer("seconds", 0, U32_MAX),
        "60",
        "close a client that reads nothing of its replies for so long; 0: never",
        |draft, given| set(&mut draft.serve.reader_timeout_s, given.integer()),
    ),
    own(
        "pinned-percent",
        Integer("num", 0, 100),
        "25",
        "close the slowest readers of large values while values on their way out pin more than this \
         part of -m; 0: never",
        |draft, given| set(&mut draft.serve.pinned_percent, given.integer()),
    ),
    no_meaning(
        ('W', "disable-watch"),
        Nothing,
        "off",
        "\"watch\" is not built yet, and refused in any case",
        "refuse the command \"watch\"",
        |draft, _| set(&mut draft.serve.watch_allowed, false),
    ),
    no_meaning(
        ('D', ""),
        Text("char"),
        ":",
        "statistics by prefix are not built yet",
        "the character that ends a key's prefix, for \"stats detail\"; counting starts at once",
        apply::prefix_delimiter,
    ),
    works(
        ('o', "extended"),
        Text("list"),
        "",
        "more options, a list with commas: see below",
        apply::extended,
    ),
    // The process.
    works(('d', "daemon"), Nothing, "off", "leave the terminal, once the server listens", {
        |draft, _| set(&mut draft.serve.daemon, true)
    }),
    works(
        ('u', "user"),
        Text("user"),
        "",
        "user to become when started by root; called as memcached, root must give one",
        |draft, given| set(&mut draft.serve.user, Some(given.text().to_string())),
    ),
    works(
        ('P', "pidfile"),
        Text("file"),
        "",
        "file for the process number; removed at the end with -d only",
        |draft, given| set(&mut draft.serve.pidfile, Some(PathBuf::from(given.text()))),
    ),
    works(('r', "enable-coredumps"), Nothing, "off", "let a crash leave a core file", {
        |draft, _| set(&mut draft.serve.core_dumps, true)
    }),
    works(
        ('v', "verbose"),
        OptionalText("num"),
        "0",
        "say how the server starts and ends, and which clients it closes for being slow; -vv and \
         -vvv do not log commands yet",
        |draft, _| {
            draft.serve.verbosity += 1;
            Ok(())
        },
    ),
    answers(('h', "help"), |called_as| Command::Help(text::help(called_as)), "this text"),
    answers(
        ('V', "version"),
        |called_as| Command::Version(text::version(called_as)),
        "Kachel's version, and the memcached that it stands in for",
    ),
    answers(
        ('i', "license"),
        |called_as| Command::License(text::license(called_as)),
        "the licence",
    ),
    // No meaning here.
    no_meaning(
        ('f', "slab-growth-factor"),
        Real("num", 1.0, f64::MAX),
        "1.25",
        "no slabs",
        "growth factor of slab classes",
        |draft, given| set(&mut draft.serve.echo.growth_factor, given.real()),
    ),
    no_meaning(
        ('n', "slab-min-size"),
        Integer("bytes", 1, I32_MAX),
        "48",
        "no slabs",
        "smallest slab chunk",
        |draft, given| set(&mut draft.serve.echo.chunk_size, given.integer()),
    ),
    no_meaning(
        ('N', "napi-ids"),
        Integer("num", 1, I32_MAX),
        "0",
        "threads are chosen otherwise",
        "choose threads by network queue",
        |draft, given| set(&mut draft.serve.echo.napi_ids, given.integer()),
    ),
    // Refused until built.
    refused(
        ('S', "enable-sasl"),
        Nothing,
        "authentication of the binary protocol is not built yet, and clients must not be let in \
         without it",
        "authenticate binary clients",
    ),
    refused(
        ('Y', "auth-file"),
        Text("file"),
        "authentication of the text protocol is not built yet, and clients must not be let in \
         without it",
        "authenticate text clients by a file",
    ),
    refused(
        ('Z', "enable-ssl"),
        Nothing,
        "TLS is not built yet, and what should be encrypted must not travel in the clear",
        "TLS",
    ),
    refused(
        ('e', "memory-file"),
        Text("file"),
        "keeping items over a restart is not built yet; every start would be an empty one",
        "keep items in a file, over a restart",
    ),
];

fn not_built(option: &str, word: &str, built: &str) -> OptionsError {
    OptionsError::new(EXIT_USAGE, format!("--{option}={word} is not built yet; there is {built}."))
}
