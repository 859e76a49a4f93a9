//! The conditions of a run: the machine, the servers and the state of the tree.
//!
//! Upstream:   files of the kernel, and git.
//! Downstream: `conditions.json` beside the raw data, which `report` shows.
//!
//! They are captured once, before the first step. A run that goes on later must find the same
//! machine, programs and tree, so that its rows can stand beside the earlier ones.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::experiment::case::Selection;

/// The name of the file.
pub(crate) const FILE: &str = "conditions.json";
/// Cores that others use for more than this share of the time disturb a measurement.
const BUSY_MAX: f64 = 0.05;
/// How long the cores are watched before the first step.
const WATCHED: Duration = Duration::from_millis(500);

/// The conditions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Conditions {
    pub(crate) begin_unix_s: f64,
    /// The command that began the run.
    pub(crate) command: Vec<String>,
    /// A run of seconds, whose figures show nothing.
    pub(crate) is_smoke: bool,
    /// The part of the experiment that is measured.
    #[serde(default)]
    pub(crate) selection: Selection,
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) kernel: String,
    /// That of the first core; none if the kernel shows none.
    pub(crate) governor: Option<String>,
    /// The version of `kachel-lab`.
    pub(crate) laboratory: String,
    /// The commit of the working folder; `-dirty` if files differ from it.
    pub(crate) commit: Option<String>,
    pub(crate) load_average: f64,
    /// The share of each core that was busy just before the run.
    pub(crate) busy: Vec<f64>,
    pub(crate) warnings: Vec<String>,
    pub(crate) servers: Vec<ServerConditions>,
    /// Arguments of the load generator in each step, with the cores that it has.
    pub(crate) load: Vec<String>,
    /// Those of the load beside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) beside: Option<Vec<String>>,
}

/// A server of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ServerConditions {
    pub(crate) name: String,
    pub(crate) version: String,
    /// The SHA-256 hash of the program, which tells two builds of one version apart.
    pub(crate) program_sha256: Option<String>,
    /// With its port and the first values of the swept options.
    pub(crate) command: Vec<String>,
    pub(crate) cores: Option<String>,
}

impl Conditions {
    /// Looks at the machine, before a server is started. Takes half a second.
    pub(super) fn look(is_smoke: bool) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
        let processor = model.map_or("unknown", |rest| rest.trim_start_matches([' ', '\t', ':']));
        let read = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let average = read("/proc/loadavg").unwrap_or_default();
        let first = ticks();
        std::thread::sleep(if is_smoke { WATCHED / 10 } else { WATCHED });
        let busy = shares(&first, &ticks());
        Self {
            begin_unix_s: crate::power::unix_s(),
            command: Vec::new(),
            is_smoke,
            selection: Selection::default(),
            processor: processor.to_owned(),
            cores: busy.len(),
            memory_bytes: kachel_host::physical_memory_bytes(),
            kernel: read("/proc/sys/kernel/osrelease").unwrap_or_default(),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            laboratory: env!("CARGO_PKG_VERSION").to_owned(),
            commit: commit(),
            load_average: average.split(' ').next().and_then(|it| it.parse().ok()).unwrap_or(0.0),
            warnings: warnings(&busy),
            busy,
            servers: Vec::new(),
            load: Vec::new(),
            beside: None,
        }
    }

    /// Writes the file.
    pub(super) fn write(&self, folder: &Path) -> Result<(), String> {
        let json = serde_json::to_string_pretty(self).expect("plain data") + "\n";
        let path = folder.join(FILE);
        let written = kachel_host::write_whole(&path, &json);
        written.map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Reads the file of a folder. Returns its text, too.
    pub(crate) fn read(folder: &Path) -> Result<(Self, String), String> {
        let path = folder.join(FILE);
        let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = fs::read_to_string(&path).map_err(|error| named(&error))?;
        let conditions = serde_json::from_str(&text).map_err(|error| named(&error))?;
        Ok((conditions, text))
    }

    /// Errors: another part of the experiment was measured.
    pub(super) fn check_selection(&self, now: &Selection) -> Result<(), String> {
        let text = |selection: &Selection| match &selection.words()[..] {
            [] => "none".to_owned(),
            words => words.join(" "),
        };
        match &self.selection == now {
            true => Ok(()),
            false => Err(format!(
                "the steps before were measured with another selection ('{}', now '{}'); choose \
                 another --out",
                text(&self.selection),
                text(now)
            )),
        }
    }

    /// Errors: rows that are measured under `now` cannot stand beside those measured under `self`.
    pub(super) fn check_same(&self, now: &Self) -> Result<(), String> {
        let text = |commit: &Option<String>| commit.clone().unwrap_or("no commit".to_owned());
        let number = |value: usize| value.to_string();
        let mut pairs = vec![
            ("processor", self.processor.clone(), now.processor.clone()),
            ("cores", number(self.cores), number(now.cores)),
            ("kernel", self.kernel.clone(), now.kernel.clone()),
            ("laboratory", self.laboratory.clone(), now.laboratory.clone()),
            ("commit", text(&self.commit), text(&now.commit)),
            ("--smoke", self.is_smoke.to_string(), now.is_smoke.to_string()),
        ];
        for server in &now.servers {
            let before = self.servers.iter().find(|before| before.name == server.name);
            let build = |server: &ServerConditions| {
                let build = server.program_sha256.as_deref().unwrap_or("unknown");
                format!("version {}, build {build}", server.version)
            };
            let before = before.map_or(String::new(), build);
            pairs.push(("build of a server", before, build(server)));
        }
        match pairs.into_iter().find(|(_, before, now)| before != now) {
            None => Ok(()),
            Some((what, before, now)) => Err(format!(
                "the steps before were measured with another {what} ('{before}', now '{now}'); \
                 choose another --out"
            )),
        }
    }
}

