//! Taking what other shards sent: their requests for our keys, and their answers to ours.
//!
//! Upstream:   `shard::tick`, once a tick, before our own clients are served.
//! Downstream: `apply` for requests; the outbox of the client that waits for an answer.
//!
//! Invariants:
//! - I1  Every request with a slot is answered once: in this tick, but for a piece of a listing,
//!   which waits for its turn in `dump`. One without room there is answered with nothing that is
//!   shown; requests are left in the ring while the answer ring lacks room for the
//!   largest answers they may have.
//! - I2  Answers are always taken, whatever state their connection is in.

use std::os::fd::OwnedFd;

use kachel_cache::{Pinned, WalkCursor};
use kachel_engine::Block;
use kachel_net::{SlotIndex, Stream};

use super::record::{ANSWER_BYTES_MAX, Answer, Taken, answer_bytes_max};
use super::{Hop, REQUEST_BYTES_MAX};
use super::{Mailbox, Parcel};
use crate::BATCH_REQUESTS_MAX;
use crate::apply::Applier;
use crate::core::{Core, LargeValue};
use crate::dump::Asked;

/// Requests taken from one shard in one tick, so that our own clients get their turn.
const REQUESTS_PER_TICK_MAX: usize = 512;
/// Bytes of records after which no more are added to a batch.
const TAKEN_BYTES: usize = 64 * 1024;
/// Bytes of the largest batch of records.
pub(crate) const TAKEN_BYTES_MAX: usize = TAKEN_BYTES + REQUEST_BYTES_MAX;

/// Takes what other shards have sent; sockets of connections to take over are added to `adopted`.
/// Returns whether anything came.
pub(crate) fn take_mail(core: &mut Core, adopted: &mut Vec<OwnedFd>) -> bool {
    let mut any = false;
    for peer in 0..core.shared.options.shards {
        if peer != core.id {
            any |= take_answers(core, peer);
            any |= take_requests(core, peer, adopted);
        }
    }
    any
}

fn take_answers(core: &mut Core, peer: u16) -> bool {
    let mut any = false;
    loop {
        let mailbox = core.mail.to(peer);
        let Some(record) = mailbox.answers_in.front() else { break };
        let (answer, slot, text) = Answer::parse(record);
        any = true;
        let connection = core.slots.connection(slot);
        let open = connection.and_then(|connection| core.connections.get_mut(connection));
        let pinned = (answer == Answer::TextAndValue).then(|| mailbox.values_in.take());
        let mut text = text;
        if answer == Answer::Dump {
            let (cursor, lines) = text.split_first_chunk().expect("a piece has its cursor");
            core.dumps.went_on(peer, connection, u64::from_le_bytes(*cursor));
            text = lines;
        }
        if let Some(open) = open {
            let room_bytes = core.slots.room(slot).bytes();
            if answer != Answer::Dump && room_bytes == 0 {
                text = b""; // Nobody asked for words, only when it was done.
            }
            debug_assert!(answer == Answer::Dump || text.len() <= room_bytes);
            open.outbox.text_into(slot, text, &mut core.slots);
            let value_bytes = pinned.as_ref().map_or(text.len(), Pinned::total_bytes);
            if let Some(pinned) = pinned {
                let stream = Stream::new(LargeValue(pinned));
                open.outbox.stream_into(slot, stream, &mut core.slots);
            }
            open.outbox.answered(slot, value_bytes, &mut core.slots);
        } else {
            core.slots.answered(slot);
        }
        mailbox.answers_in.pop();
        if let Some(connection) = connection {
            core.mark_dirty(connection);
        }
    }
    core.mail.to(peer).answers_in.release();
    any
}

/// Takes requests batch by batch: as many as their answers have room for (I1).
fn take_requests(core: &mut Core, peer: u16, adopted: &mut Vec<OwnedFd>) -> bool {
    let mut taken = 0;
    while taken < REQUESTS_PER_TICK_MAX {
        // The records are copied out, so that the ring and the engine can both be worked on.
        let mut records = std::mem::take(&mut core.request);
        let mut ends = [0; BATCH_REQUESTS_MAX];
        let count = copy_out(core.mail.to(peer), &mut records, &mut ends);
        if count == 0 {
            core.request = records;
            break;
        }
        let mut batch = [const { None }; BATCH_REQUESTS_MAX];
        let mut start = 0;
        for (place, &end) in batch.iter_mut().zip(&ends[..count]) {
            *place = Some(Taken::read(&records[start..end]));
            start = end;
        }
        let batch = batch.iter().flatten();
        core.cache.prefetch(batch.clone().filter_map(Taken::lookup));
        batch.for_each(|taken| carry_out(core, peer, taken, adopted));
        core.request = records;
        taken += count;
    }
    core.mail.to(peer).requests_in.release();
    taken > 0
}

