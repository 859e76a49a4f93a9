//! What `kachel verify` and `kachel backup` have in common: their arguments, their exit statuses,
//! and a line about the progress once a second.
//!
//! Upstream:   `verify` and `backup`.
//! Downstream: standard error.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kachel_flash::StoreRefused;

const EXIT_USAGE: u8 = 64;
/// The pause between two lines.
const PAUSE: Duration = Duration::from_secs(1);

/// Reads the paths of a command. `Err`: how it ends, because there are others or help was asked
/// for.
pub(crate) fn paths<const COUNT: usize>(
    words: Vec<OsString>,
    usage: &str,
) -> Result<[PathBuf; COUNT], ExitCode> {
    if words.iter().any(|word| word == "-h" || word == "--help") {
        return Err(crate::print(usage));
    }
    let is_path = |word: &OsString| !word.is_empty() && !word.to_string_lossy().starts_with('-');
    if words.iter().all(is_path)
        && let Ok(words) = <[OsString; COUNT]>::try_from(words)
    {
        return Ok(words.map(PathBuf::from));
    }
    tell(usage.trim_end());
    Err(ExitCode::from(EXIT_USAGE))
}

/// Prints a line to standard error.
#[expect(clippy::print_stderr, reason = "the answer to a command is no line of the log")]
pub(crate) fn tell(line: &str) {
    eprintln!("{line}");
}

/// Prints why a command could not be carried out.
pub(crate) fn refuse(command: &str, path: &Path, why: &StoreRefused) -> ExitCode {
    let path = path.display();
    let hint = match why {
        StoreRefused::OtherEngine(_) => "; docs/persistence.md says what there is for rocksdb",
        StoreRefused::Open if command == "verify" => "; stop it, or verify a backup",
        _ => "",
    };
    match why {
        StoreRefused::OfFile(why) => tell(&format!("kachel {command}: {why}")),
        why => tell(&format!("kachel {command}: {path}: {why}{hint}")),
    }
    ExitCode::FAILURE
}

/// Allows a line a second.
#[derive(Debug)]
pub(crate) struct Pace(Mutex<Instant>);

impl Pace {
    /// The first line comes in a second.
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    /// Prints a line if it is time for one.
    pub(crate) fn tell(&self, line: impl FnOnce() -> String) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.elapsed() >= PAUSE {
            *told = Instant::now();
            tell(&line());
        }
    }
}

/// A number of bytes for people, rounded up.
pub(crate) const fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}
