//! Key numbers, and the key and value bytes that belong to each.
//!
//! Upstream:   a source picks a key number (`steady`) or a key's seed (`replay`).
//! Downstream: `request` formats the bytes; `reply` hands a value back for comparison.
//!
//! ```text
//! key of number 42, 30 bytes:  k00000000000000000000000000042
//! value:                       the first n bytes of the key's stream; word i is mix(seed, i)
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Two numbers below the count never have the same key.
//! - I2  A value is a prefix of its key's stream. Any answer can therefore be verified without a
//!   record of what was stored. Values of different keys differ from the first byte on, except by
//!   chance.

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

use crate::distribution::{ETC_SCALE, ETC_SHAPE, Law};
use crate::random::{below, mix, unit};

/// The longest key that memcached accepts.
pub(crate) const KEY_BYTES_MAX: usize = 250;

/// The longest value that a size option may name (memcached's largest `-I` is 1 GiB).
pub(crate) const VALUE_BYTES_MAX: u32 = 1 << 30;

/// The most keys that a run inserts; later ones overwrite them.
const INSERTS_MAX: u64 = 1_000_000_000;

/// Largest value that `Sizes::Etc` draws.
const ETC_VALUE_BYTES_MAX: f64 = 8192.0;

/// The largest value that is drawn from any other distribution: one that servers with memcached's
/// default `-I` accept.
const DRAWN_BYTES_MAX: f64 = 1_000_000.0;

/// Lengths of synthetic keys or of their values. A length is drawn once per key, so every set of a
/// key uses the same one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Sizes {
    /// Every key or value has this many bytes.
    Fixed(u32),
    /// Uniform between the two, both included.
    Between(u32, u32),
    /// The generalized Pareto distribution fitted to Facebook's ETC pool (Atikoglu et al.,
    /// SIGMETRICS 2012): location 0, scale 214.476, shape 0.348238; cut at 8 KiB.
    Etc,
    /// Any other distribution, cut to whole bytes and to at most 1,000,000.
    Drawn(Law),
}

impl Sizes {
    /// The size of the key with this seed, or of its value.
    #[inline]
    pub(crate) fn of(self, seed: u64) -> usize {
        let draw = mix(seed ^ 0x5a5a_5a5a_5a5a_5a5a);
        match self {
            Self::Fixed(bytes) => bytes as usize,
            Self::Between(low, high) => {
                low as usize + below(draw, u64::from(high - low) + 1) as usize
            }
            Self::Etc => {
                let (scale, shape) = (ETC_SCALE, ETC_SHAPE);
                let left = 1.0 - unit(draw);
                let bytes = scale * (left.powf(-shape) - 1.0) / shape;
                bytes.clamp(1.0, ETC_VALUE_BYTES_MAX) as usize
            }
            Self::Drawn(law) => {
                let mut random = Xoshiro256PlusPlus::seed_from_u64(draw);
                law.draw(&mut random).min(DRAWN_BYTES_MAX) as usize
            }
        }
    }
}

impl std::str::FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| match part.parse::<u32>() {
            Ok(bytes) if bytes <= VALUE_BYTES_MAX => Ok(bytes),
            Ok(_) => Err(format!("the maximum value size is {VALUE_BYTES_MAX} bytes")),
            Err(_) => Err(format!("'{part}' is not a size; examples are 32, 10-1000 and etc")),
        };
        if text == "etc" {
            return Ok(Self::Etc);
        }
        if text.starts_with(|first: char| first.is_ascii_alphabetic()) {
            return match text.parse()? {
                Law::Fixed(bytes) => Ok(Self::Fixed(number(&bytes.to_string())?)),
                law => Ok(Self::Drawn(law)),
            };
        }
        match text.split_once('-') {
            None => Ok(Self::Fixed(number(text)?)),
            Some((low, high)) => match (number(low)?, number(high)?) {
                (low, high) if low <= high => Ok(Self::Between(low, high)),
                (low, high) => Err(format!("{low} is more than {high}")),
            },
        }
    }
}

