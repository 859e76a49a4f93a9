//! The fill and the steps of an experiment, each a process of the load generator.
//!
//! Upstream:   `mod`, with the servers of a group of steps.
//! Downstream: `kachel-lab load`; the rows of the raw data.
//!
//! The generator is a process of its own, so it has its own cores, and a step leaves nothing behind
//! in the next one.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::server::{Process, Running};
use crate::experiment::row::{BesideRow, PowerReading, Row, StepKey};
use crate::experiment::words::Words;
use crate::experiment::{Beside, Load, PowerPlan};
use crate::power::{sampled, unix_s};

/// The time between two looks at the processes.
const NAP: Duration = Duration::from_millis(10);
/// A fill, and what a step may take beyond its own time, before it counts as hanging.
const HANG: Duration = Duration::from_secs(3_600);
/// How much longer than its step the load beside lasts; the generator of the step needs this time
/// to start. An idle machine needs 20 ms.
const LONGER_S: f64 = 0.1;

/// How a generator is started.
pub(super) struct Generator<'e> {
    pub(super) load: &'e Load,
    pub(super) power: &'e PowerPlan,
    /// The values of the swept options.
    pub(super) options: &'e BTreeMap<String, String>,
    /// The arguments that values of these options stand for.
    pub(super) words: &'e Words,
    pub(super) cores: Option<String>,
    /// A load beside each step, with its cores.
    pub(super) beside: Option<&'e Beside>,
    pub(super) beside_cores: Option<String>,
    /// The folder of the run.
    pub(super) folder: &'e Path,
}

/// Power of the idle machine, a value for each meter.
pub(super) type IdlePower = Vec<Option<f64>>;

/// The part of the generator's report that a row has.
#[derive(Debug, Deserialize)]
struct Report {
    result: Figures,
}

#[derive(Debug, Deserialize)]
struct Figures {
    requests: u64,
    requests_per_s: f64,
    /// Keys of gets.
    keys: u64,
    keys_per_s: f64,
    offered_per_s: Option<f64>,
    hit_ratio: Option<f64>,
    errors: Errors,
    server_cpu_us_per_request: Option<f64>,
    server_cpu_us_per_key: Option<f64>,
    cost: Cost,
    response: Times,
    /// New connections beside the load.
    connects: Option<Connects>,
    warnings: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Connects {
    failed: u64,
}

#[derive(Debug, Deserialize)]
struct Errors {
    total: u64,
}

#[derive(Debug, Deserialize)]
struct Cost {
    server_busy_cores: Option<f64>,
    generator_busy_cores: f64,
    /// Those of the server.
    cores: Vec<Core>,
}

/// Shares of the time.
#[derive(Debug, Deserialize)]
struct Core {
    user: f64,
    system: f64,
    steal: f64,
}

impl Cost {
    /// The time of the server's cores that others used. `None` if that of the server is unknown.
    fn others_busy_cores(&self) -> Option<f64> {
        let used: f64 = self.cores.iter().map(|core| core.user + core.system + core.steal).sum();
        Some((used - self.server_busy_cores?).max(0.0))
    }
}

#[derive(Debug, Deserialize)]
struct Times {
    mean_us: f64,
    p50_us: f64,
    p95_us: f64,
    p99_us: f64,
    p99_9_us: f64,
    max_us: f64,
    percentiles_us: Vec<(f64, f64)>,
}

impl Generator<'_> {
    /// Stores all keys in a server.
    pub(super) fn fill(&self, servers: &mut [Running], index: usize) -> Result<(), String> {
        let words = [&["--preload-only".to_owned()], &self.load.fill[..]].concat();
        self.execute(servers, index, &words, HANG)
    }

    /// Measures the power of the idle machine.
    pub(super) fn idle(&self) -> Result<IdlePower, String> {
        if self.power.meters.is_empty() {
            return Ok(Vec::new());
        }
        let idle = Duration::from_secs_f64(self.power.idle_s);
        let begin_s = unix_s();
        let ((), series) =
            sampled(&self.power.meters, self.interval(), || std::thread::sleep(idle))?;
        let end_s = unix_s();
        let watts = series.iter().map(|it| Some(it.energy.power(begin_s, end_s)?.watts));
        Ok(watts.collect())
    }

