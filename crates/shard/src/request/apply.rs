//! Applying a request to the engine: the operation, its counters, and the reply.
//!
//! Upstream:   `carry_out` and `upload`, for clients of this core; `parked`, for requests that were
//!             left with an engine; `beside`, with the outcomes of its reads.
//! Downstream: the engine; `wire` makes the operation and formats the outcome.
//!
//! Invariants:
//! - I1  Every request that is executed is counted once and answered once, by [`answer_key`] or
//!   [`answer_operation`]. A request that the engine delays is neither counted nor answered yet.

use kachel_engine::{
    Answer, Block, Durability, Engine, EngineIndex, Key, Operation, Outcome, Sequence, Ticket, Ttl,
    Value, Verb, Verdict,
};
use kachel_net::{AnswerRoom, Resume};
use kachel_observe::ItemBefore;
use kachel_wire::format::{self, KeyReply};
use kachel_wire::request::Request;
use kachel_wire::{lease_terms, retrieval_terms};

use crate::context::Context;
use crate::request::logging::Logged;
use crate::request::reply::{LargeValue, ReplySink};

/// The most bytes of the line before a value, without its key, and of `END`.
const VALUE_LINE_BYTES_MAX: u16 = 64;

/// Room to keep for the answer to one key of a retrieval whose value is expected to have
/// `value_bytes`.
pub(crate) fn room_for_key(key: &[u8], value_bytes: u16) -> AnswerRoom {
    let key_bytes = u16::try_from(key.len()).expect("a key has at most 250 bytes");
    AnswerRoom { line_bytes: key_bytes + VALUE_LINE_BYTES_MAX, value_bytes }
}

/// Room to keep for the answer to a request of one key whose value is expected to have
/// `value_bytes`.
pub(crate) fn room_for_answer(request: &Request<'_>, value_bytes: u16) -> AnswerRoom {
    let value_bytes = if request.shows_value() { value_bytes } else { 0 };
    AnswerRoom { line_bytes: request.reply_bytes_max(), value_bytes }
}

/// How a key of a retrieval is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadTerms {
    pub(crate) reply: KeyReply,
    /// The TTL to give to the item.
    pub(crate) ttl: Option<Ttl>,
}

impl ReadTerms {
    /// The terms of the key at which a retrieval continues.
    #[inline]
    pub(crate) const fn of(from_here: &Resume, is_last: bool) -> Self {
        let Resume { form, ttl, .. } = *from_here;
        Self { reply: KeyReply { form, is_last }, ttl }
    }
}

/// Counts, samples and answers one key of a retrieval that was read, or read and touched (I1). A
/// value that is too large for the sink is returned, and must follow the text.
#[inline(always)]
pub(crate) fn answer_key<P>(
    context: &Context,
    key: &Key<'_>,
    reply: KeyReply,
    touches: bool,
    verdict: &Verdict,
    value: Value<'_, P>,
    sink: &mut impl ReplySink,
) -> Option<LargeValue<P>> {
    debug_assert!(!(touches && reply.form.is_lease()), "`lease-get` gives no TTL");
    context.counters.requests.add(1);
    context.counters.note_get(touches, verdict);
    if context.samples(key) {
        context.sample_read(key, touches, verdict, value.bytes(), sink);
    }
    let value = match reply.form.is_lease() {
        true => format::answer_lease(sink, key, reply, verdict, value),
        false => format::answer_key(sink, key, reply, verdict, value),
    };
    value.map(|value| LargeValue { value, end: reply.value_end() })
}

/// Counts, samples and answers a request of one key whose operation was executed (I1). A value that
/// is too large for the sink is returned, and must follow the text. `sampled` is the item before a
/// request that is in the sample.
#[inline(always)]
pub(crate) fn answer_operation<P>(
    context: &Context,
    request: &Request<'_>,
    operation: &Operation<'_>,
    sampled: Option<ItemBefore>,
    verdict: &Verdict,
    value: Value<'_, P>,
    sink: &mut impl ReplySink,
) -> Option<LargeValue<P>> {
    context.counters.requests.add(1);
    context.counters.note(&operation.verb, verdict, request.is_meta());
    if let Some(before) = sampled {
        let (value_bytes, is_meta) = (value.bytes(), request.is_meta());
        let descriptor = 0; // The sample knows it.
        let logged = Logged { operation, verdict, value_bytes, before, is_meta, descriptor };
        context.sample_operation(logged, sink);
    }
    let value = request.answer(sink, verdict, value);
    value.map(|value| LargeValue { value, end: request.value_end() })
}

/// The result of passing a request to the engine. If the request was executed, it was counted and
/// its reply is formatted; the value, if there is one, must follow the text.
///
/// Errors: the engine delays the request, and nothing was done (I1).
pub(crate) type Applied<P> = Result<Option<LargeValue<P>>, Ticket>;

