//! `me`.
//!
//! Upstream:   `execute`.
//! Downstream: `engine::find`: the item is shown as it is, and not noted as read.

use kachel_table::KeyHash;
use kachel_wire::format::{self, DebugFacts};
use kachel_wire::request::MetaKey;
use kachel_wire::{Reply, Sink};

use super::ttl_left;
use crate::engine::Engine;

/// Words what is known of an item.
pub(crate) fn meta_debug(
    engine: &mut Engine,
    (key, hash): (&[u8], KeyHash),
    named: MetaKey<'_>,
    sink: &mut impl Sink,
) {
    engine.counters.cmd_meta.add(1);
    let Some(at) = engine.find(key, hash) else {
        sink.put(Reply::En.bytes());
        return;
    };
    let item = engine.item(at);
    let facts = DebugFacts {
        ttl: ttl_left(item.expiry(), engine.second),
        since_access_s: engine.second.saturating_sub(item.last_access()),
        cas: item.cas(),
        fetched: item.fetched(),
        class: 1,
        item_bytes: item.memory_bytes(),
        base64_key: item.base64_key(),
    };
    format::meta_debug(sink, named, &facts);
}