    /// Measures one step.
    pub(super) fn step(
        &self,
        servers: &mut [Running],
        key: &StepKey,
        rate: Option<f64>,
        idle_w: &IdlePower,
    ) -> Result<Row, String> {
        let index = servers.iter().position(|server| server.name == key.server);
        let index = index.expect("every server of the experiment runs");
        let path = self.folder.join("load.json");
        let mut words = timed(&path, self.load.warm_up_s, self.load.duration_s)?;
        words.extend(rate.iter().flat_map(|rate| ["--rate".to_owned(), rate.to_string()]));
        if let Some(pid) = servers[index].pid() {
            words.extend(["--server-pid".to_owned(), pid.to_string()]);
        }
        let limit = HANG + Duration::from_secs_f64(self.load.warm_up_s + self.load.duration_s);
        let measure = || -> Result<_, String> {
            let beside = self.beside.map(|it| BesideLoad::start(self, it, &servers[index]));
            let beside = beside.transpose()?;
            let begin_s = unix_s();
            self.execute(servers, index, &words, limit)?;
            Ok((beside, begin_s, unix_s()))
        };
        // The first samples may take seconds. Both loads start after them, so they overlap.
        let (done, series) = sampled(&self.power.meters, self.interval(), measure)?;
        let (beside, begin_s, end_s) = done?;
        let figures = read(&path)?;
        // The warm-up loads the server as the step does, but the start of the generator does not.
        let loaded_s = (begin_s + self.load.warm_up_s).min(end_s);
        let meters = self.power.meters.iter().zip(series).zip(idle_w);
        let power = meters.map(|((name, series), idle_w)| {
            let loaded = series.energy.power(loaded_s, end_s);
            PowerReading {
                meter: name.to_string(),
                is_estimate: name.is_estimate(),
                idle_w: *idle_w,
                loaded_w: loaded.map(|power| power.watts),
                covered: loaded.map_or(0.0, |power| power.covered),
                error: series.error,
            }
        });
        // Without cores of its own a server shares them with the generator.
        let has_own_cores = servers[index].has_own_cores;
        let row = row(key.clone(), rate, begin_s, figures, power.collect(), has_own_cores);
        match beside {
            Some(beside) => beside.end(servers, row),
            None => Ok(row),
        }
    }

    fn interval(&self) -> Duration {
        Duration::from_millis(self.power.every_ms)
    }

    /// Runs the generator on one of the servers to its end.
    ///
    /// Errors: it fails, or a server ends meanwhile.
    fn execute(
        &self,
        servers: &mut [Running],
        index: usize,
        words: &[String],
        limit: Duration,
    ) -> Result<(), String> {
        let arguments = self.filled(&self.load.arguments, &servers[index]);
        let words = [&arguments[..], words].concat();
        let process = self.start(words, &servers[index], self.cores.as_deref(), "load.log")?;
        wait(process, servers, limit)
    }

    /// The arguments with the values of the options and the ports of the server.
    fn filled(&self, arguments: &[String], server: &Running) -> Vec<String> {
        let values = self.options.iter().chain(&server.values);
        let values = values.map(|(name, value)| (name.clone(), value.clone())).collect();
        self.words.fill(arguments, &values)
    }

    /// Starts a generator. Its output is in the file `log` of the folder.
    ///
    /// Errors: it cannot be started.
    fn start(
        &self,
        words: Vec<String>,
        server: &Running,
        cores: Option<&str>,
        log: &str,
    ) -> Result<Process, String> {
        let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
        // The arguments of a case may name another port of the server.
        let address = ["--server".to_owned(), server.address.clone(), "-q".to_owned()];
        let mut all = vec![own.into_os_string(), "load".into()];
        all.extend(address.into_iter().chain(words).map(OsString::from));
        let log = self.folder.join(log);
        std::fs::write(&log, "").map_err(|error| format!("{}: {error}", log.display()))?;
        Process::start(&all, &BTreeMap::new(), cores, &log)
    }
}

/// The arguments of a measurement with its times, which writes its report to this file.
fn timed(path: &Path, warm_up_s: f64, duration_s: f64) -> Result<Vec<String>, String> {
    assert!(warm_up_s >= 0.0 && duration_s > 0.0, "the file was checked");
    let path = path.to_str().ok_or("--out: not UTF-8")?;
    let (warm_up_s, duration_s) = (warm_up_s.to_string(), duration_s.to_string());
    let words =
        ["--no-preload", "--json", path, "--warm-up-s", &warm_up_s, "--duration-s", &duration_s];
    Ok(words.map(str::to_owned).to_vec())
}

/// Waits until a generator ends.
///
/// Errors: it fails, or a server ends meanwhile.
fn wait(mut process: Process, servers: &mut [Running], limit: Duration) -> Result<(), String> {
    assert!(limit >= HANG, "a step never counts as hanging");
    let deadline = Instant::now() + limit;
    loop {
        servers.iter_mut().try_for_each(Running::check)?;
        match process.ended().map(|status| status.code()) {
            // With 1 some requests had errors. The row counts them, and no verdict rests on it.
            Some(Some(0 | 1)) => return Ok(()),
            Some(_) => return Err(format!("kachel-lab load failed; {}", process.last_words())),
            None if Instant::now() > deadline => {
                return Err("kachel-lab load does not end".to_owned());
            }
            None => std::thread::sleep(NAP),
        }
    }
}