/// Warns of cores that others use.
fn warnings(busy: &[f64]) -> Vec<String> {
    let used = busy.iter().enumerate().filter(|(_, share)| **share > BUSY_MAX);
    used.map(|(core, share)| {
        let percent = share * 100.0;
        format!("core {core} was {percent:.0} % busy with other programs before the run")
    })
    .collect()
}

/// The commit of the working folder.
fn commit() -> Option<String> {
    let words = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"];
    let answer = Command::new("git").args(words).output().ok()?;
    let commit = String::from_utf8(answer.stdout).ok()?.trim().to_owned();
    (answer.status.success() && !commit.is_empty()).then_some(commit)
}

/// The SHA-256 hash of a file, as `sha256sum` prints it.
///
/// Errors: the file cannot be read.
pub(super) fn sha256(path: &Path) -> Result<String, String> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The busy and all ticks of each core.
fn ticks() -> Vec<(u64, u64)> {
    parse_ticks(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

fn parse_ticks(stat: &str) -> Vec<(u64, u64)> {
    let of_core = |line: &str| {
        let mut words = line.split_whitespace();
        let number = words.next()?.strip_prefix("cpu")?;
        number.parse::<usize>().ok()?;
        // user, nice, system, idle, waiting for disks, irq, softirq, steal; then guests, which are
        // in user.
        let ticks: Vec<u64> = words.take(8).filter_map(|word| word.parse().ok()).collect();
        let all: u64 = ticks.iter().sum();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        Some((all - idle, all))
    };
    stat.lines().filter_map(of_core).collect()
}

/// The busy share of each core between two readings.
fn shares(first: &[(u64, u64)], last: &[(u64, u64)]) -> Vec<f64> {
    let share = |(first, last): (&(u64, u64), &(u64, u64))| {
        let (busy, all) = (last.0.saturating_sub(first.0), last.1.saturating_sub(first.1));
        if all == 0 { 0.0 } else { busy as f64 / all as f64 }
    };
    first.iter().zip(last).map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_core_is_reported() {
        let first =
            parse_ticks("cpu  9 9 9 9\ncpu0 10 0 10 80 0 0 0 0 5\ncpu1 0 0 0 100 0 0 0 0\n");
        let last = parse_ticks("cpu0 20 5 15 140 10 0 0 10 9\ncpu1 1 0 0 199 0 0 0 0\nintr 5\n");
        assert_eq!(first, [(20, 100), (0, 100)]);
        let busy = shares(&first, &last);
        assert_eq!(busy, [0.3, 0.01]);
        assert_eq!(warnings(&busy), ["core 0 was 30 % busy with other programs before the run"]);
    }

    #[test]
    fn rows_of_other_conditions_are_refused() {
        let before = Conditions::look(true);
        let mut now = before.clone();
        now.load_average += 1.0;
        assert_eq!(before.check_same(&now), Ok(()));
        now.kernel += "x";
        assert!(before.check_same(&now).expect_err("changed").contains("kernel"));
        let mut selection = before.selection.clone();
        assert_eq!(before.check_selection(&selection), Ok(()));
        selection.rounds = Some(2);
        let error = before.check_selection(&selection).expect_err("changed");
        assert!(error.contains("another selection ('none', now '--rounds 2')"), "{error}");
        now = before.clone();
        let server = |version: &str, build: &str| ServerConditions {
            name: "a".to_owned(),
            version: version.to_owned(),
            program_sha256: Some(build.to_owned()),
            command: vec![build.to_owned()],
            cores: None,
        };
        let mut before = before;
        before.servers = vec![server("1", "x")];
        for other in [server("2", "x"), server("1", "y")] {
            now.servers = vec![other];
            assert!(before.check_same(&now).expect_err("changed").contains("build of a server"));
        }
        now.servers = vec![server("1", "x")];
        assert_eq!(before.check_same(&now), Ok(()));
    }

    /// The first example of FIPS 180-2.
    #[test]
    fn programs_have_a_hash() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(&file, "abc").expect("written");
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(file.path()).as_deref(), Ok(hash));
        assert!(sha256(Path::new("/no/such")).expect_err("missing").contains("/no/such"));
    }
}
