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
use kachel_net::{
    AddressGroup, CloseReason, Connection, ConnectionIndex, LoginAttempt, LoginOwed, LoginTurn,
    LoginWaiter, Users,
};
use kachel_wire::{Login, Reply, parse_login};

use crate::clients::Clients;
use crate::context::Context;
use crate::cores::options::ClientEvent;

/// The result of the check of a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoginCheck {
    /// The password is right.
    Known,
    /// It is wrong.
    Unknown,
    /// It was not checked. The login must wait: at this place among those that wait, or because
    /// earlier ones of its connection have failed.
    Waits(Option<LoginTurn>),
}

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
                    context.tell_client(connection, ClientEvent::LoginFailed);
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
        let login = *open.login().expect("a login is checked where one is owed");
        let waiter = LoginWaiter { core: context.core, connection: *connection };
        let is_known = match check_login(context, &login, has_more, waiter, check) {
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

/// Whether `check` accepts a login of a client that owes `login`. `has_more` says whether the
/// client has sent more behind it. If the login must wait, `check` is not called.
///
/// Cost: that of `check`; a hash of the address; a lock that only a change of the users takes
/// exclusively, for a move; and a lock on the logins that wait, for a few lookups.
fn check_login(
    context: &Context,
    login: &LoginOwed,
    has_more: bool,
    waiter: LoginWaiter,
    check: impl FnOnce(&Users) -> bool,
) -> LoginCheck {
    let (shared, now_ns) = (&context.shared, context.now_ns());
    let answer = |is_known| if is_known { LoginCheck::Known } else { LoginCheck::Unknown };
    let group = shared.with_users(|users| AddressGroup::of(login.peer, users)).flatten();
    let Some(group) = group else {
        debug_assert!(login.turn.is_none(), "a client without an address never waits");
        return answer(shared.with_users(check).unwrap_or(false));
    };
    if now_ns < login.retry_ns {
        debug_assert!(login.turn.is_none(), "it has no place before its time");
        return LoginCheck::Waits(None);
    }
    let LoginOwed { failures, turn, .. } = *login;
    let attempt = LoginAttempt { group, failures, has_more, turn };
    let taken = context.change_attempts(|attempts| attempts.take(attempt, waiter, now_ns));
    if let Err(turn) = taken {
        return LoginCheck::Waits(Some(turn));
    }
    let is_known = shared.with_users(check).unwrap_or(false);
    if is_known {
        context.change_attempts(|attempts| attempts.give_back(group));
    }
    answer(is_known)
}