/// Reads the generator's report, and removes it.
fn read(path: &Path) -> Result<Figures, String> {
    let named = |error: &dyn Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(&error))?;
    let report: Report = serde_json::from_str(&text).map_err(|error| named(&error))?;
    std::fs::remove_file(path).map_err(|error| named(&error))?;
    Ok(report.result)
}

fn row(
    key: StepKey,
    rate_per_s: Option<f64>,
    begin_unix_s: f64,
    figures: Figures,
    power: Vec<PowerReading>,
    has_own_cores: bool,
) -> Row {
    let Figures { response, cost, .. } = figures;
    let has_many_keys = figures.keys > figures.requests;
    let of_many = |value: Option<f64>| value.filter(|_| has_many_keys);
    Row {
        key,
        rate_per_s,
        begin_unix_s,
        requests: figures.requests,
        achieved_per_s: figures.requests_per_s,
        keys_per_s: of_many(Some(figures.keys_per_s)),
        errors: figures.errors.total + figures.connects.map_or(0, |connects| connects.failed),
        hit_ratio: figures.hit_ratio,
        mean_us: response.mean_us,
        p50_us: response.p50_us,
        p95_us: response.p95_us,
        p99_us: response.p99_us,
        p99_9_us: response.p99_9_us,
        max_us: response.max_us,
        percentiles_us: response.percentiles_us,
        server_cpu_us: figures.server_cpu_us_per_request,
        server_cpu_us_per_key: of_many(figures.server_cpu_us_per_key),
        server_busy_cores: cost.server_busy_cores,
        generator_busy_cores: cost.generator_busy_cores,
        others_busy_cores: if has_own_cores { cost.others_busy_cores() } else { None },
        power,
        beside: None,
        warnings: figures.warnings,
    }
}

impl From<Figures> for BesideRow {
    fn from(figures: Figures) -> Self {
        let Figures { response, .. } = figures;
        Self {
            rate_per_s: figures.offered_per_s,
            achieved_per_s: figures.requests_per_s,
            errors: figures.errors.total,
            mean_us: response.mean_us,
            p50_us: response.p50_us,
            p95_us: response.p95_us,
            p99_us: response.p99_us,
            warnings: figures.warnings,
        }
    }
}

/// A second generator, which loads the same server during a step.
///
/// ```text
/// beside  |- warm-up -|------- duration -------|- longer -|
/// step      |- warm-up -|------- duration -------|
/// ```
/// It starts first, so the step is never without it.
struct BesideLoad {
    process: Process,
    /// Its report.
    path: PathBuf,
    limit: Duration,
}

impl BesideLoad {
    /// Starts it.
    fn start(generator: &Generator<'_>, beside: &Beside, server: &Running) -> Result<Self, String> {
        let path = generator.folder.join("beside.json");
        let (warm_up_s, duration_s) = (generator.load.warm_up_s, generator.load.duration_s);
        let words = timed(&path, warm_up_s, duration_s + LONGER_S)?;
        let arguments = generator.filled(&beside.arguments, server);
        let cores = generator.beside_cores.as_deref();
        let process = generator.start([arguments, words].concat(), server, cores, "beside.log")?;
        let limit = HANG + Duration::from_secs_f64(warm_up_s + duration_s + LONGER_S);
        Ok(Self { process, path, limit })
    }

    /// Waits for its end, and adds its figures to the row of the step.
    ///
    /// Errors: it failed, or a server ended meanwhile.
    fn end(self, servers: &mut [Running], row: Row) -> Result<Row, String> {
        wait(self.process, servers, self.limit)?;
        Ok(with_beside(row, read(&self.path)?.into()))
    }
}

