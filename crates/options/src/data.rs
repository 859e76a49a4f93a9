//! The options of engines that keep items on a disk: where, and when a change is durable.
//!
//! Upstream:   the effects of the table's rows.
//! Downstream: `kachel` opens the engines; `settings.rs` shows the options.

use std::fmt;
use std::path::PathBuf;

/// The longest time between two syncs, in milliseconds: an hour.
const INTERVAL_MS_MAX: u64 = 3_600_000;

/// The fewest bytes of `--space` for each engine. With less, most of it would be kept free for
/// deletions.
pub const ENGINE_SPACE_BYTES_MIN: u64 = 16 << 20;

/// When a change is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncChoice {
    /// Before its reply.
    #[default]
    Always,
    /// Within this number of milliseconds after its reply.
    IntervalMs(u64),
    /// When the system writes it.
    Os,
}

impl SyncChoice {
    /// Reads `always`, `os`, or `interval:` with a number of milliseconds (`50ms`) or of seconds
    /// (`2s`).
    pub(crate) fn read(text: &str) -> Option<Self> {
        let interval = match text {
            "always" => return Some(Self::Always),
            "os" => return Some(Self::Os),
            text => text.strip_prefix("interval:")?,
        };
        let (number, unit_ms) = match interval.strip_suffix("ms") {
            Some(number) => (number, 1),
            None => (interval.strip_suffix('s')?, 1000),
        };
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        let ms = number.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(unit_ms)?;
        (1..=INTERVAL_MS_MAX).contains(&ms).then_some(Self::IntervalMs(ms))
    }
}

impl fmt::Display for SyncChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("always"),
            Self::IntervalMs(ms) => write!(f, "interval:{ms}ms"),
            Self::Os => f.write_str("os"),
        }
    }
}

/// Where and how items are kept on a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataOptions {
    /// The folder of the data (`--data`).
    pub folder: Option<PathBuf>,
    /// When a change is durable (`--sync`); `None`: as by [`SyncChoice::default`].
    pub sync: Option<SyncChoice>,
    /// The most bytes of the data (`--space`); `None`: as many as there are.
    pub space_bytes: Option<u64>,
    /// The file of options for RocksDB (`--rocksdb-options`).
    pub rocksdb_options: Option<PathBuf>,
}

impl DataOptions {
    /// Reads a number of bytes, of KiB (`k`), MiB (`m`), GiB (`g`) or TiB (`t`). `None`: it is
    /// none, or there are too few for one engine.
    pub(crate) fn read_space(text: &str) -> Option<u64> {
        let unit = |suffix: char| "kmgt".find(suffix.to_ascii_lowercase());
        let (digits, shift) = match text.chars().last().and_then(unit) {
            Some(unit) => (&text[..text.len() - 1], 10 * (unit + 1)),
            None => (text, 0),
        };
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse::<u64>().ok().filter(|_| is_number)?;
        number.checked_mul(1 << shift).filter(|bytes| *bytes >= ENGINE_SPACE_BYTES_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_is_read_with_its_unit() {
        let of = DataOptions::read_space;
        assert_eq!(
            (of("16777216"), of("16384k"), of("64M")),
            (Some(16 << 20), Some(16 << 20), Some(64 << 20))
        );
        assert_eq!((of("10g"), of("2t")), (Some(10 << 30), Some(2 << 40)));
        for text in [
            "",
            "m",
            "16777215",
            "1m",
            "-64m",
            "+64m",
            "64 m",
            "64mb",
            "99999999t",
            "0x10m",
            "\u{e4}",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }

    #[test]
    fn syncs_are_read_as_they_are_shown() {
        for text in ["always", "os", "interval:1ms", "interval:3600000ms"] {
            let sync = SyncChoice::read(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(sync.to_string(), text);
        }
        assert_eq!(SyncChoice::read("interval:2s"), Some(SyncChoice::IntervalMs(2000)));
        for text in [
            "",
            "never",
            "interval",
            "interval:",
            "interval:5",
            "interval:0ms",
            "interval:ms",
            "interval:-1ms",
            "interval:+1ms",
            "interval:3601s",
            "interval:99999999999999999999s",
            "interval:18446744073709551s",
        ] {
            assert_eq!(SyncChoice::read(text), None, "{text}");
        }
    }
}
