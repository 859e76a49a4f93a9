//! `incr` and `decr`; and the part that `ma` shares with them.
//!
//! Upstream:   `execute`.
//! Downstream: `engine::put`: a changed number is a new item, as payloads never change.

use kachel_segment::NewValue;
use kachel_table::KeyHash;
use kachel_wire::request::Direction;
use kachel_wire::{Reply, Sink, format};

use crate::engine::{Draft, Engine, Found};

/// Values longer than this are taken for no number, whatever stands in them.
const NUMERIC_VALUE_BYTES_MAX: usize = 1024;

/// What became of a request to change a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// Changed to `number`.
    Yes { at: Found, number: u64 },
    /// Nothing is there.
    Miss,
    /// The token did not match.
    Differs,
    /// What is there is no number.
    NonNumeric,
    /// No room could be made.
    NoMemory,
}

/// Adds or subtracts. A shorter result keeps the value's length, padded with spaces, as memcached
/// does.
pub(crate) fn change(
    engine: &mut Engine,
    (key, hash): (&[u8], KeyHash),
    (direction, delta): (Direction, u64),
    (compare_cas, new_cas): (Option<u64>, Option<u64>),
) -> Changed {
    let Some(at) = engine.find(key, hash) else { return Changed::Miss };
    let item = engine.item(at);
    let value = match item.value().as_slice() {
        Some(value) if !value.is_empty() && value.len() <= NUMERIC_VALUE_BYTES_MAX => value,
        _ => return Changed::NonNumeric,
    };
    if compare_cas.is_some_and(|token| token != 0 && token != item.cas()) {
        return Changed::Differs;
    }
    let Some(number) = stored_number(value) else { return Changed::NonNumeric };
    let number = match direction {
        Direction::Up => number.wrapping_add(delta),
        Direction::Down => number.saturating_sub(delta),
    };
    let hits = match direction {
        Direction::Up => &engine.counters.incr_hits,
        Direction::Down => &engine.counters.decr_hits,
    };
    hits.add(1);
    let mut text = Text::<NUMERIC_VALUE_BYTES_MAX>::new();
    format::put_u64(&mut text, number);
    // As memcached, which makes a new item for a longer number: with no mark of the old.
    let keeps = text.used <= value.len();
    let draft = Draft {
        value: NewValue::Bytes(&text.bytes[..text.used.max(value.len())]),
        client_flags: item.client_flags(),
        expiry: item.expiry(),
        cas: new_cas,
        stale: item.stale() && keeps,
        win_sent: item.win_sent() && keeps,
        base64_key: item.base64_key() && keeps,
        keeps_access: keeps,
        replaces: Some(at),
    };
    match engine.put(key, hash, draft) {
        Ok(at) => Changed::Yes { at, number },
        Err(_) => Changed::NoMemory,
    }
}

/// Counts a number that was not there and was not made.
pub(crate) fn count_miss(engine: &Engine, direction: Direction) {
    let misses = match direction {
        Direction::Up => &engine.counters.incr_misses,
        Direction::Down => &engine.counters.decr_misses,
    };
    misses.add(1);
}

/// A number's digits over a ground of spaces.
pub(crate) struct Text<const BYTES: usize> {
    bytes: [u8; BYTES],
    used: usize,
}

impl<const BYTES: usize> Text<BYTES> {
    pub(crate) const fn new() -> Self {
        Self { bytes: [b' '; BYTES], used: 0 }
    }

    /// The digits, without the ground.
    pub(crate) fn digits(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

impl<const BYTES: usize> Sink for Text<BYTES> {
    fn put(&mut self, bytes: &[u8]) {
        let end = self.used + bytes.len();
        self.bytes[self.used..end].copy_from_slice(bytes);
        self.used = end;
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

/// `incr` or `decr` of the classic protocol.
pub(crate) fn arithmetic(
    engine: &mut Engine,
    target: (&[u8], KeyHash),
    by: (Direction, u64),
    sink: &mut impl Sink,
) {
    let reply = match change(engine, target, by, (None, None)) {
        Changed::Yes { number, .. } => {
            format::number(sink, number);
            return;
        }
        Changed::Miss => {
            count_miss(engine, by.0);
            Reply::NotFound
        }
        Changed::NonNumeric => Reply::NonNumeric,
        Changed::NoMemory | Changed::Differs => Reply::OutOfMemory,
    };
    sink.put(reply.bytes());
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
