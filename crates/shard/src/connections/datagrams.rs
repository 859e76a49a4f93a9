//! Datagrams: requests over UDP, each served as an exchange of its own.
//!
//! Upstream:   `io` reports a datagram.
//! Downstream: `net` checks the address and begins an exchange; `serve` serves its input; `net`
//!             cuts the reply into datagrams.
//!
//! Invariants:
//! - I1  Each datagram is parsed alone: its exchange begins with its first byte, has no other
//!   input, and ends with its reply. So nothing crosses from one datagram to another.
//! - I2  An open exchange is in the list of exchanges of `clients` exactly once.
//! - I3  While fewer exchanges are free than two polls may need, datagrams are held in the kernel.
//!   So a datagram that was received mostly finds a free exchange.
//! - I4  An exchange stays with the shard whose socket received its datagram.
//! - I5  A shard that stops counts as closed only when its exchanges have ended, because they may
//!   park requests with other shards until then. So no shard ends before all exchanges have ended.

use std::os::fd::{AsRawFd as _, OwnedFd};

use kachel_engine::{INLINE_VALUE_BYTES_MAX, ReadValue};
use kachel_io::{DATAGRAM_BYTES_MAX, DATAGRAMS_MAX, DatagramPeer, Io, Lent};
use kachel_net::{
    Asker, EXCHANGES_MAX, EndpointIndex, ExchangeIndex, Fence, ReplyState, is_answerable,
};
use kachel_wire::request::Request;
use kachel_wire::{FRAME_BYTES, Frame, Reply, binary_head};

use crate::clients::Clients;
use crate::connections::arrive::Arrivals;
use crate::connections::memory::{narrow, refund_all};
use crate::context::Context;
use crate::request::batch::Ready;

/// Exchanges that must be free for datagrams to be received: as many as one poll may report, and as
/// many as may still come once they are held (I3).
const FREE_MIN: usize = 2 * DATAGRAMS_MAX;

const _: () = assert!(FREE_MIN <= EXCHANGES_MAX);
/// A value that is whole in a datagram is never so large that it is received as an upload, which
/// belongs to a connection.
const _: () = assert!(DATAGRAM_BYTES_MAX <= INLINE_VALUE_BYTES_MAX);

/// Notes that the request at the front of an exchange's input is not whole, so that it is not
/// executed. A storage request whose line is whole is answered with an error (I1).
pub(crate) fn refuse_incomplete<P: ReadValue>(
    context: &Context,
    clients: &mut Clients<P>,
    exchange: ExchangeIndex,
    request: Option<&Request<'_>>,
) {
    debug_assert!(clients.exchanges.contains(&exchange), "I2: its input is being served");
    context.counters.udp_incomplete.add(1);
    let Some(request) = request.filter(|request| !request.is_noreply()) else { return };
    let head = match request {
        Request::Binary(binary) => Some(binary.head),
        _ => None,
    };
    clients.reply(exchange, head, Reply::IncompleteInDatagram);
}

/// The datagram sockets of a shard.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    /// The sockets, in the order of their numbers.
    sockets: Vec<DatagramSocket>,
    /// Whether datagrams are held in the kernel (I3).
    held: bool,
    closed: bool,
}

/// A socket that receives datagrams. A socket that the memory backend opened by itself has the
/// default: it belongs to the first endpoint.
#[derive(Clone, Copy, Debug, Default)]
struct DatagramSocket {
    endpoint: EndpointIndex,
    descriptor: i32,
}

/// A datagram that was received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    pub(crate) from: DatagramPeer,
    pub(crate) bytes: Lent,
    /// Whether it was longer than `io` receives.
    pub(crate) is_cut: bool,
}

impl Datagrams {
    /// Receives requests for an endpoint on a bound socket.
    pub(crate) fn listen(&mut self, io: &mut impl Io, socket: OwnedFd, endpoint: EndpointIndex) {
        let descriptor = socket.as_raw_fd();
        let socket = io.receive_datagrams(socket);
        debug_assert!(socket.index() == self.sockets.len(), "sockets are numbered in order");
        self.sockets.push(DatagramSocket { endpoint, descriptor });
    }

