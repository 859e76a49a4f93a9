//! Every option once: its names, its values, its effect here, and memcached's name for it.
//!
//! Upstream:   `kachel` passes the arguments of the command line.
//! Downstream: `kachel` executes the [`Command`]; `shard` answers `stats settings` from
//!             [`ServeOptions::settings`]; `docs/options.md`, `packaging/kachel.toml`, man pages
//!             and completions are printed from the same tables.
//!
//! Invariants:
//! - I1  An option has one row in one table (`table.rs`, `suboptions.rs`): its names, value, help
//!   and effect. Help, manual and parser read that row.
//! - I2  An option that promises protection or durability and is not built is refused, never
//!   ignored.
//! - I3  An option that is accepted without effect adds a sentence to
//!   [`ServeOptions::reports`].
#![forbid(unsafe_code)]

mod admin;
mod apply;
mod data;
mod effects;
mod file;
mod getopt;
mod listen;
mod manual;
mod options_file;
mod partial;
mod row;
mod serve;
mod settings;
mod roles;
mod shard_ports;
mod suboptions;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod tls;
mod tls_rows;
mod value;

use std::ffi::{OsStr, OsString};
use std::fmt;

pub use admin::{AdminListen, AdminOptions};
pub use data::{DataOptions, ENGINE_SPACE_BYTES_MIN, SyncChoice};
pub use listen::{Host, IpListen, Listeners, Protocol, UnixListen};
pub use manual::{Shown, example_file, manual, options_shown, suboptions_shown};
pub use options_file::OptionsFile;
pub use serve::{
    CalledAs, CoreChoice, Echo, EngineMode, FlushPrefixAccess, IoChoice, PipeChoice, Reads, Roles,
    SaslChoice, ServeOptions, Udp,
};
pub use tls::{ListenTls, TlsOptions};

/// The version of memcached whose command line, replies and statistics Kachel reproduces.
pub const MEMCACHED_VERSION: &str = "1.6.45";

/// Kachel's own version.
pub const KACHEL_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Whether the server is built with TLS.
pub const HAS_TLS: bool = cfg!(feature = "tls");

/// The environment variable with the name of the file for the bound ports.
pub const PORT_FILE_ENV: &str = "MEMCACHED_PORT_FILENAME";

/// The environment variable with the name of the file of users for `-S`.
pub const SASL_FILE_ENV: &str = "MEMCACHED_SASL_PWDB";

/// The environment variable that lets clients move the clock on (`debugtime`). For tests.
pub const TEST_TIME_ENV: &str = "KACHEL_TEST_TIME";

/// The environment variable with the number of engines, if they must not be as many as the threads
/// with keys. For tests: items in memory gain nothing by another number.
pub const TEST_ENGINES_ENV: &str = "KACHEL_TEST_ENGINES";

/// The environment variable with the file of the library that stands in for RocksDB. For tests.
pub const TEST_ROCKSDB_ENV: &str = "KACHEL_TEST_ROCKSDB";

/// Largest value of `--udp-reply-datagrams`. The server keeps a reply in memory until it is whole.
pub const UDP_REPLY_DATAGRAMS_MAX: u16 = 16;

/// Largest value of `-t`. Each thread is a shard, and the shards share 4,096 partitions.
pub const THREADS_MAX: u16 = 1024;

/// The command of a command line.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Start the server.
    Serve(Box<ServeOptions>),
    /// Start the load generator with these arguments, which it parses itself.
    Load(Vec<OsString>),
    /// Ask a server whether it answers, with these arguments.
    Probe(Vec<OsString>),
    /// Show the state of a server in a terminal, with these arguments.
    Top(Vec<OsString>),
    /// Verify the files of a data directory, with these arguments.
    Verify(Vec<OsString>),
    /// Copy a data directory, with these arguments.
    Backup(Vec<OsString>),
    /// Print the text and exit 0.
    Help(String),
    /// Print the text and exit 0.
    Version(String),
    /// Print the text and exit 0.
    License(String),
}

/// Why the command line was refused: one or more sentences for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionsError {
    /// The sentences, without a final line end.
    pub message: String,
    /// The exit code of the process. Under the name memcached it is that of memcached if memcached
    /// refuses the same; otherwise it is 64, which tells a service manager not to try again, or 71
    /// for a file of options that may be readable later.
    pub exit_code: u8,
    /// Whether a start may succeed later although the operator changes nothing.
    may_pass: bool,
}

