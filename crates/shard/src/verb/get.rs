//! `get`, `gets`, `gat`, `gats`: one key of them.
//!
//! Upstream:   `serve` for our own clients, `hop::take` for other shards', once a key.
//! Downstream: `engine::find`, then `format::value_head`.

use kachel_segment::Pinned;
use kachel_table::KeyHash;
use kachel_wire::format;
use kachel_wire::request::Ttl;

use super::ReplySink;
use crate::engine::Engine;
use crate::second::Epoch;

/// Words `VALUE ...` and the value when the key is there, nothing when it is not.
///
/// Cost: two buckets and one item read; a store to the item only when it was not read of late.
#[inline]
pub(crate) fn get(
    engine: &mut Engine,
    epoch: &Epoch,
    (key, hash): (&[u8], KeyHash),
    (with_cas, ttl): (bool, Option<Ttl>),
    sink: &mut impl ReplySink,
) -> Option<Pinned> {
    let found = engine.find(key, hash);
    let counters = &engine.counters;
    if ttl.is_some() {
        counters.cmd_touch.add(1);
        let outcome = if found.is_some() { &counters.touch_hits } else { &counters.touch_misses };
        outcome.add(1);
    } else {
        counters.cmd_get.add(1);
        let outcome = if found.is_some() { &counters.get_hits } else { &counters.get_misses };
        outcome.add(1);
    }
    let at = found?;
    if let Some(ttl) = ttl {
        engine.set_expiry(at, epoch.expiry(ttl, engine.second));
    }
    engine.note_access(at);
    let item = engine.item(at);
    let cas = with_cas.then(|| item.cas());
    match super::inline_value(item, sink) {
        Some(value) => {
            format::value(sink, key, item.client_flags(), value, cas);
            None
        }
        None => {
            format::value_head(sink, key, item.client_flags(), item.value().bytes(), cas);
            Some(engine.pin(at))
        }
    }
}
