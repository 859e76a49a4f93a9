//! Input of clients: received from `io`, lent to `serve`, and kept if it cannot be served yet.
//!
//! Upstream:   `tick`, with the events of a poll; `waiting`, with connections that may be resumed;
//!             `accept`, with connections that brought their input, or that could not move.
//! Downstream: `serve`; the tail of each connection.
//!
//! Invariants:
//! - I1  A connection is among the ready connections at most once per tick.
//! - I2  Lent bytes that are not served by the end of a tick are copied into the connection's tail.
//! - I3  An entry whose connection has closed touches no connection: another one may have the same
//!   index since, in the same tick, because it has moved here.

use kachel_engine::{Engine, ReadValue};
use kachel_io::{Io, Lent, SocketId};
use kachel_net::{Connection, ConnectionIndex, KEPT_BYTES_MAX, add_to_tail};
use kachel_stdx::Landing;

use crate::clients::Clients;
use crate::connections::memory::charge_input;
use crate::context::Context;
use crate::cores::work::{expected_bytes, tick_budget_bytes};
use crate::large::upload::Values;
use crate::request::batch::Ready;

/// The most spare tails that a shard keeps, for later input that cannot be served at once.
const KEPT_TAILS_MAX: usize = 64;
/// The largest memory of a spare tail. A larger tail in use may be shrunk.
const KEPT_TAIL_BYTES_MAX: usize = 64 * 1024;
/// A large tail is shrunk if its memory is more than this many times its bytes. It has contained a
/// long line, and its client may send little from now on.
const TAIL_TIMES_MAX: usize = 4;
/// Connections that can be ready in one tick without an allocation.
const READY_AT_FIRST: usize = 1024;

/// The input that one tick serves.
#[derive(Debug)]
pub(crate) struct Arrivals {
    /// The connections to serve (I1).
    pub(crate) ready: Vec<Ready>,
    /// The ready connections from this position on were taken off the run queue.
    turns_from: usize,
    /// Tails of the ready connections, while they are served.
    taken: Vec<Vec<u8>>,
    spare_tails: Vec<Vec<u8>>,
}

/// The bytes of the ready connections.
pub(crate) struct Inputs<'b, I> {
    io: &'b I,
    taken: &'b [Vec<u8>],
}

impl<'b, I: Io> Inputs<'b, I> {
    /// The input of a ready connection.
    pub(crate) fn of(&self, ready: &Ready) -> &'b [u8] {
        debug_assert!(
            ready.tail.is_none_or(|tail| (tail as usize) < self.taken.len()),
            "a tail that is served was taken"
        );
        match (ready.tail, ready.lent) {
            (Some(tail), _) => &self.taken[tail as usize],
            (None, Some(lent)) => self.io.lent(lent),
            (None, None) => &[],
        }
    }
}

impl Arrivals {
    /// Makes an empty list of ready connections.
    pub(crate) fn new() -> Self {
        Self {
            ready: Vec::with_capacity(READY_AT_FIRST),
            turns_from: 0,
            taken: Vec::with_capacity(KEPT_TAILS_MAX),
            spare_tails: Vec::with_capacity(KEPT_TAILS_MAX),
        }
    }

    /// Takes received bytes: makes the connection ready, or adds the bytes to its tail.
    pub(crate) fn received<P: ReadValue>(
        &mut self,
        io: &mut impl Io,
        context: &Context,
        clients: &mut Clients<P>,
        socket: SocketId,
        bytes: Lent,
        sweep: u32,
    ) {
        let Some(connection) = heard(context, clients, socket, bytes.byte_count(), sweep) else {
            return;
        };
        let Some(open) = clients.connections.get_mut(connection) else { return };
        let lent_before = match open.ready() {
            Some(place) => self.ready[place as usize].lent.take(),
            None if open.input().is_empty() && !open.is_paused() => {
                open.set_ready(Ready::add(&mut self.ready, connection, Some(bytes)));
                return;
            }
            None => None,
        };
        // This is a second piece in one tick, or the connection has a tail or is paused. The bytes
        // are added to the tail.
        for piece in lent_before.into_iter().chain([bytes]) {
            let spare = || self.spare_tails.pop().unwrap_or_default();
            open.input_mut().append(io.lent(piece), spare);
        }
        if open.is_paused() {
            set_receiving(io, open);
        } else if open.ready().is_none() {
            open.set_ready(Ready::add(&mut self.ready, connection, None));
        }
    }

