//! `touch`.
//!
//! Upstream:   `execute`.
//! Downstream: `engine::set_expiry`: one store, the CAS token stays.

use kachel_table::KeyHash;
use kachel_wire::Reply;

use crate::engine::Engine;

/// Gives the item a new expiry, if there is one.
pub(crate) fn touch(engine: &mut Engine, key: &[u8], hash: KeyHash, expiry: u32) -> Reply {
    engine.counters.cmd_touch.add(1);
    let Some(at) = engine.find(key, hash) else {
        engine.counters.touch_misses.add(1);
        return Reply::NotFound;
    };
    engine.counters.touch_hits.add(1);
    engine.set_expiry(at, expiry);
    engine.note_access(at);
    Reply::Touched
}
