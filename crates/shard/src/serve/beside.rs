//! Reads of the keys of engines that this core does not hold. Such a read takes no lock and wakes
//! no core. Keys of a home engine of this core are read so as well, while another core holds it.
//!
//! Upstream:   `serve` for a batch, `carry_out` for each of its requests.
//! Downstream: the reader of the engine that owns the key; `apply`, which counts and answers what
//!             was read.
//!
//! ```text
//! the connection awaits answers -------------------------> under the lock (`entered`), or parked
//! the read changes the item, or the value is large ------> under the lock, or parked
//! slots of the key's buckets moved in every attempt -----> under the lock, or parked
//! otherwise ---------------------------------------------> answered here
//! ```
//!
//! A client must read what it wrote. So while a request of a connection is parked, the reads of
//! this connection go the same way.
//!
//! Invariants:
//! - B1  This core reads beside engines only while it is awake as a reader. It holds nothing that
//!   it read when the batch ends.
//! - B2  A read is answered here only if its connection awaits no answer. `carry_out`
//!   checks that.
//!
//! Source: concurrent reads and exclusive writes (CREW) as in Lim and others, "MICA", NSDI 2014. We
//! read without a version in the item, because items are immutable and reclaimed by quiescence.

use kachel_engine::{
    DeadFound, Engine, EngineIndex, GetTerms, Key, Outcome, ReadAnswer, ReadBeside, ReadGuesses,
    Verb,
};
use kachel_observe::ItemBefore;
use kachel_stdx::Reader;
use kachel_wire::format::KeyReply;
use kachel_wire::request::Request;
use kachel_wire::{lease_terms, retrieval_terms};

use crate::context::Context;
use crate::request::apply::{ReadTerms, answer_key, answer_operation};
use crate::request::batch::{Batch, Staged};
use crate::request::reply::ReplySink;
use crate::waiting::engines::Engines;
use crate::waiting::held::HeldEngines;

/// A guess of the reader of an engine.
pub(crate) type GuessOf<E> = <<E as Engine>::Reader as ReadBeside>::Guess;

/// This core, as a reader of the items of all engines.
#[derive(Debug)]
pub(crate) struct Core {
    registration: Reader,
}

impl Core {
    /// A core that is registered so. It reads nothing yet.
    pub(crate) fn new(registration: Reader) -> Self {
        debug_assert!(!registration.is_awake(), "B1: it reads beside no engine yet");
        Self { registration }
    }

    /// This core may read beside engines from now on. Cost: nothing while it is awake; else a
    /// fence.
    pub(crate) fn wake(&mut self) {
        if !self.registration.is_awake() {
            self.registration.wake();
        }
        debug_assert!(self.registration.is_awake(), "B1");
    }

    /// This core holds nothing that it read (B1). Calls the engines that wait for that. Cost: a
    /// load, and two more while it is awake.
    pub(crate) fn end_round<E: Engine>(&mut self, engines: &Engines<E>, context: &Context) {
        if self.registration.is_awake() && self.registration.round_over() {
            engines.reader_has_passed(context);
        }
    }

    /// This core reads beside no engine until it wakes. Calls the engines that wait for that. Cost:
    /// a read-modify-write.
    pub(crate) fn sleep<E: Engine>(&mut self, engines: &Engines<E>, context: &Context) {
        if self.registration.is_awake() && self.registration.sleep() {
            engines.reader_has_passed(context);
        }
    }

    /// The parts that a read of the items of an engine needs. `None` with `erew`.
    #[inline]
    pub(crate) fn beside<'a, E: Engine>(
        &'a self,
        held: &'a HeldEngines<'_, E>,
        context: &'a Context,
        engine: EngineIndex,
        guess: Option<GuessOf<E>>,
    ) -> Option<Beside<'a, E>> {
        let reader = held.readers().get(engine.number())?;
        Some(Beside {
            reader,
            index: engine,
            guess,
            core: &self.registration,
            _held: held,
            context,
        })
    }
}

/// Takes the home engines that a batch needs, and prefetches what it looks up: these engines
/// prefetch their own keys, and the readers those of other engines. Returns the guesses of the
/// readers.
// Not inlined: as a part of `run` it would cost each request some instructions.
#[inline(never)]
pub(crate) fn prefetch<E: Engine>(
    context: &Context,
    core: &mut Core,
    held: &mut HeldEngines<'_, E>,
    batch: &Batch<'_>,
) -> ReadGuesses<GuessOf<E>> {
    let mut are_taken = true;
    for &index in context.home_engines() {
        let of_it = |staged: &&Staged<'_>| staged.owner == index;
        if batch.iter().any(|staged| of_it(&staged)) {
            match held.get(index) {
                Some(engine) => engine.prefetch(batch.iter().filter(of_it).map(Staged::lookup)),
                None => are_taken = false,
            }
        }
    }
    let is_held = |owner| context.is_home_of(owner) && (are_taken || held.has(owner));
    let readers = held.readers();
    if readers.is_empty() || batch.iter().all(|staged| is_held(staged.owner)) {
        return ReadGuesses::NONE;
    }
    core.wake();
    guess(readers, batch, is_held)
}

