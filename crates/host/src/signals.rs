//! The signals that the process waits for.
//!
//! Upstream:   `kachel` makes one [`Signals`] before the first thread and waits on it.
//! Downstream: the signal mask, which new threads inherit, and a signalfd.
//!
//! Invariants:
//! - I1  The awaited signals are blocked in every thread, so that each goes to the descriptor.
//! - I2  SIGPIPE and SIGXFSZ are ignored: a client that went away is an error of `send`, and a file
//!   that may not grow (`ulimit -f`, `LimitFSIZE=`) is an error of `write`.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

/// A signal that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT: the process should end.
    Interrupt,
    /// SIGTERM: the process should end.
    Terminate,
    /// SIGHUP: the process should reload what it can reload.
    HangUp,
    /// SIGUSR1: the process should end, and save what it can save.
    User1,
}

impl Signal {
    /// The number of signals that are waited for.
    pub const COUNT: usize = AWAITED.len();
}

/// The name of the signal, as `kill` takes it.
impl fmt::Display for Signal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::HangUp => "SIGHUP",
            Self::User1 => "SIGUSR1",
        })
    }
}

const AWAITED: [(libc::c_int, Signal); 4] = [
    (libc::SIGINT, Signal::Interrupt),
    (libc::SIGTERM, Signal::Terminate),
    (libc::SIGHUP, Signal::HangUp),
    (libc::SIGUSR1, Signal::User1),
];

/// Where the awaited signals arrive.
#[derive(Debug)]
pub struct Signals {
    file: File,
}

impl Signals {
    /// Blocks the signals in this thread, and so in all threads that it starts, and opens the
    /// descriptor.
    ///
    /// The caller must call this before it starts the first thread (I1). Errors: out of
    /// descriptors.
    pub fn block() -> io::Result<Self> {
        let awaited = awaited_set();
        // SAFETY: `awaited` is a filled set, and the pointer for the old mask may be null.
        let failed =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const awaited, ptr::null_mut()) };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        // SAFETY: `awaited` is a filled set; -1 asks for a new descriptor.
        let descriptor = unsafe { libc::signalfd(-1, &raw const awaited, libc::SFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened for us, and nothing else knows it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(Self { file: descriptor.into() })
    }

    /// Waits until a signal arrives. Errors: none from which a process could recover.
    pub fn wait(&mut self) -> io::Result<Signal> {
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        self.file.read_exact(&mut info)?;
        // The number of the signal is the record's first word: signalfd(2).
        let number = u32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
        let found = AWAITED.iter().find(|(awaited, _)| u32::try_from(*awaited) == Ok(number));
        let Some((_, signal)) = found else {
            unreachable!("I1: signal {number} was not asked for");
        };
        Ok(*signal)
    }
}

impl Signals {
    /// Waits as [`Signals::wait`] does, for at most `time`. Returns `None` if no signal arrived.
    ///
    /// Errors: as `wait`.
    pub fn wait_at_most(&mut self, time: Duration) -> io::Result<Option<Signal>> {
        let time = Timespec::try_from(time).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        let mut readable = [PollFd::new(&self.file, PollFlags::IN)];
        // Interrupted only where a debugger does it; the time is then cut short.
        match rustix::event::poll(&mut readable, Some(&time)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(None),
            Ok(_) => self.wait().map(Some),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether a signal that ends the process has arrived and was not read yet: SIGINT, SIGTERM or
/// SIGUSR1. It stays for [`Signals::wait`]. Always false in a thread that does not block them (I1).
///
/// Cost: a system call.
pub fn is_end_pending() -> bool {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: there is room for a set.
    let failed = unsafe { libc::sigpending(set.as_mut_ptr()) };
    assert_eq!(failed, 0, "there is room for a set, which is the only error");
    // SAFETY: filled by the call above, which did not fail.
    let set = unsafe { set.assume_init() };
    AWAITED.iter().filter(|(_, signal)| *signal != Signal::HangUp).any(|(number, _)| {
        // SAFETY: `set` is a filled set, and the numbers are those of signals.
        (unsafe { libc::sigismember(&raw const set, *number) }) == 1
    })
}

/// Has a failed write be an error instead of a signal that ends the process (I2). The server calls
/// this first, before it prints a line.
pub fn ignore_signals_of_writes() {
    for number in [libc::SIGPIPE, libc::SIGXFSZ] {
        // SAFETY: SIG_IGN is no function, so nothing of ours runs in a handler.
        let before = unsafe { libc::signal(number, libc::SIG_IGN) };
        assert_ne!(before, libc::SIG_ERR, "signal {number} may be ignored");
    }
}

fn awaited_set() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: there is room for a set; the call fills all of it.
    let failed = unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    assert_eq!(failed, 0, "there is room for a set");
    // SAFETY: filled by the call above.
    let mut set = unsafe { set.assume_init() };
    for (number, _) in AWAITED {
        // SAFETY: `set` is a filled set, and the numbers are those of signals.
        let failed = unsafe { libc::sigaddset(&raw mut set, number) };
        assert_eq!(failed, 0, "the number of a signal");
    }
    set
}

/// Sends this process SIGTERM, as if from outside.
pub fn ask_to_terminate() {
    send_to_myself(rustix::process::Signal::TERM);
}

/// Sends this process SIGUSR1, as if from outside.
pub fn ask_to_save() {
    send_to_myself(rustix::process::Signal::USR1);
}

/// Sends this process SIGHUP, as if from outside.
pub fn ask_to_reload() {
    send_to_myself(rustix::process::Signal::HUP);
}

fn send_to_myself(signal: rustix::process::Signal) {
    let myself = rustix::process::getpid();
    let sent = rustix::process::kill_process(myself, signal);
    assert!(sent.is_ok(), "a process may send itself signals: {sent:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Raises a signal in the calling thread, which has it blocked. The threads of other tests do
    /// not block it (I1).
    fn raise(number: libc::c_int) {
        // SAFETY: takes a number and touches no memory of ours.
        assert_eq!(unsafe { libc::raise(number) }, 0);
    }

    #[test]
    fn blocked_signals_arrive_at_the_descriptor() {
        let waiter = std::thread::spawn(|| {
            let mut signals = Signals::block().expect("a descriptor");
            for (number, signal) in AWAITED {
                assert!(!is_end_pending(), "it was read");
                raise(number);
                for _ in 0..2 {
                    assert_eq!(is_end_pending(), signal != Signal::HangUp, "it is not read");
                }
                assert_eq!(signals.wait().expect("a signal"), signal);
            }
            assert_eq!(signals.wait_at_most(Duration::ZERO).expect("no error"), None);
            raise(libc::SIGHUP);
            let signal = signals.wait_at_most(Duration::from_secs(60)).expect("no error");
            assert_eq!(signal, Some(Signal::HangUp));
            ignore_signals_of_writes();
            raise(libc::SIGPIPE);
            raise(libc::SIGXFSZ);
        });
        waiter.join().expect("no panic, and no death by a signal of a write");
    }
}