/// Moves requests off the ring into `records`, as many as a batch holds, and says where each ends;
/// how many.
fn copy_out(
    mailbox: &mut Mailbox,
    records: &mut Vec<u8>,
    ends: &mut [usize; BATCH_REQUESTS_MAX],
) -> usize {
    records.clear();
    let (mut count, mut answer_bytes) = (0, 0);
    while count < ends.len() && records.len() < TAKEN_BYTES {
        let Some(record) = mailbox.requests_in.front() else { break };
        // Rounded up as the ring does, with its header.
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
    count
}

/// Carries out one request of another shard and answers it (I1).
fn carry_out(core: &mut Core, peer: u16, taken: &Taken<'_>, adopted: &mut Vec<OwnedFd>) {
    let Taken { hop, reply, text, request, key } = *taken;
    debug_assert!(
        key.is_none_or(
            |key| core.hasher.key(key.bytes()) == key && core.hasher.owner(key.hashes()) == core.id
        ),
        "record, I3: a hop brings the hashes of its key, to its owner"
    );
    core.answer.text.clear();
    core.answer.value_bytes_max = reply.value_bytes;
    let applier = Applier { cache: &mut core.cache, now: &core.now, counters: &core.counters };
    let pinned = match hop {
        Hop::Key { with_cas, ttl } => {
            let key = key.expect("a hop about a key brings it");
            applier.key(key, (with_cas, ttl), &mut core.answer)
        }
        Hop::Line | Hop::Upload => {
            let (request, line_bytes) = request.expect("a line is parsed");
            let block = if hop == Hop::Upload {
                let Parcel::Upload(upload) = core.mail.to(peer).parcels_in.take() else {
                    unreachable!("an upload hop brings an upload");
                };
                Block::Upload(upload)
            } else {
                let value_bytes = request.announced_bytes().unwrap_or(0) as usize;
                Block::Bytes(&text[line_bytes..line_bytes + value_bytes])
            };
            let key = key.expect("a hop about a key brings it");
            applier.request(&request, key, block, &mut core.answer)
        }
        Hop::ResetStats => {
            core.reset_stats();
            None
        }
        Hop::MakeRoom => {
            let bytes = u64::from_le_bytes(text.try_into().expect("a room hop has its size"));
            let bytes = usize::try_from(bytes).expect("what a tick receives");
            // The one who asked finds out by trying again.
            let _made = core.cache.make_upload_room(bytes, &core.now);
            None
        }
        Hop::Adopt => {
            let Parcel::Socket(socket) = core.mail.to(peer).parcels_in.take() else {
                unreachable!("an adopt hop brings a socket");
            };
            adopted.push(socket);
            return;
        }
        Hop::Dump { keys_only } => {
            let cursor = text.try_into().expect("a dump hop has its cursor");
            let cursor = WalkCursor::from_u64(u64::from_le_bytes(cursor));
            let slot = reply.slot.expect("a dump is answered");
            core.dumps.ask(peer, Asked { slot, keys_only, cursor });
            return;
        }
    };
    let Some(slot) = reply.slot else {
        assert!(pinned.is_none(), "what nobody waits for shows no value");
        return;
    };
    answer(core, peer, slot, pinned);
}

fn answer(core: &mut Core, peer: u16, slot: SlotIndex, pinned: Option<Pinned>) {
    match pinned {
        None => push_answer(core, peer, Answer::Text, slot),
        Some(pinned) => {
            core.mail.to(peer).values_out.lay(pinned);
            push_answer(core, peer, Answer::TextAndValue, slot);
        }
    }
}

/// Whether the largest answer can be pushed to `peer` now.
pub(crate) fn has_room_for_answer(core: &mut Core, peer: u16) -> bool {
    core.mail.to(peer).answers_out.room(ANSWER_BYTES_MAX)
}

/// Answers `peer` with the piece of a listing that `core.answer` holds. There is room for it.
pub(crate) fn answer_dump(core: &mut Core, peer: u16, slot: SlotIndex) {
    push_answer(core, peer, Answer::Dump, slot);
}

fn push_answer(core: &mut Core, peer: u16, answer: Answer, slot: SlotIndex) {
    let pushed = core.mail.to(peer).answers_out.push(&[&answer.head(slot), &core.answer.text]);
    assert!(pushed, "I1: room for the largest answer was asked for");
}
