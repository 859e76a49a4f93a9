//! `ma`.
//!
//! Upstream:   `execute`.
//! Downstream: `arithmetic::change`; `engine::put` for a number made on a miss.

use kachel_segment::NewValue;
use kachel_table::KeyHash;
use kachel_wire::format::{self, MetaCode, MetaFacts, MetaVerb};
use kachel_wire::request::{Direction, Meta};
use kachel_wire::{Reply, Sink};

use super::arithmetic::{Changed, Text, change, count_miss};
use super::{live_on, ttl_left};
use crate::engine::{Draft, Engine, Found};
use crate::second::Epoch;

/// Digits of the longest number.
const NUMBER_BYTES_MAX: usize = 20;

/// Changes a number, or makes one, as the flags ask.
pub(crate) fn meta_arithmetic(
    engine: &mut Engine,
    epoch: &Epoch,
    (key, hash): (&[u8], KeyHash),
    meta: &Meta<'_>,
    direction: Direction,
    sink: &mut impl Sink,
) {
    engine.counters.cmd_meta.add(1);
    let by = (direction, meta.delta);
    let tokens = (meta.compare_cas, meta.new_cas);
    let (at, number, created) = match change(engine, (key, hash), by, tokens) {
        Changed::Yes { at, number } => (at, number, false),
        Changed::Miss if meta.vivify.is_some() => match make(engine, epoch, (key, hash), meta) {
            Some(at) => (at, meta.initial, true),
            None => {
                sink.put(Reply::OutOfMemoryNewItem.bytes());
                return;
            }
        },
        Changed::Miss => {
            count_miss(engine, direction);
            format::meta_plain(sink, MetaCode::Nf, meta);
            return;
        }
        Changed::Differs => {
            format::meta_plain(sink, MetaCode::Ex, meta);
            return;
        }
        Changed::NonNumeric => {
            sink.put(Reply::NonNumeric.bytes());
            return;
        }
        Changed::NoMemory => {
            sink.put(Reply::OutOfMemory.bytes());
            return;
        }
    };
    reply(engine, epoch, meta, (at, number, created), sink);
}

/// Words the number and what the flags ask for, and sets the TTL they give.
fn reply(
    engine: &mut Engine,
    epoch: &Epoch,
    meta: &Meta<'_>,
    (at, number, created): (Found, u64, bool),
    sink: &mut impl Sink,
) {
    let second = engine.second;
    let before = engine.item(at).expiry();
    let life = live_on(meta, (epoch, second), (before, created));
    if life.expiry != before {
        engine.set_expiry(at, life.expiry);
    }
    if meta.letters.has(b'q') {
        return;
    }
    let facts = MetaFacts {
        value_bytes: format::digits(number),
        cas: engine.item(at).cas(),
        ttl_before: if created { None } else { ttl_left(before, second) },
        ttl: life.ttl,
        ttl_made: life.ttl_made,
        created,
        ..MetaFacts::default()
    };
    let shows_value = meta.letters.has(b'v');
    let code = if shows_value { MetaCode::Va } else { MetaCode::Hd };
    format::meta_head(sink, MetaVerb::Arithmetic, code, meta, &facts);
    if shows_value {
        format::number(sink, number);
    }
}

/// Makes the number that was missed. Its TTL is `N`'s, unless a `T` behind that gives another.
fn make(
    engine: &mut Engine,
    epoch: &Epoch,
    (key, hash): (&[u8], KeyHash),
    meta: &Meta<'_>,
) -> Option<Found> {
    let mut text = Text::<NUMBER_BYTES_MAX>::new();
    format::put_u64(&mut text, meta.initial);
    let draft = Draft {
        value: NewValue::Bytes(text.digits()),
        client_flags: 0,
        expiry: meta.vivify.map_or(0, |ttl| epoch.expiry(ttl, engine.second)),
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
