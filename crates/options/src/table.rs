//! The table of options, memcached's and Kachel's own: one row for each.
//!
//! Upstream:   nothing; it is data.
//! Downstream: `getopt.rs` finds a row by name, `apply.rs` calls its effect, `text.rs` and
//!             `manual.rs` print it. `suboptions.rs` has the rows of `-o`.

use std::path::PathBuf;

use kachel_host::LogFormat;

use crate::effects;
use crate::listen::Protocol;
use crate::partial::set;
use crate::row::Takes::{Integer, Nothing, OptionalText, Real, Text, Word};
use crate::row::{Answer, Class, Effect, OptionRow, Takes, nothing};
use crate::serve::{CoreChoice, EngineMode, IoChoice, Reads, SaslChoice};
use crate::{EXIT_USAGE, OptionsError, Roles, THREADS_MAX, UDP_REPLY_DATAGRAMS_MAX};

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

const fn answers(
    (short, long): (char, &'static str),
    answer: Answer,
    help: &'static str,
) -> OptionRow {
    let class = Class::Answers(answer);
    let takes = Nothing;
    OptionRow { short: Some(short), long, takes, default: "", class, help, effect: nothing }
}

const I32_MAX: i64 = i32::MAX as i64;
const U32_MAX: i64 = u32::MAX as i64;
/// All copies are looked at once a second. With as many, that took 7 to 11 % of a core at 260,000
/// reads a second of a million of them (`experiments/e014-pipe`).
const PIPE_MEGABYTES_MAX: i64 = 2048;
/// Seconds of the longest relative TTL.
const RELATIVE_S_MAX: i64 = 60 * 60 * 24 * 30;
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
        |partial, given| set(&mut partial.port, Some(given.integer())),
    ),
    works(
        ('U', "udp-port"),
        Integer("num", -1, 65535),
        "0, off",
        "UDP port to listen on; 0: none, -1: a free one; without -p, also the TCP port; not with -Y",
        |partial, given| set(&mut partial.udp_port, given.integer()),
    ),
    works(
        ('s', "unix-socket"),
        Text("file"),
        "",
        "unix socket to listen on, instead of TCP",
        |partial, given| set(&mut partial.unix_path, Some(given.text().to_string())),
    ),
    works(
        ('a', "unix-mask"),
        Text("mask"),
        "700",
        "permission bits of the unix socket, in octal",
        effects::unix_mask,
    ),
    works(
        ('l', "listen"),
        Text("addr"),
        "127.0.0.1; called as memcached: every interface",
        "address, host name or * to listen on, with an optional :port; a list, or repeated; IPv6 as \
         [::1]:11211; an optional prefix proto[ascii]:; with -Z before it notls:, btls: (no certificate \
         of the client) or mtls: (with one)",
        |partial, given| {
            partial.listen.push(given.text().to_string());
            Ok(())
        },
    ),
    works(
        ('b', "listen-backlog"),
        Integer("num", i32::MIN as i64, I32_MAX),
        "1024",
        "length of the kernel's queue of new connections",
        |partial, given| set(&mut partial.serve.backlog, given.integer()),
    ),
    works(
        ('B', "protocol"),
        Word(&["auto", "ascii", "binary"]),
        "auto",
        "protocol of clients; with auto, the first byte of each connection selects it",
        |partial, given| {
            set(
                &mut partial.protocol,
                Some(match given.text() {
                    "ascii" => Protocol::Ascii,
                    "binary" => Protocol::Binary,
                    _ => Protocol::Auto,
                }),
            )
        },
    ),
    works(
        ('c', "conn-limit"),
        Integer("num", 1, I32_MAX),
        "1024",
        "maximum number of connections; raises the limit on open files",
        |partial, given| set(&mut partial.serve.connections_max, given.integer()),
    ),
    // Memory.
    works(
        ('m', "memory-limit"),
        Integer("num", 0, MEGABYTES_MAX),
        "64",
        "megabytes for items, their index, and requests in progress: one limit for the process",
        |partial, given| set(&mut partial.serve.memory_bytes, given.integer::<u64>() << 20),
    ),
    works(
        ('M', "disable-evictions"),
        Nothing,
        "off",
        "answer with an error when memory is full, instead of evicting",
        |partial, _| set(&mut partial.serve.evict, false),
    ),
    works(
        ('I', "max-item-size"),
        Text("num[k|m|g]"),
        "1m",
        "size limit of an item, 1k to 1g, at most half of -m",
        effects::item_size,
    ),
    works(
        ('C', "disable-cas"),
        Nothing,
        "off",
        "store items without a CAS token; saves 8 bytes each",
        |partial, _| set(&mut partial.serve.cas, false),
    ),
    works(('k', "lock-memory"), Nothing, "off", "lock memory, so that it is not swapped out", {
        |partial, _| set(&mut partial.serve.lock_memory, true)
    }),
    works(
        ('L', "enable-largepages"),
        Nothing,
        "off",
        "keep items in huge pages: reserved ones if enough are free, otherwise transparent ones, otherwise \
         ordinary pages, with a warning",
        |partial, _| set(&mut partial.serve.huge_pages, true),
    ),
    // Work.
    works(
        ('t', "threads"),
        Integer("num", 1, THREADS_MAX as i64),
        "one per core, by affinity and cgroup quota; fewer if -m is small",
        "number of threads, each with its share of the keys",
        |partial, given| set(&mut partial.serve.threads, Some(given.integer())),
    ),
    works(
        ('R', "max-reqs-per-event"),
        Integer("num", 1, I32_MAX),
        "128, or fewer that are 256 KiB of work, or 64 of each of two ready connections; \"stats settings\" says 20",
        "requests of one connection in one tick, before other connections are served",
        |partial, given| set(&mut partial.serve.requests_per_tick, Some(given.integer())),
    ),
    own(
        "engine",
        Word(&["cache", "store", "tree", "flash", "rocksdb"]),
        "cache",
        "cache evicts items when memory is full, store refuses new ones; flash and rocksdb keep \
         items on the disk and need --data; tree is not built yet",
        |partial, given| match given.text() {
            "cache" => set(&mut partial.serve.engine, EngineMode::Cache),
            "store" => set(&mut partial.serve.engine, EngineMode::Store),
            "flash" => set(&mut partial.serve.engine, EngineMode::Flash),
            "rocksdb" => set(&mut partial.serve.engine, EngineMode::Rocksdb),
            engine => Err(not_built("engine", engine, "cache, store, flash or rocksdb")),
        },
    ),
    own(
        "data",
        Text("folder"),
        "",
        "folder for the items of an engine on a disk, which is made if it is not there. See \
         docs/persistence.md",
        |partial, given| set(&mut partial.serve.data.folder, Some(PathBuf::from(given.text()))),
    ),
    own(
        "sync",
        Text("always|interval:T|os"),
        "always",
        "when a change is on the disk: before its reply, within a time such as 50ms or 2s, or when \
         the system writes it",
        effects::sync,
    ),
    own(
        "space",
        Text("num[k|m|g|t]"),
        "the file system",
        "the most bytes that --engine=flash takes on the disk; at least 16m for each engine",
        effects::space,
    ),
    own(
        "rocksdb-options",
        Text("file"),
        "",
        "file of options for RocksDB, name=value in each line",
        |partial, given| {
            set(&mut partial.serve.data.rocksdb_options, Some(PathBuf::from(given.text())))
        },
    ),
    own(
        "reads",
        Word(&["crew", "erew"]),
        "crew",
        "crew: any core reads and changes any shard; erew: only a shard's own core does, and others \
         send requests to it",
        |partial, given| match given.text() {
            "crew" => set(&mut partial.serve.reads, Reads::Crew),
            _ => set(&mut partial.serve.reads, Reads::Erew),
        },
    ),
    own(
        "cores",
        Word(&["auto", "all"]),
        "auto",
        "auto: clients are served by as few cores as their load needs, the others sleep; all: by all \
         cores at any load. With --reads=erew always all",
        |partial, given| match given.text() {
            "auto" => set(&mut partial.serve.cores, CoreChoice::Auto),
            _ => set(&mut partial.serve.cores, CoreChoice::All),
        },
    ),
    own(
        "roles",
        Text("net=A,shard=B"),
        "each thread has clients and keys",
        "A threads serve clients and own no keys, B others own the keys. Implies --reads=erew and \
         --cores=all",
        |partial, given| set(&mut partial.serve.roles, Some(Roles::read(given.text())?)),
    ),
    own(
        "shard-ports",
        Nothing,
        "off",
        "each thread also listens on a TCP port of its own: the first one on the port after -p, and so \
         on. Clients of such a port stay with its thread. See docs/steering.md",
        |partial, _| set(&mut partial.serve.has_shard_ports, true),
    ),
    own(
        "udp-port-per-shard",
        Nothing,
        "off",
        "each thread also has a UDP port of its own: the first one the port after -U, and so on. See \
         docs/steering.md",
        |partial, _| set(&mut partial.serve.udp.has_shard_ports, true),
    ),
    own(
        "udp-reply-datagrams",
        Integer("num", 1, UDP_REPLY_DATAGRAMS_MAX as i64),
        "1",
        "most datagrams of 1,400 bytes in a reply over UDP; a longer reply is refused with a pointer \
         to TCP",
        |partial, given| set(&mut partial.serve.udp.reply_datagrams_max, given.integer()),
    ),
    own(
        "udp-sender-budget",
        Integer("num", 0, u32::MAX as i64),
        "0",
        "most datagrams of one sender's address that are answered in a second; 0: no limit. See \
         docs/udp.md",
        |partial, given| set(&mut partial.serve.udp.sender_datagrams_max, given.integer()),
    ),
    own(
        "pipe",
        Text("interface"),
        "off",
        "answer GETs of small hot items over UDP by a program in the driver of this interface. See \
         docs/pipe.md",
        |partial, given| set(&mut partial.serve.pipe.interface, Some(given.text().to_string())),
    ),
    own(
        "pipe-memory",
        Integer("megabytes", 1, PIPE_MEGABYTES_MAX),
        "8",
        "memory for the copies of items that the pipe answers from, a part of -m",
        |partial, given| set(&mut partial.serve.pipe.memory_bytes, given.integer::<u64>() << 20),
    ),
    own(
        "pipe-reply-times",
        Integer("num", 1, 100),
        "3",
        "the pipe answers only if the reply has at most this many times the bytes of its request",
        |partial, given| set(&mut partial.serve.pipe.reply_times, given.integer()),
    ),
    own(
        "io",
        Word(&["auto", "epoll", "uring"]),
        "auto",
        "I/O backend; auto selects the best one that the kernel allows",
        |partial, given| {
            set(
                &mut partial.serve.io,
                match given.text() {
                    "epoll" => IoChoice::Epoll,
                    "uring" => IoChoice::Uring,
                    _ => IoChoice::Auto,
                },
            )
        },
    ),
    // Operators and their tools.
    own(
        "admin",
        Text("address"),
        "off",
        "answer HTTP at this address: a live page, metrics, health, readiness. IP:PORT or \
         unix:PATH[,mode=600]; an address that is not loopback needs -Z and --admin-token-file. See \
         docs/operating.md",
        effects::admin_address,
    ),
    own(
        "admin-host",
        Text("name"),
        "",
        "a name by which clients may call the admin address, beside IP addresses and localhost; may be \
         repeated",
        effects::admin_host,
    ),
    own(
        "admin-token-file",
        Text("file"),
        "",
        "file with the token that clients of the admin address must send; other users must have no right \
         to the file. SIGHUP reads it again. Health and readiness need no token",
        |partial, given| {
            set(&mut partial.serve.admin.token_file, Some(PathBuf::from(given.text())))
        },
    ),
    own(
        "admin-classes",
        Nothing,
        "off",
        "show size classes in /metrics of the admin address: 15 series for each class that has had items",
        |partial, _| set(&mut partial.serve.admin.shows_classes, true),
    ),
    own(
        "admin-prefixes",
        Text("list"),
        "",
        "prefixes of keys, at most 50 with commas between them, that /metrics of the admin address shows \
         while they are observed; 6 series each. See docs/operating.md",
        effects::admin_prefixes,
    ),
    own(
        "observe",
        Text("list"),
        "off",
        "what is observed from the start: hotkeys, curve, prefixes, all or off; a list has commas. \
         \"observe\" switches it while the server runs. See docs/operating.md",
        effects::observe,
    ),
    // What clients may do.
    works(('A', "enable-shutdown"), Nothing, "off", "answer the command \"shutdown\"", {
        |partial, _| set(&mut partial.serve.shutdown_allowed, true)
    }),
    works(
        ('F', "disable-flush-all"),
        Nothing,
        "off",
        "refuse \"flush_all\" and \"flush_prefix\"",
        |partial, _| set(&mut partial.serve.flush_allowed, false),
    ),
    own(
        "flush-prefix",
        Word(&["on", "off", "local"]),
        "on; with -F: off",
        "which clients may send \"flush_prefix\": all, none, or those of this host (loopback and unix \
         sockets)",
        effects::flush_prefix,
    ),
    works(
        ('X', "disable-dumping"),
        Nothing,
        "on; called as memcached: off",
        "refuse \"stats cachedump\", \"stats detail\", \"lru_crawler metadump\" and \"mgdump\"; hash hot \
         keys and prefixes",
        |partial, _| set(&mut partial.serve.dumps_allowed, false),
    ),
    own(
        "dumps",
        Nothing,
        "off; called as memcached: on",
        "answer what -X and -W refuse: every client can list keys and watch requests",
        |partial, _| {
            set(&mut partial.serve.dumps_allowed, true)?;
            set(&mut partial.serve.watch_allowed, true)
        },
    ),
    own(
        "scan",
        Nothing,
        "off",
        "answer \"mscan\": every client can read the items of an engine that has an order (flash, \
         rocksdb). See docs/scan.md",
        |partial, _| set(&mut partial.serve.scans_allowed, true),
    ),
    // Limits for slow clients. memcached has none of them.
    own(
        "line-timeout",
        Integer("seconds", 0, U32_MAX),
        "10",
        "close a client whose command line is incomplete after this time; 0: never",
        |partial, given| set(&mut partial.serve.line_timeout_s, given.integer()),
    ),
    own(
        "block-timeout",
        Integer("seconds", 0, U32_MAX),
        "10",
        "close a client whose data block is incomplete after this time, plus 1 second for each 64 KiB \
         of it; 0: never",
        |partial, given| set(&mut partial.serve.block_timeout_s, given.integer()),
    ),
    own(
        "login-timeout",
        Integer("seconds", 0, U32_MAX),
        "10",
        "with -Y or -S, close a client that has not logged in after this time; 0: never. The time in \
         which a login waits because others have failed does not count",
        |partial, given| set(&mut partial.serve.login_timeout_s, given.integer()),
    ),
    own(
        "slack",
        Integer("us", 0, 1_000_000),
        "0",
        "a request may wait for this number of microseconds, so that a thread that sleeps wakes up \
         once for several requests; less processor time at low load",
        |partial, given| set(&mut partial.serve.slack_us, given.integer()),
    ),
    own(
        "reader-timeout",
        Integer("seconds", 0, U32_MAX),
        "60",
        "close a client that reads nothing of its replies for this time; 0: never",
        |partial, given| set(&mut partial.serve.reader_timeout_s, given.integer()),
    ),
    own(
        "pinned-percent",
        Integer("num", 0, 100),
        "25",
        "close the slowest readers of large values while values that are being sent pin more than \
         this share of -m; 0: never",
        |partial, given| set(&mut partial.serve.pinned_percent, given.integer()),
    ),
    // Leases, for clients that send lease-get and lease-set.
    own(
        "lease-seconds",
        Integer("seconds", 1, RELATIVE_S_MAX),
        "10",
        "how long the token of a lease is good; meanwhile no other client gets one for its key",
        |partial, given| set(&mut partial.serve.lease_s, given.integer()),
    ),
    own(
        "lease-stale-seconds",
        Integer("seconds", 0, RELATIVE_S_MAX),
        "60",
        "once a client has asked for a lease, how long deleted values are kept for leases; 0: not at \
         all",
        |partial, given| set(&mut partial.serve.lease_stale_s, given.integer()),
    ),
    own(
        "lease-stale-percent",
        Integer("num", 0, 100),
        "5",
        "deleted values that are kept for leases take at most this share of -m; 0: none are kept",
        |partial, given| set(&mut partial.serve.lease_stale_percent, given.integer()),
    ),
    works(
        ('W', "disable-watch"),
        Nothing,
        "on; called as memcached: off",
        "refuse the command \"watch\"",
        |partial, _| set(&mut partial.serve.watch_refused, true),
    ),
    works(
        ('D', ""),
        Text("char"),
        ":",
        "the character that ends the prefix of a key, for \"stats detail\"; enables counting",
        effects::prefix_delimiter,
    ),
    works(
        ('o', "extended"),
        Text("list"),
        "",
        "comma-separated list of more options; see below",
        effects::extended,
    ),
    // The process.
    own(
        "config",
        Text("file"),
        "",
        "read options from a TOML file, whose keys are the long names; options of the command line \
         count more",
        |_, _| Ok(()),
    ),
    own(
        "check",
        Nothing,
        "off",
        "check all options, and the files that they name, as the start does, but do not listen: ends \
         with status 0, or with 64 and a sentence",
        |partial, _| set(&mut partial.serve.checks_only, true),
    ),
    works(('d', "daemon"), Nothing, "off", "run in the background, once the server listens", {
        |partial, _| set(&mut partial.serve.daemon, true)
    }),
    works(
        ('u', "user"),
        Text("user"),
        "",
        "user to switch to when started by root; required under the name memcached",
        |partial, given| set(&mut partial.serve.user, Some(given.text().to_string())),
    ),
    works(
        ('P', "pidfile"),
        Text("file"),
        "",
        "file for the process ID; removed at the end only with -d",
        |partial, given| set(&mut partial.serve.pidfile, Some(PathBuf::from(given.text()))),
    ),
    works(
        ('Y', "auth-file"),
        Text("file"),
        "",
        "clients must log in as one of the users in this file, which has a line USER:PASSWORD for \
         each; SIGHUP reads it again. A login is a \"set\" of any key to the value \"USER PASSWORD\"",
        |partial, given| set(&mut partial.serve.auth_file, Some(PathBuf::from(given.text()))),
    ),
    works(
        ('S', "enable-sasl"),
        Nothing,
        "off",
        "clients speak the binary protocol and must log in by SASL (PLAIN, SCRAM-SHA-256); the \
         environment variable MEMCACHED_SASL_PWDB names the file of users. SIGHUP reads it again",
        |partial, _| set(&mut partial.serve.sasl, true),
    ),
    own(
        "sasl-mechanisms",
        Word(&["all", "plain", "scram-sha-256"]),
        "all",
        "how clients may log in with -S; clients with a libmemcached before 1.1 may need plain",
        |partial, given| {
            set(
                &mut partial.serve.sasl_mechanisms,
                match given.text() {
                    "plain" => SaslChoice::Plain,
                    "scram-sha-256" => SaslChoice::ScramSha256,
                    _ => SaslChoice::All,
                },
            )
        },
    ),
    works(
        ('e', "memory-file"),
        Text("file"),
        "",
        "SIGUSR1 saves all items to this file and ends the server; the next one with the same option \
         has them. It may have another -t, -m or -I. The file may be on a disk",
        |partial, given| set(&mut partial.serve.memory_file, Some(PathBuf::from(given.text()))),
    ),
    own(
        "drain",
        Integer("seconds", 0, U32_MAX),
        "0",
        "serve clients for this time after a signal that ends the server, while /ready of --admin \
         answers 503; a second signal ends the drain",
        |partial, given| set(&mut partial.serve.drain_s, given.integer()),
    ),
    works(('r', "enable-coredumps"), Nothing, "off", "allow core files after a crash", {
        |partial, _| set(&mut partial.serve.core_dumps, true)
    }),
    works(
        ('v', "verbose"),
        OptionalText("num"),
        "0",
        "log start, end, and clients that are refused or closed because they are slow; -vv: also each \
         connection; -vvv: also those that move to another core",
        |partial, _| {
            partial.serve.verbosity += 1;
            Ok(())
        },
    ),
    own(
        "log-format",
        Word(&["text", "json"]),
        "text",
        "lines of the log: text, or an object of JSON each, with time, level, message and other fields",
        |partial, given| match given.text() {
            "json" => set(&mut partial.serve.log_format, LogFormat::Json),
            _ => set(&mut partial.serve.log_format, LogFormat::Text),
        },
    ),
    answers(('h', "help"), Answer::Help, "this text"),
    answers(
        ('V', "version"),
        Answer::Version,
        "Kachel's version, and the memcached version that it replaces",
    ),
    answers(('i', "license"), Answer::License, "the licence"),
    // No meaning here.
    works(
        ('f', "slab-growth-factor"),
        Real("num", 1.0, f64::MAX),
        "1.25",
        "growth factor of the size classes of \"stats items\" and \"stats slabs\"",
        |partial, given| set(&mut partial.serve.echo.growth_factor, given.real()),
    ),
    works(
        ('n', "slab-min-size"),
        Integer("bytes", 1, I32_MAX),
        "48",
        "bytes of key and value in the first size class of \"stats items\"",
        |partial, given| set(&mut partial.serve.echo.chunk_size, given.integer()),
    ),
    no_meaning(
        ('N', "napi-ids"),
        Integer("num", 1, I32_MAX),
        "0",
        "connections are assigned to threads in another way",
        "choose threads by network queue",
        |partial, given| set(&mut partial.serve.echo.napi_ids, given.integer()),
    ),
    OptionRow {
        short: Some('Z'),
        long: "enable-ssl",
        takes: Nothing,
        default: "off",
        class: Class::NeedsTls,
        help: "TLS for clients of TCP listeners without the prefix notls:; needs -o ssl_chain_cert",
        effect: |partial, _| set(&mut partial.serve.tls.enabled, true),
    },
];

fn not_built(option: &str, word: &str, built: &str) -> OptionsError {
    OptionsError::new(EXIT_USAGE, format!("--{option}={word} is not built yet; use {built}."))
}
