//! A kernel that refuses some calls: a filter for one thread and everything that it starts.
//!
//! Upstream:   a test names calls, and the error that each returns.
//! Downstream: seccomp, whose filter is a program over `struct seccomp_data`.
//!
//! - K1  A filter applies to the thread that sets it, and to everything that it starts later, until
//!   they end. So it is set on a thread of its own.

/// A call that is refused.
#[derive(Clone, Copy)]
pub(crate) struct Refusal {
    pub(crate) call: libc::c_long,
    /// Only with this value at this place, the low half of it; `None`: always.
    pub(crate) argument: Option<(u8, u32)>,
    pub(crate) error: rustix::io::Errno,
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
            install(&program); // K1
            body()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn program(refusals: &[Refusal]) -> Vec<libc::sock_filter> {
    let instruction = |code: u32, k: u32, skip: u8| libc::sock_filter {
        code: code.try_into().expect("16 bits"),
        jt: 0,
        jf: skip,
        k,
    };
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

/// Sets the filter for the calling thread, for good.
fn install(program: &[libc::sock_filter]) {
    rustix::thread::set_no_new_privs(true).expect("what a filter asks of who is not root");
    let program = libc::sock_fprog {
        len: program.len().try_into().expect("a short program"),
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY:
    // - `program` names as many instructions as there are, in memory that outlives the call.
    // - the kernel copies them and writes nothing.
    let set =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(set, 0, "a filter: {}", std::io::Error::last_os_error());
}