    /// Takes back a landing into which bytes of a large value were received. Bytes that follow the
    /// value become input of the connection.
    pub(crate) fn landed<E: Engine>(
        &mut self,
        io: &mut impl Io,
        values: &mut Values<'_, E>,
        socket: SocketId,
        landing: Landing,
        bytes: usize,
        sweep: u32,
    ) {
        let Some(connection) = heard(values.context, values.clients, socket, bytes, sweep) else {
            return;
        };
        let follows = landing.spilled(bytes);
        if let Some(open) = values.clients.connections.get_mut(connection)
            && !follows.is_empty()
        {
            assert!(open.input().is_empty(), "landing, I1: it is out only while nothing is unread");
            open.input_mut().append(follows, || self.spare_tails.pop().unwrap_or_default());
            open.set_ready(Ready::add(&mut self.ready, connection, None));
        }
        values.uploads.take_back(connection, landing, bytes);
        if values.uploads.is_whole(connection) {
            self.serve_whole_value(values.clients, connection);
        }
        values.offer(io, connection);
    }

    /// Resumes the connections that are listed as resumable, if they still may be resumed. Cost: a
    /// load, if there is none.
    #[inline]
    pub(crate) fn resume<P: ReadValue>(
        &mut self,
        context: &Context,
        clients: &mut Clients<P>,
        sweep: u32,
    ) {
        if !clients.resumable.is_empty() {
            self.resume_some(context, clients, sweep);
        }
    }

    #[cold]
    fn resume_some<P: ReadValue>(
        &mut self,
        context: &Context,
        clients: &mut Clients<P>,
        sweep: u32,
    ) {
        let mut resumable = std::mem::take(&mut clients.resumable);
        for connection in resumable.drain(..) {
            let Some(open) = clients.connections.get_mut(connection) else { continue };
            context.counters.resumptions.add(1);
            debug_assert!(sweep > 0, "sweeps are numbered from 1 on");
            open.clear_resumable();
            if !open.may_resume() {
                continue;
            }
            open.resume(sweep);
            // A connection with an upload may have no input: the value may be whole already.
            let may_serve = !open.input().is_empty() || open.is_uploading();
            if may_serve && open.ready().is_none() {
                open.set_ready(Ready::add(&mut self.ready, connection, None));
            }
            clients.mark_dirty(connection);
        }
        clients.resumable = resumable;
    }

    /// Makes clients at the front of the run queue ready: as many as the budget of the tick is
    /// expected to allow (`work`, W1).
    #[inline]
    pub(crate) fn take_turns<P: ReadValue>(
        &mut self,
        context: &Context,
        clients: &mut Clients<P>,
        sweep: u32,
    ) {
        self.turns_from = self.ready.len();
        if !clients.run_queue.is_empty() {
            self.take_queued(context, clients, sweep);
        }
    }

    #[cold]
    fn take_queued<P: ReadValue>(
        &mut self,
        context: &Context,
        clients: &mut Clients<P>,
        sweep: u32,
    ) {
        let budget_bytes = tick_budget_bytes(self.ready.len() + clients.run_queue.len());
        let mut expected = 0;
        while expected < budget_bytes
            && let Some(client) = clients.run_queue.pop()
        {
            let open = clients.connections.get_mut(client).filter(|open| open.awaits_turn());
            let Some(open) = open else { continue }; // run_queue, Q1: it is gone.
            context.counters.resumptions.add(1);
            if open.take_turn(sweep) {
                let input_bytes = open.input().byte_count();
                expected +=
                    expected_bytes(input_bytes, context.shared.options.plain.requests_per_tick);
                open.set_ready(Ready::add(&mut self.ready, client, None));
            }
        }
    }

    /// Makes a connection ready whose value is whole, so that the value is stored in this tick
    /// (`upload`, I4). It may have no input.
    fn serve_whole_value<P: ReadValue>(
        &mut self,
        clients: &mut Clients<P>,
        connection: ConnectionIndex,
    ) {
        let Some(open) = clients.connections.get_mut(connection) else { return };
        debug_assert!(open.is_uploading(), "its value is not stored yet");
        if open.ready().is_none() {
            open.set_ready(Ready::add(&mut self.ready, connection, None));
        }
    }

    /// Makes a connection ready whose input was kept, if it may be served.
    pub(crate) fn serve_kept<P: ReadValue>(
        &mut self,
        clients: &mut Clients<P>,
        connection: ConnectionIndex,
    ) {
        debug_assert!(self.taken.is_empty(), "the tails are taken later in this tick");
        if let Some(open) = clients.connections.get_mut(connection)
            && !(open.input().is_empty() || open.is_paused())
            && open.ready().is_none()
        {
            open.set_ready(Ready::add(&mut self.ready, connection, None));
        }
    }

