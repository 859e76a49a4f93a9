//! Listings of all items: `lru_crawler metadump` and `mgdump`.
//!
//! Upstream:   `admin` begins one; `shard::tick` takes it on piece by piece, as its client reads.
//! Downstream: each shard in turn walks its segments.
//!
//! Invariants:
//! - I1  A piece is bounded, so no other client waits for a listing.
//! - I2  While a listing runs its connection carries out no other request.

use kachel_net::{AnswerRoom, ConnectionIndex};
use kachel_segment::WalkCursor;
use kachel_wire::{Reply, Sink, format};

use crate::core::Core;
use crate::engine::Engine;
use crate::hop::{ANSWER_BYTES_MAX, ANSWER_HEAD_BYTES, Hop};
use crate::second::Epoch;

/// The cursor that says that a shard has listed everything.
const CURSOR_END: u64 = u64::MAX;
/// Items of one piece.
const PIECE_ITEMS_MAX: usize = 64;
/// Bytes of the longest line of a listing: a key, each of its bytes as `%XX`, and what is said of
/// it.
const LINE_BYTES_MAX: usize = 1024;
/// Bytes of one piece, so that it fits an answer (I1).
const PIECE_BYTES_MAX: usize = ANSWER_BYTES_MAX - ANSWER_HEAD_BYTES - LINE_BYTES_MAX;

/// A listing that a client waits for.
#[derive(Debug)]
pub(crate) struct Dump {
    connection: ConnectionIndex,
    keys_only: bool,
    /// Whose items are listed now.
    shard: u16,
    cursor: WalkCursor,
    /// Whether another shard is asked for a piece.
    awaited: bool,
    begun: bool,
}

impl Dump {
    /// A listing for this client, not begun.
    pub(crate) fn new(connection: ConnectionIndex, keys_only: bool) -> Self {
        let cursor = WalkCursor::default();
        Self { connection, keys_only, shard: 0, cursor, awaited: false, begun: false }
    }

    fn go_on(&mut self, cursor: u64) {
        if cursor == CURSOR_END {
            self.shard += 1;
            self.cursor = WalkCursor::default();
        } else {
            self.cursor = WalkCursor::from_u64(cursor);
        }
    }
}

/// Another shard has sent its piece.
pub(crate) fn went_on(dumps: &mut [Dump], connection: Option<ConnectionIndex>, cursor: u64) {
    let waiting = dumps.iter_mut().find(|dump| Some(dump.connection) == connection && dump.awaited);
    if let Some(dump) = waiting {
        dump.awaited = false;
        dump.go_on(cursor);
    }
}

/// Takes each listing on by one piece, where its client has room for it.
pub(crate) fn step(core: &mut Core) {
    let mut dumps = std::mem::take(&mut core.dumps);
    dumps.retain_mut(|dump| step_one(core, dump));
    core.dumps = dumps;
}

/// Whether a listing can be taken on before anything else happens: a piece without a line sends
/// nothing, so nothing would wake a shard that sleeps behind it.
pub(crate) fn may_go_on(core: &Core) -> bool {
    core.dumps.iter().any(|dump| {
        let open = core.connections.get(dump.connection);
        open.is_none_or(|open| !open.dumping || !(dump.awaited || open.is_full()))
    })
}

/// `false`: the listing is complete, or its client is gone.
fn step_one(core: &mut Core, dump: &mut Dump) -> bool {
    let Some(open) = core.connections.get(dump.connection) else { return false };
    if !open.dumping {
        return false;
    }
    if dump.awaited || open.is_full() {
        return true;
    }
    if !dump.begun {
        dump.begun = true;
        core.text(dump.connection, Reply::Ok.bytes());
    }
    if dump.shard == core.shared.options.shards {
        let end = if dump.keys_only { Reply::En } else { Reply::End };
        core.text(dump.connection, end.bytes());
        core.end_dump(dump.connection);
        return false;
    }
    if dump.shard == core.id {
        let mut text = std::mem::take(&mut core.answer.text);
        text.clear();
        piece(&core.engine, &core.epoch, dump.keys_only, dump.cursor, &mut text);
        let (cursor, lines) = text.split_first_chunk().expect("a piece has its cursor");
        dump.go_on(u64::from_le_bytes(*cursor));
        core.text(dump.connection, lines);
        core.answer.text = text;
        return true;
    }
    let hop = Hop::Dump { keys_only: dump.keys_only };
    let cursor = dump.cursor.to_u64().to_le_bytes();
    let room = AnswerRoom::default();
    dump.awaited = core.send_hop(dump.connection, dump.shard, hop, &cursor, room).is_ok();
    true
}

/// Words one piece of this shard's items into `out`: the cursor to go on from, then the lines (I1).
pub(crate) fn piece(
    engine: &Engine,
    epoch: &Epoch,
    keys_only: bool,
    mut cursor: WalkCursor,
    out: &mut Vec<u8>,
) {
    out.put(&[0; 8]);
    let mut items = 0;
    let second = engine.second;
    let more = engine.segments.walk(&mut cursor, second, |item| {
        if keys_only {
            format::mgdump_line(out, item.key(), item.base64_key());
        } else {
            let unix = |second| u64::try_from(epoch.unix(second)).unwrap_or(0);
            let facts = format::DumpFacts {
                expiry_unix_s: (item.expiry() != 0).then(|| unix(item.expiry())),
                access_unix_s: unix(item.last_access()),
                cas: item.cas(),
                fetched: item.fetched(),
                class: 1,
                item_bytes: item.memory_bytes(),
                client_flags: item.client_flags(),
            };
            format::metadump_line(out, item.key(), &facts);
        }
        items += 1;
        items < PIECE_ITEMS_MAX && out.len() < PIECE_BYTES_MAX
    });
    let next = if more { cursor.to_u64() } else { CURSOR_END };
    out[..8].copy_from_slice(&next.to_le_bytes());
}
