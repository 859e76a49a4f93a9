//! A thread of another process that stands still.
//!
//! Upstream:   a test that names the thread.
//! Downstream: the kernel, by ptrace.

use std::io;
use std::ptr::{null_mut, without_provenance_mut};

use rustix::process::Pid;

/// New threads are traced as well.
const OPTIONS: usize = libc::PTRACE_O_TRACECLONE as usize;

/// A thread that stands still until this is dropped. The kernel wants that to happen on the thread
/// that has stopped it.
pub(crate) struct Stopped(libc::pid_t);

impl Stopped {
    /// Stops the thread with this number, of a child of this process, and waits until it stands
    /// still.
    ///
    /// Errors: the kernel does not allow it.
    pub(crate) fn new(thread: Pid) -> io::Result<Self> {
        let thread = thread.as_raw_pid();
        ptrace(libc::PTRACE_SEIZE, thread)?;
        ptrace(libc::PTRACE_INTERRUPT, thread)?;
        // SAFETY: the status may be null.
        let waited = unsafe { libc::waitpid(thread, null_mut(), libc::__WALL) };
        assert_eq!(waited, thread, "it was interrupted, so it stops");
        Ok(Self(thread))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        ptrace(libc::PTRACE_DETACH, self.0).expect("it stands still");
    }
}

/// The first thread of a program that stands still as soon as `has_come` is true after it has begun
/// another thread. `program` must be this process's child, and wait until `begin` lets it go on.
/// The kernel wants this to be dropped on the thread that has called.
///
/// Errors: the kernel does not allow it.
pub(crate) fn stopped_at_a_thread(
    program: Pid,
    begin: impl FnOnce(),
    has_come: impl Fn() -> bool,
) -> io::Result<Stopped> {
    let program = program.as_raw_pid();
    ptrace_with(libc::PTRACE_SEIZE, program, without_provenance_mut(OPTIONS))?;
    begin();
    loop {
        let status = wait_for(program);
        assert!(libc::WIFSTOPPED(status), "the program has ended: {status:#x}");
        if status >> 8 == libc::SIGTRAP | libc::PTRACE_EVENT_CLONE << 8 {
            let mut thread: libc::c_ulong = 0;
            ptrace_with(libc::PTRACE_GETEVENTMSG, program, (&raw mut thread).cast())?;
            let thread = libc::pid_t::try_from(thread).expect("the number of a thread");
            wait_for(thread); // It is traced as well, and stops before it begins.
            ptrace(libc::PTRACE_DETACH, thread)?;
            if has_come() {
                return Ok(Stopped(program));
            }
        }
        ptrace(libc::PTRACE_CONT, program)?;
    }
}

/// Waits until a thread stands still or has ended. Returns its status.
fn wait_for(thread: libc::pid_t) -> libc::c_int {
    let mut status = 0;
    // SAFETY: the status is a place of this function.
    let waited = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
    assert_eq!(waited, thread, "it is a child, or traced");
    status
}

/// A request without an address and without data.
fn ptrace(request: libc::c_uint, thread: libc::pid_t) -> io::Result<()> {
    ptrace_with(request, thread, null_mut())
}

/// A request without an address. `data` is options, or the place of a word for the answer.
fn ptrace_with(
    request: libc::c_uint,
    thread: libc::pid_t,
    data: *mut libc::c_void,
) -> io::Result<()> {
    let nothing = null_mut::<libc::c_void>();
    // SAFETY: these requests read and write no memory of this process, except the word at `data`.
    match unsafe { libc::ptrace(request, thread, nothing, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
