//! Base64 as the meta protocol uses it for keys that a line cannot carry.
//!
//! Upstream:   `meta` decodes keys; `client` and `format` encode them.
//! Downstream: shards see decoded keys only.
//!
//! Invariants:
//! - I1  Decoding is as lenient as 1.6.45's: bytes outside the alphabet are skipped, the others
//!   must form groups of four, and decoding ends at the first group with padding.
//! - I2  Encoding is canonical (RFC 4648, section 4).

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// Marks a byte that is not in the alphabet.
const OUTSIDE: u8 = 0xff;

const VALUES: [u8; 256] = {
    let mut values = [OUTSIDE; 256];
    let mut value = 0;
    while value < ALPHABET.len() {
        values[ALPHABET[value] as usize] = value.to_le_bytes()[0];
        value += 1;
    }
    values[b'=' as usize] = 0;
    values
};

/// The number of bytes that `raw_bytes` bytes have when encoded.
#[inline]
pub const fn encoded_bytes(raw_bytes: usize) -> usize {
    raw_bytes.div_ceil(3) * 4
}

/// Decodes `text` into `out`. `None` if it is not base64 (I1), decodes to nothing, or `out` is too
/// short.
///
/// ```
/// let mut out = [0; 8];
/// assert_eq!(kachel_wire::base64::decode(b"a2V5", &mut out), Some(&b"key"[..]));
/// assert_eq!(kachel_wire::base64::decode(b"###", &mut out), None);
/// ```
pub fn decode<'o>(text: &[u8], out: &'o mut [u8]) -> Option<&'o [u8]> {
    let digits = text.iter().filter(|&&byte| VALUES[usize::from(byte)] != OUTSIDE).count();
    if digits == 0 || !digits.is_multiple_of(4) {
        return None;
    }
    let (mut block, mut filled, mut padding, mut written) = (0_u32, 0, 0, 0);
    for &byte in text {
        let value = VALUES[usize::from(byte)];
        if value == OUTSIDE {
            continue;
        }
        padding += usize::from(byte == b'=');
        block = block << 6 | u32::from(value);
        filled += 1;
        if filled == 4 {
            let bytes = 3_usize.checked_sub(padding).filter(|&bytes| bytes > 0)?;
            out.get_mut(written..written + bytes)?.copy_from_slice(&block.to_be_bytes()[1..=bytes]);
            written += bytes;
            (block, filled) = (0, 0);
            if padding > 0 {
                break;
            }
        }
    }
    Some(&out[..written])
}

/// Encodes up to three bytes (I2): one group of four letters.
///
/// Panics: never. Only the first three bytes of a longer slice count.
pub fn encode_group(raw: &[u8]) -> [u8; 4] {
    let mut block = [0; 4];
    for (place, &byte) in block[1..].iter_mut().zip(raw) {
        *place = byte;
    }
    let bits = u32::from_be_bytes(block);
    let letter = |shift: u32| ALPHABET[((bits >> shift) & 63) as usize];
    let mut group = [letter(18), letter(12), letter(6), letter(0)];
    for place in group.iter_mut().skip(raw.len() + 1) {
        *place = b'=';
    }
    group
}

#[cfg(test)]
mod tests {
    use super::{decode, encode_group, encoded_bytes};
    use proptest::prelude::*;

    fn encode(raw: &[u8]) -> Vec<u8> {
        raw.chunks(3).flat_map(encode_group).collect()
    }

    #[test]
    fn known_texts() {
        for (raw, text) in [("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            assert_eq!(encode(raw.as_bytes()), text.as_bytes());
            assert_eq!(decode(text.as_bytes(), &mut [0; 8]), Some(raw.as_bytes()));
        }
    }

    #[test]
    fn decoding_is_lenient_where_1_6_45_is() {
        let mut out = [0; 8];
        assert_eq!(decode(b"#a2!V5#", &mut out), Some(&b"key"[..]));
        assert_eq!(decode(b"A=A=", &mut out), Some(&b"\0"[..]));
        assert_eq!(
            decode(b"Zg==Zm9v", &mut out),
            Some(&b"f"[..]),
            "what follows padding is dropped"
        );
        for bad in [&b"===="[..], b"A===", b"abc", b"", b"###", b"a2V5a"] {
            assert_eq!(decode(bad, &mut out), None, "{bad:?}");
        }
        assert_eq!(decode(b"a2V5", &mut [0; 2]), None, "no room");
    }

    proptest! {
        #[test]
        fn decoding_undoes_encoding(raw in proptest::collection::vec(any::<u8>(), 1..300)) {
            let text = encode(&raw);
            prop_assert_eq!(text.len(), encoded_bytes(raw.len()));
            let mut out = [0; 300];
            prop_assert_eq!(decode(&text, &mut out), Some(&raw[..]));
        }

        #[test]
        fn decoding_never_panics(text: Vec<u8>, room in 0_usize..40) {
            decode(&text, &mut vec![0; room]);
        }
    }
}
