//! Sends records to other shards: requests, each with a reply slot kept for its answer, and answers
//! to their requests.
//!
//! Upstream:   `serve`, `upload`, `listing`, `admin`, `accept`; `mail`, `delayed` and `listing`
//!             with answers.
//! Downstream: `rings`. The records become visible to the other shard when the tick publishes them.

use kachel_engine::{Engine, Key};
use kachel_net::{AnswerRoom, ConnectionIndex, SlotIndex};

use super::record::{ANSWER_BYTES_MAX, Answer, REQUEST_BYTES_MAX};
use super::{Hop, HopKey, MailboxFull, Mailboxes, REQUEST_HEAD_BYTES, ReplyTo};
use crate::clients::Clients;
use crate::context::Context;
use crate::reply::{AnswerText, LargeValue};

/// A request on its way to another shard.
#[derive(Clone, Copy)]
pub(crate) struct Outgoing<'a> {
    pub(crate) hop: Hop,
    pub(crate) text: &'a [u8],
    /// The room to keep for its answer.
    pub(crate) room: AnswerRoom,
}

/// A shard's mailboxes, and the answer that is being formatted.
pub(crate) struct Mail<E: Engine> {
    pub(crate) boxes: Mailboxes<E>,
    /// Whether a mailbox had no room in this tick, so that the shard may sleep only briefly.
    pub(crate) was_full: bool,
    /// Whether requests were left in a ring because another core held the engine.
    pub(crate) is_left: bool,
    /// The answer that is being formatted.
    pub(crate) answer: AnswerText,
}

impl<E: Engine> Mail<E> {
    /// Makes the mail of a shard from its mailboxes.
    pub(crate) fn new(boxes: Mailboxes<E>) -> Self {
        Self {
            boxes,
            was_full: false,
            is_left: false,
            answer: AnswerText::with_capacity(ANSWER_BYTES_MAX),
        }
    }

    /// Whether a request with this much text can be pushed to `owner` now.
    pub(crate) fn has_room(&mut self, owner: u16, text_bytes: usize) -> Result<(), MailboxFull> {
        let room = self.boxes.has_room(owner, REQUEST_HEAD_BYTES + text_bytes);
        self.was_full |= room.is_err();
        room
    }

    /// Sends a request to `owner`, and keeps a reply slot and room for its answer.
    ///
    /// The owner also answers a request that wants no reply, with an empty answer. So a client that
    /// gets a later reply knows that all its earlier requests are done.
    ///
    /// Errors: the mailbox has no room now, and nothing was done. The connection must wait.
    pub(crate) fn send(
        &mut self,
        context: &Context,
        clients: &mut Clients<E::Pinned>,
        connection: ConnectionIndex,
        owner: u16,
        outgoing: Outgoing<'_>,
    ) -> Result<(), MailboxFull> {
        let Outgoing { hop, text, room } = outgoing;
        self.has_room(owner, text.len())?;
        let slot = Some(clients.keep_slot(connection, room));
        self.push(context, owner, hop, ReplyTo { slot, value_bytes: room.value_bytes }, text);
        Ok(())
    }

    /// Sends a request about `key` to its owner, as [`Self::send`] does.
    pub(crate) fn send_about(
        &mut self,
        context: &Context,
        clients: &mut Clients<E::Pinned>,
        connection: ConnectionIndex,
        key: Key<'_>,
        outgoing: Outgoing<'_>,
    ) -> Result<(), MailboxFull> {
        let Outgoing { hop, text, room } = outgoing;
        let owner = context.hasher.owner(key.hashes());
        let (place, added) = HopKey::place(key, text);
        self.has_room(owner, text.len() + added.len())?;
        let slot = Some(clients.keep_slot(connection, room));
        let head = hop.head(ReplyTo { slot, value_bytes: room.value_bytes }, Some(place));
        self.push_record(context, owner, [&head, text, added]);
        Ok(())
    }

    /// Pushes a request for which there is room.
    pub(crate) fn push(
        &mut self,
        context: &Context,
        owner: u16,
        hop: Hop,
        reply: ReplyTo,
        text: &[u8],
    ) {
        self.push_record(context, owner, [&hop.head(reply, None), text, b""]);
    }

    fn push_record(&mut self, context: &Context, owner: u16, pieces: [&[u8]; 3]) {
        let pushed = self.boxes.to(owner).requests_out.push(&pieces);
        assert!(pushed, "the caller has asked for room");
        context.counters.hops.add(1);
    }

    /// Whether the longest answer can be pushed to `peer` now.
    pub(crate) fn has_room_for_answer(&mut self, peer: u16) -> bool {
        self.boxes.to(peer).answers_out.room(ANSWER_BYTES_MAX)
    }

    /// Answers `peer` with the text that was formatted, and with the large value that follows it.
    /// The caller has checked that there is room.
    #[inline(always)]
    pub(crate) fn send_answer(
        &mut self,
        peer: u16,
        slot: SlotIndex,
        value: Option<LargeValue<E::Pinned>>,
    ) {
        let mailbox = self.boxes.to(peer);
        let answer = match value {
            None => Answer::Text,
            Some(value) => {
                mailbox.values_out.push(value);
                Answer::TextAndValue
            }
        };
        self.push_answer(peer, answer, slot);
    }

    /// Answers `peer` with the piece of a listing that was formatted. The caller has checked that
    /// there is room.
    pub(crate) fn send_piece(&mut self, peer: u16, slot: SlotIndex) {
        self.push_answer(peer, Answer::Dump, slot);
    }

    #[inline]
    fn push_answer(&mut self, peer: u16, answer: Answer, slot: SlotIndex) {
        let text = &self.answer.text;
        let pushed = self.boxes.to(peer).answers_out.push(&[&answer.head(slot), text]);
        assert!(pushed, "the caller has asked for room for the longest answer");
    }

    /// Publishes the records that were pushed for other shards.
    pub(crate) fn publish(&mut self) {
        self.boxes.boxes.iter_mut().flatten().for_each(super::Mailbox::publish);
    }

    /// Takes connections that wait for a mailbox which has room again, and passes them to `wake`.
    /// Takes at most `count_max` per mailbox, because each of them may fill it.
    pub(crate) fn take_waiting(
        &mut self,
        context: &Context,
        count_max: usize,
        mut wake: impl FnMut(ConnectionIndex, u16),
    ) {
        for peer in context.others() {
            let mailbox = self.boxes.to(peer);
            if mailbox.waiting.is_empty() || !mailbox.requests_out.room(REQUEST_BYTES_MAX) {
                continue;
            }
            let count = mailbox.waiting.len().min(count_max);
            debug_assert!(count > 0, "it is waited for");
            mailbox.waiting.drain(..count).for_each(|connection| wake(connection, peer));
        }
    }
}
