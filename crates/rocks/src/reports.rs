//! What the engines report about their databases (`stats engine`).
//!
//! Upstream:   each engine notes its numbers when its database was measured, at most once a second,
//!             and when its disk fails.
//! Downstream: `engine::FileReports` adds them up when somebody asks.
//!
//! Invariants:
//! - O1  Nobody who asks waits for a database. An engine measures its database in the next second
//!   after somebody has asked, or after it has written, on a thread of the I/O backend.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use kachel_engine::{FileReport, FileReports};

/// What an engine reports, and when it measures its database (O1).
#[derive(Debug)]
pub(crate) struct Measuring {
    pub(crate) report: FileReport,
    second: u32,
    /// How often somebody had asked when the database was measured last.
    asked: u64,
    /// Whether something was written since then.
    has_written: bool,
    is_wanted: bool,
}

impl Default for Measuring {
    /// The database was not measured yet.
    fn default() -> Self {
        let (report, second, asked) = (FileReport::default(), 0, 0);
        Self { report, second, asked, has_written: true, is_wanted: false }
    }
}

impl Measuring {
    /// Takes note of the second. Cost: a load in each new one.
    pub(crate) fn note_second(&mut self, second: u32, reports: &Reports) {
        if self.second != second {
            self.second = second;
            self.is_wanted |= self.has_written || self.asked != reports.asked();
        }
    }

    /// Whether the database is to be measured now.
    pub(crate) fn take_wanted(&mut self, reports: &Reports) -> bool {
        let is_wanted = std::mem::take(&mut self.is_wanted);
        if is_wanted {
            (self.has_written, self.asked) = (false, reports.asked());
        }
        is_wanted
    }

    /// The database was measured.
    pub(crate) fn note_measured(&mut self, measured: FileReport) {
        let FileReport { commits, syncs, .. } = self.report;
        self.report = FileReport { commits, syncs, ..measured };
    }

    /// A batch is in the database; `syncs`: and synced.
    pub(crate) fn note_commit(&mut self, syncs: bool) {
        self.report.commits += 1;
        self.report.syncs += u64::from(syncs);
        self.has_written = true;
    }

    /// What was written is synced.
    pub(crate) fn note_sync(&mut self) {
        self.report.syncs += 1;
        self.has_written = true;
    }
}

/// The reports of all engines.
#[derive(Debug)]
pub(crate) struct Reports {
    pub(crate) files: FileReports,
    engines: u16,
    /// How often somebody has asked (O1).
    asked: AtomicU64,
}

impl Reports {
    /// Of engines that have reported nothing.
    pub(crate) fn new(engines: u16) -> Self {
        Self { files: FileReports::default(), engines, asked: AtomicU64::new(0) }
    }

    /// How often somebody has asked (O1). Cost: a load.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Relaxed)
    }

    /// The sums of all engines. `is_read_only`: none of them takes changes any more.
    pub(crate) fn sums(&self, is_read_only: bool) -> FileReport {
        self.asked.fetch_add(1, Relaxed);
        let mut sums = self.files.sums();
        sums.cache_bytes = self.files.max(|report| report.cache_bytes); // They share one cache.
        if is_read_only {
            sums.read_only = self.engines.into();
        }
        sums
    }
}
