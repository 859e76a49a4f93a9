//! Takes the records that other shards sent: requests for keys of this shard, and answers to
//! requests of this shard.
//!
//! Upstream:   `tick`, before it serves the clients of this shard.
//! Downstream: `apply` for requests; the outbox of the client that waits for an answer.
//!
//! Invariants:
//! - I1  Every request with a slot is answered once: in this tick, except a piece of a listing
//!   (`listing`) and a request that the engine delays (`delayed`). Requests stay in their ring
//!   while the ring of answers has no room for their longest possible answers.
//! - I2  Answers are always taken, in every state of their connection.

use kachel_engine::{Cursor, Engine};

use crate::BATCH_REQUESTS_MAX;
use crate::accept::Adopted;
use crate::clients::{Answered, Clients};
use crate::context::Context;
use crate::delayed::{Delayed, Origin};
use crate::engines::Engines;
use crate::hop::{
    ANSWER_BYTES_MAX, Answer, Hop, Mail, Mailbox, Parcel, REQUEST_BYTES_MAX, Taken,
    answer_bytes_max, apply_taken,
};
use crate::listing::{Asked, Listings};

/// After this many requests of one shard, the rest wait for the next tick, so that the clients of
/// this shard are served in time.
const REQUESTS_PER_TICK_MAX: usize = 512;
/// A batch with this many bytes of records takes no further record.
const TAKEN_BYTES: usize = 64 * 1024;
/// Bytes of the largest batch of records.
pub(crate) const TAKEN_BYTES_MAX: usize = TAKEN_BYTES + REQUEST_BYTES_MAX;

/// The parts of a shard that taking mail uses.
pub(crate) struct Taking<'a, E: Engine> {
    pub(crate) context: &'a Context,
    pub(crate) engines: &'a Engines<E>,
    pub(crate) clients: &'a mut Clients<E::Pinned>,
    pub(crate) mail: &'a mut Mail<E>,
    pub(crate) delayed: &'a mut Delayed<E>,
    pub(crate) listings: &'a mut Listings,
    /// Sockets of connections that this shard must take over are added here.
    pub(crate) adopted: &'a mut Vec<Adopted>,
    /// Memory for the records of a batch.
    pub(crate) records: &'a mut Vec<u8>,
}

