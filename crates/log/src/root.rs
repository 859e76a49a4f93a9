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
//! seeds 0123456789abcdef 0123456789abcdef
//! made 1800000000               the Unix second; times in records are Unix seconds as well
//! place /srv/kachel             where the store was made; only if a folder is outside of it
//! folder engine-0               the folder of each engine, in their order: below the folder of
//! folder /disk2/engine-1        this file, or an absolute path
//! segment 1048576               the bytes of a segment; only if the engines have logs
//! checksum 89abcdef             CRC-32C of all lines before it
//! ```
//!
//! The lines that each kind of engine has come first, and those of one kind follow the folders.
//!
//! A copy of a store has the identity of the original, so the headers of its logs do not tell the
//! two apart. What keeps the copy from writing the logs of the original:
//!
//! - A folder below the folder of the root file is named relative to it. The copy has its own.
//! - A folder elsewhere is shared by both. The root file says where the store was made, and
//!   [`Root::may_be_at`] refuses it at any other place.
//! - A copy at the same place, on another machine that shares the disk, is not told apart. The lock
//!   of each engine's folder keeps the two from having it open at the same time.
//!
//! Invariants, cited by number where they are asserted:
//! - O1  What [`Root::text`] writes, [`Root::parse`] reads as the same. It reads nothing else.
//! - O2  A root file with an absolute folder says where its store was made.

use std::fmt::Write as _;

use crate::failure::Cause;
use crate::geometry::{SEGMENT_BYTES, SEGMENT_BYTES_MIN, UNIT_BYTES};

/// The name of the root file in the folder of the store.
pub const ROOT_FILE: &str = "kachel.root";
/// The most bytes of a root file.
pub const ROOT_BYTES_MAX: usize = 64 * 1024;
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
    /// The Unix second in which the store was made.
    pub made_s: u64,
    /// The absolute path of the folder of the root file when the store was made. `None` if all
    /// folders are below it.
    pub place: Option<String>,
    /// The folder of each engine, relative to that of the root file if it is below it. Their number
    /// is that of the engines.
    pub folders: Vec<String>,
    /// The bytes of a segment of each log. `None` if the engines have no logs.
    pub segment_bytes: Option<u64>,
}

