//! Pauses connections, and lists those that may be resumed.
//!
//! Upstream:   `serve`, `carry_out` and `upload`, when a client does not read its replies, has had
//!             its turn, or there is no record; `send`, when a block was sent or replies were
//!             settled; `records`, when there are records again.
//! Downstream: `arrive` resumes the listed connections.
//!
//! Invariants:
//! - I1  A paused connection whose wait is over is dirty, resumable, or in the list of `records`.
//!   `arrive` ends the wait for a turn, and `logins` the wait of a login. Any other wait ends only
//!   when a block was sent or replies were settled, and `send` checks the connection after both. So
//!   no tick checks all paused connections.

use kachel_engine::{Engine, ReadValue};
use kachel_net::{ClientIndex, Connection, Waiting};

use crate::clients::Clients;
use crate::context::Context;
use crate::cores::run_queue::Join;
use crate::waiting::records::{NoRecord, Records};

impl<P: ReadValue> Clients<P> {
    /// Pauses a connection: its next request waits.
    pub(crate) fn pause(
        &mut self,
        context: &Context,
        connection: impl Into<ClientIndex>,
        waiting: Waiting,
    ) {
        let connection = connection.into();
        if let Some(open) = self.connections.get_mut(connection)
            && open.pause(waiting)
        {
            debug_assert!(open.is_paused(), "I1");
            context.counters.conn_yields.add(1);
            // The wait may end later in this tick. `send` checks that for every dirty connection
            // (I1).
            self.mark_dirty(connection);
        }
    }

    /// Pauses a client until its turn comes (`run_queue`). Its next request waits.
    pub(crate) fn await_turn(&mut self, context: &Context, client: ClientIndex, join: Join) {
        let Some(open) = self.connections.get_mut(client) else { return };
        let begins = open.pause(Waiting::Turn);
        debug_assert!(begins, "run_queue, Q1: a client that is served does not wait");
        context.counters.conn_yields.add(1);
        self.run_queue.push(client, join);
    }

    /// Lists a paused connection as resumable if its wait is over (I1).
    pub(crate) fn resume_if_free(&mut self, connection: impl Into<ClientIndex>) {
        let connection = connection.into();
        if let Some(open) = self.connections.get_mut(connection)
            && open.may_resume()
        {
            debug_assert!(!open.awaits_record(), "I1: only a record wakes what waits for it");
            self.mark_resumable(connection);
        }
    }

    /// Notes that there are records again. The connection was in the list of `records`.
    pub(crate) fn has_record(&mut self, connection: ClientIndex) {
        let open = self.connections.get_mut(connection);
        if open.is_some_and(Connection::note_record) {
            self.mark_resumable(connection);
        }
    }

    /// Pauses a connection until there is a record for its next request.
    pub(crate) fn pause_for_record<E: Engine<Pinned = P>>(
        &mut self,
        context: &Context,
        records: &mut Records<E>,
        connection: ClientIndex,
        none: NoRecord,
    ) {
        self.pause(context, connection, Waiting::Record);
        if self.connections.get(connection).is_some() {
            debug_assert!(self.is_paused(connection), "I1");
            records.wait(connection, none);
        }
    }
}