impl<E: Engine> Taking<'_, E> {
    /// Takes records of all other shards. Returns whether there were any.
    pub(crate) fn take_all(&mut self) -> bool {
        let mut any = false;
        self.mail.is_left = false;
        debug_assert!(self.adopted.is_empty(), "each tick takes over what the one before brought");
        for peer in self.context.others() {
            any |= self.take_answers(peer);
            any |= self.take_requests(peer);
        }
        any
    }

    fn take_answers(&mut self, peer: u16) -> bool {
        let mut any = false;
        loop {
            let mailbox = self.mail.boxes.to(peer);
            let Some(record) = mailbox.answers_in.front() else { break };
            let (answer, slot, text) = Answer::parse(record);
            any = true;
            debug_assert!(text.len() <= ANSWER_BYTES_MAX, "an answer fits its ring");
            if answer == Answer::Dump {
                let (cursor, lines) = text.split_first_chunk().expect("a piece has its cursor");
                let connection = self.clients.slots.connection(slot);
                self.listings.went_on(peer, connection, u64::from_le_bytes(*cursor));
                self.clients.piece(slot, lines);
            } else {
                let value = (answer == Answer::TextAndValue).then(|| mailbox.values_in.pop());
                self.clients.answered(slot, Answered { text, value });
            }
            mailbox.answers_in.pop();
        }
        self.mail.boxes.to(peer).answers_in.release();
        any
    }

    /// Takes requests batch by batch, as long as there is room for their answers (I1).
    fn take_requests(&mut self, peer: u16) -> bool {
        let mut taken = 0;
        while taken < REQUESTS_PER_TICK_MAX {
            if self.mail.boxes.to(peer).requests_in.is_empty() {
                break;
            }
            // While another core holds the engine, the requests stay in their ring.
            let Some(mut engine) = self.engines.take(self.context.id, self.context) else {
                self.mail.is_left = true;
                break;
            };
            let count_max = BATCH_REQUESTS_MAX.min(self.delayed.room());
            // The records are copied out, so that the mailbox is free for use while they are
            // executed.
            let mut records = std::mem::take(self.records);
            let mut ends = [0; BATCH_REQUESTS_MAX];
            let count = copy_out(self.mail.boxes.to(peer), &mut records, &mut ends[..count_max]);
            if count == 0 {
                *self.records = records;
                break;
            }
            let mut batch = [const { None }; BATCH_REQUESTS_MAX];
            let mut start = 0;
            for (place, &end) in batch.iter_mut().zip(&ends[..count]) {
                *place = Some(Taken::read(&records[start..end]));
                start = end;
            }
            let batch = batch.iter().flatten();
            engine.prefetch(batch.clone().filter_map(Taken::lookup));
            batch.for_each(|taken| self.carry_out(&mut engine, peer, taken));
            *self.records = records;
            taken += count;
            debug_assert!(count <= count_max, "delayed, I1: no more are taken than may be parked");
        }
        self.mail.boxes.to(peer).requests_in.release();
        taken > 0
    }

    /// Executes one request of another shard and answers it (I1).
    fn carry_out(&mut self, engine: &mut E, peer: u16, taken: &Taken<'_>) {
        let Taken { hop, reply, text, .. } = *taken;
        self.mail.answer.begin(reply.value_bytes);
        match hop {
            Hop::Key(_) | Hop::Line | Hop::Upload => return self.request(engine, peer, taken),
            Hop::MakeRoom => {
                let bytes = u64::from_le_bytes(text.try_into().expect("a room hop has its size"));
                let bytes = usize::try_from(bytes).expect("a tick receives less than 2^64 bytes");
                // The other shard tries again, and then sees whether there is room.
                let _made = engine.make_upload_room(bytes, &self.context.now());
            }
            Hop::Adopt(endpoint) => {
                let Parcel::Socket(socket) = self.mail.boxes.to(peer).parcels_in.pop() else {
                    unreachable!("an adopt hop brings a socket");
                };
                return self.adopted.push(Adopted { socket, endpoint });
            }
            Hop::Dump { keys_only } => {
                let cursor = text.try_into().expect("a dump hop has its cursor");
                let cursor = Cursor::from_u64(u64::from_le_bytes(cursor));
                let slot = reply.slot.expect("a dump is answered");
                return self.listings.ask(peer, Asked { slot, keys_only, cursor });
            }
        }
        if let Some(slot) = reply.slot {
            self.mail.send_answer(peer, slot, None);
        }
    }

    /// Applies a request about a key of this shard.
    fn request(&mut self, engine: &mut E, peer: u16, taken: &Taken<'_>) {
        debug_assert!(
            taken.key.is_some_and(|key| {
                self.context.hasher.key(key.bytes()) == key && self.context.owns(&key)
            }),
            "record, I3: a hop brings the hashes of its key, to its owner"
        );
        let mut upload = None;
        if taken.hop == Hop::Upload {
            let Parcel::Upload(received) = self.mail.boxes.to(peer).parcels_in.pop() else {
                unreachable!("an upload hop brings an upload");
            };
            upload = Some(received);
        }
        let slot = taken.reply.slot.expect("record, I1: a request about a key is answered");
        let Self { context, clients, mail, delayed, .. } = self;
        let origin = Origin { shard: peer, slot };
        if delayed.is_in_use() {
            return delayed.apply(context, Some(engine), clients, mail, origin, taken, upload);
        }
        let answer = &mut mail.answer;
        let applied = apply_taken(context, engine, taken, &mut upload, None, answer);
        match applied.at_once() {
            Ok(value) => mail.send_answer(peer, slot, value),
            Err(ticket) => delayed.park_taken(origin, taken, upload, Some(ticket)),
        }
    }
}

/// Moves requests from the ring into `records`, as many as `ends` has places, and writes the end of
/// each into `ends`. Returns their number.
fn copy_out<E: Engine>(
    mailbox: &mut Mailbox<E>,
    records: &mut Vec<u8>,
    ends: &mut [usize],
) -> usize {
    records.clear();
    let (mut count, mut answer_bytes) = (0, 0);
    while count < ends.len() && records.len() < TAKEN_BYTES {
        let Some(record) = mailbox.requests_in.front() else { break };
        // The ring adds a header to each answer and rounds its length up.
        answer_bytes += answer_bytes_max(record).next_multiple_of(8) + 8;
        let answers = &mailbox.answers_out;
        if answer_bytes > answers.record_bytes_max() || !answers.room(answer_bytes) {
            break;
        }
        records.extend_from_slice(record);
        mailbox.requests_in.pop();
        ends[count] = records.len();
        count += 1;
    }
    debug_assert!(records.len() <= TAKEN_BYTES_MAX, "a batch has a bound");
    count
}
