//! Operations that the kernel keeps at the end of a ring.

use kachel_testkit::{is_usable, wait_until};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::kernel::{Refusal, refusing};
use crate::{noop, start};

/// IORING_REGISTER_SYNC_CANCEL (linux/io_uring.h).
const SYNC_CANCEL: u32 = 24;

/// Operations that cannot be cancelled keep their memory, and the server ends all the same.
#[test]
fn an_end_that_cancels_nothing_frees_nothing_and_says_so() {
    if !is_usable("uring") {
        return; // `is_usable` has said so.
    }
    let interrupted = Refusal {
        call: libc::SYS_io_uring_register,
        argument: Some((1, SYNC_CANCEL)),
        error: Errno::INTR,
    };
    let mut server = refusing(&[interrupted], || start(&["-t", "2", "--io=uring"]));
    assert_eq!(noop(&server), "MN\r\n");
    server.signal(Signal::TERM);
    let mut status = None;
    wait_until("the end", || {
        status = server.process.try_wait().expect("a child");
        status.is_some()
    });
    let said = server.last_words();
    assert!(status.is_some_and(|status| status.success()), "{status:?}: {said}");
    let line =
        "the kernel keeps operations after they were cancelled, so their memory is not freed";
    assert_eq!(said.matches(line).count(), 2, "{said}");
}
