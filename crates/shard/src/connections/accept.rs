//! Accepts connections, rejects connections above the limit, and hands connections over to other
//! shards: new ones to the awake shards in turn, others as `balance` chooses.
//!
//! Upstream:   `io` reports a new connection; another shard brings one to take over; `balance`
//!             chooses connections.
//! Downstream: `net` opens the connection; `mailboxes` carries a socket to another shard.
//!
//! Invariants:
//! - I1  A connection is counted in the process from the moment when it is accepted until it
//!   closes, also while it moves between two shards.
//! - I2  A connection moves only while nothing of it is under way: each of its requests that was
//!   begun is answered, and all its replies are sent. So its requests are executed in order, by one
//!   core after the other.
//! - I3  A connection whose endpoint forbids moving stays with the shard that accepted it.
//! - I4  A connection moves with unserved input only if the input came in the tick before. If it
//!   cannot move now, this shard serves the input now. Other input stays, because its time limit
//!   runs.

use std::os::fd::OwnedFd;

use kachel_engine::{Engine, ReadValue};
use kachel_io::{Io, ListenerId, Peer, SocketId, SocketName};
use kachel_net::{
    ClientProtocol, CloseReason, ConnectionIndex, CoreIndex, EndpointIndex, LoginOwed,
};
use kachel_wire::Reply;

use crate::clients::Clients;
use crate::connections::arrive::Arrivals;
use crate::connections::memory::refund_all;
use crate::context::Context;
use crate::cores::options::ClientEvent;
use crate::waiting::mailboxes::{Adopted, Mailboxes};

/// The most ticks in which a shard tries to hand a connection over.
const HAND_OVER_ATTEMPTS_MAX: u32 = 8;

/// A connection that another shard must serve.
#[derive(Debug)]
struct Leaving {
    /// Its socket. At its index, another connection may stand later.
    socket: SocketId,
    adopter: CoreIndex,
    attempts: u32,
    /// Whether it was just accepted.
    is_new: bool,
    /// Whether it leaves with the input that came in the last tick (I4).
    with_input: bool,
}

/// A connection that a client has made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accepted {
    pub(crate) socket: SocketId,
    pub(crate) listener: ListenerId,
    pub(crate) peer: Peer,
}

/// The new connections of a shard, and its listeners.
#[derive(Debug, Default)]
pub(crate) struct Acceptor {
    /// The listeners of the shard, and the endpoint of each.
    listeners: Vec<(ListenerId, EndpointIndex)>,
    /// Connections that other shards must serve.
    leaving: Vec<Leaving>,
    /// Rejected sockets. Each gets one line before it is closed.
    rejected: Vec<SocketId>,
    next_adopter: u16,
    stopping: bool,
    /// Whether the other shards know that this one has stopped.
    closed: bool,
}

impl Acceptor {
    /// Accepts clients of an endpoint on a bound socket.
    pub(crate) fn listen(&mut self, io: &mut impl Io, socket: OwnedFd, endpoint: EndpointIndex) {
        self.listeners.push((io.listen(socket), endpoint));
    }

