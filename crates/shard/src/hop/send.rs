//! Sending a hop: a record into the ring to the owner, and a place kept for its answer.
//!
//! Upstream:   `serve::carry_out`, `upload`, `dump`, `admin::tell_all`; `shard` handing over.
//! Downstream: `rings`; what was pushed is shown to the owner at the end of the tick.

use kachel_engine::Key;
use kachel_net::{AnswerRoom, ConnectionIndex, Resume};

use super::{Hop, HopKey, MailboxFull, ReplyTo};
use crate::apply::{room_for_answer, room_for_key};
use crate::core::Core;
use crate::stage::{Staged, Work};

/// Sends a request to the shard that owns its key.
pub(crate) fn hop(
    core: &mut Core,
    connection: ConnectionIndex,
    staged: &Staged<'_>,
    key: Key<'_>,
) -> Result<(), MailboxFull> {
    let Some(open) = core.connections.get(connection) else { return Ok(()) };
    let value_bytes = open.outbox.value_room_bytes();
    let (hop, text, room) = match &staged.work {
        Work::Key { from_here: Resume { with_cas, ttl, .. }, .. } => {
            let hop = Hop::Key { with_cas: *with_cas, ttl: *ttl };
            (hop, key.bytes(), room_for_key(key.bytes(), value_bytes))
        }
        Work::Line { request, text, .. } => {
            (Hop::Line, *text, room_for_answer(request, value_bytes))
        }
    };
    core.send_key_hop(connection, key, hop, text, room)
}

impl Core {
    /// Sends a hop to `owner`, keeping a reply slot and `room`.
    ///
    /// What the client wants no reply to is answered too, with nothing: so a later reply says that
    /// all before it is done, to whoever hears of it.
    ///
    /// Errors: the mailbox has no room now, and nothing is done; the caller stalls the connection.
    pub(crate) fn send_hop(
        &mut self,
        connection: ConnectionIndex,
        owner: u16,
        hop: Hop,
        text: &[u8],
        room: AnswerRoom,
    ) -> Result<(), MailboxFull> {
        self.has_room(owner, text.len())?;
        let slot = Some(self.keep_slot(connection, (1, room)));
        self.push_hop(owner, hop, ReplyTo { slot, value_bytes: room.value_bytes }, text);
        Ok(())
    }

    /// Sends a hop about `key` to its owner, keeping a reply slot and `room`, as [`Self::send_hop`]
    /// does.
    pub(crate) fn send_key_hop(
        &mut self,
        connection: ConnectionIndex,
        key: Key<'_>,
        hop: Hop,
        text: &[u8],
        room: AnswerRoom,
    ) -> Result<(), MailboxFull> {
        let owner = self.hasher.owner(key.hashes());
        let (place, added) = HopKey::place(key, text);
        self.has_room(owner, text.len() + added.len())?;
        let slot = Some(self.keep_slot(connection, (1, room)));
        let head = hop.head(ReplyTo { slot, value_bytes: room.value_bytes }, Some(place));
        self.push_record(owner, [&head, text, added]);
        Ok(())
    }

    /// Pushes a hop for which there is room.
    pub(crate) fn push_hop(&mut self, owner: u16, hop: Hop, reply: ReplyTo, text: &[u8]) {
        self.push_record(owner, [&hop.head(reply, None), text, b""]);
    }

    /// Pushes a record for which there is room.
    fn push_record(&mut self, owner: u16, pieces: [&[u8]; 3]) {
        let pushed = self.mail.to(owner).requests_out.push(&pieces);
        assert!(pushed, "room was asked for");
        self.counters.hops.add(1);
    }
}
