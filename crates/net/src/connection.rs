//! One client's connection: what it has sent and is not served yet, and what it is owed.
//!
//! Upstream:   `shard` hands over what `io` lent, and takes requests off the front.
//! Downstream: [`Input`], [`Outbox`].
//!
//! ```text
//!          pause(Reader | Listing | Answers)               resume, once may_resume
//! Nothing -----------------------------------> Reader, ... --------------------------> Nothing
//!    |                                            ^
//!    |   pause(Mailbox(shard))                    | mailbox_has_room
//!    +-----------------------------------> Mailbox(shard)
//!
//! Reading --(quit, lost frame, the process ends: drain)--> Draining --(all sent)--> closed
//! ```
//!
//! Invariants:
//! - I1  Requests are served only while the connection waits for nothing ([`Waiting::Nothing`]).
//!   What it receives meanwhile is added to its tail, and `io` is told to stop.
//! - I2  A connection that waits for a mailbox is in the list of that mailbox, and nothing else
//!   wakes it.
//! - I3  A connection stands in each list of its shard (dirty, resumable, ready) at most once: the
//!   mark here is set exactly while it stands there.
//! - I4  A listing, like an upload, runs at most once at a time.

use kachel_io::SocketId;

use crate::endpoint::EndpointIndex;
use crate::input::Input;
use crate::outbox::Outbox;

/// Whether requests are still read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Requests are read and answered.
    Reading,
    /// What is owed is sent, nothing more is read, then the connection closes.
    Draining,
}

/// What a connection's next request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Nothing: requests are served as they come.
    Nothing,
    /// Its client, which does not read its replies.
    Reader,
    /// The end of a listing of items that is being sent.
    Listing,
    /// The answers of other shards to all that was asked of them: room for a large value, or the
    /// requests before one about all shards.
    Answers,
    /// Room in the mailbox to this shard. The shard's own number stands for the queue of requests
    /// that its engine delays.
    Mailbox(u16),
}

/// A socket with its input and its outbox.
#[derive(Debug)]
pub struct Connection {
    socket: SocketId,
    endpoint: EndpointIndex,
    phase: Phase,
    waiting: Waiting,
    /// Whether `io` was told to stop receiving.
    receiving_stopped: bool,
    /// The marks of the shard's lists (I3).
    resumable: bool,
    dirty: bool,
    ready: Option<u32>,
    /// Whether a large value is being received.
    uploading: bool,
    /// Whether a listing of items is being sent (I4).
    listing: bool,
    /// Whether the peer has ended its side; what it sent before is still served.
    finished: bool,
    /// The number of the shard's sweep before the last request or the last progress in reading.
    pub(crate) active_sweep: u32,
    /// The sweep in which `io` last told what the peer has not acknowledged; 0: none yet.
    pub(crate) asked_sweep: u32,
    /// What `io` answered then.
    pub(crate) unacknowledged_bytes: u64,
    /// What has come in.
    input: Input,
    /// What is owed.
    outbox: Outbox,
}

impl Connection {
    /// A connection that came by `endpoint`, in `sweep`.
    pub(crate) const fn new(socket: SocketId, endpoint: EndpointIndex, sweep: u32) -> Self {
        Self {
            socket,
            endpoint,
            phase: Phase::Reading,
            waiting: Waiting::Nothing,
            receiving_stopped: false,
            resumable: false,
            dirty: false,
            ready: None,
            uploading: false,
            listing: false,
            finished: false,
            active_sweep: sweep,
            asked_sweep: 0,
            unacknowledged_bytes: 0,
            input: Input::new(),
            outbox: Outbox::new(),
        }
    }

    /// The socket, as `io` knows it.
    #[inline]
    pub const fn socket(&self) -> SocketId {
        self.socket
    }

    /// Where the connection came in.
    #[inline]
    pub const fn endpoint(&self) -> EndpointIndex {
        self.endpoint
    }

    /// What it has sent and is not served yet.
    #[inline]
    pub const fn input(&self) -> &Input {
        &self.input
    }

