//! When a listener must not accept: its owner closed it, there is no free slot, or `accept` failed
//! a moment ago because a resource ran out.
//!
//! Upstream:   `Io::listen_close` and the errors of `accept`.
//! Downstream: the kernel's backends watch a listener exactly while its hold is open, and shorten
//!             their wait to the next retry.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  After a shortage the backend does not watch the listener for `ACCEPT_RETRY_NS`. Otherwise
//!   a listener with waiting clients would end every wait at once.

use rustix::io::Errno;

use crate::clock::{Clock, SystemClock};
use crate::event::Wait;
use crate::limits::ACCEPT_RETRY_NS;

/// Why one listener does not accept.
#[derive(Debug, Default)]
pub(crate) struct AcceptHold {
    /// The owner has closed the listener for good.
    pub(crate) closed: bool,
    /// The time from which on the listener may accept again (I1).
    retry_ns: Option<u64>,
}

impl AcceptHold {
    /// Whether the listener may accept. `full` says that there is no slot for another connection.
    pub(crate) fn is_open(&mut self, full: bool) -> bool {
        if self.retry_ns.is_some_and(|retry_ns| SystemClock.now_ns() >= retry_ns) {
            self.retry_ns = None;
        }
        !self.closed && !full && self.retry_ns.is_none()
    }

    /// Begins the pause after a shortage.
    pub(crate) fn back_off(&mut self) {
        self.retry_ns = Some(SystemClock.now_ns() + ACCEPT_RETRY_NS); // I1
    }
}

/// Whether an error of `accept`, or of watching a listener, means that descriptors, memory or the
/// user's watches have run out, so that accepting the next client would fail, too.
pub(crate) fn is_shortage(error: Errno) -> bool {
    matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::NOSPC)
}

/// Shortens a wait so that it ends when the next listener is tried again.
pub(crate) fn until_retry<'hold>(
    wait: Wait,
    holds: impl Iterator<Item = &'hold AcceptHold>,
) -> Wait {
    let Some(retry_ns) = holds.filter_map(|hold| hold.retry_ns).min() else {
        return wait;
    };
    let left_ns = retry_ns.saturating_sub(SystemClock.now_ns());
    match wait {
        Wait::Now => Wait::Now,
        Wait::AtMostNs(ns) => Wait::AtMostNs(ns.min(left_ns)),
        Wait::Forever => Wait::AtMostNs(left_ns),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_closes_the_listener_and_bounds_the_wait() {
        let mut holds = [AcceptHold::default(), AcceptHold::default()];
        assert_eq!(until_retry(Wait::Forever, holds.iter()), Wait::Forever);
        holds[1].back_off();
        assert!(holds[0].is_open(false) && !holds[1].is_open(false));
        let Wait::AtMostNs(ns) = until_retry(Wait::Forever, holds.iter()) else { panic!() };
        assert!(ns <= ACCEPT_RETRY_NS);
        assert_eq!(until_retry(Wait::Now, holds.iter()), Wait::Now);
        assert_eq!(until_retry(Wait::AtMostNs(0), holds.iter()), Wait::AtMostNs(0));
    }

    #[test]
    fn a_full_table_or_its_owner_closes_it() {
        let mut hold = AcceptHold::default();
        assert!(hold.is_open(false) && !hold.is_open(true));
        hold.closed = true;
        assert!(!hold.is_open(false));
    }
}
