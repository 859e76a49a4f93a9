//! Which login is checked next, so that passwords cannot be tried quickly, and a right one is let
//! in beside many wrong ones.
//!
//! Upstream:   `shard` asks before it checks a login, and tells when the password was right.
//! Downstream: a login that may not be checked waits; `shard` asks about its turn again.
//!
//! ```text
//!               a check is free, and no better one waits
//! asked --------------------------------------------------> checked: wrong: the check is used up
//!    |                                                        ^      right: it is given back
//!    +--> waiting -- its turn comes --------------------------+
//!            +-- displaced by a better one --> the connection is closed
//! ```
//!
//! Addresses are hashed into [`GROUPS`] groups with a secret key. All logins of a group share its
//! checks. So any number of addresses takes the same memory, and there is no table to fill: with
//! more addresses each of them gets fewer checks.
//!
//! Invariants:
//! - I1  In any minute at most [`WRONG_PER_MINUTE_MAX`] wrong passwords of a group are told. Many
//!   connections, shards or addresses of a group do not change that.
//! - I2  A right password takes no check away, so it delays nobody.
//! - I3  Of the logins of a group that wait, the next is that of a connection with the fewest
//!   failures of its own; among these, one whose client waits for the reply comes before one whose
//!   client has sent more; among these, the newest.
//! - I4  At most [`WAITING_MAX`] logins of a group wait. One more displaces the last of them.
//!
//! Clients of a unix socket have no address, and never wait: the mode of the socket protects it.
//!
//! `docs/decisions/0019-newcomers-log-in-first.md` has the reasons, and the limits of this scheme.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use kachel_io::Peer;

use crate::address_key::AddressKey;
use crate::users::Users;

/// Groups of addresses. All together, [`GROUPS`] times [`WRONG_PER_MINUTE_MAX`] wrong passwords a
/// minute are told at most. A guess: a site has fewer addresses that fail at the same time.
const GROUPS: usize = 4096;
/// The time after which a group has one check more.
const CHECK_NS: u64 = 1_100_000_000;
/// Checks that a group without failures has at once.
const CHECKS_AT_ONCE: u64 = 5;
const MINUTE_NS: u64 = 60_000_000_000;
/// The most wrong passwords of a group that are told in any minute (I1).
pub const WRONG_PER_MINUTE_MAX: u64 = CHECKS_AT_ONCE + MINUTE_NS / CHECK_NS;
/// The most logins of a group that wait (I4). A guess: more clients of one address than connect in
/// the time of one check.
const WAITING_MAX: usize = 256;

const _: () = assert!(WRONG_PER_MINUTE_MAX <= 60, "one a second");
const _: () = assert!(GROUPS.is_power_of_two() && GROUPS <= 1 << 16, "a group fits 16 bits");

/// The group of a client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressGroup(u16);

impl AddressGroup {
    /// The group of `peer`, by the key of `users`. `None` for a client of a unix socket.
    pub fn of(peer: Peer, users: &Users) -> Option<Self> {
        let key = AddressKey::of(peer)?;
        let hash = match key {
            AddressKey::V4(octets) => users.address_hash(&octets),
            AddressKey::V6(octets) => users.address_hash(&octets),
        };
        let group = hash & (GROUPS as u16 - 1);
        debug_assert!(usize::from(group) < GROUPS, "each group has its checks");
        Some(Self(group))
    }
}

/// The place of a login among those that wait. Places compare as the logins are checked (I3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoginTurn {
    group: AddressGroup,
    /// The failures of its connection.
    failures: u8,
    /// Whether its client has sent more behind it.
    has_more: bool,
    /// The newest has the greatest number.
    number: Reverse<u64>,
}

/// A login that could be checked.
#[derive(Clone, Copy, Debug)]
pub struct LoginAttempt {
    /// The group of its client.
    pub group: AddressGroup,
    /// The failures of its connection so far.
    pub failures: u8,
    /// Whether its client has sent more behind it.
    pub has_more: bool,
    /// Its place, if it has waited.
    pub turn: Option<LoginTurn>,
}

/// The next step of a login that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnState {
    /// Ask again now.
    Comes,
    /// Wait.
    Waits,
    /// Give up: better ones have taken its place (I4).
    Displaced,
}

