//! The root file of a store: what every start must know before it opens the logs.
//!
//! Upstream:   the owner of the store, which writes the file once, after the logs of a new store,
//!             and reads it at each start.
//! Downstream: `geometry` for the sizes of a segment.
//!
//! ```text
//! kachel store 1                the format
//! engine flash                  the kind of the engines
//! store 0123456789abcdef        see `LogIdentity`
//! made 1800000000               the Unix second; times in records are Unix seconds as well
//! engines 4                     their number
//! segment 1048576               the bytes of a segment of each log
//! checksum 89abcdef             CRC-32C of all lines before it
//! ```
//!
//! A copy of a store has the identity of the original, so the headers of its logs do not tell the
//! two apart. The root file has no path: the logs of a store are in the folder of its root file, so
//! the copy has its own.
//!
//! Invariants, cited by number where they are asserted:
//! - O1  What [`Root::text`] writes, [`Root::parse`] reads as the same. It reads nothing else.

use crate::failure::Cause;
use crate::geometry::{SEGMENT_BYTES, SEGMENT_BYTES_MIN, UNIT_BYTES};

/// The name of the root file in the folder of the store.
pub const ROOT_FILE: &str = "kachel.root";
/// The most bytes of a root file.
pub const ROOT_BYTES_MAX: usize = 4096;
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
    /// The Unix second in which the store was made.
    pub made_s: u64,
    /// The number of the engines.
    pub engines: u16,
    /// The bytes of a segment of each log.
    pub segment_bytes: u64,
}

impl Root {
    /// The content of the root file. `None` if it would be too long, if there is no engine, or if
    /// the kind of the engines cannot be on a line.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        let Self { engine, store, made_s, engines, segment_bytes } = self;
        let mut text = format!(
            "{FORMAT_LINE}{FORMAT}\nengine {engine}\nstore {store:016x}\nmade {made_s}\n\
             engines {engines}\nsegment {segment_bytes}\n"
        );
        let checksum = crc32c::crc32c(text.as_bytes());
        text.push_str(&format!("{CHECKSUM_LINE}{checksum:08x}\n"));
        let is_readable = text.len() <= ROOT_BYTES_MAX;
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
        let mut next = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let root = Self {
            engine: next("engine")?.to_owned(),
            store: u64::from_str_radix(next("store")?, 16).ok()?,
            made_s: next("made")?.parse().ok()?,
            engines: next("engines")?.parse().ok()?,
            segment_bytes: next("segment")?.parse().ok()?,
        };
        let is_size = (SEGMENT_BYTES_MIN..=SEGMENT_BYTES.end).contains(&root.segment_bytes)
            && root.segment_bytes.is_multiple_of(UNIT_BYTES as u64);
        (is_size && root.engines > 0 && lines.next().is_none()).then_some(root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Root {
        Root {
            engine: "flash".to_owned(),
            store: 7,
            made_s: 1_800_000_000,
            engines: 4096,
            segment_bytes: 1 << 20,
        }
    }

    #[test]
    fn what_is_written_is_read_as_the_same() {
        let text = root().text().expect("a short text");
        assert_eq!(Root::parse(text.as_bytes()), Ok(root()), "O1");
        for wrong in ["flash\nstore 1", "flash\r", &"x".repeat(ROOT_BYTES_MAX)] {
            assert_eq!(Root { engine: wrong.to_owned(), ..root() }.text(), None, "{wrong:?}");
        }
        assert_eq!(Root { engines: 0, ..root() }.text(), None);
        assert_eq!(Root { segment_bytes: 4095, ..root() }.text(), None);
        let more = text.replace("checksum", "engines 1\nchecksum");
        let lines = &more[..more.rfind("checksum").expect("a line")];
        let more = format!("{lines}checksum {:08x}\n", crc32c::crc32c(lines.as_bytes()));
        assert_eq!(Root::parse(more.as_bytes()), Err(Cause::Damaged(None)), "O1");
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
