//! The root file of a store: what every start must know before it opens the logs.
//!
//! Upstream:   the server, which writes it once, after the logs of a new store, and reads it at
//!             each start.
//! Downstream: `small_file`.
//!
//! ```text
//! kachel store 1                the format
//! engine flash                  the kind of the engines
//! store 0123456789abcdef        see `LogIdentity`
//! seeds 0123456789abcdef 0123456789abcdef
//! segment 1048576               the bytes of a segment
//! made 1800000000               the Unix second; times in records are Unix seconds as well
//! log /data/0                   the folder of each engine, in their order
//! log /data/1
//! checksum 89abcdef             CRC-32C of all lines before it
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - O1  What [`Root::text`] writes, [`Root::parse`] reads as the same. It reads nothing else.

use std::fmt::Write as _;

use crate::failure::Cause;
use crate::geometry::{SEGMENT_BYTES, SEGMENT_BYTES_MIN, UNIT_BYTES};
use crate::small_file::SMALL_FILE_BYTES_MAX;

/// The name of the root file in the folder of the store.
pub const ROOT_FILE: &str = "root";
const FORMAT: u32 = 1;
const FORMAT_LINE: &str = "kachel store ";
const CHECKSUM_LINE: &str = "checksum ";

/// What a root file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// The kind of the engines: a word.
    pub engine: String,
    /// The random number of the store; see [`crate::LogIdentity`].
    pub store: u64,
    /// The secrets of the hashes of keys.
    pub seeds: [u64; 2],
    /// The bytes of a segment of each log.
    pub segment_bytes: u64,
    /// The Unix second in which the store was made.
    pub made_s: u64,
    /// The folder of each engine. Their number is that of the engines.
    pub folders: Vec<String>,
}

impl Root {
    /// The content of the root file. `None` if it would be too long, if there is no engine, or if
    /// a name cannot be on a line.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        let Self { engine, store, seeds: [first, second], segment_bytes, made_s, folders } = self;
        let mut text = format!(
            "{FORMAT_LINE}{FORMAT}\nengine {engine}\nstore {store:016x}\n\
             seeds {first:016x} {second:016x}\nsegment {segment_bytes}\nmade {made_s}\n"
        );
        for folder in folders {
            writeln!(text, "log {folder}").expect("a string grows");
        }
        let checksum = crc32c::crc32c(text.as_bytes());
        writeln!(text, "{CHECKSUM_LINE}{checksum:08x}").expect("a string grows");
        let is_readable = text.len() <= SMALL_FILE_BYTES_MAX;
        (is_readable && Self::parse(text.as_bytes()).as_ref() == Ok(self)).then_some(text) // O1
    }

    /// Reads the content of a root file.
    ///
    /// Errors: it is damaged, or of a later version.
    pub fn parse(content: &[u8]) -> Result<Self, Cause> {
        let damaged = Cause::Damaged(None);
        let text = std::str::from_utf8(content).map_err(|_| damaged.clone())?;
        let at = text.rfind(CHECKSUM_LINE).ok_or(damaged.clone())?;
        let checksum = crc32c::crc32c(&content[..at]);
        if text[at..] != format!("{CHECKSUM_LINE}{checksum:08x}\n") {
            return Err(damaged);
        }
        let mut lines = text[..at].lines();
        let format = lines.next().and_then(|line| line.strip_prefix(FORMAT_LINE)?.parse().ok());
        match format {
            Some(FORMAT) => {}
            Some(found) => return Err(Cause::Newer { found, known: FORMAT }),
            None => return Err(damaged),
        }
        Self::parse_lines(lines).ok_or(damaged)
    }

    fn parse_lines<'t>(mut lines: impl Iterator<Item = &'t str>) -> Option<Self> {
        let mut value = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
        let engine = value("engine")?.to_owned();
        let store = hexadecimal(value("store")?)?;
        let (first, second) = value("seeds")?.split_once(' ')?;
        let seeds = [hexadecimal(first)?, hexadecimal(second)?];
        let segment_bytes: u64 = value("segment")?.parse().ok()?;
        let made_s = value("made")?.parse().ok()?;
        let folders: Option<Vec<String>> =
            lines.map(|line| Some(line.strip_prefix("log ")?.to_owned())).collect();
        let folders = folders.filter(|folders| !folders.is_empty())?;
        let is_size = (SEGMENT_BYTES_MIN..=SEGMENT_BYTES.end).contains(&segment_bytes)
            && segment_bytes.is_multiple_of(UNIT_BYTES as u64);
        is_size.then_some(Self { engine, store, seeds, segment_bytes, made_s, folders })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Root {
        Root {
            engine: "flash".to_owned(),
            store: 7,
            seeds: [u64::MAX, 0],
            segment_bytes: 1 << 20,
            made_s: 1_800_000_000,
            folders: vec!["/data/0".to_owned(), "/disk 2/checksum 1".to_owned()],
        }
    }

    #[test]
    fn what_is_written_is_read_as_the_same() {
        let text = root().text().expect("a short text");
        assert_eq!(Root::parse(text.as_bytes()), Ok(root()), "O1");
        for wrong in ["/a\nlog /b", "/a\r", ""] {
            let folders = if wrong.is_empty() { vec![] } else { vec![wrong.to_owned()] };
            assert_eq!(Root { folders, ..root() }.text(), None, "{wrong:?}");
        }
        assert_eq!(Root { segment_bytes: 4095, ..root() }.text(), None);
        let long = Root { folders: vec!["x".repeat(SMALL_FILE_BYTES_MAX)], ..root() };
        assert_eq!(long.text(), None);
    }

    #[test]
    fn no_changed_byte_and_no_shorter_text_is_a_root() {
        let text = root().text().expect("a short text").into_bytes();
        for at in 0..text.len() {
            for bit in 0..8 {
                let mut changed = text.clone();
                changed[at] ^= 1 << bit;
                assert!(Root::parse(&changed).is_err(), "byte {at}, bit {bit}");
            }
            assert_eq!(Root::parse(&text[..at]), Err(Cause::Damaged(None)));
        }
    }

    #[test]
    fn a_later_format_is_told_with_both_numbers() {
        let text = "kachel store 2\nanything\n";
        let text = format!("{text}checksum {:08x}\n", crc32c::crc32c(text.as_bytes()));
        assert_eq!(Root::parse(text.as_bytes()), Err(Cause::Newer { found: 2, known: 1 }));
    }
}
