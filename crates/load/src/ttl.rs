//! TTLs of the items that are stored: one, or several with their shares.
//!
//! Upstream:   `options` parses them.
//! Downstream: `steady` draws one for each set.

use std::str::FromStr;

use rand::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::random::unit;

/// The longest relative TTL. A memcached server takes a longer TTL as a point in time.
pub(crate) const RELATIVE_TTL_S_MAX: i32 = 30 * 24 * 3600;

/// TTLs in seconds; 0 means no expiry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ttls {
    /// TTLs with their weights; never empty.
    list: Vec<(i32, f64)>,
    total: f64,
}

impl Ttls {
    /// Draws a TTL. A single one draws no number.
    #[inline]
    pub(crate) fn draw(&self, random: &mut Xoshiro256PlusPlus) -> i32 {
        if let [(ttl_s, _)] = self.list[..] {
            return ttl_s;
        }
        let mut place = unit(random.next_u64()) * self.total;
        for &(ttl_s, weight) in &self.list {
            if place < weight {
                return ttl_s;
            }
            place -= weight;
        }
        self.list[self.list.len() - 1].0
    }
}

impl FromStr for Ttls {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' is neither seconds nor a list of seconds and shares, as 60:0.9,300:0.1"
            )
        };
        let part = |part: &str| {
            let (ttl_s, weight) = part.split_once(':').unwrap_or((part, "1"));
            let ttl_s: i32 = ttl_s.parse().ok().filter(|&ttl_s: &i32| ttl_s >= 0)?;
            let weight =
                weight.parse().ok().filter(|&weight: &f64| weight > 0.0 && weight < 1e9)?;
            Some((ttl_s, weight))
        };
        let list: Option<Vec<(i32, f64)>> = text.split(',').map(part).collect();
        let list = list.ok_or_else(wrong)?;
        if let Some((ttl_s, _)) = list.iter().find(|&&(ttl_s, _)| ttl_s > RELATIVE_TTL_S_MAX) {
            return Err(format!(
                "{ttl_s} s is longer than 30 days ({RELATIVE_TTL_S_MAX} s): a server takes it as a \
                 point in time, long ago"
            ));
        }
        let total = list.iter().map(|&(_, weight)| weight).sum();
        Ok(Self { list, total })
    }
}

impl serde::Serialize for Ttls {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.list[..] {
            [(ttl_s, _)] => serializer.serialize_i32(ttl_s),
            ref list => serializer.collect_seq(list),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn ttls_have_their_shares() {
        let ttls: Ttls = "60:0.6,300:0.3,0:0.1".parse().expect("TTLs");
        let mut random = Xoshiro256PlusPlus::seed_from_u64(2);
        let drawn: Vec<i32> = (0..10_000).map(|_| ttls.draw(&mut random)).collect();
        for (ttl_s, expected) in [(60, 6_000_usize), (300, 3_000), (0, 1_000)] {
            let seen = drawn.iter().filter(|&&drawn| drawn == ttl_s).count();
            assert!(seen.abs_diff(expected) < 250, "{ttl_s}: {seen}");
        }
    }

    #[test]
    fn ttls_are_read_and_refused() {
        let one: Ttls = "60".parse().expect("a TTL");
        assert_eq!(serde_json::to_string(&one).expect("JSON"), "60");
        for text in ["", "-1", "60:0", "60:0.5,", "1:x", "99999999999"] {
            assert!(text.parse::<Ttls>().is_err(), "{text}");
        }
        assert!("2592000:0.5,60:0.5".parse::<Ttls>().is_ok());
        for text in ["2592001", "60:0.5,2592001:0.5"] {
            let error = text.parse::<Ttls>().expect_err("a point in time");
            assert!(error.contains("2592001 s is longer than 30 days"), "{error}");
        }
    }
}
