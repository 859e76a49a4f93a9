//! A kernel that refuses some calls: a filter for one thread and everything that it starts.
//!
//! Upstream:   a test names calls, and the error that each returns.
//! Downstream: seccomp, whose filter is a program over `struct seccomp_data`.
//!
//! A filter cannot count. For a call that is refused from some number on, the filter asks a thread
//! of the test (`SECCOMP_RET_USER_NOTIF`).
//!
//! - K1  A filter applies to the thread that sets it, and to everything that it starts later, until
//!   they end. So it is set on a thread of its own.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// A call that is refused.
#[derive(Clone, Copy)]
pub(crate) struct Refusal {
    pub(crate) call: libc::c_long,
    /// Only with this value at this place, the low half of it; `None`: always.
    pub(crate) argument: Option<(u8, u32)>,
    pub(crate) error: Errno,
}

/// Offsets in `struct seccomp_data` (linux/seccomp.h).
const CALL_AT: u32 = 0;
const ARGUMENTS_AT: u32 = 16;
const ARGUMENT_BYTES: u32 = 8;

/// Instructions of a filter (linux/bpf_common.h).
const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const JUMP_UNLESS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// What `body` returns, which runs, and starts processes, on a kernel that refuses these calls.
pub(crate) fn refusing<T: Send>(refusals: &[Refusal], body: impl FnOnce() -> T + Send) -> T {
    let program = program(refusals);
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            install(&program, 0); // K1
            body()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs `body` on a kernel that grants this call `granted` times and then refuses it. That holds
/// for the processes that `body` starts, too. Returns the result of `body`.
pub(crate) fn refusing_after<T: Send>(
    call: libc::c_long,
    granted: u32,
    error: Errno,
    body: impl FnOnce() -> T + Send,
) -> T {
    let call = u32::try_from(call).expect("the number of a call");
    let program = [
        instruction(LOAD, CALL_AT, 0),
        instruction(JUMP_UNLESS, call, 1),
        instruction(RETURN, libc::SECCOMP_RET_USER_NOTIF, 0),
        instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0),
    ];
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let descriptor = install(&program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
            // SAFETY: the descriptor is new, and nothing else knows it.
            let questions = unsafe { OwnedFd::from_raw_fd(descriptor as i32) };
            let (over, ends) = std::io::pipe().expect("a pipe");
            let answering = scope.spawn(move || answer(&questions, &over, granted, error));
            let result = body(); // K1
            drop(ends);
            answering.join().expect("answers");
            result
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Answers whether the kernel shall carry a call out, until `over` is closed at its other end.
fn answer(questions: &OwnedFd, over: &std::io::PipeReader, granted: u32, error: Errno) {
    let mut left = granted;
    loop {
        let mut ready =
            [PollFd::new(questions, PollFlags::IN), PollFd::new(over, PollFlags::empty())];
        poll(&mut ready, None).expect("two descriptors");
        if !ready[0].revents().contains(PollFlags::IN) {
            return;
        }
        // SAFETY: all zeroes are valid: it holds integers only. The kernel demands zeroes.
        let mut question: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        let (fd, receive) = (questions.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV);
        // SAFETY: the kernel writes one question, for which there is room.
        if unsafe { libc::ioctl(fd, receive, &raw mut question) } != 0 {
            continue; // The process that asked has ended.
        }
        let grants = left > 0;
        left = left.saturating_sub(1);
        let mut reply = libc::seccomp_notif_resp {
            id: question.id,
            val: 0,
            error: if grants { 0 } else { -error.raw_os_error() },
            flags: if grants { libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32 } else { 0 },
        };
        // SAFETY: the kernel reads one reply.
        let _asker_has_ended =
            unsafe { libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut reply) };
    }
}

fn instruction(code: u32, k: u32, skip: u8) -> libc::sock_filter {
    libc::sock_filter { code: code.try_into().expect("16 bits"), jt: 0, jf: skip, k }
}

fn program(refusals: &[Refusal]) -> Vec<libc::sock_filter> {
    let mut program = Vec::new();
    for refusal in refusals {
        let call = u32::try_from(refusal.call).expect("the number of a call");
        let code = u32::try_from(refusal.error.raw_os_error()).expect("an error");
        let answer = instruction(RETURN, libc::SECCOMP_RET_ERRNO | code, 0);
        program.push(instruction(LOAD, CALL_AT, 0));
        match refusal.argument {
            None => program.extend([instruction(JUMP_UNLESS, call, 1), answer]),
            Some((place, value)) => program.extend([
                instruction(JUMP_UNLESS, call, 3),
                instruction(LOAD, ARGUMENTS_AT + ARGUMENT_BYTES * u32::from(place), 0),
                instruction(JUMP_UNLESS, value, 1),
                answer,
            ]),
        }
    }
    program.push(instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0));
    program
}

/// Sets the filter for the calling thread, for good. Returns the answer of the kernel: with
/// `SECCOMP_FILTER_FLAG_NEW_LISTENER`, a new descriptor.
fn install(program: &[libc::sock_filter], flags: libc::c_ulong) -> libc::c_long {
    rustix::thread::set_no_new_privs(true).expect("what a filter asks of who is not root");
    let program = libc::sock_fprog {
        len: program.len().try_into().expect("a short program"),
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY:
    // - `program` names as many instructions as there are, in memory that outlives the call.
    // - the kernel copies them and writes nothing.
    let set = unsafe {
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program)
    };
    assert!(set >= 0, "a filter: {}", std::io::Error::last_os_error());
    set
}
