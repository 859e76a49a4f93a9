//! The raw data: a line of JSON for each step, in the file `steps.jsonl`.
//!
//! Upstream:   `run` appends a row after each step.
//! Downstream: `plan` leaves out what is there; `capacity`, `verdict` and `report` read the rows.
//!
//! BENCHMARKING.md documents the columns. A run that is interrupted leaves at most one half-written
//! line at the end. The next run removes it and measures that step again.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A step has one row.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::power::COVERED_MIN;

/// The name of the file.
pub(crate) const FILE: &str = "steps.jsonl";
/// A step is shared if others use more than this share of a core of the server.
const OTHERS_MAX: f64 = 0.05;

/// Columns that a prediction may be about.
pub(crate) const COLUMNS: [&str; 16] = [
    "achieved_per_s",
    "keys_per_s",
    "mean_us",
    "p50_us",
    "p95_us",
    "p99_us",
    "p99_9_us",
    "max_us",
    "hit_ratio",
    "server_cpu_us",
    "server_cpu_us_per_key",
    "server_busy_cores",
    "watts",
    "requests_per_joule",
    "beside_per_s",
    "beside_p50_us",
];

/// One step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) key: StepKey,
    /// The offered rate; none in a closed loop.
    pub(crate) rate_per_s: Option<f64>,
    pub(crate) begin_unix_s: f64,
    pub(crate) requests: u64,
    pub(crate) achieved_per_s: f64,
    /// Keys that gets read a second, if a get has several.
    pub(crate) keys_per_s: Option<f64>,
    pub(crate) errors: u64,
    pub(crate) hit_ratio: Option<f64>,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p95_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p99_9_us: f64,
    pub(crate) max_us: f64,
    /// Percent and response time.
    pub(crate) percentiles_us: Vec<(f64, f64)>,
    pub(crate) server_cpu_us: Option<f64>,
    /// Processor time of the server a key, if a get has several.
    pub(crate) server_cpu_us_per_key: Option<f64>,
    pub(crate) server_busy_cores: Option<f64>,
    pub(crate) generator_busy_cores: f64,
    /// Cores' time of the server's cores that neither the server nor interrupts used. The kernel
    /// accounts a part of the interrupts to the server, so it is a lower bound.
    pub(crate) others_busy_cores: Option<f64>,
    /// The readings of each meter.
    pub(crate) power: Vec<PowerReading>,
    /// The load that ran beside this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) beside: Option<BesideRow>,
    /// Reasons to doubt that the server was the limit.
    pub(crate) warnings: Vec<String>,
}

/// The load beside a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct BesideRow {
    /// The offered rate; none in a closed loop.
    pub(crate) rate_per_s: Option<f64>,
    pub(crate) achieved_per_s: f64,
    pub(crate) errors: u64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p95_us: f64,
    pub(crate) p99_us: f64,
    /// Reasons to doubt that it sent what it should have sent.
    pub(crate) warnings: Vec<String>,
}

/// Which step of an experiment it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct StepKey {
    /// From 1.
    pub(crate) round: u32,
    /// The values of the swept options.
    pub(crate) options: BTreeMap<String, String>,
    /// None in an experiment without cases; rows that were written before there were cases lack it.
    pub(crate) case: Option<String>,
    pub(crate) server: String,
    /// The place of the rate among the rates of the case, from 0.
    pub(crate) step: usize,
}

/// The power of one meter during a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PowerReading {
    pub(crate) meter: String,
    /// Computed from something else than power.
    pub(crate) is_estimate: bool,
    /// Power of the idle machine with all servers of the experiment.
    pub(crate) idle_w: Option<f64>,
    pub(crate) loaded_w: Option<f64>,
    /// The share of the step for which there are samples.
    pub(crate) covered: f64,
    pub(crate) error: Option<String>,
}

impl Row {
    /// Whether a request of the step or of the load beside it failed.
    pub(crate) fn has_errors(&self) -> bool {
        self.errors > 0 || self.beside.as_ref().is_some_and(|beside| beside.errors > 0)
    }

    /// The first meter, if it covered too little of the step.
    fn short_meter(&self) -> Option<&PowerReading> {
        self.power.first().filter(|reading| reading.covered < COVERED_MIN)
    }