/// The row of a step with the load beside it. The processor time was divided by the requests of the
/// step only, but the server answered those of both loads. The time of a key is unknown, because
/// the load beside need not have the same keys a request.
fn with_beside(mut row: Row, beside: BesideRow) -> Row {
    let all = row.achieved_per_s + beside.achieved_per_s;
    let share = if all > 0.0 { row.achieved_per_s / all } else { 1.0 };
    assert!((0.0..=1.0).contains(&share), "a part of all requests");
    row.server_cpu_us = row.server_cpu_us.map(|of_own| of_own * share);
    row.server_cpu_us_per_key = None;
    row.beside = Some(beside);
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report of the generator, with these numbers of keys and of connections that failed.
    fn row_of(keys: u64, connects: &str) -> Row {
        let text = format!(
            r#"{{"requests": 10, "requests_per_s": 5.0, "keys": {keys}, "keys_per_s": 50.0,
            "hit_ratio": 1.0, "errors": {{"total": 2}}, "server_cpu_us_per_request": 8.0,
            "server_cpu_us_per_key": 0.5, "cost": {{"server_busy_cores": 0.5,
            "generator_busy_cores": 0.5, "cores": []}}, "response": {{"mean_us": 1.0,
            "p50_us": 1.0, "p95_us": 1.0, "p99_us": 1.0, "p99_9_us": 1.0, "max_us": 1.0,
            "percentiles_us": []}}, "connects": {connects}, "warnings": []}}"#
        );
        let figures = serde_json::from_str(&text).expect("a report");
        let key = crate::experiment::row::tests::row(1, "a", 0, 5.0, 1.0).key;
        row(key, None, 0.0, figures, Vec::new(), false)
    }

    #[test]
    fn a_row_has_figures_of_a_key_only_if_a_get_has_several() {
        let of = |row: &Row| (row.keys_per_s, row.server_cpu_us_per_key);
        assert_eq!(of(&row_of(10, "null")), (None, None));
        let many = row_of(100, "null");
        assert_eq!(of(&many), (Some(50.0), Some(0.5)));
        assert_eq!((many.achieved_per_s, many.server_cpu_us), (5.0, Some(8.0)));
    }

    #[test]
    fn a_connection_that_failed_is_an_error() {
        assert_eq!(row_of(10, "null").errors, 2);
        assert_eq!(row_of(10, r#"{"failed": 3, "rate_per_s": 9}"#).errors, 5);
    }

    #[test]
    fn processor_time_is_that_of_a_request_of_both_loads() {
        let mut own = crate::experiment::row::tests::row(1, "a", 0, 100.0, 10.0);
        (own.achieved_per_s, own.server_cpu_us) = (100.0, Some(8.0));
        (own.keys_per_s, own.server_cpu_us_per_key) = (Some(1_000.0), Some(0.8));
        let beside = BesideRow {
            rate_per_s: Some(310.0),
            achieved_per_s: 300.0,
            errors: 0,
            mean_us: 1.0,
            p50_us: 2.0,
            p95_us: 3.0,
            p99_us: 4.0,
            warnings: Vec::new(),
        };
        let row = with_beside(own, beside.clone());
        assert_eq!((row.server_cpu_us, row.beside), (Some(2.0), Some(beside)));
        assert_eq!(row.server_cpu_us_per_key, None, "the load beside has other keys");
    }

    /// The meter looks for the log of the load beside whenever it takes a sample. This program is
    /// no load generator, so the step itself fails.
    #[test]
    fn the_load_beside_starts_after_the_first_samples() {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let answer = std::thread::spawn(move || {
            use std::io::Write as _;
            listener.accept().expect("a client").0.write_all(b"VERSION 1\r\n").expect("sent");
        });
        let path = folder.path().display();
        let text = format!(
            "question = \"q\"\nbaseline = \"a\"\nrounds = 1\n[[server]]\nname = \"a\"\n\
             address = \"{address}\"\n[load]\nduration_s = 1\n[beside]\narguments = []\n[power]\n\
             meters = [\"command:ls {path} >>{path}/seen; echo end >>{path}/seen; echo 1\"]\n"
        );
        let experiment = crate::experiment::Experiment::parse(&text).expect("valid");
        let options = BTreeMap::new();
        let server = &experiment.servers[0];
        let log = folder.path().join("a.log");
        let running = Running::start(server, None, &options, None, &log).expect("it answers");
        answer.join().expect("answered");
        let generator = Generator {
            load: &experiment.load,
            power: &experiment.power,
            options: &options,
            words: &experiment.words,
            cores: None,
            beside: experiment.beside.as_ref(),
            beside_cores: None,
            folder: folder.path(),
        };
        let key = experiment.groups()[0].steps[0].clone();
        let error = generator.step(&mut [running], &key, None, &vec![None]).expect_err("no load");
        assert!(error.contains("kachel-lab load failed"), "{error}");
        assert!(folder.path().join("beside.log").exists(), "the load beside was started");
        let seen = std::fs::read_to_string(folder.path().join("seen")).expect("samples");
        let first = seen.split("end").next().expect("a sample");
        assert!(first.contains("seen") && !first.contains("beside"), "{seen}");
    }

    #[test]
    fn others_are_what_the_server_did_not_use() {
        let cost = |server_busy_cores: Option<f64>| {
            let core = || Core { user: 0.25, system: 0.25, steal: 0.125 };
            Cost { server_busy_cores, generator_busy_cores: 1.0, cores: vec![core(), core()] }
        };
        assert_eq!(cost(Some(1.0)).others_busy_cores(), Some(0.25));
        assert_eq!(cost(Some(1.5)).others_busy_cores(), Some(0.0), "interrupts are counted twice");
        assert_eq!(cost(None).others_busy_cores(), None);
    }
}