/// An engine that this core holds, and the context in which it executes requests.
pub(crate) struct Applier<'a, E> {
    pub(crate) engine: &'a mut E,
    /// The index of the engine.
    pub(crate) index: EngineIndex,
    pub(crate) context: &'a Context,
}

impl<E: Engine> Applier<'_, E> {
    /// Applies a request of one key and formats its reply.
    pub(crate) fn request(
        self,
        request: &Request<'_>,
        key: Key<'_>,
        block: &mut Block<'_, E::Upload>,
        ticket: Option<Ticket>,
        sink: &mut impl ReplySink,
    ) -> Applied<E::Pinned> {
        let operation = request.operation(key, sink.value_bytes_max());
        let Self { engine, index, context } = self;
        let sampled = context.samples(&key).then(|| context.look_before(engine, &operation));
        match engine.execute(&operation, block, ticket, &context.now()) {
            Answer::Done(Outcome { ref verdict, value }, durability) => {
                sink.depends_on(index, durability);
                Ok(answer_operation(context, request, &operation, sampled, verdict, value, sink))
            }
            Answer::Later(ticket) => Err(ticket), // I1
        }
    }

    /// Removes the item of a storage request whose value was refused. It is a part of that request:
    /// it has no reply, and no count of deletes has it, as in memcached.
    ///
    /// Errors: the engine delays it, and nothing was done (I1).
    #[cold]
    pub(crate) fn removal(
        self,
        key: Key<'_>,
        is_meta: bool,
        ticket: Option<Ticket>,
        descriptor: i32,
    ) -> Result<Durability, Ticket> {
        let operation = &Operation::delete(key);
        let context = self.context;
        let before = match context.log.is_on() {
            true => context.look_before(self.engine, operation),
            false => ItemBefore::default(),
        };
        match self.engine.execute(operation, &mut Block::None, ticket, &context.now()) {
            Answer::Done(Outcome { ref verdict, .. }, durability) => {
                debug_assert!(
                    matches!(
                        verdict,
                        Verdict::Deleted
                            | Verdict::Miss
                            | Verdict::NoMemory { .. }
                            | Verdict::DiskFailed
                    ),
                    "a plain delete"
                );
                if context.log.is_on() {
                    let value_bytes = None;
                    let logged =
                        Logged { operation, verdict, value_bytes, before, is_meta, descriptor };
                    context.log_operation(logged);
                }
                Ok(durability)
            }
            Answer::Later(ticket) => Err(ticket),
        }
    }

    /// Applies one key of a retrieval and formats its reply.
    #[inline]
    pub(crate) fn key(
        self,
        key: Key<'_>,
        terms: ReadTerms,
        ticket: Option<Ticket>,
        sink: &mut impl ReplySink,
    ) -> Applied<E::Pinned> {
        let ReadTerms { reply, ttl } = terms;
        if reply.form.is_lease() {
            return self.lease(key, reply, ticket, sink);
        }
        let get_terms = retrieval_terms(reply.form.with_cas(), ttl, sink.value_bytes_max());
        match self.engine.read(&key, &get_terms, ticket, &self.context.now()) {
            Answer::Done(Outcome { ref verdict, value }, durability) => {
                sink.depends_on(self.index, tellable(durability, verdict, reply.is_last));
                let touches = ttl.is_some();
                Ok(answer_key(self.context, &key, reply, touches, verdict, value, sink))
            }
            Answer::Later(ticket) => later(ticket),
        }
    }

    /// Applies one key of `lease-get` and formats its reply. It may wait for room, as a store does.
    #[cold]
    #[inline(never)]
    fn lease(
        self,
        key: Key<'_>,
        reply: KeyReply,
        ticket: Option<Ticket>,
        sink: &mut impl ReplySink,
    ) -> Applied<E::Pinned> {
        let terms = lease_terms(sink.value_bytes_max());
        debug_assert!(terms.leases && reply.form.is_lease(), "a key of `lease-get`");
        let operation = Operation { key, verb: Verb::Get(terms) };
        let now = self.context.now();
        match self.engine.execute(&operation, &mut Block::None, ticket, &now) {
            Answer::Done(Outcome { ref verdict, value }, durability) => {
                sink.depends_on(self.index, durability);
                let key = &operation.key;
                Ok(answer_key(self.context, key, reply, false, verdict, value, sink))
            }
            Answer::Later(ticket) => Err(ticket), // I1
        }
    }
}

/// When the reply to a key of a retrieval may be sent: never if the item cannot be read and other
/// keys follow, because the protocol has no place for the error.
#[inline]
fn tellable(durability: Durability, verdict: &Verdict, is_last: bool) -> Durability {
    let is_unreadable = matches!(verdict, Verdict::DiskFailed | Verdict::NoMemory { .. });
    let is_tellable = is_last || !is_unreadable;
    if is_tellable { durability } else { Durability::At(Sequence::NEVER) }
}

#[cold]
fn later<P>(ticket: Ticket) -> Applied<P> {
    Err(ticket) // I1
}
