//! How many datagrams of one sender are answered in a second.
//!
//! Upstream:   `shard`, with the address that a datagram came from.
//! Downstream: nothing; a datagram beyond the budget is counted and dropped.
//!
//! A sender can write the address of another host into a datagram, so that the server's replies
//! flood that host. The budget limits how much one host can get.
//!
//! Invariants:
//! - I1  In a second, at most `each_second` datagrams of a source are answered, over all threads.
//! - I2  A second that has begun never goes back: a thread whose clock is behind counts in the
//!   later second.
//!
//! Sources are not remembered: each has one of [`SLOTS`] counts, by its hash. Two sources with the
//! same count share their budget. Forged addresses can use up the budget of a real client; then
//! that client must use TCP.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kachel_io::Peer;

use crate::address_key::AddressKey;

/// Counts of sources. With 200,000 forged sources a second, each count gets 3.
const SLOTS: usize = 1 << 16;

const _: () = assert!(SLOTS.is_power_of_two());

/// The budgets of all senders, shared by all threads.
///
/// Memory: none without a limit, otherwise 512 KiB.
#[derive(Debug)]
pub struct SenderBudget {
    /// 0: no limit.
    each_second: u32,
    /// A second in the upper half, and the datagrams of that second in the lower half. They say
    /// nothing about other memory, so the accesses are relaxed.
    counts: Box<[AtomicU64]>,
}

impl SenderBudget {
    /// A budget of `each_second` datagrams. 0 means no limit.
    pub fn new(each_second: u32) -> Self {
        let slots = if each_second == 0 { 0 } else { SLOTS };
        Self { each_second, counts: (0..slots).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Takes a datagram from the budget of its sender. Returns whether it may be answered.
    ///
    /// Cost: a comparison without a limit, otherwise a read-modify-write.
    pub fn take(&self, from: SocketAddr, second: u32) -> bool {
        if self.each_second == 0 {
            return true;
        }
        assert!(self.counts.len() == SLOTS, "every source has a count");
        let Some(key) = AddressKey::of(Peer::from(from)) else { return true };
        let second_of = |count: u64| (count >> 32) as u32;
        let next = |count: u64| {
            let begun = second_of(count);
            debug_assert!(count as u32 <= self.each_second, "I1");
            if second > begun {
                Some(u64::from(second) << 32 | 1)
            } else {
                ((count as u32) < self.each_second).then(|| count + 1) // I2
            }
        };
        self.counts[slot(key)].fetch_update(Relaxed, Relaxed, next).is_ok()
    }
}

/// The count of a source. A hash that spreads neighboring addresses is enough: a sender that forges
/// addresses reaches any count anyway.
fn slot(key: AddressKey) -> usize {
    /// Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, section 6.4).
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let number = match key {
        AddressKey::V4(octets) => u64::from(u32::from_be_bytes(octets)),
        AddressKey::V6(octets) => u64::from_be_bytes(octets),
    };
    let slot = (number.wrapping_mul(MULTIPLIER) >> (64 - SLOTS.trailing_zeros())) as usize;
    debug_assert!(slot < SLOTS, "the upper bits of a product");
    slot
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(budget: &SenderBudget, from: &str, second: u32, wanted: u32) -> usize {
        let from = from.parse().expect("an address");
        (0..wanted).filter(|_| budget.take(from, second)).count()
    }

    #[test]
    fn a_source_has_its_budget_each_second() {
        let budget = SenderBudget::new(100);
        for second in [1, 2, 9] {
            assert_eq!(taken(&budget, "10.0.0.7:1000", second, 70), 70);
            assert_eq!(taken(&budget, "10.0.0.7:1001", second, 70), 30, "any port counts");
            assert_eq!(taken(&budget, "[::ffff:10.0.0.7]:1", second, 1), 0, "the same address");
            assert_eq!(taken(&budget, "10.0.0.8:1000", second, 100), 100, "another source");
            assert_eq!(taken(&budget, "[2001:db8::1]:1", second, 60), 60);
            assert_eq!(taken(&budget, "[2001:db8::2]:1", second, 60), 40, "the same network");
        }
        assert_eq!(taken(&budget, "10.0.0.8:1000", 8, 1), 0, "a clock that is behind");
    }

    #[test]
    fn threads_share_a_budget() {
        let budget = SenderBudget::new(1_000);
        let taken: usize = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(|| taken(&budget, "10.0.0.7:1", 1, 900)));
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!(taken, 1_000);
    }

    #[test]
    fn without_a_limit_all_are_answered_and_nothing_is_allocated() {
        let budget = SenderBudget::new(0);
        assert_eq!(taken(&budget, "10.0.0.7:1000", 1, 100_000), 100_000);
        assert!(budget.counts.is_empty());
    }

    #[test]
    fn neighboring_addresses_have_counts_of_their_own() {
        let mut slots: Vec<usize> = (0..4096)
            .map(|low| slot(AddressKey::V4([10, 0, (low >> 8) as u8, low as u8])))
            .collect();
        slots.sort_unstable();
        slots.dedup();
        assert!(slots.len() > 4000, "{}", slots.len());
    }
}
