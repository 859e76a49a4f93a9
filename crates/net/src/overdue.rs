//! Finds clients that have been too slow.
//!
//! Upstream:   `shard` sweeps once a second. If `wants_answer` is true, it first asks `io` how much
//!             the client has not acknowledged.
//! Downstream: `shard` closes the client, counts why, and has the operator told.
//!
//! Invariants:
//! - I1  `asked_sweep` is not before `active_sweep` exactly while `unacknowledged_bytes` can be
//!   compared: the kernel has taken nothing since it was asked.

use crate::connection::Connection;
use crate::limits::{ClientLimits, DATA_BYTES_PER_SECOND_MIN};
use crate::login::LOGIN_WAIT_SECONDS_MAX;

/// How often `shard` asks `io` about a client's reading within the time limit of the client. So a
/// client that stops reading is closed too late by at most this part of the limit. A guess.
const ASKED_PER_TIMEOUT: u32 = 4;

/// The limits that a slow client may exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooSlow {
    /// Its command line is not whole.
    Line,
    /// Its data block is not whole.
    Block,
    /// It has not logged in.
    Login,
    /// It has read nothing of its replies.
    Reader,
    /// It takes large values slowly while too much memory is pinned.
    Holder,
}

/// A client that must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// The limit that the client has exceeded.
    pub with: TooSlow,
    /// How long that has taken so far.
    pub seconds: u32,
}

impl Connection {
    /// Whether the client has exceeded a time limit at `sweep`, in logging in, in sending a request
    /// or in reading replies. The caller must call [`Self::wants_answer`] first.
    pub fn overdue(&self, sweep: u32, limits: &ClientLimits) -> Option<Overdue> {
        self.logged_out(sweep, limits)
            .or_else(|| self.unfinished(sweep, limits))
            .or_else(|| self.unread(sweep, limits))
    }

    /// Whether the login is late, or has waited too long for its turn.
    fn logged_out(&self, sweep: u32, limits: &ClientLimits) -> Option<Overdue> {
        let (seconds, waits_s) = self.login()?.seconds(sweep);
        let is_late = limits.login_s != 0 && seconds > limits.login_s;
        let is_late = is_late || waits_s > LOGIN_WAIT_SECONDS_MAX;
        is_late.then_some(Overdue { with: TooSlow::Login, seconds: seconds + waits_s })
    }

    /// Whether the request in progress is late.
    fn unfinished(&self, sweep: u32, limits: &ClientLimits) -> Option<Overdue> {
        let input = self.input();
        let since = input.waiting_since().filter(|_| !self.is_paused())?;
        let (with, limit_s) = match input.announced_bytes() {
            0 => (TooSlow::Line, limits.line_s),
            _ => (TooSlow::Block, limits.block_s),
        };
        let allowed_s = limit_s.saturating_add(input.announced_bytes() / DATA_BYTES_PER_SECOND_MIN);
        let seconds = sweep - since;
        (limit_s != 0 && seconds > allowed_s).then_some(Overdue { with, seconds })
    }

    /// Whether the client has read nothing of its replies for too long, as far as is known.
    fn unread(&self, sweep: u32, limits: &ClientLimits) -> Option<Overdue> {
        let seconds = sweep - self.active_sweep;
        let is_late =
            limits.reader_s != 0 && self.outbox().owed_bytes() > 0 && seconds > limits.reader_s;
        is_late.then_some(Overdue { with: TooSlow::Reader, seconds })
    }

    /// Whether `shard` must ask `io` now how many bytes the peer has not acknowledged. The kernel
    /// may take nothing for minutes while the client reads, because it waits until much of its
    /// buffers is free.
    ///
    /// `shard` asks once when the kernel has taken nothing for a second, to have a number to
    /// compare with. It asks again at each quarter of the time limit, and before it closes the
    /// client. So a client that has stopped reading may be closed a quarter of the limit late.
    pub fn wants_answer(&self, sweep: u32, limits: &ClientLimits) -> bool {
        if limits.reader_s == 0 || self.outbox().owed_bytes() == 0 {
            return false;
        }
        let (asked, interval) = if self.asked_sweep < self.active_sweep {
            (self.active_sweep, 1)
        } else {
            (self.asked_sweep, (limits.reader_s / ASKED_PER_TIMEOUT).max(1))
        };
        sweep - asked >= interval || self.unread(sweep, limits).is_some()
    }

