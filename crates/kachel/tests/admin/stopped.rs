//! A thread of another process that stands still.
//!
//! Upstream:   a test that names the thread.
//! Downstream: the kernel, by ptrace.

use std::io;

use rustix::process::Pid;

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
        let waited = unsafe { libc::waitpid(thread, std::ptr::null_mut(), libc::__WALL) };
        assert_eq!(waited, thread, "it was interrupted, so it stops");
        Ok(Self(thread))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        ptrace(libc::PTRACE_DETACH, self.0).expect("it stands still");
    }
}

/// A request without an address and without data.
fn ptrace(request: libc::c_uint, thread: libc::pid_t) -> io::Result<()> {
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: these requests read and write no memory of this process.
    match unsafe { libc::ptrace(request, thread, nothing, nothing) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
