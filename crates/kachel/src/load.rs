//! `kachel load`: becomes the `kachel-lab` that lies beside this binary.
//!
//! Upstream:   `main`, with the arguments after `load`.
//! Downstream: `kachel-lab load`, which takes this process over by `exec`.
//!
//! The load generator is a binary of its own, so the server carries none of its dependencies.
//!
//! Invariants:
//! - I1  The arguments are passed on unread.
//! - I2  `run` returns only when there is no `kachel-lab` that could be executed.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// The binary with the load generator. It lies in the folder of this one, links resolved.
const LAB: &str = "kachel-lab";

/// `EX_UNAVAILABLE` of sysexits.h: a program that is needed is not there.
const EXIT_UNAVAILABLE: u8 = 69;

/// Executes `kachel-lab load` with `words` (I1). Returns when that fails (I2), after it has printed
/// one sentence that says why.
pub(crate) fn run(words: Vec<OsString>) -> ExitCode {
    let sentence = match std::env::current_exe() {
        Ok(own) => {
            let lab = own.with_file_name(LAB);
            let error = Command::new(&lab).arg("load").args(words).exec();
            refusal(&lab, &error)
        }
        Err(error) => format!("the folder of this program is not known: {error}"),
    };
    eprintln!("kachel load: {sentence}");
    ExitCode::from(EXIT_UNAVAILABLE)
}

/// Why `lab` was not executed.
fn refusal(lab: &Path, error: &io::Error) -> String {
    let lab = lab.display();
    if error.kind() == io::ErrorKind::NotFound {
        format!("there is no {lab}; `cargo build --release -p {LAB}` builds it")
    } else {
        format!("{lab} cannot be executed: {error}")
    }
}
