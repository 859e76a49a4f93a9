//! Failed logins by address, so that passwords cannot be tried quickly.
//!
//! Upstream:   `shard` asks before it checks a login, and says when one has failed.
//! Downstream: a client that must wait is paused, and asks again in the next second.
//!
//! Invariants:
//! - I1  After [`FREE_FAILURES`] failures of an address, one login of it is checked a second, until
//!   none has failed for [`FORGIVEN_S`] seconds. Many connections from one address do not change
//!   that.
//! - I2  At most [`ADDRESSES_MAX`] addresses are remembered. Failures of others are forgotten.
//!
//! Clients of a unix socket have no address, and never wait: the mode of the socket protects it.

use std::collections::HashMap;

use kachel_io::Peer;

use crate::address_key::AddressKey;

/// Logins of an address that may fail without a delay.
const FREE_FAILURES: u32 = 5;
/// Seconds without a failure after which those before are forgotten.
const FORGIVEN_S: u32 = 60;
const ADDRESSES_MAX: usize = 10_000;

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    /// The second of the last failure.
    last: u32,
    /// The last second in which a login was checked although there were too many failures.
    checked: u32,
}

/// The failed logins of a process.
#[derive(Debug, Default)]
pub struct Attempts {
    failures: HashMap<AddressKey, Failures>,
}

impl Attempts {
    /// Whether a login of `peer` may be checked in this `second`. If so, the caller checks it.
    pub fn may_try(&mut self, peer: Peer, second: u32) -> bool {
        let Some(key) = AddressKey::of(peer) else { return true };
        let Some(failures) = self.failures.get_mut(&key) else { return true };
        if second.saturating_sub(failures.last) > FORGIVEN_S {
            self.failures.remove(&key);
            return true;
        }
        let may = failures.count < FREE_FAILURES || second > failures.checked;
        if may {
            failures.checked = second;
        }
        may
    }

    /// Notes that a login of `peer` has failed in this `second`.
    pub fn note_failure(&mut self, peer: Peer, second: u32) {
        let Some(key) = AddressKey::of(peer) else { return };
        if self.failures.len() >= ADDRESSES_MAX && !self.failures.contains_key(&key) {
            self.failures.retain(|_, one| second.saturating_sub(one.last) <= FORGIVEN_S);
            if self.failures.len() >= ADDRESSES_MAX {
                return; // I2
            }
        }
        debug_assert!(self.failures.len() <= ADDRESSES_MAX, "I2");
        let none = Failures { count: 0, last: second, checked: second };
        let failures = self.failures.entry(key).or_insert(none);
        failures.count += 1;
        failures.last = second;
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn peer(address: &str) -> Peer {
        address.parse::<SocketAddr>().expect("an address").into()
    }

    /// How many logins are checked in a second, of `wanted` that all fail.
    fn checked(attempts: &mut Attempts, peer: Peer, second: u32, wanted: u32) -> u32 {
        let tries = (0..wanted).filter(|_| {
            let may = attempts.may_try(peer, second);
            if may {
                attempts.note_failure(peer, second);
            }
            may
        });
        u32::try_from(tries.count()).expect("few")
    }

    #[test]
    fn after_five_failures_one_login_is_checked_a_second_until_a_minute_is_quiet() {
        let mut attempts = Attempts::default();
        let client = peer("10.0.0.7:1000");
        assert_eq!(checked(&mut attempts, client, 100, 1_000), 5);
        for second in 101..200 {
            assert_eq!(checked(&mut attempts, client, second, 100), 1);
        }
        assert_eq!(checked(&mut attempts, client, 199, 1), 0);
        assert_eq!(checked(&mut attempts, peer("10.0.0.8:1000"), 199, 1), 1, "another address");
        assert_eq!(checked(&mut attempts, client, 199 + 60, 10), 1);
        assert_eq!(checked(&mut attempts, client, 259 + 61, 10), 5);
    }

    #[test]
    fn ports_and_the_second_half_of_an_address_do_not_count_and_local_clients_never_wait() {
        let same = [
            ["10.0.0.7:1000", "10.0.0.7:2000"],
            ["10.0.0.7:1000", "[::ffff:10.0.0.7]:2000"],
            ["[2001:db8:1:2::3]:1000", "[2001:db8:1:2:ff::4]:2000"],
        ];
        for [first, second] in same {
            let mut attempts = Attempts::default();
            assert_eq!(checked(&mut attempts, peer(first), 1, 9), 5);
            assert_eq!(checked(&mut attempts, peer(second), 1, 9), 0, "{second}");
        }
        let mut attempts = Attempts::default();
        assert_eq!(checked(&mut attempts, peer("[2001:db8:1:2::3]:1"), 1, 9), 5);
        assert_eq!(checked(&mut attempts, peer("[2001:db8:1:3::3]:1"), 1, 9), 5);
        assert_eq!(checked(&mut attempts, Peer::Local, 1, 1_000), 1_000);
    }

    #[test]
    fn the_number_of_addresses_is_bounded() {
        let mut attempts = Attempts::default();
        for number in 0..2 * ADDRESSES_MAX {
            let address = std::net::Ipv4Addr::from_bits(u32::try_from(number).expect("few"));
            attempts.note_failure(Peer::from(SocketAddr::from((address, 1))), 5);
        }
        assert_eq!(attempts.failures.len(), ADDRESSES_MAX);
        attempts.note_failure(peer("10.0.0.7:1"), 5 + FORGIVEN_S + 1);
        assert_eq!(attempts.failures.len(), 1, "those before are forgotten");
    }
}
