//! The rings between two shards, and the side queues for what does not fit a ring.
//!
//! Upstream:   `send` pushes requests to other shards, and answers to their requests.
//! Downstream: `mail` of the other shard takes the records, once per tick; `record` defines their
//!             form.
//!
//! ```text
//!            requests ring  A -> B   (see `record`)
//!  shard A   answers  ring  A <- B                         shard B
//!            side queue of requests  A -> B   (uploads and sockets, which are no bytes)
//!            side queue of answers   A <- B   (pinned large values)
//! ```
//!
//! Invariants:
//! - I1  Records of one ring are taken in the order in which they were pushed. The same holds for
//!   the entries of its side queue. A record that refers to an entry is published after the entry
//!   was pushed. Each ring has a side queue of its own, because records of the two rings to one
//!   shard are not taken in a common order.
//! - I2  Answers are always taken, so an answer ring always drains. Requests wait while the answer
//!   ring has no room. So two shards never wait for each other.
//! - I3  Published records wake a sleeping receiver once.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use kachel_engine::Engine;
use kachel_io::Waker;
use kachel_net::ConnectionIndex;
use kachel_stdx::{Consumer, Producer, Sleeper, byte_ring};

use crate::reply::LargeValue;

/// Bytes of all rings of one shard together, before each is clamped.
const RING_BYTES_PER_SHARD: usize = 1 << 20;
/// The smallest ring. It has room for two of the largest records.
const RING_BYTES_MIN: usize = 64 * 1024;
/// The largest ring.
const RING_BYTES_MAX: usize = 256 * 1024;

/// Entries that a side queue has room for from its first entry on, so that it seldom allocates.
const SIDE_QUEUE_ENTRIES: usize = 32;

/// What a request carries in the side queue: a value too large for the ring, or a socket.
#[derive(Debug)]
pub(crate) enum Parcel<U> {
    /// A large value, received whole.
    Upload(U),
    /// A client's socket.
    Socket(OwnedFd),
}

/// The side queue of a ring. Both shards hold it.
#[derive(Debug)]
pub(crate) struct SideQueue<T>(Arc<Mutex<VecDeque<T>>>);

impl<T> SideQueue<T> {
    fn new() -> (Self, Self) {
        let entries = Arc::new(Mutex::new(VecDeque::new()));
        (Self(Arc::clone(&entries)), Self(entries))
    }

    /// Adds an entry. The caller must push its record next (I1).
    pub(crate) fn push(&self, entry: T) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.capacity() == 0 {
            entries.reserve(SIDE_QUEUE_ENTRIES);
        }
        entries.push_back(entry);
    }

    /// Takes the next entry out.
    ///
    /// Panics: when there is no entry, although a record refers to one (I1).
    pub(crate) fn pop(&self) -> T {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        taken.expect("I1: a record refers to an entry of the side queue")
    }
}

/// The mailbox to this shard has no room for a request now. The request was not sent, and its
/// connection must wait.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct MailboxFull(pub(crate) u16);

/// One shard's ends of the rings to and from one other shard.
pub struct Mailbox<E: Engine> {
    pub(crate) requests_out: Producer,
    pub(crate) requests_in: Consumer,
    pub(crate) answers_out: Producer,
    pub(crate) answers_in: Consumer,
    pub(crate) parcels_out: SideQueue<Parcel<E::Upload>>,
    pub(crate) parcels_in: SideQueue<Parcel<E::Upload>>,
    pub(crate) values_out: SideQueue<LargeValue<E::Pinned>>,
    pub(crate) values_in: SideQueue<LargeValue<E::Pinned>>,
    /// Connections whose next request waits for room in the ring of requests to that shard.
    pub(crate) waiting: VecDeque<ConnectionIndex>,
    peer: Arc<Sleeper>,
    peer_waker: Option<Waker>,
}

impl<E: Engine> Mailbox<E> {
    /// Publishes all records that were pushed in this tick, and wakes the peer if it sleeps (I3).
    pub(crate) fn publish(&mut self) {
        let requests = self.requests_out.publish();
        let answers = self.answers_out.publish();
        if requests || answers {
            self.wake_peer();
        }
    }

    /// Wakes the peer if it sleeps. Cost: a fence and a load; a system call if it sleeps.
    fn wake_peer(&self) {
        debug_assert!(self.peer_waker.is_some(), "the wakers are set before the first tick");
        if self.peer.must_wake()
            && let Some(waker) = &self.peer_waker
        {
            waker.wake();
        }
    }

    /// Whether there is no record to take.
    pub(crate) fn is_empty(&self) -> bool {
        self.requests_in.is_empty() && self.answers_in.is_empty()
    }
}

/// All mailboxes of one shard, and its own sleeping flag.
pub struct Mailboxes<E: Engine> {
    /// The mailboxes, by the number of the other shard. There is none at this shard's number.
    pub(crate) boxes: Vec<Option<Mailbox<E>>>,
    pub(crate) sleeper: Arc<Sleeper>,
}

