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
//! - K2  The form that people read has only characters that they see, and different keys have
//!   different forms.
//!
//! The bytes are private, and each form is a method, so a line cannot show them in another way.

use kachel_stdx::shows_itself;

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

    /// The key as people read it, on the live page and in `stats hotkeys`: as it is, or encoded as
    /// by [`Self::put_encoded`] if a reader would see another text, or two keys would look alike.
    /// That is so if it is not UTF-8, has a space, `%`, or a character that is invisible or changes
    /// the order of others (K1, K2).
    ///
    /// ```
    /// use kachel_wire::format::ShownKey;
    /// assert_eq!(ShownKey::of("user:\u{e4}/7".as_bytes()).legible(), "user:\u{e4}/7");
    /// assert_eq!(ShownKey::of("ad\u{202e}nim".as_bytes()).legible(), "ad%E2%80%AEnim");
    /// ```
    pub fn legible(self) -> String {
        let text = str::from_utf8(self.0).ok();
        let is_legible =
            |text: &&str| text.chars().all(|c| shows_itself(c) && c != ' ' && c != '%');
        if let Some(text) = text.filter(is_legible) {
            return text.to_owned();
        }
        let mut encoded = Vec::new();
        self.put_encoded(&mut encoded);
        debug_assert!(encoded.is_ascii(), "K2");
        String::from_utf8(encoded).unwrap_or_default()
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

    /// K2. The fault: a key with U+202E was shown with its end reversed, and keys that are not
    /// UTF-8 looked alike.
    #[test]
    fn people_see_each_character_of_a_key() {
        let keys: [&[u8]; 7] = [
            b"a\xff",
            b"a\xfe",
            "a\u{202e}b".as_bytes(),
            "a\u{200b}".as_bytes(),
            b"a",
            b"a b",
            b"a%20b",
        ];
        let shown = keys.map(|key| ShownKey::of(key).legible());
        let expected = ["a%FF", "a%FE", "a%E2%80%AEb", "a%E2%80%8B", "a", "a%20b", "a%2520b"]
            .map(str::to_owned);
        assert_eq!(shown, expected);
        for byte in 0..=u8::MAX {
            let shown = ShownKey::of(&[byte]).legible();
            assert!(shown.chars().all(shows_itself) && !shown.contains(' '), "{byte}: {shown}");
        }
    }
}
