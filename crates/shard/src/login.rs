//! Logins: the commands of clients that must log in first.
//!
//! Upstream:   `serve`, for a connection that has not logged in, before anything of it is parsed.
//! Downstream: `wire` reads the command; the users of the process are asked; the reply goes to the
//!             outbox.
//!
//! Invariants:
//! - I1  A connection counts as logged in only after its user and password were known. Nothing else
//!   sets that.
//! - I2  A connection that has logged in stays so, also when the file of users changes, as in
//!   memcached.

use kachel_engine::ReadValue;
use kachel_net::{Connection, ConnectionIndex, LoginOwed, Waiting};
use kachel_wire::{Login, Reply, parse_login};

use crate::clients::Clients;
use crate::context::Context;

/// The parts of a shard that a login needs.
pub(crate) struct LoggingIn<'a, P> {
    pub(crate) context: &'a Context,
    pub(crate) clients: &'a mut Clients<P>,
    pub(crate) connection: ConnectionIndex,
}

impl<P: ReadValue> LoggingIn<'_, P> {
    /// Serves one command at the front of `input`, of a client that owes `login`. Returns how many
    /// bytes of it are served. `None` if it is not whole, or must wait: the connection is paused.
    pub(crate) fn serve(self, login: LoginOwed, input: &[u8]) -> Option<usize> {
        let Self { context, clients, connection } = self;
        let (reply, bytes, skip_bytes) = match parse_login(input) {
            Login::NeedMore { block_bytes } => {
                clients.with(connection, |open| match block_bytes {
                    Some(block_bytes) => open.input_mut().note_announced(block_bytes),
                    None => open.input_mut().note_scanned(input.len()),
                });
                return None;
            }
            Login::Close => {
                clients.drain(connection);
                return Some(0);
            }
            Login::Refused { reply, bytes, skip_bytes } => (reply, bytes, skip_bytes),
            Login::Attempt { user, password, bytes } => {
                let token = (user, password);
                let Some(is_known) = context.shared.knows_user(login.peer, token, &context.now())
                else {
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
        if skip_bytes > 0 {
            clients.with(connection, |open| open.input_mut().skip(skip_bytes as u64));
        }
        Some(bytes)
    }
}
