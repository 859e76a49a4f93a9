//! The file of the flushes: what a process must know about the flushes of those before it.
//!
//! Upstream:   the directories of `flash` and `rocks`, which write the file at each flush and read
//!             it at each start.
//! Downstream: `stdx` for prefixes.
//!
//! ```text
//! kachel flushes 1                  the format
//! flushes 7                         the number of flushes of all keys
//! pending 1800000000                the Unix second of a pending one; 0: none is pending
//! prefixes 12                       the number of the newest flush of a prefix; 0: there was none
//! prefix 12 3a 757365723a31         one of them that some engine may lack: its number, the
//!                                   delimiter or `any`, and the bytes; in hexadecimal
//! checksum 89abcdef                 CRC-32C of all lines before it
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - K1  What [`KeptFlushes::text`] writes, [`KeptFlushes::parse`] reads as the same. It reads
//!   nothing else.

use std::fmt;

use kachel_stdx::{BytePrefix, FLUSHED_PREFIXES_MAX, PREFIX_BYTES_MAX};

/// The name of the file of the flushes in a data directory.
pub const FLUSH_FILE: &str = "kachel.flush";
/// The most bytes of a file of the flushes: a line has less than 64 bytes beside those of a prefix.
pub const FLUSH_BYTES_MAX: u64 =
    (FLUSHED_PREFIXES_MAX as u64 + 5) * (64 + 2 * PREFIX_BYTES_MAX as u64);
const FORMAT: u32 = 1;
const FORMAT_LINE: &str = "kachel flushes ";
const CHECKSUM_LINE: &str = "checksum ";
/// In the file, in the place of the delimiter, if the prefix has none.
const ANY: &str = "any";

/// The flushes of a data directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptFlushes {
    /// The number of flushes of all keys.
    pub epoch: u32,
    /// The Unix time of a pending flush; 0: none is pending.
    pub due_unix_s: u32,
    /// The number of the newest flush of a prefix; 0: there was none.
    pub newest_prefix: u64,
    /// The flushes of prefixes that some engine may lack, in their order.
    pub prefixes: Vec<KeptPrefix>,
}

/// A flush of a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptPrefix {
    /// Its number. Later flushes have greater numbers.
    pub number: u64,
    bytes: Box<[u8]>,
    delimiter: Option<u8>,
}

impl KeptPrefix {
    /// The flush of a prefix.
    #[must_use]
    pub fn new(number: u64, prefix: &BytePrefix<'_>) -> Self {
        Self { number, bytes: prefix.bytes().into(), delimiter: prefix.delimiter() }
    }

    /// The prefix.
    #[must_use]
    pub fn prefix(&self) -> BytePrefix<'_> {
        let prefix = match self.delimiter {
            None => BytePrefix::of_bytes(&self.bytes),
            Some(delimiter) => BytePrefix::of_name(&self.bytes, delimiter),
        };
        prefix.expect("it was made of a prefix")
    }
}

/// The flushes of prefixes that some engine of a process does not have on its disk yet.
#[derive(Debug)]
pub struct WaitingPrefixes {
    /// In the order of their numbers.
    list: Vec<KeptPrefix>,
    /// For each engine, the newest flush that is on its disk.
    written: Vec<u64>,
}

impl WaitingPrefixes {
    /// Those that the file of the flushes has, for this number of engines.
    #[must_use]
    pub fn new(list: Vec<KeptPrefix>, engines: u16) -> Self {
        Self { list, written: vec![0; usize::from(engines)] }
    }

    /// The flushes, in the order of their numbers.
    #[must_use]
    pub fn list(&self) -> &[KeptPrefix] {
        &self.list
    }

    /// Adds the newest flush.
    pub fn push(&mut self, flush: KeptPrefix) {
        debug_assert!(self.list.last().is_none_or(|last| last.number < flush.number), "in order");
        self.list.push(flush);
    }

    /// An engine has the flushes up to a number on its disk. Those that all engines have are gone.
    pub fn note_written(&mut self, engine: u16, number: u64) {
        self.written[usize::from(engine)] = number;
        let by_all = self.written.iter().copied().min().unwrap_or(0);
        self.list.retain(|prefix| prefix.number > by_all);
    }
}

/// Why a file of the flushes is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushesRefused {
    /// The content was not written by this format.
    Damaged,
    /// The content has this format, which is that of a later version.
    Newer(u32),
}

impl fmt::Display for FlushesRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged => f.write_str("is damaged"),
            Self::Newer(found) => {
                write!(f, "has format {found} of a later version; this version reads {FORMAT}")
            }
        }
    }
}

