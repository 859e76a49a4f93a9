//! Every option once: its names, what it takes, what it does here, and what memcached calls it.
//!
//! Upstream:   `kachel` hands over the words of the command line.
//! Downstream: `kachel` starts what the [`Command`] says; `shard` answers `stats settings` from
//!             [`ServeOptions::settings`]; `docs/options.md` is printed from the same table.
//!
//! Invariants:
//! - I1  An option stands in one row of one table (`table.rs`, `suboptions.rs`): its names, its
//!   value, its help and its effect. Help, manual and parser read that row.
//! - I2  An option that promises protection or durability and is not built is refused, never
//!   ignored.
//! - I3  An option that is accepted and has no effect leaves a sentence in
//!   [`ServeOptions::reports`].
#![forbid(unsafe_code)]

mod apply;
mod effects;
mod getopt;
mod listen;
mod manual;
mod partial;
mod row;
mod serve;
mod settings;
mod suboptions;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod value;

use std::ffi::{OsStr, OsString};
use std::fmt;

pub use listen::{Host, Listeners, Protocol, TcpListen, UnixListen};
pub use manual::manual;
pub use serve::{CalledAs, Echo, EngineMode, IoChoice, Reads, ServeOptions};

/// The memcached whose command line, replies and statistics are ours.
pub const MEMCACHED_VERSION: &str = "1.6.45";

/// Kachel's own version.
pub const KACHEL_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The environment variable that names the file into which the bound ports are written.
pub const PORT_FILE_ENV: &str = "MEMCACHED_PORT_FILENAME";

/// Most threads that `-t` may ask for: a shard each, and 4,096 partitions to share out.
pub const THREADS_MAX: u16 = 1024;

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Start the server.
    Serve(Box<ServeOptions>),
    /// Start the load generator with these words, which it reads itself.
    Load(Vec<OsString>),
    /// Print the text and exit 0.
    Help(String),
    /// Print the text and exit 0.
    Version(String),
    /// Print the text and exit 0.
    License(String),
}

/// Why the command line was not understood or not accepted: one or more sentences for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionsError {
    /// The sentences, without a final line end.
    pub message: String,
    /// What the process exits with: as memcached does where it refuses the same.
    pub exit_code: u8,
}

/// Exit code of a value that an option does not take, and of an unknown option.
pub(crate) const EXIT_FAILURE: u8 = 1;
/// Exit code of options that do not go together or are not built (`EX_USAGE` of sysexits.h).
pub(crate) const EXIT_USAGE: u8 = 64;
/// Exit code of what the system refuses, a bad listener among it (`EX_OSERR` of sysexits.h).
pub(crate) const EXIT_OS: u8 = 71;

impl OptionsError {
    pub(crate) fn new(exit_code: u8, message: impl Into<String>) -> Self {
        Self { message: message.into(), exit_code }
    }
}

impl fmt::Display for OptionsError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for OptionsError {}

/// Reads the words after the program's name; `called_as` is that name (`argv[0]`, with or without
/// path).
///
/// Called as `memcached` (or `memcached-anything`) the words are memcached's options and so are the
/// defaults; otherwise the first word is a subcommand. Words are read in order, as `getopt_long`
/// does, so `-h` answers before a mistake that stands after it.
///
/// Errors: an unknown option, a value it does not take, options that do not go together, or one
/// that is not built and may not be ignored (I2).
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
    match first.to_str() {
        Some("serve") => apply::serve(&utf8(args)?, called_as),
        Some("load") => Ok(Command::Load(args.collect())),
        Some("help" | "-h" | "--help") => Ok(Command::Help(text::subcommands())),
        Some("version" | "-V" | "--version") => Ok(Command::Version(text::version(called_as))),
        Some("license" | "-i" | "--license") => Ok(Command::License(text::license(called_as))),
        _ => Err(OptionsError::new(
            EXIT_USAGE,
            format!(
                "kachel: {} is no subcommand. There are `kachel serve` (which takes memcached's \
                 options) and `kachel load`; see `kachel --help`.",
                first.display()
            ),
        )),
    }
}

/// The words as text. Errors: one that is not UTF-8.
fn utf8(args: impl Iterator<Item = OsString>) -> Result<Vec<String>, OptionsError> {
    args.map(|word| {
        word.into_string().map_err(|word| {
            OptionsError::new(EXIT_FAILURE, format!("{} is not UTF-8", word.display()))
        })
    })
    .collect()
}
