//! Carrying out staged requests: a request is executed beside its owner, or under the lock of its
//! owner, or parked; or its connection is rewound to it.
//!
//! Upstream:   `serving` runs a batch.
//! Downstream: `beside` for reads of other engines' keys, `apply` under the lock of an engine,
//!             `records` for requests that must be parked.
//!
//! This file cites the invariants of `serving`.

use kachel_engine::{Block, Engine, Ticket};
use kachel_net::{ClientIndex, Waiting};
use kachel_stdx::Work as Record;

use crate::clients::Clients;
use crate::connections::memory::widen;
use crate::context::Context;
use crate::cores::run_queue::Join;
use crate::cores::work::REQUEST_BYTES;
use crate::request::apply::{Applier, ReadTerms, room_for_answer, room_for_key};
use crate::request::batch::{Batch, Line, Ready, Staged, Work};
use crate::serve::beside::{Core, GuessOf};
use crate::waiting::held::HeldEngines;
use crate::waiting::parked::{Ask, Executor, Parked};
use crate::waiting::records::{NoRecord, Outgoing, Records};

/// The parts of a shard that carrying out a request needs.
pub(crate) struct CarryingOut<'a, E: Engine> {
    pub(crate) context: &'a Context,
    pub(crate) clients: &'a mut Clients<E::Pinned>,
    pub(crate) records: &'a mut Records<E>,
    pub(crate) core: &'a mut Core,
    /// The work that this tick may still do (`work`, W1). Only the work of engines is subtracted
    /// here.
    pub(crate) left_bytes: u64,
}

/// Why a staged request cannot be carried out now.
enum Blocked {
    /// The connection has had its turn in this tick, or the tick may do no more work.
    Turn,
    /// The client does not read its replies.
    Reader,
    /// There is no record in which it could be parked.
    Record(NoRecord),
}

