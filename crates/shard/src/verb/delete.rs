//! `delete`.
//!
//! Upstream:   `execute`.
//! Downstream: `engine::remove`.

use kachel_table::KeyHash;
use kachel_wire::Reply;

use crate::engine::Engine;

/// Takes the item out, if there is one.
pub(crate) fn delete(engine: &mut Engine, key: &[u8], hash: KeyHash) -> Reply {
    let Some(at) = engine.find(key, hash) else {
        engine.counters.delete_misses.add(1);
        return Reply::NotFound;
    };
    engine.counters.delete_hits.add(1);
    engine.remove(hash, at);
    Reply::Deleted
}
