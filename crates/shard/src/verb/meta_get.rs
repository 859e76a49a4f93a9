//! `mg`.
//!
//! Upstream:   `execute`.
//! Downstream: `engine`; the reply line is `format::meta_head`'s.
//!
//! Stale and win, as memcached keeps them: an item marked stale shows `X`; the first to read it
//! wins the right to refill it (`W`), later readers see that it was given away (`Z`), until a
//! store. `k` shows the key as the item is marked: as its storing request worded it.

use kachel_segment::{NewValue, Pinned};
use kachel_table::KeyHash;
use kachel_wire::Reply;
use kachel_wire::format::{self, MetaCode, MetaFacts, MetaVerb};
use kachel_wire::request::{Meta, Ttl};

use super::{ReplySink, live_on, ttl_left};
use crate::engine::{Draft, Engine, Found};
use crate::second::Epoch;

/// Reads an item, and touches, makes or wins it, as the flags ask.
pub(crate) fn meta_get(
    engine: &mut Engine,
    epoch: &Epoch,
    (key, hash): (&[u8], KeyHash),
    meta: &Meta<'_>,
    sink: &mut impl ReplySink,
) -> Option<Pinned> {
    engine.counters.cmd_meta.add(1);
    let mut facts = MetaFacts::default();
    let found = match (engine.find(key, hash), meta.vivify) {
        (None, Some(ttl)) => match vivify(engine, epoch, (key, hash), meta, ttl) {
            Some(at) => {
                facts.created = true;
                Some(at)
            }
            None => {
                sink.put(Reply::OutOfMemory.bytes());
                return None;
            }
        },
        (found, _) => found,
    };
    count(engine, meta, found.is_some());
    let Some(at) = found else {
        if !(meta.letters.has(b'q')) {
            format::meta_plain(sink, MetaCode::En, meta);
        }
        return None;
    };
    let second = engine.second;
    let item = engine.item(at);
    facts.ttl_before = if facts.created { None } else { ttl_left(item.expiry(), second) };
    facts.hit_before = item.fetched();
    facts.since_access_s = second.saturating_sub(item.last_access());
    facts.win_sent = item.win_sent();
    facts.base64_key = Some(item.base64_key());
    facts.stale = item.stale();
    facts.cas = item.cas();
    facts.client_flags = item.client_flags();
    facts.value_bytes = item.value().bytes();
    let before = item.expiry();
    let life = live_on(meta, (epoch, second), (before, facts.created));
    (facts.ttl, facts.ttl_made) = (life.ttl, life.ttl_made);
    let recache = life.recached && !facts.created && !facts.win_sent;
    facts.won = facts.created || recache || facts.stale && !facts.win_sent;
    let shows_value =
        meta.letters.has(b'v') && meta.compare_cas.is_none_or(|token| token != facts.cas);
    if life.expiry != before {
        engine.set_expiry(at, life.expiry);
    }
    if facts.won {
        engine.set_win_sent(at);
    }
    if !meta.letters.has(b'u') {
        engine.note_access(at);
    }
    let code = if shows_value { MetaCode::Va } else { MetaCode::Hd };
    format::meta_head(sink, MetaVerb::Get, code, meta, &facts);
    if !shows_value {
        return None;
    }
    match super::inline_value(engine.item(at), sink) {
        Some(value) => {
            sink.put_all([value, b"\r\n"]);
            None
        }
        None => Some(engine.pin(at)),
    }
}

/// Makes an empty item for the one who missed it, to be filled by whoever won.
fn vivify(
    engine: &mut Engine,
    epoch: &Epoch,
    (key, hash): (&[u8], KeyHash),
    meta: &Meta<'_>,
    ttl: Ttl,
) -> Option<Found> {
    let draft = Draft {
        value: NewValue::Bytes(b""),
        client_flags: 0,
        expiry: epoch.expiry(ttl, engine.second),
        cas: meta.new_cas,
        stale: false,
        win_sent: false,
        base64_key: false,
        keeps_access: false,
        replaces: None,
    };
    let at = engine.put(key, hash, draft).ok()?;
    engine.counters.total_items.add(1);
    Some(at)
}

fn count(engine: &Engine, meta: &Meta<'_>, hit: bool) {
    let counters = &engine.counters;
    let (all, hits, misses) = if meta.ttl.is_some() {
        (&counters.cmd_touch, &counters.touch_hits, &counters.touch_misses)
    } else {
        (&counters.cmd_get, &counters.get_hits, &counters.get_misses)
    };
    all.add(1);
    if hit { hits.add(1) } else { misses.add(1) }
}
