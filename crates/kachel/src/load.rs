//! `kachel load`: executes the `kachel-lab` in the folder of this binary.
//!
//! Upstream:   `main`, with the arguments after `load`.
//! Downstream: `kachel-lab load`, which replaces this process by `exec`.
//!
//! The load generator is a separate binary, so the server has none of its dependencies.
//!
//! Invariants:
//! - I1  The arguments are passed on unchanged.
//! - I2  `run` returns only if `kachel-lab` could not be executed.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// The binary with the load generator. It is in the folder of this binary, links resolved.
const LAB: &str = "kachel-lab";

/// `EX_UNAVAILABLE` of sysexits.h: a required program is missing.
const EXIT_UNAVAILABLE: u8 = 69;

/// Executes `kachel-lab load` with `words` (I1). If that fails, prints the reason in one sentence
/// and returns (I2).
#[expect(clippy::print_stderr, reason = "the refusal of a command is no line of the log")]
pub(crate) fn run(words: Vec<OsString>) -> ExitCode {
    let sentence = match std::env::current_exe() {
        Ok(own) => {
            let lab = own.with_file_name(LAB);
            let error = Command::new(&lab).arg("load").args(words).exec();
            refusal(&lab, &error)
        }
        Err(error) => format!("the folder of this program is unknown: {error}"),
    };
    eprintln!("kachel load: {sentence}");
    ExitCode::from(EXIT_UNAVAILABLE)
}

/// The reason why `lab` was not executed.
fn refusal(lab: &Path, error: &io::Error) -> String {
    let lab = lab.display();
    if error.kind() == io::ErrorKind::NotFound {
        format!("there is no {lab}; `cargo build --release -p {LAB}` builds it")
    } else {
        format!("{lab} cannot be executed: {error}")
    }
}
