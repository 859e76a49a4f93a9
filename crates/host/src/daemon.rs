//! Leaving the terminal, without losing messages printed before the server listens.
//!
//! Upstream:   `kachel`, for `-d`, before there is a second thread.
//! Downstream: two forks and a new session between them.
//!
//! ```text
//! started by the shell      waits on a pipe: "ready" is exit 0, an end without it is exit 1
//!   +- leads a session      forks and is gone, so that no terminal ever becomes ours
//!        +- the server      returns from `leave_terminal`, says `ready` once it listens
//! ```
//!
//! Invariants:
//! - I1  The process has one thread when it forks: the child has that one only.

use std::fs::{self, File};
use std::io::{self, PipeWriter, Read, Write};

/// What the server owes the process that waits for it.
#[derive(Debug)]
pub struct Daemon {
    ready: PipeWriter,
    keep_output: bool,
}

/// Goes on as a process of its own, in its own session; the process that was started waits for
/// [`Daemon::ready`] and exits.
///
/// With `keep_folder` it stays in its folder (for core files), otherwise it goes to `/`. With
/// `keep_output` standard error stays where it is, even when ready.
///
/// Errors: out of processes. Panics: when there is a second thread (I1).
pub fn leave_terminal(keep_folder: bool, keep_output: bool) -> io::Result<Daemon> {
    let (mut wait, ready) = io::pipe()?;
    if fork()? {
        drop(ready);
        let mut said = [0u8; 1];
        let is_ready = wait.read_exact(&mut said).is_ok();
        std::process::exit(i32::from(!is_ready));
    }
    drop(wait);
    rustix::process::setsid()?;
    if fork()? {
        // The pipe stays open in the server alone, so that its end is the server's.
        std::process::exit(0);
    }
    if !keep_folder {
        rustix::process::chdir("/")?;
    }
    Ok(Daemon { ready, keep_output })
}

impl Daemon {
    /// Lets the process that waits exit 0, and gives up the terminal's input and output.
    ///
    /// Errors: `/dev/null` cannot be opened.
    pub fn ready(mut self) -> io::Result<()> {
        if !self.keep_output {
            let nothing = File::options().read(true).write(true).open("/dev/null")?;
            rustix::stdio::dup2_stdin(&nothing)?;
            rustix::stdio::dup2_stdout(&nothing)?;
            rustix::stdio::dup2_stderr(&nothing)?;
        }
        // The waiting process may have ended: then there is nothing to tell.
        let _told = self.ready.write_all(&[1]);
        Ok(())
    }
}

/// Forks; `true` in the parent.
fn fork() -> io::Result<bool> {
    let threads = fs::read_dir("/proc/self/task").map(Iterator::count);
    assert!(threads.as_ref().map_or(true, |count| *count == 1), "I1: {threads:?} threads");
    // SAFETY: the child has all of the process's threads (I1), so no lock is left held in it.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(false),
        _child => Ok(true),
    }
}
