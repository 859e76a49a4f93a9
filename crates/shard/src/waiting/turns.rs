//! Logins that wait for their turn, because passwords must not be tried quickly.
//!
//! Upstream:   `login` and `sasl`, when a login must not be checked yet.
//! Downstream: `net` says whose turn has come; `arrive` resumes that connection, which asks again.
//!
//! Invariants:
//! - T1  The list has exactly the connections of this shard that wait for the turn of a login, each
//!   once.
//! - T2  A login that holds a place among those that wait is asked again when its turn comes, or
//!   gives the place up. So no connection keeps others from their turn.

use kachel_engine::ReadValue;
use kachel_net::{
    Attempts, CloseReason, Connection, ConnectionIndex, LoginTurn, TooSlow, TurnState,
};

use crate::clients::Clients;
use crate::context::Context;

/// How often a shard asks whose turn has come. Each time costs a lookup for each login that waits.
/// A guess: short compared with the time of a login over a network.
pub(crate) const LOOK_NS: u64 = 20_000_000;

impl<P: ReadValue> Clients<P> {
    /// Pauses a connection until its login may be checked. `turn` is its place among those that
    /// wait, if it has one.
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
            self.login_turns.waiting.push(connection); // T1
            self.mark_dirty(connection);
        }
    }

    /// Resumes the connections whose turn has come, if it is time to look.
    ///
    /// Cost: a lookup for each login that waits, under a lock that all shards share.
    #[cold]
    pub(crate) fn resume_logins(&mut self, context: &Context) {
        let now_ns = context.now_ns();
        if now_ns < self.login_turns.next_look_ns {
            return;
        }
        self.login_turns.next_look_ns = now_ns + LOOK_NS;
        let mut waiting = std::mem::take(&mut self.login_turns.waiting);
        let mut attempts = context.shared.attempts();
        waiting.retain(|&connection| {
            let open = self.connections.get_mut(connection).expect("T1: its close is noted");
            match state_of(open, &attempts, now_ns) {
                TurnState::Waits => return true,
                TurnState::Comes => {
                    open.note_login_turn();
                    if !open.may_resume()
                        && let Some(turn) = open.give_up_login_turn()
                    {
                        attempts.leave(turn); // T2
                    }
                    if open.may_resume() && open.mark_resumable() {
                        self.resumable.push(connection.into());
                    }
                }
                TurnState::Displaced => {
                    context.counters.closes(TooSlow::Login).add(1);
                    open.note_login_turn();
                    open.drain(CloseReason::Error);
                    if open.mark_dirty() {
                        self.dirty.push(connection);
                    }
                }
            }
            false
        });
        debug_assert!(self.login_turns.waiting.is_empty(), "no login begins to wait meanwhile");
        self.login_turns.waiting = waiting;
    }
}

/// The next step of a connection whose login waits.
fn state_of(open: &Connection, attempts: &Attempts, now_ns: u64) -> TurnState {
    debug_assert!(open.awaits_login_turn(), "T1");
    let login = open.login().expect("only a login waits so");
    match login.turn {
        Some(turn) => attempts.state(turn, now_ns),
        None if login.retry_ns <= now_ns => TurnState::Comes,
        None => TurnState::Waits,
    }
}
