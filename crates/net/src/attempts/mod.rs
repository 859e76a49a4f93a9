//! The order in which logins are checked. Passwords cannot be tried quickly, and a client with the
//! right password logs in beside many with wrong ones.
//!
//! Upstream:   `shard` asks before it checks a login, and reports a right password.
//! Downstream: a login that may not be checked waits (`lines`). When its turn comes, its core is
//!             called, and asks again.
//!
//! ```text
//!               a check is free, and no better one waits
//! asked --------------------------------------------------> checked: wrong: the check is used up
//!    |                                                        ^      right: it is given back
//!    +--> waiting -- called: its turn has come: asked again --+
//!            +-- displaced by a better one --> the connection is closed
//! ```
//!
//! Addresses are hashed into [`GROUPS`] groups with a secret key. All logins of a group share its
//! checks. So any number of addresses takes the same memory, and an attacker with many addresses
//! fills no table: with more addresses, each address gets fewer checks.
//!
//! Invariants:
//! - I1  In any minute, at most [`WRONG_PER_MINUTE_MAX`] wrong passwords of a group are checked.
//!   More connections, shards or addresses of a group do not change that.
//! - I2  A right password gives its check back, so it delays no other login.
//! - I3  The waiting logins of a group are checked in this order: first those of the connections
//!   with the fewest failures; among these, logins whose clients wait for the reply come before
//!   those whose clients have sent more; among these, the newest login is first.
//! - I4  At most [`GROUP_WAITING_MAX`] logins of a group wait. One more displaces the last of them.
//!   In all groups together, logins of at most one connection in [`WAITING_PART`] wait. One more
//!   displaces the last login of the group in which the most wait. So connections are left for
//!   clients of other groups.
//! - I5  No core polls for the turn of a login: [`Attempts::next_ns`] is the time of the next call
//!   of a core, and [`Attempts::take_changed`] names the cores for which that time has changed.
//!
//! Clients of a unix socket have no address and never wait, because the mode of the socket decides
//! which processes may connect.
//!
//! `docs/decisions/0019-newcomers-log-in-first.md` has the reasons, and the limits of this scheme;
//! `docs/decisions/0023-waiting-logins-are-few.md` those of I4 and I5.

mod lines;

use std::cmp::Reverse;

use kachel_io::Peer;

use crate::address_key::AddressKey;
use crate::index::CoreIndex;
use crate::users::Users;
use lines::Lines;
pub use lines::{CalledLogin, LoginCall, LoginWaiter};

/// The number of groups of addresses. In all groups together, at most [`GROUPS`] times
/// [`WRONG_PER_MINUTE_MAX`] wrong passwords are checked a minute. A guess: a site has fewer
/// addresses that fail at the same time.
const GROUPS: usize = 4096;
/// The time after which a group has one check more.
const CHECK_NS: u64 = 1_100_000_000;
/// Checks that a group without failures has at once.
const CHECKS_AT_ONCE: u64 = 5;
const MINUTE_NS: u64 = 60_000_000_000;
/// The most wrong passwords of a group that are checked in any minute (I1).
pub const WRONG_PER_MINUTE_MAX: u64 = CHECKS_AT_ONCE + MINUTE_NS / CHECK_NS;
/// The most logins of a group that wait (I4). A guess: fewer clients of one address connect in the
/// time between two checks.
const GROUP_WAITING_MAX: usize = 256;
/// All logins that wait have at most this part of the connections of the process (I4). A guess:
/// most connections are for clients that are served.
const WAITING_PART: usize = 4;

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
    /// Whether its client has sent more input after the login.
    has_more: bool,
    /// The newest login has the greatest number.
    number: Reverse<u64>,
}

/// A login that could be checked.
#[derive(Clone, Copy, Debug)]
pub struct LoginAttempt {
    /// The group of its client.
    pub group: AddressGroup,
    /// The failures of its connection so far.
    pub failures: u8,
    /// Whether its client has sent more input after the login.
    pub has_more: bool,
    /// Its place, if it has waited.
    pub turn: Option<LoginTurn>,
}

/// The logins of a process that fail, and those that wait.
///
/// Memory: 32 KiB, and some words for each login that waits.
#[derive(Debug)]
pub struct Attempts {
    /// For each group, when all its checks are free again, in nanoseconds of the clock. This is the
    /// theoretical arrival time of the generic cell rate algorithm (ITU-T I.371).
    full_ns: Box<[u64]>,
    lines: Lines,
    /// The most logins that wait (I4).
    waiting_max: usize,
    /// The number of the next login that waits.
    next_number: u64,
}

