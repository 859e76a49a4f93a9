//! `md`.
//!
//! Upstream:   `execute`.
//! Downstream: `engine`: an item is removed, emptied (`x`), or marked stale (`I`).

use kachel_segment::NewValue;
use kachel_table::KeyHash;
use kachel_wire::format::{self, MetaCode, MetaVerb};
use kachel_wire::request::Meta;
use kachel_wire::{Reply, Sink};

use crate::engine::{Draft, Engine, Found};
use crate::second::Epoch;

/// Removes an item, or makes it a tombstone, or invites one client to refill it.
pub(crate) fn meta_delete(
    engine: &mut Engine,
    epoch: &Epoch,
    (key, hash): (&[u8], KeyHash),
    meta: &Meta<'_>,
    sink: &mut impl Sink,
) {
    engine.counters.cmd_meta.add(1);
    let code = match engine.find(key, hash) {
        None => {
            engine.counters.delete_misses.add(1);
            MetaCode::Nf
        }
        Some(at) if meta.compare_cas.is_some_and(|token| token != engine.item(at).cas()) => {
            engine.counters.delete_misses.add(1);
            MetaCode::Ex
        }
        Some(at) if meta.letters.has(b'x') || meta.letters.has(b'I') => {
            if !replace(engine, epoch, (key, hash), at, meta) {
                sink.put(Reply::OutOfMemory.bytes());
                return;
            }
            MetaCode::Hd
        }
        Some(at) => {
            engine.counters.delete_hits.add(1);
            engine.remove(hash, at);
            MetaCode::Hd
        }
    };
    if !(meta.letters.has(b'q') && format::quiet_hides(MetaVerb::Delete, code)) {
        format::meta_plain(sink, code, meta);
    }
}

/// Puts a stale item, or an empty one, or both in one, in the item's place. `false`: no room.
fn replace(
    engine: &mut Engine,
    epoch: &Epoch,
    (key, hash): (&[u8], KeyHash),
    at: Found,
    meta: &Meta<'_>,
) -> bool {
    let (empties, stale) = (meta.letters.has(b'x'), meta.letters.has(b'I'));
    let second = engine.second;
    let item = engine.item(at);
    let ttl = meta.ttl.map(|ttl| epoch.expiry(ttl, second));
    let mut draft = Draft {
        value: NewValue::Same(at),
        client_flags: item.client_flags(),
        expiry: ttl.unwrap_or_else(|| item.expiry()),
        // Emptying alone keeps the token; marking stale moves it on.
        cas: meta.new_cas.or_else(|| (!stale).then(|| item.cas())),
        stale,
        win_sent: false,
        base64_key: item.base64_key() && !empties,
        keeps_access: !empties,
        replaces: Some(at),
    };
    if empties {
        draft.value = NewValue::Bytes(b"");
        draft.client_flags = meta.client_flags;
        draft.expiry = ttl.unwrap_or(0);
        if !stale {
            engine.counters.delete_hits.add(1);
        }
    }
    engine.put(key, hash, draft).is_ok()
}
