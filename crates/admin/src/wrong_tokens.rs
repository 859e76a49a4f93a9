//! Limits how often wrong tokens are checked. So tokens cannot be tried quickly, and a client with
//! the right token is answered while others guess, unless one of its own network sends guesses
//! without a pause: then the newest is nearly always a guess (W2).
//!
//! Upstream:   `route`, for each request with a token or a cookie, and for each login.
//! Downstream: nothing.
//!
//! The rule is that of logins (`crates/net/src/attempts/mod.rs`), for clients whose connections end
//! after one request.
//!
//! Invariants:
//! - W1  In any minute, at most [`WRONG_PER_MINUTE_MAX`] wrong tokens of a group of addresses are
//!   checked. A right one gives its check back.
//! - W2  Of the clients of a group that wait, the newest is first: one that guesses waits behind
//!   those that come after it.
//! - W3  A client that has gone does not wait.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::limits::TOKEN_WAIT_MAX;

/// The number of groups of addresses. A guess: few addresses fail at the same time.
const GROUPS: usize = 1024;
/// The time after which a group has one check more.
const CHECK_TIME: Duration = Duration::from_millis(1100);
/// Checks that a group without failures has at once.
const CHECKS_AT_ONCE: u32 = 5;
/// The most wrong tokens of a group that are checked in any minute (W1).
const WRONG_PER_MINUTE_MAX: u128 = CHECKS_AT_ONCE as u128 + 60_000 / CHECK_TIME.as_millis();

const _: () = assert!(WRONG_PER_MINUTE_MAX <= 60, "one a second");

/// The group of a client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Group(usize);

/// The tokens that were wrong, and the clients that wait.
#[derive(Debug)]
pub(crate) struct WrongTokens {
    /// The key of the groups.
    hash: RandomState,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// For each group, when all its checks are free again. This is the theoretical arrival time of
    /// the generic cell rate algorithm (ITU-T I.371).
    full: Box<[Instant]>,
    /// The clients that wait, by their group; later ones have a greater number.
    waiting: BTreeSet<(Group, u64)>,
    next_number: u64,
}

/// A client that waits, until it is dropped (W3).
struct Waiting<'g> {
    tokens: &'g WrongTokens,
    place: (Group, u64),
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.tokens.state().waiting.remove(&self.place);
    }
}

/// A check of a token. It counts as one of a wrong token unless it is given back.
#[derive(Debug)]
pub(crate) struct Check<'g> {
    tokens: &'g WrongTokens,
    /// `None` for a client of a unix socket: the mode of the socket says who may connect.
    group: Option<Group>,
}

impl Check<'_> {
    /// The token was right (W1).
    pub(crate) fn give_back(self) {
        if let Some(Group(group)) = self.group {
            self.tokens.state().full[group] -= CHECK_TIME;
        }
    }
}

impl WrongTokens {
    pub(crate) fn new() -> Self {
        let full = vec![Instant::now(); GROUPS].into_boxed_slice();
        let state = State { full, waiting: BTreeSet::new(), next_number: 0 };
        Self { hash: RandomState::new(), state: Mutex::new(state) }
    }

    /// Waits until a token of a client at `address` may be checked, for at most
    /// [`TOKEN_WAIT_MAX`]. `None` if that was too short.
    pub(crate) async fn check(&self, address: Option<IpAddr>) -> Option<Check<'_>> {
        let Some(address) = address else { return Some(Check { tokens: self, group: None }) };
        let group = self.group(address);
        let waiting = self.wait(group);
        let deadline = Instant::now() + TOKEN_WAIT_MAX;
        loop {
            let now = Instant::now();
            let Err(pause) = self.state().take(waiting.place, now) else {
                return Some(Check { tokens: self, group: Some(group) });
            };
            if now + pause > deadline {
                return None;
            }
            tokio::time::sleep(pause).await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn group(&self, address: IpAddr) -> Group {
        let hash = match address {
            IpAddr::V4(address) => self.hash.hash_one(address.octets()),
            // The other half is the client's to choose.
            IpAddr::V6(address) => self.hash.hash_one(&address.octets()[..8]),
        };
        Group((hash % GROUPS as u64) as usize)
    }

    fn wait(&self, group: Group) -> Waiting<'_> {
        let mut state = self.state();
        let place = (group, state.next_number);
        state.next_number += 1;
        state.waiting.insert(place);
        Waiting { tokens: self, place }
    }
}

impl State {
    /// Takes a check for the client at `place`. `Err` is the time after which it may ask again.
    fn take(&mut self, place: (Group, u64), now: Instant) -> Result<(), Duration> {
        let (group, _) = place;
        debug_assert!(self.waiting.contains(&place), "it waits");
        let full = &mut self.full[group.0];
        let free = (*full + CHECK_TIME).checked_sub(CHECKS_AT_ONCE * CHECK_TIME).unwrap_or(now);
        if free > now {
            return Err(free - now);
        }
        let newest = self.waiting.range(..=(group, u64::MAX)).next_back();
        if newest != Some(&place) {
            return Err(CHECK_TIME); // W2
        }
        *full = (*full).max(now) + CHECK_TIME; // W1
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: Group = Group(3);

    #[test]
    fn a_group_has_its_checks_a_minute_and_no_more() {
        let tokens = WrongTokens::new();
        let begun = Instant::now() + Duration::from_secs(60);
        let mut checks = 0;
        for millisecond in (0..60_000).step_by(100) {
            let waiting = tokens.wait(GROUP);
            let now = begun + Duration::from_millis(millisecond);
            checks += u128::from(tokens.state().take(waiting.place, now).is_ok());
        }
        assert_eq!(checks, WRONG_PER_MINUTE_MAX);
        let waiting = tokens.wait(Group(4));
        assert_eq!(tokens.state().take(waiting.place, begun), Ok(()), "another group has its own");
    }

    #[test]
    fn a_right_token_uses_no_check_up() {
        let tokens = WrongTokens::new();
        let now = Instant::now() + Duration::from_secs(60);
        for _ in 0..1000 {
            let waiting = tokens.wait(GROUP);
            assert_eq!(tokens.state().take(waiting.place, now), Ok(()));
            Check { tokens: &tokens, group: Some(GROUP) }.give_back();
        }
    }

    #[test]
    fn the_newest_that_waits_is_first_and_one_that_has_gone_does_not_wait() {
        let tokens = WrongTokens::new();
        let now = Instant::now() + Duration::from_secs(60);
        let (older, newer) = (tokens.wait(GROUP), tokens.wait(GROUP));
        let _of_others = tokens.wait(Group(4));
        assert_eq!(tokens.state().take(older.place, now), Err(CHECK_TIME));
        assert_eq!(tokens.state().take(newer.place, now), Ok(()));
        drop(newer);
        assert_eq!(tokens.state().take(older.place, now), Ok(()));
        drop(older);
        assert_eq!(tokens.state().waiting.len(), 1);
    }
}
