//! What comes from other shards: their requests for our keys, and their answers to ours.
//!
//! Upstream:   `shard::tick`, once a tick, before our own clients are served.
//! Downstream: `verb::get` and `execute` for requests; the outbox of whoever waits for answers.
//!
//! Invariants:
//! - I1  Every request that wants an answer is answered once, in this tick; requests are left in
//!   the ring while the answer ring lacks room for the largest answer.
//! - I2  Answers are always taken, whatever state their connection is in.

use std::os::fd::OwnedFd;

use kachel_net::{SlotIndex, Stream};
use kachel_segment::{INLINE_VALUE_BYTES_MAX, Pinned, WalkCursor};
use kachel_wire::request::{KEY_BYTES_MAX, LINE_BYTES_MAX};
use kachel_wire::{Parsed, parse};

use crate::core::{Core, LargeValue};
use crate::dump;
use crate::execute::{announced_bytes, execute, key_of};
use crate::hop::{ANSWER_HEAD_BYTES, Answer, Hop, ReplyTo};
use crate::mailbox::Parcel;
use crate::verb::{self, Block};

/// Bytes of the largest answer: a reply line and an inline value.
pub(crate) const ANSWER_BYTES_MAX: usize =
    ANSWER_HEAD_BYTES + LINE_BYTES_MAX + INLINE_VALUE_BYTES_MAX + 2;
/// Requests taken from one shard in one tick, so that our own clients get their turn.
const REQUESTS_PER_TICK_MAX: u32 = 512;

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
            dump::went_on(&mut core.dumps, connection, u64::from_le_bytes(*cursor));
            text = lines;
        }
        if let Some(open) = open {
            debug_assert!(answer == Answer::Dump || text.len() <= core.slots.room(slot).bytes());
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

fn take_requests(core: &mut Core, peer: u16, adopted: &mut Vec<OwnedFd>) -> bool {
    let mut taken = 0;
    while taken < REQUESTS_PER_TICK_MAX {
        let mailbox = core.mail.to(peer);
        if !mailbox.answers_out.room(ANSWER_BYTES_MAX) {
            break;
        }
        // The record is copied out, so that the ring and the engine can both be worked on.
        let Some(record) = mailbox.requests_in.front() else { break };
        core.request.clear();
        core.request.extend_from_slice(record);
        mailbox.requests_in.pop();
        let record = std::mem::take(&mut core.request);
        request(core, peer, &record, adopted);
        core.request = record;
        taken += 1;
    }
    core.mail.to(peer).requests_in.release();
    taken > 0
}

/// Carries out one request of another shard and answers it (I1).
fn request(core: &mut Core, peer: u16, record: &[u8], adopted: &mut Vec<OwnedFd>) {
    let (hop, ReplyTo { slot, value_bytes }, text) = Hop::parse(record);
    core.answer.text.clear();
    core.answer.value_bytes_max = value_bytes;
    let pinned = match hop {
        Hop::Key { with_cas, ttl } => {
            let hash = core.engine.hasher.key_hash(text);
            core.engine.counters.requests.add(1);
            let how = (with_cas, ttl);
            verb::get(&mut core.engine, &core.epoch, (text, hash), how, &mut core.answer)
        }
        Hop::Line => line(core, text, None),
        Hop::Upload => {
            let Parcel::Upload(upload) = core.mail.to(peer).parcels_in.take() else {
                unreachable!("an upload hop brings an upload");
            };
            line(core, text, Some(Block::Upload(upload)))
        }
        Hop::Flush => {
            core.engine.flush();
            None
        }
        Hop::MakeRoom => {
            let bytes = u64::from_le_bytes(text.try_into().expect("a room hop has its size"));
            let bytes = usize::try_from(bytes).expect("what a tick receives");
            // The one who asked finds out by trying again.
            let _made = core.engine.make_upload_room(bytes);
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
            dump::piece(&core.engine, &core.epoch, keys_only, cursor, &mut core.answer.text);
            let slot = slot.expect("a dump is answered");
            push_answer(core, peer, Answer::Dump, slot);
            return;
        }
    };
    let Some(slot) = slot else {
        assert!(pinned.is_none(), "what nobody waits for shows no value");
        return;
    };
    answer(core, peer, slot, pinned);
}

/// Carries out a request that came as the client sent it.
fn line(core: &mut Core, text: &[u8], upload: Option<Block<'_>>) -> Option<Pinned> {
    let Parsed::Request { request, line_bytes } = parse(text, 0) else {
        unreachable!("a hop is a request that was found well-formed");
    };
    let block = upload.unwrap_or_else(|| {
        let value_bytes = announced_bytes(&request).unwrap_or(0) as usize;
        Block::Bytes(&text[line_bytes..line_bytes + value_bytes])
    });
    let mut space = [0; KEY_BYTES_MAX];
    let hash = core.engine.hasher.key_hash(key_of(&request, &mut space));
    execute(&mut core.engine, &core.epoch, &request, hash, block, &mut core.answer)
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

fn push_answer(core: &mut Core, peer: u16, answer: Answer, slot: SlotIndex) {
    let pushed = core.mail.to(peer).answers_out.push(&[&answer.head(slot), &core.answer.text]);
    assert!(pushed, "I1: room for the largest answer was asked for");
}
