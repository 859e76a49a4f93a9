//! What the engines report about their databases (`stats engine`).
//!
//! Upstream:   each engine notes its numbers, at most once a second.
//! Downstream: `shared` adds them up when somebody asks.
//!
//! Invariants:
//! - O1  Nobody who asks waits for a database. An engine measures its database in the next second
//!   after somebody has asked, or after it has written, on a thread of the I/O backend.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard};

use kachel_engine::FileReport;

use crate::database::Measured;

/// The numbers of one engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EngineReport {
    pub(crate) measured: Measured,
    pub(crate) commits: u64,
    pub(crate) syncs: u64,
    pub(crate) is_read_only: bool,
}

/// What an engine reports, and when it measures its database (O1).
#[derive(Debug)]
pub(crate) struct Measuring {
    pub(crate) report: EngineReport,
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
        let (report, second, asked) = (EngineReport::default(), 0, 0);
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
    engines: Mutex<Vec<EngineReport>>,
    first_error: Mutex<Option<String>>,
    /// How often somebody has asked (O1).
    asked: AtomicU64,
}

impl Reports {
    /// Of engines that have reported nothing.
    pub(crate) fn new(engines: u16) -> Self {
        let engines = Mutex::new(vec![EngineReport::default(); usize::from(engines)]);
        Self { engines, first_error: Mutex::default(), asked: AtomicU64::new(0) }
    }

    fn engines(&self) -> MutexGuard<'_, Vec<EngineReport>> {
        self.engines.lock().expect("a panic ends the process")
    }

    /// How often somebody has asked (O1). Cost: a load.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Relaxed)
    }

    /// Notes the numbers of an engine.
    pub(crate) fn note(&self, engine: u16, report: EngineReport) {
        self.engines()[usize::from(engine)] = report;
    }

    /// Notes a failure, if it is the first one.
    pub(crate) fn note_error(&self, text: &str) {
        let mut first = self.first_error.lock().expect("a panic ends the process");
        first.get_or_insert_with(|| text.to_owned());
    }

    /// The sums of all engines. `is_read_only`: none of them takes changes any more.
    pub(crate) fn sums(&self, is_read_only: bool) -> FileReport {
        self.asked.fetch_add(1, Relaxed);
        let engines = self.engines();
        let mut sums = FileReport {
            first_error: self.first_error.lock().expect("a panic ends the process").clone(),
            ..FileReport::default()
        };
        for EngineReport { measured, commits, syncs, is_read_only: is_own } in &*engines {
            sums.disk_bytes += measured.disk_bytes;
            sums.live_bytes += measured.live_bytes;
            sums.files += measured.files;
            sums.write_buffer_bytes += measured.write_buffer_bytes;
            sums.cache_bytes = sums.cache_bytes.max(measured.cache_bytes);
            sums.debt_bytes += measured.debt_bytes;
            sums.stopped += u64::from(measured.is_stopped);
            sums.read_only += u64::from(*is_own || is_read_only);
            sums.commits += commits;
            sums.syncs += syncs;
        }
        sums
    }
}