/// The synthetic keys: numbers from 0 to the count.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    count: u64,
    /// The count and the keys that may be inserted.
    capacity: u64,
    /// The key of number 0 with the greatest length. Shorter keys are a prefix of it.
    template: Vec<u8>,
    /// The shortest length at which all keys differ.
    needed_bytes: usize,
    /// The lengths of the keys; `None`: all have that of the template.
    lengths: Option<Sizes>,
    seed: u64,
    sizes: Sizes,
}

/// Keys beside those that are preloaded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    /// Beside each key there is a counter, whose name has another first letter.
    pub(crate) counters: bool,
    /// Up to `INSERTS_MAX` keys are inserted.
    pub(crate) inserts: bool,
}

impl Room {
    fn words(self) -> &'static str {
        match (self.counters, self.inserts) {
            (false, false) => "",
            (true, false) => " with counters",
            (false, true) => " and those that are inserted",
            (true, true) => " with counters and those that are inserted",
        }
    }
}

impl Keys {
    /// Keys of the lengths `key_sizes`, without counters or room for inserts; for tests.
    #[cfg(test)]
    pub(crate) fn new(
        count: u64,
        key_sizes: Sizes,
        sizes: Sizes,
        seed: u64,
    ) -> Result<Self, String> {
        Self::with(count, Room::default(), key_sizes, sizes, seed)
    }

    /// Keys of the lengths `key_sizes`. Lengths that are drawn are cut to what the keys need to
    /// differ (I1), and to what the protocol allows.
    ///
    /// Errors: the count is 0, or keys of the given lengths are too short to differ or too long for
    /// the protocol.
    pub(crate) fn with(
        count: u64,
        room: Room,
        key_sizes: Sizes,
        sizes: Sizes,
        seed: u64,
    ) -> Result<Self, String> {
        if count == 0 {
            return Err("--keys must be at least 1".into());
        }
        let capacity = count + if room.inserts { INSERTS_MAX } else { 0 };
        // A counter needs a letter before its number.
        let needed_bytes = (capacity - 1).to_string().len() + usize::from(room.counters);
        let (least, most) = match key_sizes {
            Sizes::Fixed(bytes) => (bytes as usize, bytes as usize),
            Sizes::Between(low, high) => (low as usize, high as usize),
            Sizes::Etc | Sizes::Drawn(_) => (needed_bytes, KEY_BYTES_MAX),
        };
        if least < needed_bytes || most > KEY_BYTES_MAX {
            return Err(format!(
                "--key-size must be {needed_bytes} to {KEY_BYTES_MAX} bytes for {count} keys{}",
                room.words()
            ));
        }
        let mut template = vec![b'0'; most];
        if most > needed_bytes || room.counters {
            template[0] = b'k';
        }
        let lengths = (least < most).then_some(key_sizes);
        Ok(Self { count, capacity, template, needed_bytes, lengths, seed, sizes })
    }

    /// The length of the key of `number`.
    #[inline]
    fn key_bytes(&self, number: u64) -> usize {
        match self.lengths {
            None => self.template.len(),
            Some(lengths) => {
                let seed = mix(self.stream_seed(number));
                lengths.of(seed).clamp(self.needed_bytes, self.template.len())
            }
        }
    }

