//! Numbers as memcached 1.6.45 reads them: strictly in most places, loosely in three.
//!
//! Upstream:   the parsers pass a word, or the text from a word on.
//! Downstream: requests carry the values.
//!
//! Invariants:
//! - I1  The strict readers accept digits only (after one `-` if the number is signed), and at most
//!   `WORD32_BYTES_MAX` or `WORD64_BYTES_MAX` bytes. Leading zeros count.
//! - I2  The loose readers behave as C's `strtoul` and `strtol` on 64 bits, cut to 32 bits
//!   afterwards: client flags of 4294967296 are 0.

/// Bytes of the longest word read as a 32-bit number (I1).
const WORD32_BYTES_MAX: usize = 11;
/// Bytes of the longest word read as a 64-bit number (I1).
const WORD64_BYTES_MAX: usize = 22;

/// Reads a `u64` strictly. `None` if the word is not a number or too large.
///
/// ```
/// use kachel_wire::number::read_u64;
/// assert_eq!(read_u64(b"0018446744073709551615"), Some(u64::MAX));
/// assert_eq!(read_u64(b"18446744073709551616"), None);
/// assert_eq!(read_u64(b"+1"), None);
/// ```
#[inline]
pub fn read_u64(word: &[u8]) -> Option<u64> {
    if word.len() > WORD64_BYTES_MAX {
        return None;
    }
    // 19 digits cannot overflow; the rest of a word, two or three of them, is checked.
    let (sure, rest) = word.split_at(word.len().min(19));
    let mut value: u64 = 0;
    for &byte in sure {
        value = value * 10 + u64::from(digit(byte)?);
    }
    for &byte in rest {
        value = value.checked_mul(10)?.checked_add(u64::from(digit(byte)?))?;
    }
    Some(value)
}

/// Reads a `u32` strictly. `None` if the word is not a number or too large.
#[inline]
pub fn read_u32(word: &[u8]) -> Option<u32> {
    if word.len() > WORD32_BYTES_MAX {
        return None;
    }
    let mut value: u64 = 0;
    for &byte in word {
        value = value * 10 + u64::from(digit(byte)?);
    }
    u32::try_from(value).ok()
}

/// Reads an `i32` strictly; a lone `-` is 0, as it is in 1.6.45.
#[inline]
pub fn read_i32(word: &[u8]) -> Option<i32> {
    if word.len() > WORD32_BYTES_MAX {
        return None;
    }
    let (negative, digits) = match word {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let mut value: i64 = 0;
    for &byte in digits {
        value = value * 10 + i64::from(digit(byte)?);
    }
    i32::try_from(if negative { -value } else { value }).ok()
}

/// Reads a `u32` loosely (I2) from the text that begins with its word: client flags, slab classes.
pub(crate) fn read_loose_u32(text: &[u8]) -> Option<u32> {
    let (negative, magnitude) = read_loosely(text)?;
    let value = if negative { magnitude.wrapping_neg() } else { magnitude };
    // C wraps a negative number around. If the result is still large, it is refused.
    if negative && value > i64::MAX.unsigned_abs() {
        return None;
    }
    Some(low_half(value))
}

/// Reads an `i32` loosely (I2) from the text that begins with its word: the TTL of a storage line.
pub(crate) fn read_loose_i32(text: &[u8]) -> Option<i32> {
    let (negative, magnitude) = read_loosely(text)?;
    let limit = i64::MAX.unsigned_abs() + u64::from(negative);
    if magnitude > limit {
        return None;
    }
    let value = if negative { magnitude.wrapping_neg() } else { magnitude };
    Some(low_half(value).cast_signed())
}

/// Sign and magnitude: white space, a sign, digits, then white space, NUL or the line's end.
fn read_loosely(text: &[u8]) -> Option<(bool, u64)> {
    let start = text.iter().position(|&byte| !is_c_space(byte))?;
    let (negative, digits) = match &text[start..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    let (digits, behind) = digits.split_at(end);
    if digits.is_empty() || behind.first().is_some_and(|&byte| byte != 0 && !is_c_space(byte)) {
        return None;
    }
    let mut value: u64 = 0;
    for &byte in digits {
        value = value.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
    }
    Some((negative, value))
}

#[inline]
fn digit(byte: u8) -> Option<u8> {
    let value = byte.wrapping_sub(b'0');
    (value < 10).then_some(value)
}

const fn is_c_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// The low 32 bits, as a conversion in C keeps them (I2).
const fn low_half(value: u64) -> u32 {
    let [b0, b1, b2, b3, ..] = value.to_le_bytes();
    u32::from_le_bytes([b0, b1, b2, b3])
}

#[cfg(test)]
mod tests {
    use super::{read_i32, read_loose_i32, read_loose_u32, read_u32, read_u64};

    #[test]
    fn strict_numbers_are_read_as_1_6_45_reads_them() {
        assert_eq!(read_u32(b"4294967295"), Some(u32::MAX));
        assert_eq!(read_u32(b"4294967296"), None);
        assert_eq!(read_u32(b"00000000005"), Some(5));
        assert_eq!(read_u32(b"000000000005"), None, "12 bytes are one too many");
        assert_eq!(read_i32(b"-2147483648"), Some(i32::MIN));
        assert_eq!(read_i32(b"-2147483649"), None);
        assert_eq!(read_i32(b"2147483648"), None);
        assert_eq!(read_i32(b"-"), Some(0));
        assert_eq!(read_i32(b"--1"), None);
        assert_eq!(read_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(read_u64(b"18446744073709551616"), None);
        assert_eq!(read_u64(b"99999999999999999999999"), None);
        for bad in [&b"0x10"[..], b"+5", b"5abc", b"1e3", b"-1", b" 1"] {
            assert_eq!((read_u32(bad), read_u64(bad)), (None, None), "{bad:?}");
        }
    }

    #[test]
    fn client_flags_are_cut_to_32_bits() {
        assert_eq!(read_loose_u32(b"4294967296 0 1"), Some(0));
        assert_eq!(read_loose_u32(b"4294967297"), Some(1));
        assert_eq!(read_loose_u32(b"+7 "), Some(7));
        assert_eq!(read_loose_u32(b"\t 1 1"), Some(1), "white space reaches into the next word");
        assert_eq!(read_loose_u32(b"5\0x"), Some(5));
        assert_eq!(read_loose_u32(b"18446744073709551615 "), Some(u32::MAX));
        assert_eq!(read_loose_u32(b"-18446744073709551615 "), Some(1));
        for bad in [&b"-1 "[..], b"xx", b"", b"-", b"18446744073709551616", b"5x"] {
            assert_eq!(read_loose_u32(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn expiry_times_are_cut_to_32_bits() {
        assert_eq!(read_loose_i32(b"2147483648 1"), Some(i32::MIN));
        assert_eq!(read_loose_i32(b"-1 1"), Some(-1));
        assert_eq!(read_loose_i32(b"-9223372036854775808 1"), Some(0));
        assert_eq!(read_loose_i32(b"9223372036854775807 1"), Some(-1));
        for bad in [&b"9223372036854775808"[..], b"-9223372036854775809", b"xx", b"- 1"] {
            assert_eq!(read_loose_i32(bad), None, "{bad:?}");
        }
    }
}
