//! `incr`, `decr`, `ma`.
//!
//! Upstream:   `decide`.
//! Downstream: a decision: a new item, because the value of an item never changes.

use super::life_terms::Life;
use crate::change::{Change, Decision, Put, PutValue};
use crate::item::{Facts, ItemView};
use crate::operation::{ArithmeticTerms, Direction};
use crate::outcome::Verdict;
use crate::time::{Now, Ttl};

/// Bytes of the longest value that is read as a number. A longer value is treated as non-numeric.
pub const NUMBER_BYTES_MAX: usize = 1024;

pub(super) fn arithmetic<'e>(
    terms: &ArithmeticTerms,
    found: Option<&impl ItemView<'e>>,
    now: &Now,
) -> Decision {
    let Some(item) = found else {
        return match terms.life.vivify() {
            Some(ttl) => create(terms, ttl, now),
            None => Decision::unchanged(Verdict::Miss),
        };
    };
    let value = match item.small_value() {
        Some(value) if !value.is_empty() && value.len() <= NUMBER_BYTES_MAX => value,
        _ => return Decision::unchanged(Verdict::NonNumeric),
    };
    if terms.compare_cas.is_some_and(|token| token != 0 && token != item.cas()) {
        return Decision::unchanged(Verdict::Exists);
    }
    let Some(number) = stored_number(value) else {
        return Decision::unchanged(Verdict::NonNumeric);
    };
    let number = match terms.direction {
        Direction::Up => number.wrapping_add(terms.delta),
        Direction::Down => number.saturating_sub(terms.delta),
    };
    let before = item.expiry();
    let life = Life::after(&terms.life, before, false, now);
    let digits = decimal_digits(number);
    // As in memcached, if the number is longer than the value, the new item does not inherit the
    // stale, win and key marks. A shorter number keeps the value's length, padded with spaces.
    let fits = digits <= value.len();
    debug_assert!(digits.max(value.len()) <= NUMBER_BYTES_MAX, "it is read as a number again");
    let put = Put {
        value: PutValue::Number { number, bytes: digits.max(value.len()) },
        client_flags: item.client_flags(),
        expiry: life.expiry,
        cas: terms.new_cas,
        stale: item.is_stale() && fits,
        win_sent: item.is_win_sent() && fits,
        remnant: false,
        protocol_mark: item.protocol_mark() && fits,
        keeps_access: fits,
        removes_when_refused: false,
    };
    let mut facts =
        Facts { value_bytes: digits, ttl_before: now.ttl_left(before), ..Facts::default() };
    life.tell(&mut facts);
    changed(put, number, facts)
}

/// Creates a number, because no item was found.
fn create(terms: &ArithmeticTerms, ttl: Ttl, now: &Now) -> Decision {
    let life = Life::after(&terms.life, now.expiry(ttl), true, now);
    let bytes = decimal_digits(terms.initial);
    let put = Put {
        value: PutValue::Number { number: terms.initial, bytes },
        client_flags: 0,
        expiry: life.expiry,
        cas: terms.new_cas,
        stale: false,
        win_sent: false,
        remnant: false,
        protocol_mark: false,
        keeps_access: false,
        removes_when_refused: false,
    };
    let mut facts = Facts { value_bytes: bytes, created: true, ..Facts::default() };
    life.tell(&mut facts);
    changed(put, terms.initial, facts)
}

fn changed(put: Put, number: u64, facts: Facts) -> Decision {
    debug_assert!(
        matches!(put.value, PutValue::Number { number: stored, bytes }
            if stored == number && facts.value_bytes <= bytes),
        "the number that is told is the one that is stored"
    );
    let verdict = Verdict::Number { number, facts };
    Decision { change: Change::Put(put), notes_access: false, verdict }
}

/// Digits of a number in decimal.
pub const fn decimal_digits(number: u64) -> usize {
    match number.checked_ilog10() {
        Some(power) => power as usize + 1,
        None => 1,
    }
}

/// Reads a stored value as memcached does: white space, a sign, digits, then white space or the
/// end.
fn stored_number(value: &[u8]) -> Option<u64> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r');
    let start = value.iter().position(|byte| !is_space(byte))?;
    let (negative, digits) = match &value[start..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    if end == 0 || digits.get(end).is_some_and(|byte| !is_space(byte) && *byte != 0) {
        return None;
    }
    let number = digits[..end].iter().try_fold(0u64, |number, digit| {
        number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })?;
    if !negative {
        return Some(number);
    }
    // strtoull negates modulo 2^64, and memcached refuses what then looks negative.
    let negated = number.wrapping_neg();
    (negated.leading_zeros() > 0).then_some(negated)
}

#[cfg(test)]
mod tests {
    use super::stored_number;

    #[test]
    fn values_are_read_as_numbers_the_way_memcached_reads_them() {
        let rows: [(&[u8], Option<u64>); 12] = [
            (b"12", Some(12)),
            (b"12   ", Some(12)),
            (b" 7", Some(7)),
            (b"+5", Some(5)),
            (b"-1", None),
            (b"-18446744073709551615", Some(1)),
            (b"18446744073709551615", Some(u64::MAX)),
            (b"18446744073709551616", None),
            (b"1a", None),
            (b"a", None),
            (b" ", None),
            (b"0x10", None),
        ];
        for (value, number) in rows {
            assert_eq!(stored_number(value), number, "{}", value.escape_ascii());
        }
    }
}
