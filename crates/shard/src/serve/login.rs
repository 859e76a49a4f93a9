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
use kachel_net::{CloseReason, Connection, ConnectionIndex, Users};
use kachel_wire::{Login, Reply, parse_login};

use crate::clients::Clients;
use crate::context::Context;
use crate::cores::process::LoginCheck;

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
    pub(crate) fn serve(mut self, input: &[u8]) -> Option<usize> {
        let Self { clients, connection, .. } = &mut self;
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
                let is_known = self.check_password(input.len() > bytes, knows)?;
                let Self { context, clients, .. } = &mut self;
                context.counters.auth_cmds.add(1);
                if is_known {
                    clients.with(connection, Connection::log_in); // I1
                } else {
                    context.counters.auth_errors.add(1);
                }
                let reply = if is_known { Reply::Stored } else { Reply::AuthFailure };
                clients.text(connection, reply.bytes());
                self.end_attempt(is_known);
                return Some(bytes);
            }
        };
        debug_assert!(bytes > 0 && bytes <= input.len(), "a command has bytes");
        clients.text(connection, reply.bytes());
        self.skip(skip_bytes as u64);
        Some(bytes)
    }

    /// Whether `check` accepts the password of a login. `has_more` says whether its client has sent
    /// more behind it. `None` if it must wait: the connection is paused.
    pub(crate) fn check_password(
        &mut self,
        has_more: bool,
        check: impl FnOnce(&Users) -> bool,
    ) -> Option<bool> {
        let Self { context, clients, connection, sweep } = self;
        let open = clients.connections.get(*connection).expect("its login is being served");
        let login = open.login().expect("a login is checked where one is owed");
        let is_known = match context.shared.check_login(login, has_more, context.now_ns(), check) {
            LoginCheck::Waits(turn) => {
                clients.await_login_turn(context, *connection, turn, *sweep);
                return None;
            }
            LoginCheck::Known => true,
            LoginCheck::Unknown => false,
        };
        clients.with(*connection, |open| open.end_login_wait(*sweep));
        Some(is_known)
    }

    /// Notes the result of a login that told its client whether the password is right. A connection
    /// that has failed too often is closed once its reply is sent.
    pub(crate) fn end_attempt(&mut self, is_known: bool) {
        let Self { context, clients, connection, .. } = self;
        debug_assert!(!clients.is_paused(*connection), "a login that was checked does not wait");
        let now_ns = context.now_ns();
        let open = clients.connections.get_mut(*connection);
        if !is_known && open.is_some_and(|open| open.note_login_failure(now_ns)) {
            clients.drain(*connection, CloseReason::Error);
        }
    }

    /// Skips the next `bytes` of the input.
    pub(crate) fn skip(&mut self, bytes: u64) {
        self.clients.with(self.connection, |open| open.input_mut().skip(bytes));
    }
}
