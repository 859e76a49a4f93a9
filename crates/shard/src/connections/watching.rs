//! Clients that watch the log: `watch`.
//!
//! Upstream:   `control` begins; `tick` sends the lines once a tick; `send` ends when the
//!             connection closes.
//! Downstream: `watchers`, which all cores share; `clients`, which get the lines.
//!
//! Invariants:
//! - W1  A watcher is in this list exactly while its connection is open. So no line for it is sent
//!   to a later connection with the same index.
//! - W2  A client gets lines only while it is not full, as with every other reply. So a client that
//!   does not read costs no more than others.

use kachel_engine::{Common as _, Engine, ReadValue};
use kachel_net::{Connection, ConnectionIndex};
use kachel_wire::{Reply, Streams};

use crate::clients::{Clients, Watching};
use crate::connections::memory::charge;
use crate::context::Context;
use crate::waiting::engines::Engines;
use crate::waiting::held::HeldEngines;

/// Bytes that are moved to a client at once.
const MOVED_BYTES_MAX: usize = 8 << 10;

/// Begins to send the lines of these streams to a client. Returns the reply.
pub(crate) fn begin<E: Engine>(
    context: &Context,
    engines: &Engines<E>,
    clients: &mut Clients<E::Pinned>,
    connection: ConnectionIndex,
    streams: Streams,
) -> Reply {
    let shared = &context.shared;
    let bytes = shared.options.plain.watcher_bytes_max;
    if !charge(context, &mut HeldEngines::new(engines, context), bytes as u64) {
        return Reply::WatcherFailed;
    }
    let tell = |streams| list_evictions(engines, streams);
    let Ok(id) = shared.watchers.add(context.core, streams, bytes, tell) else {
        shared.budget.refund(bytes as u64);
        return Reply::WatcherTooMany;
    };
    debug_assert!(clients.watching.iter().all(|one| one.connection != connection), "W1");
    clients.with(connection, Connection::begin_watching);
    clients.watching.push(Watching { connection, id, has_more: false });
    context.counters.watchers.set(clients.watching.len() as u64);
    // The requests after this one in the same tick are logged.
    context.begin_sample();
    Reply::Ok
}

/// Forgets a client whose connection closes, if it watches (W1).
pub(crate) fn end<E: Engine>(
    context: &Context,
    engines: &Engines<E>,
    clients: &mut Clients<E::Pinned>,
    connection: ConnectionIndex,
) {
    let list = &mut clients.watching;
    let Some(place) = list.iter().position(|watching| watching.connection == connection) else {
        return;
    };
    let Watching { id, .. } = list.swap_remove(place);
    let bytes = context.shared.watchers.remove(id, |streams| list_evictions(engines, streams));
    context.shared.budget.refund(bytes as u64);
    context.counters.watchers.set(list.len() as u64);
    debug_assert!(list.iter().all(|watching| watching.connection != connection), "W1");
}

/// Has the engines list their evictions as long as somebody watches these.
fn list_evictions<E: Engine>(engines: &Engines<E>, streams: Streams) {
    engines.common().list_evictions(streams.has(Streams::EVICTIONS));
}

impl<P: ReadValue> Clients<P> {
    /// Whether lines can be sent to a client that watches, so that the core must not sleep. Cost: a
    /// load, if none does.
    pub(crate) fn may_get_lines(&self) -> bool {
        self.watching.iter().any(|watching| watching.has_more && self.may_get(watching))
    }

    /// Whether lines may be sent to a client now (W2).
    fn may_get(&self, watching: &Watching) -> bool {
        debug_assert!(self.connections.get(watching.connection).is_some(), "W1");
        let open = self.connections.get(watching.connection);
        open.is_some_and(|open| open.is_watching() && !open.is_full())
    }

    /// Sends the lines that have come to the clients that watch, as far as they are not full (W2).
    pub(crate) fn send_lines(&mut self, context: &Context) {
        let watchers = &context.shared.watchers;
        let have_come = watchers.take_come(context.core);
        for place in 0..self.watching.len() {
            let mut watching = self.watching[place];
            watching.has_more |= have_come;
            while watching.has_more && self.may_get(&watching) {
                // While another core holds the lock, the lines wait for the next tick.
                let send = |lines: &[u8]| self.text(watching.connection, lines);
                let Some(more) = watchers.take(watching.id, MOVED_BYTES_MAX, send) else { break };
                watching.has_more = more;
            }
            self.watching[place] = watching;
        }
    }
}
