//! Texts as strings of JSON, and the characters of which a reader sees something else, or nothing.
//!
//! Upstream:   the log of the server, and the figures of the live page.
//! Downstream: `String`.
//!
//! Invariants:
//! - T1  A string is a whole JSON string (RFC 8259). It cannot end itself, nor the line or the
//!   `<script>` that it may stand in.
//! - T2  A character that a reader cannot see as itself is escaped, so that two texts which differ
//!   look different, and no text changes the order in which another one is shown.
//!
//! Source: "Default_Ignorable_Code_Point" and "Bidi_Control" of the Unicode Character Database
//! (Unicode 15), and the separators and annotations that most programs draw as nothing.

use std::fmt::Write as _;

/// Appends a text as a string of JSON, with its quotes (T1, T2).
pub fn put_json_text(to: &mut String, text: &str) {
    to.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => to.extend(['\\', character]),
            '<' | '>' | '&' => put_unit(to, character as u16),
            character if shows_itself(character) => to.push(character),
            character => character.encode_utf16(&mut [0; 2]).iter().for_each(|&u| put_unit(to, u)),
        }
    }
    to.push('"');
}

fn put_unit(to: &mut String, unit: u16) {
    let _ = write!(to, "\\u{unit:04x}");
}

/// Whether a reader sees this character as itself: it is no control character, is not invisible,
/// and does not change the order of others (T2).
///
/// ```
/// use kachel_stdx::shows_itself;
/// assert!(['a', ' ', '\u{e4}', '\u{5d0}', '\u{1f600}'].into_iter().all(shows_itself));
/// assert!(!['\n', '\u{7f}', '\u{9b}', '\u{200b}', '\u{202e}'].into_iter().any(shows_itself));
/// ```
pub const fn shows_itself(character: char) -> bool {
    !matches!(
        character,
        '\0'..='\x1f'
            | '\x7f'..='\u{9f}'
            | '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> String {
        let mut to = String::new();
        put_json_text(&mut to, text);
        to
    }

    /// T1.
    #[test]
    fn a_string_cannot_end_itself() {
        let text = "a\"\\</script>\n\u{2028}\u{7f}\u{1F600}";
        let expected = "\"a\\\"\\\\\\u003c/script\\u003e\\u000a\\u2028\\u007f\u{1F600}\"";
        assert_eq!(json(text), expected);
    }

    /// T2. A key with U+202E was shown with its end reversed.
    #[test]
    fn a_character_that_a_reader_cannot_see_is_escaped() {
        assert_eq!(json("ad\u{202e}nimda"), "\"ad\\u202enimda\"");
        assert_eq!(json("\u{e0041}\u{feff}"), "\"\\udb40\\udc41\\ufeff\"");
        let hidden = (0..=0x10_ffff).filter_map(char::from_u32).filter(|c| !shows_itself(*c));
        let text: String = hidden.collect();
        assert!(json(&text).is_ascii() && json(&text).len() == 2 + text.encode_utf16().count() * 6);
        assert!(text.chars().filter(|c| c.is_control()).count() == 65, "all controls are hidden");
    }
}