    /// The value of a column of [`COLUMNS`]. Power is that of the first meter.
    pub(crate) fn value(&self, column: &str) -> Option<f64> {
        let watts = || match self.short_meter() {
            Some(_) => None,
            None => self.power.first()?.loaded_w,
        };
        match column {
            "achieved_per_s" => Some(self.achieved_per_s),
            "keys_per_s" => self.keys_per_s,
            "mean_us" => Some(self.mean_us),
            "p50_us" => Some(self.p50_us),
            "p95_us" => Some(self.p95_us),
            "p99_us" => Some(self.p99_us),
            "p99_9_us" => Some(self.p99_9_us),
            "max_us" => Some(self.max_us),
            "hit_ratio" => self.hit_ratio,
            "server_cpu_us" => self.server_cpu_us,
            "server_cpu_us_per_key" => self.server_cpu_us_per_key,
            "server_busy_cores" => self.server_busy_cores,
            "watts" => watts(),
            "requests_per_joule" => {
                Some(self.achieved_per_s / watts().filter(|watts| *watts > 0.0)?)
            }
            "beside_per_s" => Some(self.beside.as_ref()?.achieved_per_s),
            "beside_p50_us" => Some(self.beside.as_ref()?.p50_us),
            _ => unreachable!("{column} is one of the columns"),
        }
    }
}

/// Reasons to doubt the figures of these rows, a sentence each.
pub(crate) fn doubts(rows: &[Row]) -> Vec<String> {
    let mut all = Vec::new();
    let mut count = |happened: &str, is_one: &dyn Fn(&Row) -> bool| {
        let count = rows.iter().filter(|row| is_one(row)).count();
        if count > 0 {
            all.push(format!("In {count} of {} steps {happened}.", rows.len()));
        }
    };
    count("there were errors", &Row::has_errors);
    let limit = "may have been the limit";
    count(&format!("the load generator {limit}"), &|row| !row.warnings.is_empty());
    count(&format!("the generator of the load beside {limit}"), &|row| {
        row.beside.as_ref().is_some_and(|beside| !beside.warnings.is_empty())
    });
    let percent = OTHERS_MAX * 100.0;
    count(&format!("other programs used more than {percent} % of a core of the server"), &|row| {
        row.others_busy_cores.is_some_and(|cores| cores > OTHERS_MAX)
    });
    let percent = COVERED_MIN * 100.0;
    count(
        &format!("the first meter covered less than {percent} %, so there is no power"),
        &|row| row.short_meter().is_some(),
    );
    all
}

/// The file of raw data, to which one process may append.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    pub(crate) rows: Vec<Row>,
}

impl Journal {
    /// Opens or makes the file in a folder. Removes a half-written line at its end.
    ///
    /// Errors: another process appends to it, or a line in its middle is no row.
    pub(crate) fn open(folder: &Path) -> Result<Self, String> {
        let path = folder.join(FILE);
        let named = |error: io::Error| format!("{}: {error}", path.display());
        let mut options = File::options();
        options.read(true).append(true).create(true);
        let mut file = options.open(&path).map_err(named)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(format!("{}: another run writes to it", path.display()));
            }
            Err(TryLockError::Error(error)) => return Err(named(error)),
            Ok(()) => {}
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(named)?;
        let (rows, whole_bytes) =
            parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        if whole_bytes < text.len() {
            file.set_len(whole_bytes as u64).map_err(named)?;
            file.seek(io::SeekFrom::End(0)).map_err(named)?;
        }
        Ok(Self { path, file, rows })
    }

    /// Appends a row, and waits until it is on the disk.
    ///
    /// Errors: as on a full disk. The rows before stay.
    pub(crate) fn append(&mut self, row: Row) -> Result<(), String> {
        assert!(self.rows.iter().all(|before| before.key != row.key), "I1");
        let line = serde_json::to_string(&row).expect("a row is plain data") + "\n";
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(|error| {
            format!("{}: {error}; the steps before are kept", self.path.display())
        })?;
        self.rows.push(row);
        Ok(())
    }
}

/// Reads the rows of a folder, and their lines as they stand in the file.
///
/// Errors: the file cannot be read, or a line in its middle is no row.
pub(crate) fn read(folder: &Path) -> Result<(Vec<Row>, String), String> {
    let path = folder.join(FILE);
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let mut text = std::fs::read_to_string(&path).map_err(|error| named(&error))?;
    let (rows, whole_bytes) = parse(&text).map_err(|error| named(&error))?;
    text.truncate(whole_bytes);
    Ok((rows, text))
}