    /// Notes the answer of `io`. If the number has changed since the last answer, the client has
    /// made progress now. The number mostly falls. It rises when the kernel takes more of a send
    /// that it reports as a whole.
    pub fn note_unacknowledged(&mut self, bytes: u64, sweep: u32) {
        debug_assert!(sweep > self.active_sweep && sweep > self.asked_sweep, "I1");
        if self.asked_sweep >= self.active_sweep && bytes != self.unacknowledged_bytes {
            self.active_sweep = sweep;
        }
        (self.asked_sweep, self.unacknowledged_bytes) = (sweep, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockPool, ConnectionIndex, EndpointIndex, Slots};
    use kachel_io::SocketId;

    const BEGIN: u32 = 5;

    /// A client that is owed a reply.
    fn owed() -> Connection {
        let mut open = Connection::new(SocketId::new(0, 1), EndpointIndex(0), BEGIN);
        let mut pool = BlockPool::new();
        open.outbox_mut().text(
            b"END\r\n",
            ConnectionIndex(0).into(),
            &mut pool,
            &mut Slots::<()>::new(),
        );
        open
    }

    /// Runs 200 seconds, in which `io` answers `bytes(second)`. Returns the seconds at which `io`
    /// is asked, and the second at which the client is overdue.
    fn run(reader_s: u32, bytes: impl Fn(u32) -> u64) -> (Vec<u32>, Option<u32>) {
        let limits = ClientLimits { reader_s, ..ClientLimits::default() };
        let mut open = owed();
        let mut asked = Vec::new();
        for second in 0..200 {
            let sweep = BEGIN + second;
            if open.wants_answer(sweep, &limits) {
                asked.push(second);
                open.note_unacknowledged(bytes(second), sweep);
            }
            if let Some(overdue) = open.overdue(sweep, &limits) {
                assert_eq!(overdue.with, TooSlow::Reader);
                return (asked, Some(second));
            }
        }
        (asked, None)
    }

    #[test]
    fn a_client_that_takes_nothing_is_asked_about_five_times_in_a_minute() {
        assert_eq!(run(60, |_| 7), (vec![1, 16, 31, 46, 61], Some(61)));
        assert_eq!(run(10, |_| 7), (vec![1, 3, 5, 7, 9, 11], Some(11)));
        assert_eq!(run(1, |_| 7), (vec![1, 2], Some(2)));
        assert_eq!(run(0, |_| 7), (vec![], None));
    }

    #[test]
    fn a_change_of_any_kind_is_progress() {
        assert_eq!(run(60, |second| 1_000 - u64::from(second)).1, None);
        assert_eq!(run(60, |second| u64::from(second / 50)).1, None);
        // Seen at second 31.
        assert_eq!(run(60, |second| u64::from(second > 16)).1, Some(31 + 61));
    }

    #[test]
    fn a_client_that_is_owed_nothing_is_not_asked_about() {
        let open = Connection::new(SocketId::new(0, 1), EndpointIndex(0), BEGIN);
        assert!(!open.wants_answer(BEGIN + 1_000, &ClientLimits::default()));
        assert_eq!(open.overdue(BEGIN + 1_000, &ClientLimits::default()), None);
    }

    #[test]
    fn a_block_has_a_second_more_for_each_64_kib_and_a_line_has_none() {
        let limits = ClientLimits { line_s: 3, block_s: 4, ..ClientLimits::default() };
        for (announced_bytes, with, last) in [
            (0, TooSlow::Line, 3),
            (1, TooSlow::Block, 4),
            (10 * DATA_BYTES_PER_SECOND_MIN, TooSlow::Block, 14),
        ] {
            let mut open = Connection::new(SocketId::new(0, 1), EndpointIndex(0), BEGIN);
            if announced_bytes > 0 {
                open.input_mut().note_announced(announced_bytes as usize);
            }
            open.input_mut().note_waiting(BEGIN);
            assert_eq!(open.overdue(BEGIN + last, &limits), None);
            let seconds = last + 1;
            assert_eq!(open.overdue(BEGIN + seconds, &limits), Some(Overdue { with, seconds }));
            let none = ClientLimits { line_s: 0, block_s: 0, ..limits };
            assert_eq!(open.overdue(u32::MAX, &none), None);
        }
    }
}