/// The logins of a process that fail, and those that wait.
///
/// Memory: 32 KiB, and a few words for each login that waits.
#[derive(Debug)]
pub struct Attempts {
    /// For each group, when all its checks are free again, in nanoseconds of the clock. This is the
    /// theoretical arrival time of the generic cell rate algorithm (ITU-T I.371).
    full_ns: Box<[u64]>,
    waiting: BTreeSet<LoginTurn>,
    /// The number of the next login that waits.
    next_number: u64,
}

impl Default for Attempts {
    fn default() -> Self {
        Self {
            full_ns: vec![0; GROUPS].into_boxed_slice(),
            waiting: BTreeSet::new(),
            next_number: 0,
        }
    }
}

impl Attempts {
    /// Takes a check for a login at `now_ns`. If it succeeds, the login does not wait any more, the
    /// caller checks the password, and calls [`Self::give_back`] if it was right.
    ///
    /// Errors: the login must wait, at this place.
    pub fn take(&mut self, attempt: LoginAttempt, now_ns: u64) -> Result<(), LoginTurn> {
        let LoginAttempt { group, failures, has_more, turn } = attempt;
        debug_assert!(turn.is_none_or(|turn| turn.group == group), "a client keeps its address");
        let turn = turn.unwrap_or_else(|| {
            let number = Reverse(self.next_number);
            self.next_number += 1;
            LoginTurn { group, failures, has_more, number }
        });
        if self.has_check(group, now_ns) && self.first(group).is_none_or(|first| turn <= first) {
            self.waiting.remove(&turn);
            let full_ns = self.full_ns_mut(group);
            *full_ns = (*full_ns).max(now_ns) + CHECK_NS; // I1
            return Ok(());
        }
        if attempt.turn.is_none() {
            self.join(turn);
        }
        Err(turn)
    }

    /// Gives back the check of a login whose password was right (I2).
    pub fn give_back(&mut self, group: AddressGroup) {
        let full_ns = self.full_ns_mut(group);
        debug_assert!(*full_ns >= CHECK_NS, "a check was taken");
        *full_ns = full_ns.saturating_sub(CHECK_NS);
    }

    /// The next step of the login at this place, at `now_ns`.
    pub fn state(&self, turn: LoginTurn, now_ns: u64) -> TurnState {
        if self.first(turn.group) == Some(turn) && self.has_check(turn.group, now_ns) {
            TurnState::Comes
        } else if self.waiting.contains(&turn) {
            TurnState::Waits
        } else {
            TurnState::Displaced
        }
    }

    /// Has the login at this place not wait any more, because its connection closes.
    pub fn leave(&mut self, turn: LoginTurn) {
        self.waiting.remove(&turn);
    }

    /// Has a login wait. If too many of its group do, the last of them is displaced (I4).
    fn join(&mut self, turn: LoginTurn) {
        let is_new = self.waiting.insert(turn);
        assert!(is_new, "each login has a number of its own");
        let of_group = self.of_group(turn.group);
        if of_group.clone().nth(WAITING_MAX).is_some()
            && let Some(last) = of_group.last().copied()
        {
            self.waiting.remove(&last);
        }
        debug_assert!(self.of_group(turn.group).count() <= WAITING_MAX, "I4");
    }

    /// Whether a check of the group is free.
    fn has_check(&self, group: AddressGroup, now_ns: u64) -> bool {
        let full_ns = self.full_ns[usize::from(group.0)];
        full_ns <= now_ns.saturating_add((CHECKS_AT_ONCE - 1) * CHECK_NS)
    }

    /// The login of the group that is checked next (I3).
    fn first(&self, group: AddressGroup) -> Option<LoginTurn> {
        self.of_group(group).next().copied()
    }

    fn of_group(&self, group: AddressGroup) -> impl DoubleEndedIterator<Item = &LoginTurn> + Clone {
        let end = |failures, has_more, number| LoginTurn { group, failures, has_more, number };
        let (first, last) = (end(0, false, Reverse(u64::MAX)), end(u8::MAX, true, Reverse(0)));
        debug_assert!(first < last, "the newest come first");
        self.waiting.range(first..=last)
    }

    fn full_ns_mut(&mut self, group: AddressGroup) -> &mut u64 {
        &mut self.full_ns[usize::from(group.0)]
    }
}

#[cfg(test)]
mod tests;