/// The rows of a text, and the bytes of its whole lines.
fn parse(text: &str) -> Result<(Vec<Row>, usize), String> {
    let (mut rows, mut whole_bytes) = (Vec::<Row>::new(), 0);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if !line.ends_with('\n') {
            break;
        }
        let wrong = |error: &dyn std::fmt::Display| format!("line {}: {error}", index + 1);
        let row: Row = serde_json::from_str(line).map_err(|error| wrong(&error))?;
        if rows.iter().any(|before| before.key == row.key) {
            return Err(wrong(&"a second row of the same step"));
        }
        rows.push(row);
        whole_bytes += line.len();
    }
    Ok((rows, whole_bytes))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A row of a step of `server` with this mean.
    pub(crate) fn row(round: u32, server: &str, step: usize, rate: f64, mean_us: f64) -> Row {
        let (options, server) = (BTreeMap::new(), server.to_owned());
        let key = StepKey { round, options, case: None, server, step };
        Row {
            key,
            rate_per_s: Some(rate),
            begin_unix_s: 1.5,
            requests: 1_000,
            achieved_per_s: rate,
            keys_per_s: None,
            errors: 0,
            hit_ratio: Some(1.0),
            mean_us,
            p50_us: mean_us,
            p95_us: mean_us * 2.0,
            p99_us: mean_us * 3.0,
            p99_9_us: mean_us * 4.0,
            max_us: mean_us * 5.0,
            percentiles_us: vec![(50.0, mean_us), (95.0, mean_us * 2.0)],
            server_cpu_us: Some(2.0),
            server_cpu_us_per_key: None,
            server_busy_cores: Some(0.5),
            generator_busy_cores: 0.5,
            others_busy_cores: Some(0.0),
            power: Vec::new(),
            beside: None,
            warnings: Vec::new(),
        }
    }

    #[test]
    fn power_needs_a_meter_that_covers_the_step() {
        let of = |loaded_w: f64, covered: f64| {
            let mut row = row(1, "a", 0, 100.0, 5.0);
            let (meter, is_estimate, error) = ("m".to_owned(), false, None);
            let (idle_w, loaded_w) = (None, Some(loaded_w));
            row.power = vec![PowerReading { meter, is_estimate, idle_w, loaded_w, covered, error }];
            let warning = doubts(&[row.clone()]).pop();
            (row.value("watts"), row.value("requests_per_joule"), warning)
        };
        assert_eq!(of(50.0, 0.95), (Some(50.0), Some(2.0), None));
        let (watts, per_joule, warning) = of(50.0, 0.94);
        assert_eq!((watts, per_joule), (None, None));
        let expected =
            "In 1 of 1 steps the first meter covered less than 95 %, so there is no power.";
        assert_eq!(warning.as_deref(), Some(expected));
        assert_eq!(of(0.0, 1.0), (Some(0.0), None, None), "not an infinite number of requests");
    }

    #[test]
    fn a_half_written_line_is_removed_and_whole_ones_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut journal = Journal::open(folder.path()).expect("new");
        let rows = [row(1, "a", 0, 10.0, 5.0), row(1, "b", 0, 10.0, 6.0)];
        rows.iter().for_each(|row| journal.append(row.clone()).expect("written"));
        assert!(Journal::open(folder.path()).expect_err("locked").contains("another run"));
        drop(journal);
        let path = folder.path().join(FILE);
        let whole = std::fs::read_to_string(&path).expect("a file");
        let half = &whole[..whole.lines().next().expect("a line").len() / 2];
        std::fs::write(&path, format!("{whole}{half}")).expect("written");
        let mut journal = Journal::open(folder.path()).expect("resumed");
        assert_eq!(journal.rows, rows);
        let third = row(2, "a", 0, 10.0, 7.0);
        journal.append(third.clone()).expect("written");
        drop(journal);
        let all = [&rows[..], &[third]].concat();
        assert_eq!(read(folder.path()).expect("rows").0, all);
    }

    #[test]
    fn rows_that_are_older_than_cases_are_read() {
        let line = serde_json::to_string(&row(1, "a", 0, 10.0, 5.0)).expect("JSON") + "\n";
        let mut old = line.clone();
        for column in ["case", "keys_per_s", "server_cpu_us_per_key"] {
            let pair = format!("\"{column}\":null,");
            assert!(old.contains(&pair), "{pair} in {old}");
            old = old.replace(&pair, "");
        }
        let rows = |text: &str| parse(text).expect("rows").0;
        assert_eq!(rows(&old), rows(&line));
    }

    #[test]
    fn a_broken_line_in_the_middle_is_an_error() {
        let line = serde_json::to_string(&row(1, "a", 0, 10.0, 5.0)).expect("JSON");
        assert!(parse(&format!("{line}\n{{\n")).expect_err("broken").starts_with("line 2: "));
        let twice = parse(&format!("{line}\n{line}\n")).expect_err("twice");
        assert!(twice.contains("line 2: a second row"), "{twice}");
    }

    #[test]
    fn a_full_disk_is_an_error_and_adds_no_row() {
        let path = PathBuf::from("/dev/full");
        let file = File::options().append(true).open(&path).expect("every Linux has it");
        let mut journal = Journal { path, file, rows: Vec::new() };
        let error = journal.append(row(1, "a", 0, 10.0, 5.0)).expect_err("full");
        assert!(error.contains("No space left") && error.contains("/dev/full"), "{error}");
        assert!(journal.rows.is_empty());
    }
}
