//! Leaving the terminal, without losing messages printed before the server listens.
//!
//! Upstream:   `kachel`, for `-d`, before there is a second thread.
//! Downstream: two forks and a new session between them.
//!
//! ```text
//! started by the shell      waits on a pipe: "ready" is exit 0, an end without it is exit 1
//!   +- leads a session      forks and exits, so that the server can never gain a terminal
//!        +- the server      returns from `leave_terminal`, calls `ready` once it listens
//! ```
//!
//! Invariants:
//! - I1  The process has one thread when it forks, because the child has only that thread.

use std::fs::{self, File};
use std::io::{self, PipeWriter, Read, Write};

/// The server's connection to the process that waits until the server is ready.
#[derive(Debug)]
pub struct Daemon {
    ready: PipeWriter,
    /// `/dev/null`, which takes the place of its input and output; `None` if these are kept.
    nothing: Option<File>,
}

/// Continues in a new process, in its own session. The process that was started waits for
/// [`Daemon::ready`] and exits.
///
/// With `keep_folder` the new process stays in its folder (for core files), otherwise it changes to
/// `/`. With `keep_output`, [`Daemon::ready`] does not redirect its input and output.
///
/// Errors: out of processes, or `/dev/null` cannot be opened. Panics: when there is a second thread
/// (I1).
pub fn leave_terminal(keep_folder: bool, keep_output: bool) -> io::Result<Daemon> {
    let open = || File::options().read(true).write(true).open("/dev/null");
    let nothing = (!keep_output).then(open).transpose()?;
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
        // Then only the server has the pipe open, so the pipe ends when the server ends.
        std::process::exit(0);
    }
    if !keep_folder {
        rustix::process::chdir("/")?;
    }
    Ok(Daemon { ready, nothing })
}

impl Daemon {
    /// Lets the waiting process exit with 0, and gives up the terminal's input and output.
    pub fn ready(mut self) {
        if let Some(nothing) = &self.nothing {
            let given_up = rustix::stdio::dup2_stdin(nothing)
                .and_then(|()| rustix::stdio::dup2_stdout(nothing))
                .and_then(|()| rustix::stdio::dup2_stderr(nothing));
            assert!(given_up.is_ok(), "an open file replaces another: {given_up:?}");
        }
        // It fails if the waiting process has ended, and then no process needs the message.
        let _told = self.ready.write_all(&[1]);
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
