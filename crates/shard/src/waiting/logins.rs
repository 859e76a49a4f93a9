//! Logins that wait for their turn, so that passwords cannot be tried quickly.
//!
//! Upstream:   `login` and `sasl`, when a login must not be checked yet.
//! Downstream: `throttle` names the logins whose turn has come; `arrive` resumes their connections,
//!             which try again.
//!
//! Invariants:
//! - T1  A connection whose login waits has a place among the waiting logins of the process, or is
//!   in `LoginTurns` with the time of its next login. Its wait ends at that turn or time, or when
//!   its client or the process ends.
//! - T2  When the turn of a waiting login comes, the login tries again or gives its place up. So no
//!   connection keeps others from their turn.
//! - T3  To learn whose turn has come, a shard takes the lock of `throttle` only when one of its
//!   own logins is called.

use kachel_engine::ReadValue;
use kachel_net::{CalledLogin, CloseReason, ConnectionIndex, LoginCall, LoginTurn, TooSlow};

use crate::clients::Clients;
use crate::context::Context;
use crate::cores::throttle::NEVER_NS;

impl<P: ReadValue> Clients<P> {
    /// Pauses a connection until its login may be checked. `turn` is the place of the login among
    /// the waiting logins, if it has one.
    pub(crate) fn await_login_turn(
        &mut self,
        context: &Context,
        connection: ConnectionIndex,
        turn: Option<LoginTurn>,
        sweep: u32,
    ) {
        let Some(open) = self.connections.get_mut(connection) else { return };
        if open.wait_with_login(turn, sweep) {
            context.counters.conn_yields.add(1);
            let retry_ns = open.login().expect("only a login waits so").retry_ns;
            if turn.is_none() {
                self.login_turns.delay(connection, retry_ns); // T1
            }
            // A client that has ended its side does not wait: `send` closes it.
            self.mark_dirty(connection);
        }
    }

    /// When this shard must next resume a connection whose login waits; [`NEVER_NS`] if none waits.
    /// Cost: two loads.
    #[inline]
    pub(crate) fn next_login_ns(&self, context: &Context) -> u64 {
        let called_ns = context.shared.throttle.next_ns(context.core);
        called_ns.min(self.login_turns.next_ns().unwrap_or(NEVER_NS))
    }

    /// Resumes the connections whose turn has come, and closes those whose logins were displaced.
    ///
    /// Cost: a few lookups for each of them, under a lock that all shards share.
    #[cold]
    pub(crate) fn resume_logins(&mut self, context: &Context) {
        let now_ns = context.now_ns();
        while let Some(connection) = self.login_turns.take_due(now_ns) {
            let open = self.connections.get_mut(connection).expect("T1: its close is noted");
            open.note_login_turn();
            self.resume_if_free(connection);
        }
        if now_ns < context.shared.throttle.next_ns(context.core) {
            return; // T3
        }
        context.change_attempts(|attempts| {
            while let Some(called) = attempts.call(context.core, now_ns) {
                if let Some(turn) = self.end_wait(context, called) {
                    attempts.leave(turn); // T2
                }
            }
        });
    }

    /// Ends the wait of a login. Returns the place that the login gives up, if it cannot try again
    /// now.
    fn end_wait(&mut self, context: &Context, called: CalledLogin) -> Option<LoginTurn> {
        let CalledLogin { connection, turn, call } = called;
        let open = self.connections.get_mut(connection)?;
        if open.login().is_none_or(|login| login.turn != Some(turn)) {
            debug_assert!(call == LoginCall::Displaced, "T2: it leaves when its connection closes");
            return None;
        }
        if open.awaits_login_turn() {
            open.note_login_turn();
        }
        match call {
            LoginCall::Comes if open.may_resume() => {
                self.mark_resumable(connection.into());
                None
            }
            LoginCall::Comes => open.give_up_login_turn(),
            LoginCall::Displaced => {
                context.counters.closes(TooSlow::Login).add(1);
                let given_up = open.give_up_login_turn();
                debug_assert!(given_up == Some(turn), "others have taken it");
                self.drain(connection, CloseReason::Error);
                None
            }
        }
    }
}
