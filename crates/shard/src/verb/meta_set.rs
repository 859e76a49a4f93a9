//! `ms`.
//!
//! Upstream:   `execute`, once the data block is whole.
//! Downstream: `store`, on terms that the flags make.

use kachel_table::KeyHash;
use kachel_wire::format::{self, MetaCode, MetaFacts, MetaVerb};
use kachel_wire::request::{Meta, StoreMode};
use kachel_wire::{Reply, Sink};

use super::store::{Block, StoreTerms, Stored, remove_stale, store};
use crate::engine::Engine;
use crate::second::Epoch;

/// Stores a value as the flags ask.
pub(crate) fn meta_set(
    engine: &mut Engine,
    epoch: &Epoch,
    (key, hash): (&[u8], KeyHash),
    meta: &Meta<'_>,
    mode: StoreMode,
    block: Block<'_>,
    sink: &mut impl Sink,
) {
    engine.counters.cmd_meta.add(1);
    let second = engine.second;
    let joins = matches!(mode, StoreMode::Append | StoreMode::Prepend);
    let vivify = meta.vivify.filter(|_| joins);
    let terms = StoreTerms {
        mode,
        client_flags: meta.client_flags,
        expiry: meta.ttl.map_or(0, |ttl| epoch.expiry(ttl, second)),
        compare_cas: meta.compare_cas,
        needs_item: meta.compare_cas.is_some()
            && matches!(mode, StoreMode::Set | StoreMode::Replace),
        new_cas: meta.new_cas,
        stale_allowed: meta.letters.has(b'I'),
        base64_key: meta.key.base64,
        vivify_expiry: vivify.map(|ttl| epoch.expiry(ttl, second)),
    };
    let mut facts = MetaFacts { value_bytes: block.bytes(), ..MetaFacts::default() };
    let code = match store(engine, (key, hash), terms, block) {
        Stored::Yes { at, value_bytes } => {
            facts.cas = engine.item(at).cas();
            facts.value_bytes = value_bytes;
            MetaCode::Hd
        }
        Stored::No => MetaCode::Ns,
        Stored::Exists => MetaCode::Ex,
        Stored::NotFound => MetaCode::Nf,
        Stored::NoMemory => {
            remove_stale(engine, (key, hash), mode, meta.compare_cas);
            sink.put(Reply::OutOfMemoryStoring.bytes());
            return;
        }
    };
    if !(meta.letters.has(b'q') && format::quiet_hides(MetaVerb::Set, code)) {
        format::meta_head(sink, MetaVerb::Set, code, meta, &facts);
    }
}
