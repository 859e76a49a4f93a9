//! The reports of engines about their files, added up, and the first failure of a disk.
//!
//! Upstream:   each engine notes its numbers; `Common::file_report` adds them up.
//! Downstream: `host` for the log of the process.

use std::sync::{Mutex, MutexGuard};

use kachel_host::{Level, log};

use crate::report::FileReport;

/// The reports of all engines of a process.
#[derive(Debug, Default)]
pub struct FileReports {
    /// The last report of each engine. Engines without a report may be missing at the end.
    engines: Mutex<Vec<FileReport>>,
    first_error: Mutex<Option<String>>,
}

impl FileReports {
    fn engines(&self) -> MutexGuard<'_, Vec<FileReport>> {
        self.engines.lock().expect("a panic ends the process")
    }

    /// Notes the numbers of an engine, in the place of those that it noted before.
    pub fn note(&self, engine: u16, report: FileReport) {
        let mut engines = self.engines();
        let (engine, count) = (usize::from(engine), engines.len());
        engines.resize(count.max(engine + 1), FileReport::default());
        engines[engine] = report;
    }

    /// Writes a failure of a disk to the log of the process, and keeps it if it is the first one.
    pub fn report_error(&self, text: String) {
        log(Level::Error, format_args!("{text}"), &[]);
        let mut first = self.first_error.lock().expect("a panic ends the process");
        first.get_or_insert(text);
    }

    /// The greatest of a number of the engines.
    pub fn max(&self, number: impl Fn(&FileReport) -> u64) -> u64 {
        self.engines().iter().map(number).max().unwrap_or(0)
    }

    /// The sums of all engines, with the first failure.
    pub fn sums(&self) -> FileReport {
        let first_error = self.first_error.lock().expect("a panic ends the process").clone();
        let mut sums = FileReport { first_error, ..FileReport::default() };
        for report in &*self.engines() {
            sums.disk_bytes += report.disk_bytes;
            sums.live_bytes += report.live_bytes;
            sums.files += report.files;
            sums.write_buffer_bytes += report.write_buffer_bytes;
            sums.cache_bytes += report.cache_bytes;
            sums.debt_bytes += report.debt_bytes;
            sums.stopped += report.stopped;
            sums.read_only += report.read_only;
            sums.commits += report.commits;
            sums.syncs += report.syncs;
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_numbers_of_each_engine_are_added_up_with_the_first_failure() {
        let reports = FileReports::default();
        for (engine, files) in [(2, 1), (0, 5), (2, 3)] {
            reports.note(engine, FileReport { files, syncs: 1, ..FileReport::default() });
        }
        reports.report_error("first".to_owned());
        reports.report_error("second".to_owned());
        let first_error = Some("first".to_owned());
        let sums = FileReport { files: 8, syncs: 2, first_error, ..FileReport::default() };
        assert_eq!((reports.sums(), reports.max(|report| report.files)), (sums, 5));
    }
}