/// Whether it is the path of a folder below another one.
fn is_below(folder: &str) -> bool {
    folder.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

impl Root {
    /// The content of the root file. `None` if it would be too long, if there is no engine, if a
    /// name cannot be on a line, or if a folder is elsewhere and `place` is not there (O2).
    #[must_use]
    pub fn text(&self) -> Option<String> {
        let Self { engine, store, seeds: [first, second], made_s, .. } = self;
        let mut text = format!(
            "{FORMAT_LINE}{FORMAT}\nengine {engine}\nstore {store:016x}\n\
             seeds {first:016x} {second:016x}\nmade {made_s}\n"
        );
        let mut line = |name: &str, value: &str| {
            writeln!(text, "{name} {value}").expect("a string grows");
        };
        self.place.iter().for_each(|place| line("place", place));
        self.folders.iter().for_each(|folder| line("folder", folder));
        self.segment_bytes.iter().for_each(|bytes| line("segment", &bytes.to_string()));
        let checksum = crc32c::crc32c(text.as_bytes());
        writeln!(text, "{CHECKSUM_LINE}{checksum:08x}").expect("a string grows");
        let is_readable = text.len() <= ROOT_BYTES_MAX;
        (is_readable && Self::parse(text.as_bytes()).as_ref() == Ok(self)).then_some(text) // O1
    }

    /// Whether the store may be opened with its root file in this folder, an absolute path.
    ///
    /// Errors: a folder of an engine is elsewhere, and the store was made at another place. It is
    /// perhaps a copy, and the folder belongs to the original.
    pub fn may_be_at(&self, place: &str) -> Result<(), Cause> {
        match &self.place {
            Some(made) if made != place => Err(Cause::Moved(made.clone())),
            _ => Ok(()),
        }
    }

    /// The path of an engine's folder, with the root file in the folder `place`.
    ///
    /// Panics: if there is no such engine.
    #[must_use]
    pub fn folder(&self, engine: u16, place: &str) -> String {
        let folder = &self.folders[usize::from(engine)];
        if is_below(folder) { format!("{place}/{folder}") } else { folder.clone() }
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

    fn parse_lines<'t>(lines: impl Iterator<Item = &'t str>) -> Option<Self> {
        let mut lines = lines.map(|line| line.split_once(' ')).peekable();
        let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
        let mut next = |wanted: &str| {
            let line = lines.next_if(|line| line.is_some_and(|(name, _)| name == wanted))?;
            line.map(|(_, value)| value)
        };
        let engine = next("engine")?.to_owned();
        let store = hexadecimal(next("store")?)?;
        let (first, second) = next("seeds")?.split_once(' ')?;
        let seeds = [hexadecimal(first)?, hexadecimal(second)?];
        let made_s = next("made")?.parse().ok()?;
        let place = next("place").map(str::to_owned);
        let folders: Vec<String> =
            std::iter::from_fn(|| next("folder").map(str::to_owned)).collect();
        let segment_bytes = match next("segment") {
            Some(bytes) => Some(bytes.parse().ok()?),
            None => None,
        };
        if lines.next().is_some() {
            return None;
        }
        let is_path = |path: &String| path.strip_prefix('/').is_some_and(is_below);
        let are_paths = folders.iter().all(|folder| is_below(folder) || is_path(folder));
        let is_elsewhere = folders.iter().any(is_path);
        let is_placed = place.is_some() == is_elsewhere && place.iter().all(is_path); // O2
        let is_size = segment_bytes.is_none_or(|bytes: u64| {
            (SEGMENT_BYTES_MIN..=SEGMENT_BYTES.end).contains(&bytes)
                && bytes.is_multiple_of(UNIT_BYTES as u64)
        });
        let is_sound = are_paths && is_placed && is_size && !folders.is_empty();
        is_sound.then_some(Self { engine, store, seeds, made_s, place, folders, segment_bytes })
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
            made_s: 1_800_000_000,
            place: Some("/srv/kachel".to_owned()),
            folders: vec!["engines/0".to_owned(), "/disk 2/checksum 1".to_owned()],
            segment_bytes: Some(1 << 20),
        }
    }

    #[test]
    fn what_is_written_is_read_as_the_same() {
        let text = root().text().expect("a short text");
        assert_eq!(Root::parse(text.as_bytes()), Ok(root()), "O1");
        let plain = Root {
            place: None,
            folders: vec!["engine-0000".to_owned()],
            segment_bytes: None,
            ..root()
        };
        let text = plain.text().expect("a short text");
        assert_eq!(Root::parse(text.as_bytes()), Ok(plain.clone()), "O1");
        for wrong in
            ["/a\nfolder /b", "/a\r", "", "/", "..", "../a", "/a/../b", "./a", "a//b", "/a/"]
        {
            let folders = vec!["/b".to_owned(), wrong.to_owned()];
            assert_eq!(Root { folders, ..root() }.text(), None, "{wrong:?}");
        }
        assert_eq!(Root { folders: vec![], ..plain.clone() }.text(), None);
        assert_eq!(Root { place: root().place, ..plain }.text(), None, "O2");
        assert_eq!(Root { place: None, ..root() }.text(), None, "O2");
        assert_eq!(Root { place: Some("srv".to_owned()), ..root() }.text(), None);
        assert_eq!(Root { segment_bytes: Some(4095), ..root() }.text(), None);
        let long = Root { folders: vec!["x".repeat(ROOT_BYTES_MAX)], ..root() };
        assert_eq!(long.text(), None);
    }

    #[test]
    fn a_copy_has_its_own_folders_or_is_refused() {
        let below = Root { place: None, folders: vec!["0".to_owned()], ..root() };
        for place in ["/srv/kachel", "/srv/copy"] {
            assert_eq!(below.may_be_at(place), Ok(()));
            assert_eq!(below.folder(0, place), format!("{place}/0"));
        }
        assert_eq!(root().folder(1, "/srv/kachel"), "/disk 2/checksum 1");
        assert_eq!(root().may_be_at("/srv/kachel"), Ok(()));
        let refused = root().may_be_at("/srv/copy").expect_err("it shares a folder");
        assert_eq!(
            refused.to_string(),
            "the store was made in /srv/kachel, and has folders outside of it, which a copy would \
             share"
        );
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