    /// Takes the tails out of the ready connections, so that they can be served.
    pub(crate) fn take_tails<P: ReadValue>(&mut self, clients: &mut Clients<P>) {
        debug_assert!(self.taken.is_empty(), "the last tick has kept all tails");
        for entry in &mut self.ready {
            if entry.lent.is_none() && !entry.is_gone {
                let Some(open) = clients.connections.get_mut(entry.client) else { continue };
                entry.tail = Some(u32::try_from(self.taken.len()).expect("fewer than 2^32"));
                entry.tail_bytes = open.input().memory_bytes();
                self.taken.push(open.input_mut().take());
            }
        }
    }

    /// The ready connections; the position of the first one that was taken off the run queue; and
    /// the input of all of them.
    pub(crate) fn inputs<'b, I: Io>(
        &'b mut self,
        io: &'b I,
    ) -> (&'b mut [Ready], usize, Inputs<'b, I>) {
        (&mut self.ready, self.turns_from, Inputs { io, taken: &self.taken })
    }

    /// Keeps the input that was not served (I2).
    pub(crate) fn keep_rests<I: Io, E: Engine>(
        &mut self,
        io: &mut I,
        values: &mut Values<'_, E>,
        sweep: u32,
    ) {
        for place in 0..self.ready.len() {
            if self.ready[place].is_gone {
                continue; // I3
            }
            self.keep_rest(io, values, place, sweep);
            let connection = self.ready[place].client;
            charge_input(values.context, values.engines, values.clients, connection);
        }
        self.taken.clear();
        debug_assert!(self.spare_tails.len() <= KEPT_TAILS_MAX, "a bound of its own");
    }

    /// Keeps the input of one connection that was not served (I2), and sets the deadline of the
    /// request at its front.
    fn keep_rest<I: Io, E: Engine>(
        &mut self,
        io: &mut I,
        values: &mut Values<'_, E>,
        place: usize,
        sweep: u32,
    ) {
        let entry = &self.ready[place];
        let rest_bytes = Inputs { io, taken: &self.taken }.of(entry).len() - entry.offset;
        debug_assert!(entry.tail.is_none() || entry.lent.is_none(), "one input a connection");
        let connection = entry.client;
        let Some(open) = values.clients.connections.get_mut(connection) else { return };
        open.clear_ready();
        let mut tail = match entry.tail {
            Some(tail) => std::mem::take(&mut self.taken[tail as usize]),
            None if rest_bytes == 0 => Vec::new(),
            None => self.spare_tails.pop().unwrap_or_default(),
        };
        if entry.tail.is_some() {
            tail.drain(..entry.offset);
        } else if let Some(lent) = entry.lent {
            add_to_tail(&mut tail, &io.lent(lent)[entry.offset..]);
        }
        let in_block = open.is_in_block();
        if entry.offset > 0 && rest_bytes > 0 && !in_block {
            // The input that is left begins with a new request: its time begins now.
            open.input_mut().restart_wait();
        }
        if open.is_paused() {
            // A pause can rewind the input, so it is not known which bytes at its front were
            // scanned.
            open.input_mut().forget_scanned();
        }
        if rest_bytes == 0 {
            if tail.capacity() > 0
                && tail.capacity() <= KEPT_TAIL_BYTES_MAX
                && self.spare_tails.len() < KEPT_TAILS_MAX
            {
                self.spare_tails.push(tail);
            }
            open.input_mut().note_served(in_block);
        } else {
            if tail.capacity() > KEPT_TAIL_BYTES_MAX.max(TAIL_TIMES_MAX * rest_bytes) {
                tail.shrink_to(KEPT_BYTES_MAX.max(rest_bytes));
            }
            open.input_mut().keep(tail);
        }
        if rest_bytes > 0 || in_block {
            open.input_mut().note_waiting(sweep);
        }
        set_receiving(io, open);
        let (finished, uploading) = (open.is_finished(), open.is_uploading());
        if finished {
            values.clients.mark_dirty(connection);
        }
        if uploading && let Some(connection) = connection.connection() {
            values.offer(io, connection);
        }
    }
}

/// Tells `io` to stop receiving from a connection, or to receive again, if its pause requires that.
fn set_receiving(io: &mut impl Io, open: &mut Connection) {
    match open.set_receiving() {
        Some(true) => io.pause(open.socket()),
        Some(false) => io.resume(open.socket()),
        None => {}
    }
}

/// Finds the connection for which bytes were received, and notes that its client is active.
fn heard<P: ReadValue>(
    context: &Context,
    clients: &mut Clients<P>,
    socket: SocketId,
    bytes: usize,
    sweep: u32,
) -> Option<ConnectionIndex> {
    let connection = clients.connections.find(socket)?;
    context.counters.bytes_read.add(bytes as u64);
    let open = clients.connections.get_mut(connection)?;
    open.note_received(sweep);
    Some(connection)
}