impl KeptFlushes {
    /// The content of the file.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { epoch, due_unix_s, newest_prefix, prefixes } = self;
        let mut text = format!(
            "{FORMAT_LINE}{FORMAT}\nflushes {epoch}\npending {due_unix_s}\n\
             prefixes {newest_prefix}\n"
        );
        for KeptPrefix { number, bytes, delimiter } in prefixes {
            let delimiter = delimiter.map_or_else(|| ANY.to_owned(), |byte| format!("{byte:02x}"));
            let bytes: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            text.push_str(&format!("prefix {number} {delimiter} {bytes}\n"));
        }
        let checksum = crc32c::crc32c(text.as_bytes());
        text.push_str(&format!("{CHECKSUM_LINE}{checksum:08x}\n"));
        debug_assert_eq!(Self::parse(text.as_bytes()).as_ref(), Ok(self), "K1");
        text
    }

    /// Reads the content of the file.
    ///
    /// Errors: it is damaged, or of a later version.
    pub fn parse(content: &[u8]) -> Result<Self, FlushesRefused> {
        let damaged = FlushesRefused::Damaged;
        let text = std::str::from_utf8(content).map_err(|_| damaged)?;
        let at = text.rfind(CHECKSUM_LINE).ok_or(damaged)?;
        let checksum = crc32c::crc32c(&content[..at]);
        if text[at..] != format!("{CHECKSUM_LINE}{checksum:08x}\n") {
            return Err(damaged);
        }
        let mut lines = text[..at].lines();
        let format = lines.next().and_then(|line| line.strip_prefix(FORMAT_LINE)?.parse().ok());
        match format {
            Some(FORMAT) => Self::parse_lines(lines).ok_or(damaged),
            Some(found) => Err(FlushesRefused::Newer(found)),
            None => Err(damaged),
        }
    }

    fn parse_lines<'t>(mut lines: impl Iterator<Item = &'t str>) -> Option<Self> {
        let epoch = lines.next()?.strip_prefix("flushes ")?.parse().ok()?;
        let due_unix_s = lines.next()?.strip_prefix("pending ")?.parse().ok()?;
        let newest_prefix = lines.next()?.strip_prefix("prefixes ")?.parse().ok()?;
        let prefixes: Vec<_> = lines.map(prefix_in).collect::<Option<_>>()?;
        let is_in_order = prefixes.is_sorted_by(|before, prefix| before.number < prefix.number)
            && prefixes.last().is_none_or(|last| last.number <= newest_prefix)
            && prefixes.len() <= FLUSHED_PREFIXES_MAX;
        is_in_order.then_some(Self { epoch, due_unix_s, newest_prefix, prefixes })
    }
}

/// The flush of a prefix that a line says.
fn prefix_in(line: &str) -> Option<KeptPrefix> {
    let words: Vec<&str> = line.strip_prefix("prefix ")?.split(' ').collect();
    let [number, delimiter, bytes] = words[..] else { return None };
    let byte = |digits: &[u8]| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok();
    let delimiter = match delimiter {
        ANY => None,
        digits => Some(byte(digits.as_bytes()).filter(|_| digits.len() == 2)?),
    };
    let is_whole = bytes.len() % 2 == 0 && (1..=PREFIX_BYTES_MAX).contains(&(bytes.len() / 2));
    let bytes: Vec<u8> = bytes.as_bytes().chunks(2).map(byte).collect::<Option<_>>()?;
    let number = number.parse().ok()?;
    let kept = is_whole.then_some(KeptPrefix { number, bytes: bytes.into(), delimiter })?;
    (kept.prefix().delimiter() == delimiter).then_some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many flushes as there can be, with the longest prefixes and numbers.
    fn flushes() -> KeptFlushes {
        let longest = [0xff; PREFIX_BYTES_MAX];
        let prefixes = [
            BytePrefix::of_name(b"user 1\n", b':').expect("a name"),
            BytePrefix::of_bytes(&longest).expect("not longer"),
        ];
        let prefixes = prefixes.iter().cycle().take(FLUSHED_PREFIXES_MAX);
        let prefixes = (u64::MAX / 2..).step_by(2).zip(prefixes);
        KeptFlushes {
            epoch: u32::MAX,
            due_unix_s: 1_800_000_000,
            newest_prefix: u64::MAX,
            prefixes: prefixes.map(|(number, prefix)| KeptPrefix::new(number, prefix)).collect(),
        }
    }

    #[test]
    fn what_is_written_is_read_as_the_same() {
        for flushes in [flushes(), KeptFlushes::default()] {
            let text = flushes.text();
            assert_eq!(KeptFlushes::parse(text.as_bytes()).as_ref(), Ok(&flushes), "K1");
            assert!(text.len() as u64 <= FLUSH_BYTES_MAX, "{} bytes", text.len());
        }
        let prefix = BytePrefix::of_name(b"user", b':').expect("a name");
        assert_eq!(KeptPrefix::new(1, &prefix).prefix(), prefix);
    }

    /// The content of a file that has these lines, with their checksum.
    fn with_checksum(lines: &str) -> String {
        format!("{lines}checksum {:08x}\n", crc32c::crc32c(lines.as_bytes()))
    }

    #[test]
    fn no_changed_byte_and_no_shorter_text_is_read() {
        let mut few = flushes();
        few.prefixes.truncate(1);
        let text = few.text().into_bytes();
        for at in 0..text.len() {
            for bit in 0..8 {
                let mut changed = text.clone();
                changed[at] ^= 1 << bit;
                assert!(KeptFlushes::parse(&changed).is_err(), "byte {at}, bit {bit}");
            }
            assert_eq!(KeptFlushes::parse(&text[..at]), Err(FlushesRefused::Damaged), "{at} bytes");
        }
        let head = "kachel flushes 1\nflushes 0\npending 0\nprefixes 9\n";
        assert!(KeptFlushes::parse(with_checksum(head).as_bytes()).is_ok());
        for wrong in [
            "prefix 1 any ",
            "prefix 1 any 6",
            "prefix 1 any 6x",
            "prefix 1 3 61",
            "prefix 1 61",
            "prefix 1 3a 613a",
            "prefix 10 any 61",
            "prefix 2 any 61\nprefix 2 any 61",
            "more",
        ] {
            let text = with_checksum(&format!("{head}{wrong}\n"));
            let read = KeptFlushes::parse(text.as_bytes());
            assert_eq!(read, Err(FlushesRefused::Damaged), "K1: {wrong:?}");
        }
    }

    #[test]
    fn a_later_format_is_told_with_both_numbers() {
        let refused = KeptFlushes::parse(with_checksum("kachel flushes 2\nanything\n").as_bytes());
        let refused = refused.expect_err("a later format").to_string();
        assert_eq!(refused, "has format 2 of a later version; this version reads 1");
    }
}