impl Attempts {
    /// Makes the record of a process in which no login has failed and none waits. The process has
    /// `cores` cores, and at most `connections_max` connections.
    #[must_use]
    pub fn new(cores: u16, connections_max: u32) -> Self {
        Self {
            full_ns: vec![0; GROUPS].into_boxed_slice(),
            lines: Lines::new(cores),
            waiting_max: (connections_max as usize / WAITING_PART).max(1),
            next_number: 0,
        }
    }

    /// Takes a check for a login at `now_ns`. After that the login does not wait. The caller checks
    /// the password, and calls [`Self::give_back`] if it was right.
    ///
    /// Errors: the login must wait, at this place. If it has not waited before, `waiter` is called
    /// when its turn comes.
    pub fn take(
        &mut self,
        attempt: LoginAttempt,
        waiter: LoginWaiter,
        now_ns: u64,
    ) -> Result<(), LoginTurn> {
        let LoginAttempt { group, failures, has_more, turn } = attempt;
        debug_assert!(turn.is_none_or(|turn| turn.group == group), "a client keeps its address");
        let turn = turn.unwrap_or_else(|| {
            let number = Reverse(self.next_number);
            self.next_number += 1;
            LoginTurn { group, failures, has_more, number }
        });
        let is_first = self.lines.first(group).is_none_or(|first| turn <= first); // I3
        let is_taken = is_first && self.free_ns(group) <= now_ns;
        if is_taken {
            self.lines.remove(turn);
            let full_ns = self.full_ns_mut(group);
            *full_ns = (*full_ns).max(now_ns) + CHECK_NS; // I1
        } else if attempt.turn.is_some() {
            self.lines.note_asked(turn);
        } else {
            self.lines.insert(turn, waiter);
        }
        self.relist(group);
        self.displace();
        if is_taken { Ok(()) } else { Err(turn) }
    }

    /// Gives back the check of a login whose password was right (I2).
    pub fn give_back(&mut self, group: AddressGroup) {
        let full_ns = self.full_ns_mut(group);
        debug_assert!(*full_ns >= CHECK_NS, "a check was taken");
        *full_ns = full_ns.saturating_sub(CHECK_NS);
        self.relist(group);
    }

    /// Removes the login at this place, because its connection closes or moves.
    pub fn leave(&mut self, turn: LoginTurn) {
        self.lines.remove(turn);
        self.relist(turn.group);
    }

    /// Returns the next login of a core whose wait is over at `now_ns`. A login whose turn has come
    /// must soon ask again ([`Self::take`]) or leave, because no other login of its group is called
    /// before that.
    pub fn call(&mut self, core: CoreIndex, now_ns: u64) -> Option<CalledLogin> {
        self.lines.call(core, now_ns)
    }

    /// When [`Self::call`] next returns a login of this core, if nothing else happens (I5).
    #[must_use]
    pub fn next_ns(&self, core: CoreIndex) -> Option<u64> {
        self.lines.next_ns(core)
    }

    /// A core whose [`Self::next_ns`] may have changed since it was last taken here (I5).
    pub fn take_changed(&mut self) -> Option<CoreIndex> {
        self.lines.take_changed()
    }

    /// Displaces a login if too many wait (I4).
    fn displace(&mut self) {
        debug_assert!(self.lines.count() <= self.waiting_max + 1, "one joins at a time");
        let Some((group, count)) = self.lines.longest() else { return };
        if count > GROUP_WAITING_MAX || self.lines.count() > self.waiting_max {
            self.lines.displace_last(group);
            self.relist(group);
        }
        debug_assert!(self.lines.count() <= self.waiting_max, "I4");
        debug_assert!(self.lines.longest().is_none_or(|(_, most)| most <= GROUP_WAITING_MAX), "I4");
    }

    /// Lists a group anew, after a change of its line or of its checks (I5).
    fn relist(&mut self, group: AddressGroup) {
        let free_ns = self.free_ns(group);
        self.lines.relist(group, free_ns);
    }

    /// When a check of the group is free.
    fn free_ns(&self, group: AddressGroup) -> u64 {
        self.full_ns[usize::from(group.0)].saturating_sub((CHECKS_AT_ONCE - 1) * CHECK_NS)
    }

    fn full_ns_mut(&mut self, group: AddressGroup) -> &mut u64 {
        &mut self.full_ns[usize::from(group.0)]
    }
}

#[cfg(test)]
mod tests;