    /// Whether a connection must still be handed over.
    pub(crate) fn is_busy(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Opens a connection for a client that has connected, or rejects it at the limit.
    pub(crate) fn accepted<P: ReadValue>(
        &mut self,
        io: &mut impl Io,
        context: &Context,
        clients: &mut Clients<P>,
        accepted: Accepted,
        sweep: u32,
    ) {
        let Accepted { socket, listener, peer } = accepted;
        debug_assert!(clients.connections.find(socket).is_none(), "a new socket is no client's");
        if self.stopping || !context.shared.admit() {
            context.counters.connections_rejected.add(1);
            if let Some(tell) = context.shared.options.tell_client {
                let name = SocketName { peer, descriptor: io.descriptor(socket) };
                tell(name, ClientEvent::Refused { is_ending: self.stopping });
            }
            let mut block = clients.blocks.take();
            block.put(Reply::TooManyConnections.bytes());
            io.send(socket, block);
            io.finish_sending(socket);
            self.rejected.push(socket);
            return;
        }
        context.counters.connections_opened.add(1);
        let endpoint = self.endpoint_of(listener);
        let terms = context.shared.options.endpoints.get(endpoint);
        let connection = open(context, clients, socket, (endpoint, terms.protocol), sweep);
        context.note_client(connection, SocketName { peer, descriptor: io.descriptor(socket) });
        context.log_opened(connection);
        if terms.asks_login {
            let login = LoginOwed::new(sweep, peer);
            clients.with(connection, |open| open.ask_login(login));
        }
        if terms.stays {
            return; // I3
        }
        let awake = context.shared.cores.change().to;
        let adopter = CoreIndex(self.next_adopter % awake);
        self.next_adopter = (adopter.0 + 1) % awake;
        if adopter != context.core {
            let (is_new, with_input) = (true, false);
            self.leaving.push(Leaving { socket, adopter, attempts: 0, is_new, with_input });
        }
    }

    /// Has a connection handed over in the next ticks, as soon as nothing of it is under way (I2).
    /// Nothing is received from it meanwhile. If it leaves `with_input`, this tick serves none of
    /// its input.
    pub(crate) fn leave(
        &mut self,
        io: &mut impl Io,
        socket: SocketId,
        adopter: CoreIndex,
        with_input: bool,
    ) {
        io.pause(socket);
        let is_new = false;
        self.leaving.push(Leaving { socket, adopter, attempts: 0, is_new, with_input });
    }

    /// The endpoint of a listener. A listener that the memory backend opened by itself belongs to
    /// the first endpoint.
    fn endpoint_of(&self, listener: ListenerId) -> EndpointIndex {
        let known = self.listeners.iter().find(|(known, _)| *known == listener);
        known.map_or(EndpointIndex(0), |(_, endpoint)| *endpoint)
    }

    /// Closes a rejected socket, once its line was sent or the socket has failed.
    pub(crate) fn close_rejected(&mut self, io: &mut impl Io, socket: SocketId) {
        if let Some(place) = self.rejected.iter().position(|rejected| *rejected == socket) {
            debug_assert!(!self.rejected[place + 1..].contains(&socket), "it is listed once");
            self.rejected.swap_remove(place);
            io.close(socket);
        }
    }

    /// Whether a rejected socket is open.
    pub(crate) fn has_rejected(&self) -> bool {
        !self.rejected.is_empty()
    }

    /// Closes all rejected sockets, also those of clients that have not taken their line.
    pub(crate) fn give_up_rejected(&mut self, io: &mut impl Io) {
        debug_assert!(self.stopping, "a rejected client otherwise has time for its line");
        self.rejected.drain(..).for_each(|socket| io.close(socket));
    }

    /// Hands connections over to the shards that must serve them.
    ///
    /// If bytes were already received from a new connection, the connection stays. The memory
    /// backend may report bytes together with the connection. If the backend does not give a socket
    /// up now, or something of the connection is under way, the shard tries again in the next
    /// ticks.
    #[cold]
    pub(crate) fn hand_over<E: Engine>(
        &mut self,
        io: &mut impl Io,
        context: &Context,
        clients: &mut Clients<E::Pinned>,
        mailboxes: &Mailboxes<E>,
        arrivals: &mut Arrivals,
        sweep: u32,
    ) {
        let stopping = self.stopping;
        self.leaving.retain_mut(|one| {
            let tries_again =
                hand_one_over(one, (stopping, sweep), io, context, clients, mailboxes);
            if std::mem::take(&mut one.with_input)
                && let Some(connection) = clients.connections.find(one.socket)
            {
                arrivals.serve_kept(clients, connection); // I4
            }
            tries_again
        });
        mailboxes.wake_noted(context); // The adopters need not wait for the end of this tick.
    }

    /// Takes over the connections that other shards have handed to this shard. Returns whether
    /// there were any.
    pub(crate) fn adopt<E: Engine>(
        &mut self,
        io: &mut impl Io,
        context: &Context,
        clients: &mut Clients<E::Pinned>,
        mailboxes: &Mailboxes<E>,
        arrivals: &mut Arrivals,
        sweep: u32,
    ) -> bool {
        let mut adopted = mailboxes.take_sockets(context.core);
        let any = !adopted.is_empty();
        while let Some(one) = adopted.pop() {
            let Adopted { socket, endpoint, protocol, login, sweep: sweep_there, input } =
                one.into_inner();
            let Some(socket) = io.adopt(socket) else {
                context.shared.dismiss();
                continue;
            };
            debug_assert!(clients.connections.find(socket).is_none(), "I1: it comes once");
            debug_assert!(
                input.capacity() == 0 || !input.is_empty(),
                "an empty tail has no memory"
            );
            let connection = open(context, clients, socket, (endpoint, protocol), sweep);
            let name = io.name(socket);
            context.note_client(connection, name);
            if context.shared.options.endpoints.get(endpoint).asks_login {
                let owed = login.map(|login| login.moved(sweep_there, sweep));
                clients.with(connection, |open| {
                    open.ask_login(owed.unwrap_or(LoginOwed::new(sweep, name.peer)));
                    if owed.is_none() {
                        open.log_in();
                    }
                });
            }
            clients.with(connection, |open| open.input_mut().keep(input));
            arrivals.serve_kept(clients, connection);
            if self.stopping {
                clients.drain(connection, CloseReason::Shutdown);
            }
        }
        any
    }

    /// Whether no client arrives any more, and none moves.
    pub(crate) const fn has_stopped(&self) -> bool {
        self.stopping
    }

    /// Stops accepting clients. Returns `false` if it had stopped before.
    pub(crate) const fn stop(&mut self) -> bool {
        !std::mem::replace(&mut self.stopping, true)
    }

    /// Tells the other shards, once, that this shard gets no more clients. It must have no exchange
    /// (`datagrams`, I5).
    pub(crate) fn close(&mut self, context: &Context) {
        assert!(self.stopping, "a shard that accepts clients is not closed");
        if !std::mem::replace(&mut self.closed, true) {
            context.shared.note_closed();
        }
    }

    /// Closes the listening sockets.
    pub(crate) fn close_listeners(&self, io: &mut impl Io) {
        debug_assert!(self.stopping, "a shard stops accepting before it closes its listeners");
        self.listeners.iter().for_each(|(listener, _)| io.listen_close(*listener));
    }
}

/// Hands one connection over, or keeps it. Returns `true` if the shard must try again in the next
/// tick.
fn hand_one_over<E: Engine>(
    leaving: &mut Leaving,
    (stopping, sweep): (bool, u32),
    io: &mut impl Io,
    context: &Context,
    clients: &mut Clients<E::Pinned>,
    mailboxes: &Mailboxes<E>,
) -> bool {
    let Leaving { socket, .. } = *leaving;
    let Some(connection) = clients.connections.find(socket) else { return false };
    let Some(open) = clients.connections.get(connection) else { return false };
    let is_at_rest =
        open.is_at_rest() || leaving.with_input && open.ready().is_none() && open.may_leave(); // I4
    let is_last = leaving.attempts == HAND_OVER_ATTEMPTS_MAX || leaving.is_new && !is_at_rest;
    if stopping || is_last {
        // Otherwise the connection receives when its pause ends.
        if open.is_receiving() {
            io.resume(socket);
        }
        return false;
    }
    debug_assert!(leaving.adopter != context.core, "a shard hands nothing over to itself");
    leaving.attempts += 1;
    if !is_at_rest {
        io.pause(socket);
        return true;
    }
    let Some(fd) = io.give_up(socket) else { return true };
    let (endpoint, protocol) = (open.endpoint(), open.protocol());
    let login = open.login().copied();
    if let Some(turn) = login.and_then(|login| login.turn) {
        context.change_attempts(|attempts| attempts.leave(turn));
    }
    let (from, to) = (context.core, leaving.adopter);
    context.tell_client(connection, ClientEvent::Moved { from, to });
    let closed = clients.connections.close(connection);
    let input = closed.map_or_else(Vec::new, |mut closed| {
        refund_all(context, &closed);
        closed.input_mut().take()
    });
    debug_assert!(leaving.with_input || input.is_empty(), "I4");
    let Context { counters, .. } = context;
    counters.connections.set(u64::from(clients.connections.count()));
    counters.connections_moved.add(u64::from(!leaving.is_new));
    let adopted = Adopted { socket: fd, endpoint, protocol, login, sweep, input };
    mailboxes.hand_over(context, leaving.adopter, adopted);
    false
}

/// Opens a connection of this shard (I1).
fn open<P: ReadValue>(
    context: &Context,
    clients: &mut Clients<P>,
    socket: SocketId,
    (endpoint, protocol): (EndpointIndex, ClientProtocol),
    sweep: u32,
) -> ConnectionIndex {
    context.counters.connections.add(1);
    let connection = clients.connections.open(socket, endpoint, sweep);
    clients.with(connection, |open| open.set_protocol(protocol));
    connection
}