    /// The number of keys, without those that are inserted.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Appends the key of `number`.
    #[inline]
    pub(crate) fn put_key(&self, number: u64, out: &mut Vec<u8>) {
        debug_assert!(number < self.capacity, "I1");
        match self.lengths {
            None => out.extend_from_slice(&self.template),
            Some(_) => out.extend_from_slice(&self.template[..self.key_bytes(number)]),
        }
        let mut rest = number;
        // From the last digit on. A key is at least as long as its number (I1).
        for byte in out.iter_mut().rev() {
            if rest == 0 {
                break;
            }
            *byte = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
    }

    /// Appends the counter beside the key of `number`.
    pub(crate) fn put_counter(&self, number: u64, out: &mut Vec<u8>) {
        assert!(self.template[0] == b'k', "I1: the ratio has counters");
        let start = out.len();
        self.put_key(number, out);
        out[start] = b'c';
    }

    /// The number of the key that is inserted after this number of others.
    pub(crate) fn inserted(&self, number: u64) -> u64 {
        assert!(number >= self.count && self.capacity > self.count, "I1: the ratio has inserts");
        // Beyond the capacity, the oldest inserts are overwritten.
        self.count + (number - self.count) % (self.capacity - self.count)
    }

    /// True if `key` is the key of `number`.
    #[inline]
    pub(crate) fn is_key(&self, number: u64, key: &[u8]) -> bool {
        if key.len() != self.key_bytes(number) {
            return false;
        }
        let mut rest = number;
        key.iter().zip(&self.template).rev().all(|(&byte, &template)| {
            let digit = (rest % 10) as u8;
            let expected = if rest > 0 { b'0' + digit } else { template };
            rest /= 10;
            byte == expected
        })
    }

    /// The number of a key; `None` if it is the key of none.
    pub(crate) fn number(&self, key: &[u8]) -> Option<u64> {
        let digits = key.strip_prefix(b"k").unwrap_or(key);
        let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
        (number < self.capacity && self.is_key(number, key)).then_some(number)
    }

    /// The seed of a key's stream.
    #[inline]
    pub(crate) fn stream_seed(&self, number: u64) -> u64 {
        mix(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The length of the value of this key.
    #[inline]
    pub(crate) fn value_bytes(&self, stream_seed: u64) -> usize {
        self.sizes.of(stream_seed)
    }
}

/// Appends the first `bytes` bytes of a key's stream (I2).
#[inline]
pub(crate) fn put_value(stream_seed: u64, bytes: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + bytes, 0);
    for (index, chunk) in out[start..].chunks_mut(8).enumerate() {
        let word = stream_word(stream_seed, index);
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// True if `value` is a prefix of a key's stream (I2); its length is not checked.
#[inline]
pub(crate) fn is_value(stream_seed: u64, value: &[u8]) -> bool {
    value
        .chunks(8)
        .enumerate()
        .all(|(index, chunk)| *chunk == stream_word(stream_seed, index)[..chunk.len()])
}

#[inline]
fn stream_word(stream_seed: u64, index: usize) -> [u8; 8] {
    mix(stream_seed.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn key(keys: &Keys, number: u64) -> String {
        let mut out = Vec::new();
        keys.put_key(number, &mut out);
        String::from_utf8(out).expect("keys are ASCII")
    }

    #[test]
    fn keys_are_padded_to_their_length_and_recognized() {
        let keys = Keys::new(1_000, Sizes::Fixed(8), Sizes::Fixed(1), 0).expect("valid");
        assert_eq!(key(&keys, 0), "k0000000");
        assert_eq!(key(&keys, 42), "k0000042");
        assert!(keys.is_key(42, b"k0000042"));
        assert!(!keys.is_key(42, b"k0000043"));
        assert!(!keys.is_key(42, b"x0000042"));
        assert!(!keys.is_key(42, b"k000042"));
    }

    #[test]
    fn the_shortest_keys_that_can_differ_are_accepted() {
        let keys = Keys::new(1_000, Sizes::Fixed(3), Sizes::Fixed(1), 0).expect("valid");
        assert_eq!((key(&keys, 7), key(&keys, 999)), ("007".into(), "999".into()));
        assert!(Keys::new(1_001, Sizes::Fixed(3), Sizes::Fixed(1), 0).is_err());
        assert!(Keys::new(10, Sizes::Fixed(251), Sizes::Fixed(1), 0).is_err());
    }

    #[test]
    fn keys_of_drawn_lengths_differ_and_are_recognized() {
        for text in ["4-12", "fb_key", "normal:3,2", "uniform:0,400"] {
            let sizes = text.parse().expect("sizes");
            let keys = Keys::new(5_000, sizes, Sizes::Fixed(1), 3).expect("valid");
            let all: Vec<String> = (0..5_000).map(|number| key(&keys, number)).collect();
            let different: HashSet<&String> = all.iter().collect();
            assert_eq!(different.len(), 5_000, "I1: {text}");
            let lengths: HashSet<usize> = all.iter().map(String::len).collect();
            assert!(lengths.len() > 3, "{text}: {lengths:?}");
            assert!(lengths.iter().all(|bytes| (4..=KEY_BYTES_MAX).contains(bytes)), "{text}");
            for (number, key) in (0..).zip(&all) {
                assert!(keys.is_key(number, key.as_bytes()));
                assert!(!keys.is_key((number + 1) % 5_000, key.as_bytes()));
            }
        }
        let mean = |text: &str| {
            let keys = Keys::new(5_000, text.parse().expect("sizes"), Sizes::Fixed(1), 3);
            let keys = keys.expect("valid");
            (0..5_000).map(|number| key(&keys, number).len()).sum::<usize>() as f64 / 5_000.0
        };
        // The mean of fb_key is 36.1; half a byte is cut off each.
        assert!((35.0..36.2).contains(&mean("fb_key")), "{}", mean("fb_key"));
        assert!(Keys::new(5_000, Sizes::Between(3, 20), Sizes::Fixed(1), 0).is_err());
        assert!(Keys::new(5_000, Sizes::Between(4, 251), Sizes::Fixed(1), 0).is_err());
    }

    #[test]
    fn counters_and_inserted_keys_differ_from_all_others() {
        let room = Room { counters: true, inserts: true };
        let sizes = Sizes::Fixed(1);
        let keys = Keys::with(1_000, room, Sizes::Fixed(11), sizes, 0).expect("valid");
        let mut counter = Vec::new();
        keys.put_counter(999, &mut counter);
        assert_eq!(counter, b"c0000000999");
        assert_eq!(key(&keys, keys.inserted(1_000)), "k0000001000");
        assert_eq!(keys.inserted(1_000 + INSERTS_MAX), 1_000, "I1: the oldest is overwritten");
        assert_eq!(key(&keys, keys.inserted(999 + INSERTS_MAX)), "k1000000999", "I1");
        let error = Keys::with(1_000, room, Sizes::Fixed(10), sizes, 0).map(|_| ());
        assert!(error.expect_err("too short").contains("--key-size must be 11"));
    }

    #[test]
    fn a_value_of_another_key_or_with_a_changed_byte_is_noticed() {
        let mut value = Vec::new();
        put_value(11, 37, &mut value);
        assert_eq!(value.len(), 37);
        assert!(is_value(11, &value));
        assert!(is_value(11, &value[..5]));
        assert!(!is_value(12, &value));
        value[36] ^= 1;
        assert!(!is_value(11, &value));
    }

    #[test]
    fn sizes_are_read_and_refused() {
        assert_eq!("32".parse(), Ok(Sizes::Fixed(32)));
        assert_eq!("10-1000".parse(), Ok(Sizes::Between(10, 1000)));
        assert_eq!("etc".parse(), Ok(Sizes::Etc));
        assert_eq!("fixed:7".parse(), Ok(Sizes::Fixed(7)));
        assert_eq!("fb_value".parse(), Ok(Sizes::Drawn(Law::EtcValue)));
        assert!("fixed:7.5".parse::<Sizes>().is_err());
        assert!("gev:1".parse::<Sizes>().is_err());
        assert!("9-3".parse::<Sizes>().is_err());
        assert!("x".parse::<Sizes>().is_err());
        assert!("4294967295".parse::<Sizes>().is_err());
    }

    #[test]
    fn etc_sizes_have_the_mean_of_the_fitted_distribution() {
        let count = 100_000u64;
        let total: usize = (0..count).map(|number| Sizes::Etc.of(mix(number + 1))).sum();
        let mean = total as f64 / count as f64;
        // scale / (1 - shape) = 329; the cut at 8 KiB lowers the mean slightly.
        assert!((300.0..335.0).contains(&mean), "{mean}");
    }
}
