//! Keys that are shown to somebody who did not send them: in a listing, or in the log.
//!
//! Upstream:   `shard` has a key of an item, of a request or of a prefix.
//! Downstream: the lines of listings (`format`) and of the log (`format::log`).
//!
//! A key may have any bytes: the binary protocol and keys in base64 allow that. The client that
//! stored a key with a line end in it would otherwise write lines of its own into the listing of
//! another client.
//!
//! Invariants:
//! - K1  No form of a [`ShownKey`] has a space or a line end. The forms for people have no other
//!   control character of ASCII either.
//!
//! The bytes are private, and each form is a method, so a line cannot show them in another way.

use super::{Sink, key_fits_a_line, put_base64};

/// A key that is shown to somebody who did not send it (K1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownKey<'k>(&'k [u8]);

impl<'k> ShownKey<'k> {
    /// The key with these bytes. A prefix of a key is shown in the same way.
    pub const fn of(bytes: &'k [u8]) -> Self {
        Self(bytes)
    }

    /// Bytes of the key itself.
    pub const fn byte_count(self) -> usize {
        self.0.len()
    }

    /// Formats the key with everything except letters, digits and `-._~` as `%XX`, as memcached
    /// does in its log and in `lru_crawler metadump`.
    ///
    /// ```
    /// use kachel_wire::format::ShownKey;
    /// let mut text = Vec::new();
    /// ShownKey::of(b"a/b\n").put_encoded(&mut text);
    /// assert_eq!(text, b"a%2Fb%0A");
    /// ```
    pub fn put_encoded(self, sink: &mut impl Sink) {
        const HEX: &[u8; 16] = b"0123456789ABCDEF";
        for &byte in self.0 {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
                sink.put(&[byte]);
            } else {
                sink.put(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
        }
    }

    /// Formats the key as it is, as memcached does in `stats cachedump` and `stats detail dump`. A
    /// key that cannot be text there is encoded as by [`Self::put_encoded`] (K1).
    ///
    /// ```
    /// use kachel_wire::format::ShownKey;
    /// let mut text = Vec::new();
    /// ShownKey::of(b"a/b ").put_text(&mut text);
    /// ShownKey::of(b"a/b").put_text(&mut text);
    /// assert_eq!(text, b"a%2Fb%20a/b");
    /// ```
    pub fn put_text(self, sink: &mut impl Sink) {
        if self.is_text() {
            sink.put(self.0);
        } else {
            self.put_encoded(sink);
        }
    }

    /// Formats the key as a request names it: in base64 if `in_base64` is set, or if a line cannot
    /// carry the key (K1). Returns whether it is in base64.
    ///
    /// ```
    /// use kachel_wire::format::ShownKey;
    /// let mut text = Vec::new();
    /// assert!(ShownKey::of(b"a b").put_for_request(&mut text, false));
    /// assert!(!ShownKey::of(b"key").put_for_request(&mut text, false));
    /// assert_eq!(text, b"YSBikey");
    /// ```
    pub fn put_for_request(self, sink: &mut impl Sink, in_base64: bool) -> bool {
        let in_base64 = in_base64 || !key_fits_a_line(self.0);
        if in_base64 {
            put_base64(sink, self.0);
        } else {
            sink.put(self.0);
        }
        in_base64
    }

    /// Whether the key has no space and no control character of ASCII (K1).
    fn is_text(self) -> bool {
        !self.0.iter().any(|byte| *byte == b' ' || byte.is_ascii_control())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_of_a_key_ends_or_splits_a_line_in_any_form() {
        for byte in 0..=u8::MAX {
            let key = [b'a', byte, b'b'];
            let shown = ShownKey::of(&key);
            let mut forms = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
            shown.put_encoded(&mut forms[0]);
            shown.put_text(&mut forms[1]);
            shown.put_for_request(&mut forms[2], false);
            shown.put_for_request(&mut forms[3], true);
            for form in &forms {
                assert!(!form.iter().any(|byte| b" \r\n".contains(byte)), "K1: {form:?}");
            }
            let has_control = |form: &[u8]| form.iter().any(u8::is_ascii_control);
            assert!(!(has_control(&forms[0]) || has_control(&forms[1])), "K1: {forms:?}");
            let is_text = byte != b' ' && !byte.is_ascii_control();
            assert_eq!(forms[1] == key, is_text, "only what must be encoded is: {byte}");
            assert_eq!(forms[2] == key, !b" \r\n".contains(&byte), "{byte}");
        }
    }
}