    /// The same, to be changed.
    #[inline]
    pub const fn input_mut(&mut self) -> &mut Input {
        &mut self.input
    }

    /// What it is owed.
    #[inline]
    pub const fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// The same, to be changed.
    #[inline]
    pub const fn outbox_mut(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Whether nothing more is read, and the connection closes once all is sent.
    #[inline]
    pub fn is_draining(&self) -> bool {
        self.phase == Phase::Draining
    }

    /// Reads nothing more from this client.
    pub fn drain(&mut self) {
        self.phase = Phase::Draining;
    }

    /// The client gave a sign of life in `sweep`: a request, or progress in reading.
    #[inline]
    pub fn note_active(&mut self, sweep: u32) {
        debug_assert!(sweep >= self.active_sweep, "sweeps are numbered upwards");
        self.active_sweep = sweep;
    }

    /// Bytes came from the client in `sweep`. While it is owed a reply only reading counts as a
    /// sign of life.
    #[inline]
    pub fn note_received(&mut self, sweep: u32) {
        if self.outbox.owed_bytes() == 0 {
            self.note_active(sweep);
        }
    }

    /// Looks since the last sign of life.
    pub fn idle_sweeps(&self, sweep: u32) -> u32 {
        debug_assert!(sweep >= self.active_sweep, "sweeps are numbered upwards");
        sweep - self.active_sweep
    }

    /// What the next request waits for.
    #[inline]
    pub const fn waiting(&self) -> Waiting {
        self.waiting
    }

    /// Whether the next request waits for something (I1).
    #[inline]
    pub fn is_paused(&self) -> bool {
        self.waiting != Waiting::Nothing
    }

    /// Has the next request wait; `true`: it did not wait before.
    ///
    /// Panics: for [`Waiting::Nothing`], which [`Self::resume`] brings about.
    pub fn pause(&mut self, waiting: Waiting) -> bool {
        assert!(waiting != Waiting::Nothing, "I1: a pause has a cause");
        assert!(!self.awaits_mailbox(), "I2: nothing is served that could have it wait again");
        let begins = !self.is_paused();
        self.waiting = waiting;
        begins
    }

    /// Whether it waits for room in a mailbox (I2).
    #[inline]
    pub const fn awaits_mailbox(&self) -> bool {
        matches!(self.waiting, Waiting::Mailbox(_))
    }

    /// The mailbox to `shard` has room; `false`: it does not wait for that one, because an earlier
    /// connection at its index did. From now on it waits like a connection whose client does not
    /// read, which it may go on from at once.
    pub fn mailbox_has_room(&mut self, shard: u16) -> bool {
        let awaited = self.waiting == Waiting::Mailbox(shard);
        if awaited {
            self.waiting = Waiting::Reader;
        }
        awaited
    }

    /// Whether what it waits for has come about.
    pub fn may_resume(&self) -> bool {
        let is_over = match self.waiting {
            Waiting::Nothing | Waiting::Mailbox(_) => false,
            Waiting::Reader | Waiting::Listing => !self.listing,
            Waiting::Answers => !self.listing && !self.outbox.awaits_answers(),
        };
        is_over && !self.is_full()
    }

    /// Serves requests again. Those that it waited for came late: the time of one that is not
    /// whole begins in this `sweep`.
    pub fn resume(&mut self, sweep: u32) {
        assert!(self.may_resume(), "I1: what it waited for has come about");
        self.waiting = Waiting::Nothing;
        self.input.wait_from(sweep);
    }

    /// Whether as much is owed and kept as may be.
    pub fn is_full(&self) -> bool {
        self.outbox.is_full(self.input.memory_bytes())
    }

    /// Stops or resumes receiving, as the connection is paused or not; what `io` must be told, if
    /// anything: `true` to stop.
    #[inline]
    pub fn set_receiving(&mut self) -> Option<bool> {
        let stop = self.is_paused();
        let changes = stop != std::mem::replace(&mut self.receiving_stopped, stop);
        changes.then_some(stop)
    }

    /// Whether `io` must be told to receive again, because the connection waits for nothing any
    /// more.
    #[inline]
    pub fn begin_receiving(&mut self) -> bool {
        let begins = self.receiving_stopped && !self.is_paused();
        if begins {
            self.receiving_stopped = false;
        }
        begins
    }

    /// Whether a large value is being received.
    #[inline]
    pub const fn is_uploading(&self) -> bool {
        self.uploading
    }

    /// A large value of this length begins to be received.
    pub fn begin_upload(&mut self, value_bytes: usize) {
        assert!(!self.uploading, "I4: one value is received at a time");
        self.uploading = true;
        self.input.begin_block(value_bytes);
    }

    /// The large value is whole, or refused.
    pub fn end_upload(&mut self) {
        assert!(self.uploading, "a value that ends has begun");
        self.uploading = false;
        self.input.end_block();
    }

    /// Whether what comes next is inside a data block.
    #[inline]
    pub const fn is_in_block(&self) -> bool {
        self.uploading || self.input.is_skipping()
    }

    /// Whether a landing may be lent to `io` for what comes next: a value is being received, and
    /// nothing that came before is unread.
    pub fn may_land(&self) -> bool {
        self.uploading
            && self.phase == Phase::Reading
            && !(self.is_paused() || self.finished)
            && self.ready.is_none()
            && self.input.is_empty()
    }

    /// Whether a listing of items is being sent.
    #[inline]
    pub const fn is_listing(&self) -> bool {
        self.listing
    }

    /// A listing of items begins.
    pub fn begin_listing(&mut self) {
        assert!(!self.listing, "I4: one listing is sent at a time");
        self.listing = true;
    }

    /// The listing is complete.
    pub fn end_listing(&mut self) {
        assert!(self.listing, "a listing that ends has begun");
        self.listing = false;
    }

    /// Whether the peer has ended its side.
    #[inline]
    pub const fn is_finished(&self) -> bool {
        self.finished
    }

    /// The peer has ended its side.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// Whether the peer has ended its side and all that it sent is served.
    #[inline]
    pub fn is_served(&self) -> bool {
        self.finished && !self.is_paused() && !self.listing && self.ready.is_none()
    }

    /// Its place among the connections that are served in this tick.
    #[inline]
    pub const fn ready(&self) -> Option<u32> {
        self.ready
    }

    /// It stands among the connections that are served in this tick (I3).
    #[inline]
    pub fn set_ready(&mut self, place: u32) {
        assert!(self.ready.is_none(), "I3: it is served once a tick");
        self.ready = Some(place);
    }

    /// It was served.
    #[inline]
    pub fn clear_ready(&mut self) {
        self.ready = None;
    }

    /// Marks it as listed among those to send to; `false`: it was already (I3).
    #[inline]
    pub fn mark_dirty(&mut self) -> bool {
        !std::mem::replace(&mut self.dirty, true)
    }

    /// It was taken off that list; `false`: an earlier connection at its index stood there.
    #[inline]
    pub fn clear_dirty(&mut self) -> bool {
        std::mem::take(&mut self.dirty)
    }

    /// Marks it as listed among those to serve again; `false`: it was already (I3).
    #[inline]
    pub fn mark_resumable(&mut self) -> bool {
        debug_assert!(!self.awaits_mailbox(), "I2: a mailbox alone wakes it");
        !std::mem::replace(&mut self.resumable, true)
    }

    /// It was taken off that list.
    #[inline]
    pub fn clear_resumable(&mut self) {
        self.resumable = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AnswerRoom, BlockPool, ConnectionIndex, Slots};

    const NOW: u32 = 5;

    fn fresh() -> Connection {
        Connection::new(SocketId::new(0, 1), EndpointIndex(0), NOW)
    }

    #[test]
    fn each_wait_ends_with_its_own_cause() {
        let mut open = fresh();
        assert!(!open.is_paused() && !open.may_resume(), "nothing is waited for");

        assert!(open.pause(Waiting::Reader));
        assert!(!open.pause(Waiting::Reader), "it waited before");
        assert!(open.may_resume(), "nothing is owed any more");
        open.resume(NOW);
        assert_eq!(open.waiting(), Waiting::Nothing);

        open.begin_listing();
        open.pause(Waiting::Listing);
        assert!(!open.may_resume());
        open.end_listing();
        assert!(open.may_resume());
        open.resume(NOW);

        let mut slots = Slots::<()>::new();
        let answers = (1, AnswerRoom::default());
        let slot = open.outbox.await_answers(answers, ConnectionIndex(0), &mut slots);
        open.pause(Waiting::Answers);
        assert!(!open.may_resume());
        open.outbox.answered(slot, 0, &mut slots);
        assert!(open.may_resume());
        open.resume(NOW);

        assert!(open.pause(Waiting::Mailbox(3)));
        assert!(open.awaits_mailbox() && !open.may_resume(), "the mailbox alone wakes it");
        assert!(!open.mailbox_has_room(2), "it waits for another one");
        assert!(open.mailbox_has_room(3));
        assert!(!open.mailbox_has_room(3), "it waits for none");
        assert!(open.is_paused() && open.may_resume());
    }

    #[test]
    #[should_panic(expected = "I2: nothing is served")]
    fn a_connection_that_waits_for_a_mailbox_is_not_paused_again() {
        let mut open = fresh();
        open.pause(Waiting::Mailbox(1));
        open.pause(Waiting::Reader);
    }

    #[test]
    #[should_panic(expected = "I1: what it waited for")]
    fn a_connection_is_not_resumed_before_its_time() {
        let mut open = fresh();
        open.begin_listing();
        open.pause(Waiting::Listing);
        open.resume(NOW);
    }

    #[test]
    #[should_panic(expected = "I3: it is served once a tick")]
    fn a_connection_is_ready_once() {
        let mut open = fresh();
        open.set_ready(0);
        open.set_ready(1);
    }

    #[test]
    fn receiving_stops_while_it_is_paused() {
        let mut open = fresh();
        assert_eq!(open.set_receiving(), None);
        open.pause(Waiting::Reader);
        assert_eq!(open.set_receiving(), Some(true));
        assert!(open.set_receiving().is_none() && !open.begin_receiving());
        open.resume(NOW);
        assert!(open.begin_receiving());
        assert!(!open.begin_receiving() && open.set_receiving().is_none());
    }

    #[test]
    fn a_landing_is_lent_only_where_nothing_is_unread() {
        let mut open = fresh();
        assert!(!open.may_land(), "no value comes");
        open.begin_upload(100_000);
        assert!(open.may_land() && open.is_in_block());
        open.input.append(b"x", Vec::new);
        assert!(!open.may_land(), "a byte is unread");
        open.input.clear();
        open.pause(Waiting::Answers);
        assert!(!open.may_land(), "it is paused");
        open.resume(NOW);
        open.finish();
        assert!(!open.may_land(), "its peer has ended its side");
        open.end_upload();
        assert!(!open.is_in_block() && open.is_served());
    }

    #[test]
    fn while_a_reply_is_owed_only_reading_is_a_sign_of_life() {
        let mut open = fresh();
        open.note_received(NOW + 3);
        assert_eq!(open.idle_sweeps(NOW + 3), 0);
        let (mut blocks, mut slots) = (BlockPool::new(), Slots::<()>::new());
        open.outbox.text(b"END\r\n", ConnectionIndex(0), &mut blocks, &mut slots);
        open.note_received(NOW + 9);
        assert_eq!(open.idle_sweeps(NOW + 9), 6);
        open.note_active(NOW + 9);
        assert_eq!(open.idle_sweeps(NOW + 9), 0);
    }

    #[test]
    fn marks_say_whether_it_was_listed_before() {
        let mut open = fresh();
        assert!(open.mark_dirty() && !open.mark_dirty());
        assert!(open.clear_dirty() && !open.clear_dirty());
        assert!(open.mark_dirty());
        assert!(open.mark_resumable() && !open.mark_resumable());
        open.clear_resumable();
        assert!(open.mark_resumable());
    }
}
