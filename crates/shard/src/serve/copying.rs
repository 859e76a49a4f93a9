//! Copies of items that are read often over UDP, and the number of reads that copies have answered.
//!
//! Upstream:   `serve`, for each batch; `tick`, once a second.
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

use std::sync::Arc;

use kachel_engine::{
    Answer, CopiedItem, Copies, Durability, Engine, FlushStamp, GetTerms, Key, Now, Outcome, Value,
    Verdict, Wanted,
};
use kachel_net::CoreIndex;

use crate::context::Context;
use crate::request::batch::{Batch, Ready, Staged};
use crate::waiting::held::HeldEngines;

/// The facts that a copy needs.
const WANTED: Wanted = Wanted::CLIENT_FLAGS.with(Wanted::CAS).with(Wanted::TTL).with(Wanted::MARKS);

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
        if ready[staged.ready as usize].client.is_exchange() {
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
    let key = batch.key(staged);
    if !staged.is_read || !staged.reads_value || !copies.is_hot(key.secret_hash()) {
        return;
    }
    let Some(stamp) = copies.stamp() else { return }; // I1
    let Some(engine) = held.get(staged.owner) else { return };
    let terms = GetTerms { notes_access: false, wanted: WANTED, ..GetTerms::VALUE };
    let now = context.now();
    let ticket = match engine.read(&key, &terms, None, &now) {
        // An item that is not durable is not copied: its copy would be sent without a fence.
        Answer::Done(outcome, Durability::Now) => return publish(copies, stamp, key, outcome, now),
        Answer::Done(_, Durability::At(_)) => return,
        Answer::Later(ticket) => ticket,
    };
    engine.forget(ticket); // Only items in memory are copied.
}

/// Copies an item that was read.
fn publish<P>(
    copies: &Arc<dyn Copies>,
    stamp: FlushStamp,
    key: Key<'_>,
    Outcome { verdict, value }: Outcome<'_, P>,
    now: Now,
) {
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
    };
    debug_assert!(item.expiry == 0 || item.expiry > now.second, "a live item was found");
    copies.publish(stamp, &item); // I1
}

/// Counts the items that copies have answered with since the last call as hits. The timekeeper
/// calls it once a second; `counted` is how many there were before.
pub(crate) fn count_answered(context: &Context, counted: &mut u64) {
    debug_assert!(context.core == CoreIndex(0), "the timekeeper counts for all shards");
    let Some(copies) = &context.shared.options.copies else { return };
    let answered = copies.answered();
    context.counters.get_hits.add(answered - std::mem::replace(counted, answered));
}