    /// Begins an exchange with a datagram that is a request, so that this tick serves it (I1).
    pub(crate) fn arrived<P: ReadValue>(
        &mut self,
        io: &mut impl Io,
        context: &Context,
        clients: &mut Clients<P>,
        arrivals: &mut Arrivals,
        arrived: Arrived,
        sweep: u32,
    ) {
        let Arrived { from, bytes, is_cut } = arrived;
        let Context { counters, shared, .. } = context;
        counters.udp_datagrams.add(1);
        counters.bytes_read.add(bytes.byte_count() as u64);
        let udp = &shared.options.udp;
        let own_port = |port| udp.own_ports.iter().any(|ports| ports.contains(&port));
        let datagram = io.lent(bytes);
        let request_id = Frame::request_id(datagram);
        let request_id = request_id.filter(|_| is_answerable(from.address, own_port));
        let (Some(request_id), false) = (request_id, self.closed) else {
            return counters.udp_ignored.add(1);
        };
        if !shared.sender_budget.take(from.address, context.now().second) {
            return counters.udp_over_budget.add(1);
        }
        let head = binary_head(&datagram[FRAME_BYTES..]);
        let asker = Asker { peer: from, request_id, head };
        if is_cut {
            counters.udp_incomplete.add(1);
            let sent = asker.send_text(io, Reply::IncompleteInDatagram);
            return counters.bytes_written.add(sent as u64);
        }
        let socket = self.sockets.get(from.socket.index()).copied().unwrap_or_default();
        let DatagramSocket { endpoint, descriptor } = socket;
        let begun = clients.connections.exchanges.begin(asker, endpoint, sweep);
        let Some(exchange) = begun else { return counters.udp_lost.add(1) };
        context.log.note_exchange(exchange, descriptor);
        let protocol = shared.options.endpoints.get(endpoint).protocol;
        let ready = &mut arrivals.ready;
        clients.with(exchange, |open| {
            open.set_protocol(protocol);
            open.set_ready(Ready::add(ready, exchange, Some(bytes.behind(FRAME_BYTES))));
        });
        clients.exchanges.push(exchange); // I2
        self.hold(io, clients);
    }

    /// Has datagrams held, or received again, as I3 demands.
    fn hold<P>(&mut self, io: &mut impl Io, clients: &Clients<P>) {
        let free = clients.connections.exchanges.free_count();
        debug_assert!(free + clients.exchanges.len() == EXCHANGES_MAX, "I2");
        let hold = free < FREE_MIN;
        if hold != self.held {
            self.held = hold;
            io.hold_datagrams(hold);
        }
    }

    /// Sends the replies of the exchanges whose requests are all answered, and ends these
    /// exchanges.
    ///
    /// Cost: a comparison if there is no exchange; otherwise a look at each.
    pub(crate) fn send<P: ReadValue>(
        &mut self,
        io: &mut impl Io,
        context: &Context,
        clients: &mut Clients<P>,
        is_reached: impl Fn(Fence) -> bool,
        is_lost: impl Fn(Fence) -> bool,
    ) {
        if clients.exchanges.is_empty() {
            return;
        }
        let counters = &context.counters;
        let datagrams_max = context.shared.options.udp.reply_datagrams_max;
        let mut open = std::mem::take(&mut clients.exchanges);
        open.retain(|&exchange| {
            let Clients { connections, slots, blocks, .. } = clients;
            let pools = (blocks, slots);
            let exchanges = &mut connections.exchanges;
            let reply = exchanges.reply(io, exchange, datagrams_max, pools, &is_reached, &is_lost);
            let ReplyState::Sent { bytes, is_too_long } = reply else {
                narrow(context, clients, exchange);
                clients.resume_if_free(exchange);
                return true;
            };
            counters.bytes_written.add(bytes as u64);
            counters.udp_too_long.add(u64::from(is_too_long));
            if let Some(ended) = connections.get(exchange) {
                refund_all(context, ended);
            }
            connections.exchanges.end(exchange);
            false
        });
        debug_assert!(clients.exchanges.is_empty(), "no exchange begins while replies are sent");
        clients.exchanges = open;
        self.hold(io, clients);
    }

    /// Closes the sockets. Exchanges that are under way still end (I5).
    pub(crate) fn close(&mut self, io: &mut impl Io) {
        debug_assert!(!self.closed, "a shard stops once");
        self.closed = true;
        if !self.sockets.is_empty() {
            io.close_datagrams();
        }
    }
}
