//! Copies of items that are read often over UDP, and the reads that copies have answered.
//!
//! Upstream:   `serve`, for each batch; `tick`, in steps that begin once a second.
//! Downstream: the store of copies (`kachel_engine::Copies`).
//!
//! A request of a datagram comes here only if no copy has answered it. The second read of a key
//! copies its item, if it is small.
//!
//! Invariants:
//! - I1  An item is looked up and copied while this core holds its engine, and after the stamp of
//!   flushes was taken (`kachel_engine::copies`, I2 and I3).
//! - I2  An item is copied only if a plain read of it has the reply that the copy gives: no stale
//!   item, none that somebody refills, none whose key was sent in base64.

use arrayvec::ArrayVec;
use kachel_engine::{
    Answer, BATCH_MAX, CopiedItem, CopyHits, Engine, GetTerms, Key, Lookup, Outcome, Value,
    ValueWanted, Verdict, Wanted,
};

use crate::batch::{Batch, Ready, Staged};
use crate::context::Context;
use crate::engines::{Engines, HeldEngines};

/// The facts that a copy needs.
const WANTED: Wanted = Wanted::CLIENT_FLAGS.with(Wanted::CAS).with(Wanted::TTL).with(Wanted::MARKS);

/// An item counts at most this number of reads, so more are not noted.
const ACCESSES_MAX: u64 = 3;

/// Copies the items that requests of datagrams in a batch have read, and that are read often.
///
/// Cost: a look at each request; [`copy_if_hot`] for those of datagrams.
#[cold]
pub(crate) fn copy_hot<E: Engine>(
    context: &Context,
    held: &mut HeldEngines<'_, E>,
    ready: &[Ready],
    batch: &Batch<'_>,
) {
    debug_assert!(context.shared.options.copies.is_some(), "the caller has looked");
    for staged in batch.iter() {
        if ready[staged.ready as usize].connection.is_exchange() {
            copy_if_hot(context, held, batch, staged);
        }
    }
}

/// Copies the item that a request has read, if it is read often. Does nothing if another core holds
/// its engine.
///
/// Cost: a store; for each second read of a key the engine and a lookup.
fn copy_if_hot<E: Engine>(
    context: &Context,
    held: &mut HeldEngines<'_, E>,
    batch: &Batch<'_>,
    staged: &Staged<'_>,
) {
    let Some(copies) = &context.shared.options.copies else { return };
    debug_assert!(!E::DELAYS, "only items in memory are copied");
    let key = batch.key(staged);
    if !staged.is_read || !staged.reads_value || !copies.is_hot(key.secret_hash()) {
        return;
    }
    let Some(stamp) = copies.stamp() else { return }; // I1
    let Some(engine) = held.get(staged.owner) else { return };
    let terms = GetTerms { notes_access: false, wanted: WANTED, ..GetTerms::VALUE };
    let now = context.now();
    let Answer::Done(Outcome { verdict, value }, _) = engine.read(&key, &terms, None, &now) else {
        return;
    };
    let (Verdict::Hit(facts), Value::Inline(value)) = (verdict, value) else { return };
    if facts.stale || facts.win_sent || facts.protocol_mark != Some(false) {
        return; // I2
    }
    let left = facts.ttl_before.map(|seconds| u32::try_from(seconds).unwrap_or(0));
    let item = CopiedItem {
        key,
        value,
        client_flags: facts.client_flags,
        cas: facts.cas,
        expiry: left.map_or(0, |seconds| now.second + seconds),
        shard: staged.owner,
    };
    debug_assert!(item.expiry == 0 || item.expiry > now.second, "a live item was found");
    copies.publish(stamp, &item); // I1
}

/// Counts the reads that copies from place `from` on have answered, and has their items count as
/// read. The timekeeper does so for all shards, or each core for its own if others may not take its
/// engine. Returns the place at which the next tick goes on.
#[cold]
pub(crate) fn take_hits<E: Engine>(
    context: &Context,
    engines: &Engines<E>,
    from: usize,
) -> Option<usize> {
    let copies = context.shared.options.copies.as_ref()?;
    if engines.are_open_to_all() && context.id != 0 {
        return None;
    }
    let mut is_wanted = |shard| engines.may_take(shard, context);
    copies.take_hits(from, &mut is_wanted, &mut |batch| note_hits(context, engines, batch))
}

fn note_hits<E: Engine>(context: &Context, engines: &Engines<E>, batch: &[CopyHits<'_>]) {
    debug_assert!(batch.iter().all(|hits| hits.count > 0), "they were read");
    context.counters.get_hits.add(batch.iter().map(|hits| hits.count).sum());
    // A copy that is gone has no key: its item is not known any more.
    let known = batch.iter().filter(|hits| !hits.key.is_empty());
    let known: ArrayVec<_, BATCH_MAX> =
        known.map(|hits| (hits.shard, context.hasher.key(hits.key), hits.count)).collect();
    let (now, terms) = (context.now(), GetTerms { value: ValueWanted::No, ..GetTerms::VALUE });
    for shard in 0..context.shards() {
        let of_shard = || known.iter().filter(move |(owner, ..)| *owner == shard);
        if of_shard().next().is_none() {
            continue;
        }
        let Some(mut engine) = engines.take(shard, context) else { continue };
        let lookup = |key: &Key<'_>| Lookup { secret_hash: key.secret_hash(), value: false };
        engine.prefetch(of_shard().map(|(_, key, _)| lookup(key)));
        for (_, key, count) in of_shard() {
            for _ in 0..(*count).min(ACCESSES_MAX) {
                let _read = engine.read(key, &terms, None, &now);
            }
        }
    }
}