impl<E: Engine> Mailboxes<E> {
    /// Sets the waker of shard `peer`. The caller must do this for each peer before the first tick.
    pub(crate) fn set_waker(&mut self, peer: u16, waker: Waker) {
        if let Some(Some(mailbox)) = self.boxes.get_mut(usize::from(peer)) {
            mailbox.peer_waker = Some(waker);
        }
    }

    /// Wakes shard `peer` if it sleeps.
    pub(crate) fn wake(&self, peer: u16) {
        debug_assert!(usize::from(peer) < self.boxes.len(), "a shard of this process");
        if let Some(Some(mailbox)) = self.boxes.get(usize::from(peer)) {
            mailbox.wake_peer();
        }
    }

    /// The mailbox to shard `peer`, which is not this one.
    pub(crate) fn to(&mut self, peer: u16) -> &mut Mailbox<E> {
        let mailbox = self.boxes.get_mut(usize::from(peer)).and_then(Option::as_mut);
        mailbox.expect("a hop goes to another shard of this process")
    }

    /// Whether a request record of this size can be pushed to shard `peer` now.
    pub(crate) fn has_room(&self, peer: u16, record_bytes: usize) -> Result<(), MailboxFull> {
        let mailbox = self.boxes.get(usize::from(peer)).and_then(Option::as_ref);
        debug_assert!(mailbox.is_some(), "a hop goes to another shard of this process");
        let has_room = mailbox.is_some_and(|mailbox| mailbox.requests_out.room(record_bytes));
        if has_room { Ok(()) } else { Err(MailboxFull(peer)) }
    }

    /// Whether a connection waits for room in a mailbox.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.boxes.iter().flatten().any(|mailbox| !mailbox.waiting.is_empty())
    }

    /// Whether all records of other shards were taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.boxes.iter().flatten().all(Mailbox::is_empty)
    }
}

/// Bytes of a ring in a process of `shards` shards.
fn ring_bytes(shards: usize) -> usize {
    (RING_BYTES_PER_SHARD / (2 * shards.max(2) - 2))
        .clamp(RING_BYTES_MIN, RING_BYTES_MAX)
        .next_power_of_two()
}

/// The address space of all rings of [`mailboxes`], in bytes.
pub fn mailbox_bytes(shards: u16) -> u64 {
    let count = usize::from(shards);
    (count * count.saturating_sub(1) * 2 * ring_bytes(count)) as u64
}

/// Makes the mailboxes of `shards` shards, each connected to each other. Element n is for shard n.
///
/// Cost: a few hundred bytes for each pair of shards and each direction. A ring takes its memory
/// when the first record is pushed, because with `crew` most pairs of shards never hop.
pub fn mailboxes<E: Engine>(shards: u16) -> Vec<Mailboxes<E>> {
    let count = usize::from(shards);
    let ring_bytes = ring_bytes(count);
    let sleepers: Vec<_> = (0..count).map(|_| Arc::new(Sleeper::new())).collect();
    let mut all: Vec<Mailboxes<E>> = sleepers
        .iter()
        .map(|sleeper| Mailboxes {
            boxes: (0..count).map(|_| None).collect(),
            sleeper: Arc::clone(sleeper),
        })
        .collect();
    for a in 0..count {
        for b in a + 1..count {
            let (a_requests_out, b_requests_in) = byte_ring(ring_bytes);
            let (b_requests_out, a_requests_in) = byte_ring(ring_bytes);
            let (a_answers_out, b_answers_in) = byte_ring(ring_bytes);
            let (b_answers_out, a_answers_in) = byte_ring(ring_bytes);
            let (a_parcels_out, b_parcels_in) = SideQueue::new();
            let (b_parcels_out, a_parcels_in) = SideQueue::new();
            let (a_values_out, b_values_in) = SideQueue::new();
            let (b_values_out, a_values_in) = SideQueue::new();
            all[a].boxes[b] = Some(Mailbox {
                requests_out: a_requests_out,
                requests_in: a_requests_in,
                answers_out: a_answers_out,
                answers_in: a_answers_in,
                parcels_out: a_parcels_out,
                parcels_in: a_parcels_in,
                values_out: a_values_out,
                values_in: a_values_in,
                waiting: VecDeque::new(),
                peer: Arc::clone(&sleepers[b]),
                peer_waker: None,
            });
            all[b].boxes[a] = Some(Mailbox {
                requests_out: b_requests_out,
                requests_in: b_requests_in,
                answers_out: b_answers_out,
                answers_in: b_answers_in,
                parcels_out: b_parcels_out,
                parcels_in: b_parcels_in,
                values_out: b_values_out,
                values_in: b_values_in,
                waiting: VecDeque::new(),
                peer: Arc::clone(&sleepers[a]),
                peer_waker: None,
            });
        }
    }
    all
}