/// memcached's exit code for a bad value and for an unknown option.
pub(crate) const EXIT_FAILURE: u8 = 1;
/// Exit code for options that exclude each other or are not built (`EX_USAGE` of sysexits.h).
pub(crate) const EXIT_USAGE: u8 = 64;
/// memcached's exit code for a bad listener (`EX_OSERR` of sysexits.h).
pub(crate) const EXIT_OS: u8 = 71;

impl OptionsError {
    pub(crate) fn new(exit_code: u8, message: impl Into<String>) -> Self {
        Self { message: message.into(), exit_code, may_pass: false }
    }

    /// An obstacle that may pass, also for a server that is called as memcached.
    pub(crate) fn passing(message: impl Into<String>) -> Self {
        Self { message: message.into(), exit_code: EXIT_OS, may_pass: true }
    }

    /// The same error as wrong usage, which stays until the operator corrects it.
    pub(crate) fn into_usage(self) -> Self {
        Self::new(EXIT_USAGE, self.message)
    }
}

impl fmt::Display for OptionsError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for OptionsError {}

/// Reads the arguments after the program's name; `called_as` is that name (`argv[0]`, with or
/// without path).
///
/// Under the name `memcached` (or `memcached-anything`), arguments and defaults are memcached's;
/// otherwise the first argument is a subcommand. Arguments are read in order, as in `getopt_long`,
/// so `-h` prints help even if a later argument is wrong.
///
/// Errors: an unknown option, a bad value, options that exclude each other, or an option that is
/// not built and must not be ignored (I2).
pub fn parse(
    args: impl IntoIterator<Item = OsString>,
    called_as: &OsStr,
) -> Result<Command, OptionsError> {
    let mut args = args.into_iter();
    let called_as = CalledAs::of(called_as);
    if called_as == CalledAs::Memcached {
        return apply::serve(&utf8(args)?, called_as);
    }
    let Some(first) = args.next() else {
        return Ok(Command::Help(text::subcommands()));
    };
    subcommand(&first, args)
        .map_err(|error| if error.may_pass { error } else { error.into_usage() })
}

/// Reads the arguments of a subcommand.
fn subcommand(
    first: &OsStr,
    args: impl Iterator<Item = OsString>,
) -> Result<Command, OptionsError> {
    let called_as = CalledAs::Kachel;
    match first.to_str() {
        Some("serve") => apply::serve(&utf8(args)?, called_as),
        Some("check-config") => check_config(&utf8(args)?),
        Some("load") => Ok(Command::Load(args.collect())),
        Some("probe") => Ok(Command::Probe(args.collect())),
        Some("top") => Ok(Command::Top(args.collect())),
        Some("verify") => Ok(Command::Verify(args.collect())),
        Some("backup") => Ok(Command::Backup(args.collect())),
        Some("help" | "-h" | "--help") => Ok(Command::Help(text::subcommands())),
        Some("version" | "-V" | "--version") => Ok(Command::Version(text::version(called_as))),
        Some("license" | "-i" | "--license") => Ok(Command::License(text::license(called_as))),
        _ => Err(OptionsError::new(
            EXIT_USAGE,
            format!(
                "kachel: {} is not a subcommand. Use `kachel serve` (which takes memcached's options) \
                 or `kachel load`; see `kachel --help`.",
                first.display()
            ),
        )),
    }
}

/// Reads the text of a file of options, as `kachel serve --config FILE` does.
///
/// Errors: those of [`parse`], about a file called `name`; also a text that is not TOML, and a key
/// that is no option.
pub fn parse_file(name: &str, text: &str) -> Result<Command, OptionsError> {
    let file = OptionsFile::parse(name, text)?;
    apply::serve_with(Some(file), &[], CalledAs::Kachel)
}

/// Reads the arguments of `kachel check-config`, which checks what a server with this file would
/// need.
fn check_config(words: &[String]) -> Result<Command, OptionsError> {
    match words {
        [path] if !path.starts_with('-') => {
            let words = [&format!("--config={path}"), "--check"].map(String::from);
            apply::serve(&words, CalledAs::Kachel)
        }
        _ => Err(OptionsError::new(EXIT_USAGE, "usage: kachel check-config FILE")),
    }
}

/// The arguments as text. Errors: one that is not UTF-8.
fn utf8(args: impl Iterator<Item = OsString>) -> Result<Vec<String>, OptionsError> {
    args.map(|word| {
        word.into_string().map_err(|word| {
            OptionsError::new(EXIT_FAILURE, format!("{} is not UTF-8", word.display()))
        })
    })
    .collect()
}
