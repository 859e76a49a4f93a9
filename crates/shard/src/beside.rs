//! Reads of other shards' keys on this core. Such a read sends no hop, takes no lock and wakes no
//! other core.
//!
//! Upstream:   `serve`, with reads whose keys this shard does not own.
//! Downstream: the reader of the engine that owns the key; `wire` formats the outcome.
//!
//! ```text
//! the connection awaits answers -------------------------> hop
//! the read changes the item, or the value is large ------> hop
//! slots of the key's buckets moved in every attempt -----> hop
//! otherwise ---------------------------------------------> answered here
//! ```
//!
//! A client must read what it wrote. So while a request of a connection is on its way to another
//! shard, the reads of this connection hop, too.
//!
//! Invariants:
//! - B1  This core reads other shards only while it is awake as a reader. It holds nothing that it
//!   read when the batch ends.
//! - B2  A read is answered here only if its connection awaits no answer of another shard.
//!
//! Source: concurrent reads and exclusive writes (CREW) as in Lim and others, "MICA", NSDI 2014. We
//! read without a version in the item, because items are immutable and reclaimed by quiescence.

use kachel_engine::{DeadFound, Engine, GetTerms, Key, Outcome, ReadAnswer, ReadBeside, Verb};
use kachel_net::ConnectionIndex;
use kachel_stdx::{Place, Reader};
use kachel_wire::request::Request;
use kachel_wire::{format, retrieval_terms};

use crate::apply::ReadTerms;
use crate::batch::{Batch, Staged};
use crate::clients::Clients;
use crate::context::Context;
use crate::reply::ReplySink;

/// The readers of all shards' items for this core. Without readers, this core reads only its own
/// items (`erew`).
#[derive(Debug)]
pub(crate) struct Readers<R> {
    /// By the number of the shard that owns the items.
    readers: Vec<R>,
    /// The registration of this core as a reader of all engines.
    core: Reader,
}

impl<R: ReadBeside> Readers<R> {
    /// No readers: the core that is registered as `core` reads only its own items.
    pub(crate) fn none(core: Reader) -> Self {
        debug_assert!(!core.is_awake(), "B1: it reads no other shard yet");
        Self { readers: Vec::new(), core }
    }

    /// The place of this core.
    pub(crate) const fn place(&self) -> Place {
        self.core.place()
    }

    /// This core may read other shards from now on. Cost: nothing while it is awake; else a fence.
    pub(crate) fn wake(&mut self) {
        debug_assert!(!self.readers.is_empty(), "B1: without readers it reads no other shard");
        if !self.core.is_awake() {
            self.core.wake();
        }
    }

    /// This core holds nothing that it read (B1). Cost: two loads.
    pub(crate) fn end_round(&mut self) {
        self.core.round_over();
    }

    /// This core reads no other shard until it wakes. Cost: a store.
    pub(crate) fn sleep(&mut self) {
        if self.core.is_awake() {
            self.core.sleep();
        }
    }

    /// The readers of all shards, by their numbers.
    pub(crate) fn set(&mut self, readers: Vec<R>) {
        self.readers = readers;
    }

    /// Whether the batch has a read for the items of another shard.
    pub(crate) fn are_needed(&self, batch: &Batch<'_>, context: &Context) -> bool {
        !self.readers.is_empty() && batch.iter().any(|staged| is_beside(staged, context))
    }

    /// Prefetches the lines of the index for those reads.
    pub(crate) fn prefetch_index(&self, batch: &Batch<'_>, context: &Context) {
        for staged in batch.iter().filter(|staged| is_beside(staged, context)) {
            self.readers[usize::from(staged.owner)].prefetch_index(staged.lookup());
        }
    }

    /// Prefetches the items for those reads, once the lines of the index may have come.
    pub(crate) fn prefetch_items(&self, batch: &Batch<'_>, context: &Context) {
        for staged in batch.iter().filter(|staged| is_beside(staged, context)) {
            self.readers[usize::from(staged.owner)].prefetch_item(staged.lookup());
        }
    }

    /// The parts that a read of a staged request's key needs. `None`: the request must hop.
    #[inline]
    pub(crate) fn beside<'a, E: Engine<Reader = R>>(
        &'a self,
        engine: &'a E,
        context: &'a Context,
        clients: &Clients<E::Pinned>,
        connection: ConnectionIndex,
        staged: &Staged<'_>,
    ) -> Option<Beside<'a, E>> {
        let Self { readers, core } = self;
        let reader = readers.get(usize::from(staged.owner))?;
        let open = clients.connections.get(connection)?;
        if !staged.is_read || open.outbox().awaits_answers() {
            return None; // B2
        }
        Some(Beside { reader, core, _engine: engine, context })
    }
}

/// Whether a staged request may be a read for the items of another shard.
fn is_beside(staged: &Staged<'_>, context: &Context) -> bool {
    staged.is_read && staged.owner != context.id
}

/// The parts that a read of another shard's item needs.
pub(crate) struct Beside<'a, E: Engine> {
    /// The items of the shard that owns the key.
    pub(crate) reader: &'a E::Reader,
    /// The registration of this core, awake (B1).
    core: &'a Reader,
    /// This shard's engine, which does not change while what was read is lent (`contract`, I4).
    _engine: &'a E,
    pub(crate) context: &'a Context,
}

impl<'a, E: Engine> Beside<'a, E> {
    fn read(&self, key: &Key<'_>, terms: &GetTerms) -> Option<Outcome<'a, E::Pinned>> {
        let Self { reader, core, context, .. } = self;
        debug_assert!(!context.owns(key), "the owner of a key reads it as its owner");
        let mut found = DeadFound::default();
        match reader.read(key, terms, core, &context.now, &mut found) {
            ReadAnswer::Done(outcome) => {
                context.counters.note_dead(found);
                Some(outcome)
            }
            ReadAnswer::AskOwner => None,
        }
    }

    /// Answers one key of a retrieval. Returns `false` if only the owner can answer it. In that
    /// case nothing was done.
    #[inline]
    pub(crate) fn key(self, key: &Key<'_>, terms: ReadTerms, sink: &mut impl ReplySink) -> bool {
        let ReadTerms { with_cas, ttl } = terms;
        let get_terms = retrieval_terms(with_cas, ttl, sink.value_bytes_max());
        let Some(Outcome { verdict, value }) = self.read(key, &get_terms) else { return false };
        let counters = &self.context.counters;
        counters.requests.add(1);
        counters.reads_beside.add(1);
        counters.note_get(ttl.is_some(), &verdict);
        let pinned = format::answer_key(sink, key, with_cas, &verdict, value);
        assert!(pinned.is_none(), "a value that is read beside its owner is lent");
        true
    }

    /// Answers a request of one key, if it is a read. Returns `false` if only the owner can answer
    /// it. In that case nothing was done.
    #[inline]
    pub(crate) fn request(
        self,
        request: &Request<'_>,
        key: Key<'_>,
        sink: &mut impl ReplySink,
    ) -> bool {
        let operation = request.operation(key, sink.value_bytes_max());
        let Verb::Get(terms) = &operation.verb else { return false };
        let Some(Outcome { verdict, value }) = self.read(&key, terms) else { return false };
        let counters = &self.context.counters;
        counters.requests.add(1);
        counters.reads_beside.add(1);
        counters.cmd_meta.add(u64::from(request.is_meta()));
        counters.note(&operation.verb, &verdict);
        let pinned = request.answer(sink, &verdict, value);
        assert!(pinned.is_none(), "a value that is read beside its owner is lent");
        true
    }
}
