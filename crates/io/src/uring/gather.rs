//! A message header and its slices, where the kernel can read them while it sends or receives.
//!
//! Upstream:   `send` fills one from a `SendQueue` with several blocks, `receive` from a landing.
//! Downstream: the kernel, until the op completes; then it is filled anew.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  The header points into the same box, so it stays valid wherever the box is moved.

use std::io::IoSlice;

use kachel_stdx::{LANDING_SLICES_MAX, Landing};

use crate::limits::SEND_GATHER_MAX;
use crate::send_queue::SendQueue;

const _: () = assert!(LANDING_SLICES_MAX <= SEND_GATHER_MAX);

/// One gathered send, or one scattered receive.
pub(super) struct Gather {
    header: libc::msghdr,
    slices: [libc::iovec; SEND_GATHER_MAX],
}

impl Gather {
    /// An empty message.
    pub(super) fn new() -> Box<Self> {
        // SAFETY:
        // - all zeroes is a valid msghdr: it holds integers and nullable pointers only.
        let header = unsafe { std::mem::zeroed() };
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Box::new(Self { header, slices: [nothing; SEND_GATHER_MAX] })
    }

    /// Points to the unsent bytes of `sends`, up to the limit of one send. Returns their number.
    pub(super) fn fill(&mut self, sends: &SendQueue) -> usize {
        let mut slices = [IoSlice::new(&[]); SEND_GATHER_MAX];
        let count = sends.gather(&mut slices);
        let mut bytes = 0;
        for (target, source) in self.slices.iter_mut().zip(&slices[..count]) {
            bytes += source.len();
            *target =
                libc::iovec { iov_base: source.as_ptr().cast_mut().cast(), iov_len: source.len() };
        }
        self.header.msg_iov = self.slices.as_mut_ptr(); // I1
        self.header.msg_iovlen = count as _;
        bytes
    }

    /// Points to all memory of `landing`.
    pub(super) fn scatter(&mut self, landing: &mut Landing) {
        let (mut slices, count) = landing.slices();
        for (target, source) in self.slices.iter_mut().zip(&mut slices[..count]) {
            *target = libc::iovec { iov_base: source.as_mut_ptr().cast(), iov_len: source.len() };
        }
        self.header.msg_iov = self.slices.as_mut_ptr(); // I1
        self.header.msg_iovlen = count as _;
    }

    /// The argument of the system call, and the place for its result.
    pub(super) fn header_mut(&mut self) -> *mut libc::msghdr {
        &raw mut self.header
    }

    /// The argument of the system call.
    pub(super) fn header(&self) -> *const libc::msghdr {
        &raw const self.header
    }
}
