//! The conditions of a run: the machine, the servers and the state of the tree.
//!
//! Upstream:   files of the kernel, and git.
//! Downstream: `conditions.json` beside the raw data, which `report` shows.
//!
//! They are captured once, before the first step. A run that goes on later must find the same
//! machine, programs and tree, so that its rows can stand beside the earlier ones. The programs are
//! compared before each group of steps, because a build may replace one during the hours of a run.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::experiment::case::Selection;
use crate::ticks::Ticks;

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

    /// Checks the servers of a group of steps, which were just started, against those of the rows
    /// before. Writes the file if there is none, or adds the warnings that it lacks.
    ///
    /// Errors: rows of these servers cannot stand beside the rows before. The file stays as it is.
    pub(super) fn keep(
        &mut self,
        folder: &Path,
        servers: Vec<ServerConditions>,
    ) -> Result<(), String> {
        if !self.servers.is_empty() {
            return self.check_builds(&servers);
        }
        self.servers = servers;
        if !folder.join(FILE).exists() {
            return self.write(folder);
        }
        let (mut before, _) = Self::read(folder)?;
        before.check_same(self)?;
        let mut new = self.warnings.clone();
        new.retain(|warning| !before.warnings.contains(warning));
        if new.is_empty() {
            return Ok(());
        }
        before.warnings.extend(new);
        before.write(folder)
    }

    /// Writes the file.
    fn write(&self, folder: &Path) -> Result<(), String> {
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
        let pairs = [
            ("processor", self.processor.clone(), now.processor.clone()),
            ("cores", number(self.cores), number(now.cores)),
            ("kernel", self.kernel.clone(), now.kernel.clone()),
            ("laboratory", self.laboratory.clone(), now.laboratory.clone()),
            ("commit", text(&self.commit), text(&now.commit)),
            ("--smoke", self.is_smoke.to_string(), now.is_smoke.to_string()),
        ];
        pairs.into_iter().try_for_each(|(what, before, now)| same(what, &before, &now))?;
        self.check_builds(&now.servers)
    }

    /// Errors: a server is another program than it was for the steps before.
    fn check_builds(&self, now: &[ServerConditions]) -> Result<(), String> {
        let build = |server: &ServerConditions| {
            let build = server.program_sha256.as_deref().unwrap_or("unknown");
            format!("version {}, build {build}", server.version)
        };
        now.iter().try_for_each(|server| {
            let before = self.servers.iter().find(|before| before.name == server.name);
            let before = before.map_or(String::new(), build);
            same(&format!("build of server '{}'", server.name), &before, &build(server))
        })
    }
}

/// Errors: a condition has changed.
fn same(what: &str, before: &str, now: &str) -> Result<(), String> {
    if before == now {
        return Ok(());
    }
    Err(format!(
        "the steps before were measured with another {what} ('{before}', now '{now}'); they are \
         kept; choose another --out"
    ))
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

/// The processor time of each core.
fn ticks() -> Vec<Ticks> {
    parse_ticks(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

fn parse_ticks(stat: &str) -> Vec<Ticks> {
    let of_core = |line: &str| {
        let (number, ticks) = line.strip_prefix("cpu")?.split_once(' ')?;
        number.parse::<usize>().ok()?;
        Ticks::parse(ticks)
    };
    stat.lines().filter_map(of_core).collect()
}

/// The busy share of each core between two readings.
fn shares(first: &[Ticks], last: &[Ticks]) -> Vec<f64> {
    first.iter().zip(last).map(|(first, last)| last.busy_share_since(*first)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_core_is_reported() {
        let first =
            parse_ticks("cpu  9 9 9 9\ncpu0 10 0 10 80 0 0 0 0 5\ncpu1 0 0 0 100 0 0 0 0\n");
        let last = parse_ticks("cpu0 20 5 15 140 10 0 0 10 9\ncpu1 1 0 0 199 0 0 0 0\nintr 5\n");
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
            assert!(before.check_same(&now).expect_err("changed").contains("build of server 'a'"));
        }
        now.servers = vec![server("1", "x")];
        assert_eq!(before.check_same(&now), Ok(()));
    }

    #[test]
    fn a_program_that_is_replaced_during_a_run_is_refused_and_new_warnings_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let servers = |build: &str| {
            vec![ServerConditions {
                name: "a".to_owned(),
                version: "1".to_owned(),
                program_sha256: Some(build.to_owned()),
                command: Vec::new(),
                cores: None,
            }]
        };
        let mut first = Conditions::look(true);
        first.warnings = vec!["busy".to_owned()];
        let mut later = first.clone();
        assert_eq!(first.keep(folder.path(), servers("x")), Ok(()));
        assert_eq!(first.keep(folder.path(), servers("x")), Ok(()), "the next group");
        let error = first.keep(folder.path(), servers("y")).expect_err("replaced");
        assert!(error.contains("build of server 'a' ('version 1, build x', now"), "{error}");
        let text = || fs::read_to_string(folder.path().join(FILE)).expect("written");
        let before = text();
        assert!(later.clone().keep(folder.path(), servers("y")).is_err(), "a run that goes on");
        assert_eq!(later.clone().keep(folder.path(), servers("x")), Ok(()));
        assert_eq!(text(), before, "no new warning");
        later.warnings.push("another core is busy".to_owned());
        assert_eq!(later.keep(folder.path(), servers("x")), Ok(()));
        let kept = Conditions::read(folder.path()).expect("written").0;
        assert_eq!(kept.warnings, ["busy", "another core is busy"]);
        assert_eq!(kept.servers, first.servers);
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
