//! The lines that a start of engines with files writes to the log: its progress, and its result.
//!
//! Upstream:   the engine that opens its files, which brings the time.
//! Downstream: sentences for the log of the process.
//!
//! Invariants, cited by number where they are asserted:
//! - T1  A start that takes less than a second has one line: the last one.

use std::path::Path;

use kachel_host::LogField;

use crate::kept::folders::engine_folder;

/// The pause between two lines about the progress, in nanoseconds.
const PAUSE_NS: u64 = 1_000_000_000;

/// A start that goes on.
#[derive(Debug)]
pub struct StartReport {
    path: String,
    engines: u16,
    began_ns: u64,
    told_ns: u64,
}

/// A number of bytes for people, rounded up.
const fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

impl StartReport {
    /// A start over the files of a folder begins now.
    #[must_use]
    pub fn new(path: &Path, engines: u16, now_ns: u64) -> Self {
        Self { path: path.display().to_string(), engines, began_ns: now_ns, told_ns: now_ns }
    }

    /// The line about an engine of which this number of bytes is read. `None` if less than a second
    /// has passed since the line before (T1).
    pub fn progress(&mut self, engine: u16, bytes: (u64, u64), now_ns: u64) -> Option<String> {
        if !self.is_due(now_ns) {
            return None;
        }
        let (place, done, of) = (self.place(engine), mib(bytes.0), mib(bytes.1));
        Some(format!("{place}: {done} of {of} MiB are read"))
    }

    /// The line about an engine that is open now. `None`: as [`Self::progress`].
    pub fn opened(&mut self, engine: u16, now_ns: u64) -> Option<String> {
        self.is_due(now_ns).then(|| format!("{} is open", self.place(engine)))
    }

    fn is_due(&mut self, now_ns: u64) -> bool {
        let is_due = now_ns.saturating_sub(self.told_ns) >= PAUSE_NS;
        if is_due {
            self.told_ns = now_ns;
        }
        is_due
    }

    fn place(&self, engine: u16) -> String {
        let Self { path, engines, .. } = self;
        let (folder, number) = (engine_folder(engine), engine + 1);
        format!("--data {path}: {folder} ({number} of {engines})")
    }

    /// The line about an engine whose last changes were not written whole before a crash.
    #[must_use]
    pub fn cut_short(&self, engine: u16, offset: u64) -> String {
        let place = self.place(engine);
        format!(
            "{place}: a crash has cut the last write to the log short, at offset {offset}; what is \
             not whole is left out"
        )
    }

    /// The last line: what was found, in how many seconds.
    #[must_use]
    pub fn end(&self, found: &StartFound, now_ns: u64) -> String {
        let Self { path, began_ns, .. } = self;
        let StartFound { items, is_estimate, live_bytes, file_bytes } = *found;
        let about = if is_estimate { "about " } else { "" };
        let (live, of) = (mib(live_bytes), mib(file_bytes));
        let tenths = now_ns.saturating_sub(*began_ns) / (PAUSE_NS / 10);
        let (seconds, tenths) = (tenths / 10, tenths % 10);
        format!(
            "--data {path}: found {about}{items} items, which take {live} of {of} MiB, in \
             {seconds}.{tenths} s"
        )
    }
}

/// What a start has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartFound {
    /// The items, those included that have expired or were flushed.
    pub items: u64,
    /// Whether the number of the items and their bytes are estimates.
    pub is_estimate: bool,
    /// The bytes on the disk that are needed.
    pub live_bytes: u64,
    /// The bytes of the files.
    pub file_bytes: u64,
}

impl StartFound {
    /// The numbers, for lines of JSON.
    #[must_use]
    pub const fn fields(&self) -> [LogField<'static>; 3] {
        [
            LogField::number("items", self.items),
            LogField::number("live_bytes", self.live_bytes),
            LogField::number("disk_bytes", self.file_bytes),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_start_has_a_line_a_second_and_each_start_a_last_one() {
        const S: u64 = PAUSE_NS;
        let mut report = StartReport::new(Path::new("/d"), 8, 5 * S);
        let wanted = "--data /d: engine-0002 (3 of 8): 1 of 64 MiB are read";
        let bytes = (1 << 20, 64 << 20);
        assert_eq!(report.progress(2, bytes, 6 * S - 1), None, "T1");
        assert_eq!(report.progress(2, bytes, 6 * S).as_deref(), Some(wanted));
        assert_eq!(report.progress(2, bytes, 7 * S - 1), None);
        assert!(report.progress(7, bytes, 9 * S).is_some());
        assert_eq!(report.opened(7, 10 * S - 1), None, "T1");
        let wanted = "--data /d: engine-0007 (8 of 8) is open";
        assert_eq!(report.opened(7, 10 * S).as_deref(), Some(wanted));
        let said = report.cut_short(2, 4096);
        assert!(
            said.starts_with("--data /d: engine-0002 (3 of 8): a crash") && said.contains("4096")
        );
        let found = StartFound { items: 7, is_estimate: false, live_bytes: 1, file_bytes: 9 << 20 };
        let wanted = "--data /d: found 7 items, which take 1 of 9 MiB, in 7.2 s";
        assert_eq!(report.end(&found, 12 * S + S / 4), wanted);
        let found = StartFound { is_estimate: true, ..found };
        assert!(report.end(&found, 0).contains("found about 7 items"));
    }
}