/// Guesses where the items are of the requests that this core executes beside the owner, or in its
/// place, and prefetches them. The engines that this core holds (`is_held`) do so for their
/// requests.
fn guess<R: ReadBeside>(
    readers: &[R],
    batch: &Batch<'_>,
    is_held: impl Fn(EngineIndex) -> bool,
) -> ReadGuesses<R::Guess> {
    ReadGuesses::of(batch.iter().map(|staged| {
        let is_beside = !is_held(staged.owner);
        is_beside.then(|| (&readers[staged.owner.number()], staged.lookup()))
    }))
}

/// The parts that a read beside the owner of the item needs.
pub(crate) struct Beside<'a, E: Engine> {
    /// The items of the engine that owns the key.
    pub(crate) reader: &'a E::Reader,
    index: EngineIndex,
    /// Where the item probably is.
    guess: Option<GuessOf<E>>,
    /// The registration of this core, awake (B1).
    core: &'a Reader,
    /// The engines of this batch, which do not change while what was read is lent (`contract`, I4).
    _held: &'a HeldEngines<'a, E>,
    pub(crate) context: &'a Context,
}

impl<'a, E: Engine> Beside<'a, E> {
    #[inline(always)]
    fn read(
        &self,
        key: &Key<'_>,
        terms: &GetTerms,
        sink: &mut impl ReplySink,
    ) -> Option<Outcome<'a, E::Pinned>> {
        let Self { reader, index, guess, core, context, .. } = self;
        debug_assert!(core.is_awake(), "B1");
        let mut found = DeadFound::default();
        match reader.read(key, *guess, terms, core, &context.now(), &mut found) {
            ReadAnswer::Done(outcome, durability) => {
                sink.depends_on(*index, durability);
                context.note_dead_beside(found);
                Some(outcome)
            }
            ReadAnswer::AskOwner => None,
        }
    }

    /// Answers one key of a retrieval. Returns `false` if only the owner can answer it. In that
    /// case nothing was done.
    #[inline]
    pub(crate) fn key(self, key: &Key<'_>, terms: ReadTerms, sink: &mut impl ReplySink) -> bool {
        let ReadTerms { reply, ttl } = terms;
        if reply.form.is_lease() {
            return self.lease(key, reply, sink);
        }
        let get_terms = retrieval_terms(reply.form.with_cas(), ttl, sink.value_bytes_max());
        self.retrieval(key, &get_terms, reply, ttl.is_some(), sink)
    }

    /// Answers one key of `lease-get`, if the client gets no lease. Returns `false` if only the
    /// owner can answer it. In that case nothing was done.
    #[cold]
    #[inline(never)]
    fn lease(self, key: &Key<'_>, reply: KeyReply, sink: &mut impl ReplySink) -> bool {
        debug_assert!(reply.form.is_lease(), "a key of `lease-get`");
        let terms = lease_terms(sink.value_bytes_max());
        self.retrieval(key, &terms, reply, false, sink)
    }

    /// Reads one key and answers it. Returns `false` if only the owner can do that. In that case
    /// nothing was done.
    #[inline(always)]
    fn retrieval(
        self,
        key: &Key<'_>,
        terms: &GetTerms,
        reply: KeyReply,
        touches: bool,
        sink: &mut impl ReplySink,
    ) -> bool {
        let Some(Outcome { verdict, value }) = self.read(key, terms, sink) else { return false };
        self.context.counters.reads_beside.add(1);
        let pinned = answer_key(self.context, key, reply, touches, &verdict, value, sink);
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
        let Some(Outcome { verdict, value }) = self.read(&key, terms, sink) else { return false };
        let context = self.context;
        context.counters.reads_beside.add(1);
        // A read changes no item, so the item need not be looked up before.
        let sampled = context.samples(&key).then(ItemBefore::default);
        let pinned = answer_operation(context, request, &operation, sampled, &verdict, value, sink);
        assert!(pinned.is_none(), "a value that is read beside its owner is lent");
        true
    }
}
