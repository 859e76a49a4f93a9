//! Injected randomness: the only source of random numbers of the server's core crates.
//!
//! Upstream:   the kernel's generator, or a seed.
//! Downstream: `table`'s hash secret, `segment`'s choices, tests.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// A source of random numbers.
pub trait Rng {
    /// 64 random bits.
    fn next_u64(&mut self) -> u64;
}

const STOCK_BYTES: usize = 256;

/// The kernel's generator, fit for secrets. Cost: one system call for every 32 numbers.
#[derive(Debug)]
pub struct SystemRng {
    stock: [u8; STOCK_BYTES],
    used_bytes: usize,
}

impl SystemRng {
    /// Opens the generator: gets the first numbers from the kernel.
    ///
    /// Errors: the kernel has no generator, or forbids it.
    pub fn new() -> io::Result<Self> {
        let mut rng = Self { stock: [0; STOCK_BYTES], used_bytes: 0 };
        rng.refill()?;
        Ok(rng)
    }

    fn refill(&mut self) -> io::Result<()> {
        let mut filled = 0;
        while filled < STOCK_BYTES {
            match getrandom(&mut self.stock[filled..], GetRandomFlags::empty()) {
                Ok(count) => filled += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.used_bytes = 0;
        Ok(())
    }
}

impl Rng for SystemRng {
    /// Panics: if the kernel's generator fails after it has worked once; it never does.
    fn next_u64(&mut self) -> u64 {
        if self.used_bytes == STOCK_BYTES {
            self.refill().expect("getrandom has worked before");
        }
        let bytes = &self.stock[self.used_bytes..self.used_bytes + 8];
        self.used_bytes += 8;
        u64::from_ne_bytes(bytes.try_into().expect("8 bytes"))
    }
}

/// Repeatable numbers from a seed, for tests and simulation; not for secrets.
///
/// Source: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct SeededRng {
    state: u64,
}

impl SeededRng {
    /// The sequence that belongs to `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }
}

impl Rng for SeededRng {
    fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn system_numbers_do_not_repeat_across_refills() {
        let mut rng = SystemRng::new().unwrap();
        let numbers: HashSet<u64> = (0..100).map(|_| rng.next_u64()).collect();
        assert_eq!(numbers.len(), 100);
    }

    #[test]
    fn a_seed_repeats_its_sequence() {
        // The generator's published first outputs for seed 0.
        let mut rng = SeededRng::new(0);
        assert_eq!(rng.next_u64(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(rng.next_u64(), 0x6e78_9e6a_a1b9_65f4);
    }
}