impl<E: Engine> CarryingOut<'_, E> {
    /// Executes one staged request, or parks it. If neither is possible now, rewinds the connection
    /// to it (I2, I3).
    pub(crate) fn carry_out(
        &mut self,
        held: &mut HeldEngines<'_, E>,
        ready: &mut Ready,
        batch: &Batch<'_>,
        staged: &Staged<'_>,
        guess: Option<GuessOf<E>>,
    ) {
        let connection = ready.client;
        if ready.is_worked_out() || self.left_bytes == 0 {
            return self.rewind(ready, staged, Blocked::Turn); // work, W1
        }
        let Some(open) = self.clients.connections.get_mut(connection) else { return };
        debug_assert!(!ready.ended, "I2: nothing behind a request that waits is carried out");
        let kept_bytes = ready.kept_bytes(staged.start);
        let awaits = open.outbox().awaits_answers();
        let is_full = open.outbox().is_full(kept_bytes)
            && !widen(self.context, held, self.clients, connection, kept_bytes);
        let done = if is_full {
            Err(Blocked::Reader)
        } else {
            ready.work_bytes += REQUEST_BYTES;
            let done = self.execute_or_park(held, ready, batch, staged, guess, awaits);
            done.map_err(Blocked::Record)
        };
        if let Err(blocked) = done {
            self.rewind(ready, staged, blocked);
        }
    }

    /// Rewinds a connection to a staged request that cannot be carried out now, and pauses it (I2).
    #[cold]
    fn rewind(&mut self, ready: &mut Ready, staged: &Staged<'_>, blocked: Blocked) {
        debug_assert!(!ready.ended, "it is rewound once");
        let connection = ready.client;
        (ready.ended, ready.offset) = (true, staged.start);
        let Self { context, clients, records, .. } = self;
        match blocked {
            Blocked::Turn => {
                let join = if ready.work_bytes == 0 { Join::Front } else { Join::Back };
                clients.await_turn(context, connection, join);
            }
            Blocked::Reader => clients.pause(context, connection, Waiting::Reader),
            Blocked::Record(none) => clients.pause_for_record(context, records, connection, none),
        }
        if let Work::Key { from_here, .. } = staged.work {
            clients.with(connection, |open| open.input_mut().set_resume(from_here));
        }
    }

    /// Executes a request beside its owner or under the lock of its owner. If neither is possible,
    /// parks it. Adds the work of the engine to that of the turn.
    ///
    /// Errors: there is no record to park it, and nothing was done.
    #[inline]
    fn execute_or_park(
        &mut self,
        held: &mut HeldEngines<'_, E>,
        ready: &mut Ready,
        batch: &Batch<'_>,
        staged: &Staged<'_>,
        guess: Option<GuessOf<E>>,
        awaits: bool,
    ) -> Result<(), NoRecord> {
        let connection = ready.client;
        let is_own = self.context.is_home_of(staged.owner);
        if !is_own && !awaits && self.read_beside(held, connection, batch, staged, guess) {
            return Ok(()); // beside, B2
        }
        if let Some(entered) = held.get(staged.owner)
            && (!awaits || entered.may_pass(staged.hashes.secret))
        {
            debug_assert!(!entered.is_worked_out(), "work, W2");
            let applied = self.apply(entered, connection, batch, staged);
            let work_bytes = entered.note_work();
            let done = match applied {
                Ok(()) => {
                    self.context.counters.writes_beside.add(u64::from(!is_own));
                    Ok(())
                }
                Err(ticket) => self.park(held, connection, batch, staged, Some(ticket)),
            };
            // Making room is work, also for a request that is not carried out.
            if work_bytes > 0 {
                ready.work_bytes += work_bytes;
                self.left_bytes = self.left_bytes.saturating_sub(work_bytes);
                held.release_worked_out(staged.owner);
            }
            return done;
        }
        let may_read = is_own && !awaits && !held.has(staged.owner);
        if may_read {
            // The batch may have begun with this engine, and so with a core that is no reader. The
            // engine was released since (work, W2), and another core has taken it.
            self.core.wake(); // beside, B1
            if self.read_beside(held, connection, batch, staged, guess) {
                return Ok(());
            }
        }
        self.park(held, connection, batch, staged, None)
    }

    /// Parks a request (I4). If the engine has delayed it, there is a ticket, and this core holds
    /// the engine.
    ///
    /// Errors: there is no record, and nothing was done. The ticket was given back.
    #[cold]
    fn park(
        &mut self,
        held: &mut HeldEngines<'_, E>,
        connection: ClientIndex,
        batch: &Batch<'_>,
        staged: &Staged<'_>,
        ticket: Option<Ticket>,
    ) -> Result<(), NoRecord> {
        debug_assert!(staged.owner.0 < self.context.engines(), "an engine of this process");
        let record = self.record(connection, batch, staged);
        if let Ok(Some(mut work)) = record {
            work.ticket = ticket;
            held.park(work);
            return Ok(());
        }
        if let Some(ticket) = ticket {
            held.forget(staged.owner, ticket);
        }
        record.map(|_gone| ())
    }

    /// Applies a request to an engine that this core holds.
    ///
    /// Errors: the engine delays it, and nothing was done.
    #[inline]
    fn apply(
        &mut self,
        engine: &mut E,
        connection: ClientIndex,
        batch: &Batch<'_>,
        staged: &Staged<'_>,
    ) -> Result<(), Ticket> {
        let key = batch.key(staged);
        let Some(mut sink) = self.clients.answering(connection) else { return Ok(()) };
        let applier = Applier { engine, index: staged.owner, context: self.context };
        let applied = match &staged.work {
            Work::Key { from_here, last } => {
                applier.key(key, ReadTerms::of(from_here, *last), None, &mut sink)
            }
            Work::Line(place) => {
                let Line { request, block, .. } = batch.line(*place);
                applier.request(request, key, &mut Block::Bytes(block), None, &mut sink)
            }
        };
        if let Some(value) = applied? {
            sink.value(value);
        }
        Ok(())
    }

    /// Answers a read beside the owner of its key. Returns `false` if that is not possible.
    #[inline]
    fn read_beside(
        &mut self,
        held: &HeldEngines<'_, E>,
        connection: ClientIndex,
        batch: &Batch<'_>,
        staged: &Staged<'_>,
        guess: Option<GuessOf<E>>,
    ) -> bool {
        if !staged.is_read {
            return false;
        }
        let Self { context, clients, core, .. } = self;
        let Some(beside) = core.beside(held, context, staged.owner, guess) else { return false };
        let Some(mut sink) = clients.answering(connection) else { return true };
        let key = batch.key(staged);
        match &staged.work {
            Work::Key { from_here, last } => {
                beside.key(&key, ReadTerms::of(from_here, *last), &mut sink)
            }
            Work::Line(place) => beside.request(&batch.line(*place).request, key, &mut sink),
        }
    }

    /// A record of a staged request, or `None` if its client is gone.
    ///
    /// Errors: there is no record now, and nothing was done.
    fn record(
        &mut self,
        connection: ClientIndex,
        batch: &Batch<'_>,
        staged: &Staged<'_>,
    ) -> Result<Option<Record<Parked<E>>>, NoRecord> {
        let Self { context, clients, records, .. } = self;
        let Some(open) = clients.connections.get(connection) else { return Ok(None) };
        let value_bytes = open.outbox().value_room_bytes();
        let key = batch.key(staged);
        let (ask, text, room) = match &staged.work {
            Work::Key { from_here, last } => {
                let text = key.bytes();
                (Ask::Key(ReadTerms::of(from_here, *last)), text, room_for_key(text, value_bytes))
            }
            Work::Line(place) => {
                let Line { request, text, .. } = batch.line(*place);
                (Ask::Line, *text, room_for_answer(request, value_bytes))
            }
        };
        debug_assert!(!text.is_empty(), "a request that is parked has a text");
        let Staged { reads_value, is_read, .. } = *staged;
        let outgoing = Outgoing { ask, text, key: Some(key), reads_value, is_read, room };
        records
            .prepare(context, clients, connection, Executor::Engine(staged.owner), outgoing)
            .map(Some)
    }
}
