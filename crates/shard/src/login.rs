//! Logins: the commands of clients of the text protocol that must log in first.
//!
//! Upstream:   `serve`, for a connection that has not logged in, before anything of it is parsed.
//! Downstream: `wire` reads the command; the users of the process are asked; the reply goes to the
//!             outbox. `sasl` does the same for the binary protocol.
//!
//! Invariants:
//! - I1  A connection counts as logged in only after its user and password were known. Nothing else
//!   sets that, except `accept` when a connection that has logged in moves here.
//! - I2  A connection that has logged in stays so, also when the file of users changes, as in
//!   memcached.

use kachel_engine::ReadValue;
use kachel_io::Peer;
use kachel_net::{CloseReason, Connection, ConnectionIndex, Users, Waiting};
use kachel_wire::{Login, Reply, parse_login};

use crate::clients::Clients;
use crate::context::Context;

/// The parts of a shard that a login needs.
pub(crate) struct LoggingIn<'a, P> {
    pub(crate) context: &'a Context,
    pub(crate) clients: &'a mut Clients<P>,
    pub(crate) connection: ConnectionIndex,
    /// The number of the last sweep.
    pub(crate) sweep: u32,
}

impl<P: ReadValue> LoggingIn<'_, P> {
    /// Serves one command of the text protocol at the front of `input`. Returns how many bytes of
    /// it are served. `None` if it is not whole, or must wait: the connection is paused.
    pub(crate) fn serve(mut self, peer: Peer, input: &[u8]) -> Option<usize> {
        let Self { context, clients, connection, .. } = &mut self;
        let connection = *connection;
        let (reply, bytes, skip_bytes) = match parse_login(input) {
            Login::NeedMore { block_bytes } => {
                clients.with(connection, |open| match block_bytes {
                    Some(block_bytes) => open.input_mut().note_announced(block_bytes),
                    None => open.input_mut().note_scanned(input.len()),
                });
                return None;
            }
            Login::Close => {
                clients.drain(connection, CloseReason::Error);
                return Some(0);
            }
            Login::Refused { reply, bytes, skip_bytes } => (reply, bytes, skip_bytes),
            Login::Attempt { user, password, bytes } => {
                let knows = |users: &Users| users.knows(user, password);
                let Some(is_known) = context.shared.check_login(peer, &context.now(), knows) else {
                    clients.pause(context, connection, Waiting::Login);
                    return None;
                };
                context.counters.auth_cmds.add(1);
                let reply = if is_known {
                    clients.with(connection, Connection::log_in); // I1
                    Reply::Stored
                } else {
                    context.counters.auth_errors.add(1);
                    Reply::AuthFailure
                };
                (reply, bytes, 0)
            }
        };
        debug_assert!(bytes > 0 && bytes <= input.len(), "a command has bytes");
        clients.text(connection, reply.bytes());
        self.skip(skip_bytes as u64);
        Some(bytes)
    }

    /// Skips the next `bytes` of the input.
    pub(crate) fn skip(&mut self, bytes: u64) {
        self.clients.with(self.connection, |open| open.input_mut().skip(bytes));
    }
}
