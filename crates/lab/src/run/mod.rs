//! `kachel-lab run`: executes an experiment that a file describes.
//!
//! Upstream:   the command line, and `experiments/NAME/experiment.toml`.
//! Downstream: the folder of the run, which `report` reads.
//!
//! ```text
//! experiment.toml -> groups of steps -> servers start and are filled -> steps -> steps.jsonl
//! ```
//! A row is on the disk before the next step begins, so a run that ends early goes on where it was.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A folder has the rows of one experiment, measured under the same conditions.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::{CommandFactory as _, Parser};
use kachel_host::{Cores, PinClaim};

mod arguments;
pub(crate) mod conditions;
mod certificate;
mod measure;
mod server;
mod summary;

pub(crate) use summary::NO_VERDICT;

use crate::experiment::case::Selection;
use crate::experiment::plan::Group;
use crate::experiment::row::{Journal, Row};
use crate::experiment::words::filled;
use crate::experiment::{Experiment, FILE, Server};
use conditions::{Conditions, ServerConditions};
use measure::Generator;
use server::Running;

/// The folder of the experiments.
const EXPERIMENTS: &str = "experiments";
/// The same folder of an installed laboratory, seen from the folder of its binary.
const INSTALLED: &str = "../share/kachel/experiments";
/// The lock file of `scripts/bench`, in the folder of temporary files.
const LOCK: &str = "kachel-bench.lock";
/// The folder of raw data.
const OUT: &str = "bench-out";
/// The most rates, and values of an option, of a smoke run.
const SMOKE_STEPS: usize = 2;
/// What a step takes beside its warm-up and its duration; a guess, for the first time left.
const EXTRA_S: f64 = 0.3;
/// Stands for the load beside among the names of servers, which have no '/'.
const BESIDE: &str = "/beside";

const HELP: &str = "\
NAME is a folder in `experiments`, or among those that are installed with the laboratory, or the path of a
folder that has an experiment.toml. BENCHMARKING.md documents this file and the raw data.

A run that was ended goes on where it was, if it is started again: finished steps are not repeated.

Examples:
  kachel-lab run capacity
  kachel-lab run capacity --program memcached=/opt/memcached/bin/memcached --out bench-out/new
  kachel-lab run speed --cases get-50,multiget-8x100 --rounds 3 --out bench-out/two-loads
  kachel-lab run capacity --smoke && kachel-lab report bench-out/capacity-smoke";

/// The options of `kachel-lab run`.
#[derive(Debug, Parser)]
#[command(
    name = "kachel-lab run",
    bin_name = "kachel-lab run",
    about = "Runs an experiment and writes its raw data.",
    after_help = HELP
)]
struct Options {
    /// The experiment.
    #[arg(value_name = "NAME")]
    name: PathBuf,
    /// A round of two short steps with few keys, which only shows that the experiment works.
    #[arg(long)]
    smoke: bool,
    #[command(flatten)]
    selection: Selection,
    /// The folder that gets the raw data; bench-out/NAME without this option.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The program of a server; may be repeated.
    #[arg(long = "program", value_name = "SERVER=PATH", value_parser = program)]
    programs: Vec<(String, PathBuf)>,
}

impl Options {
    /// The command line, without the folders in which programs are.
    fn words(&self) -> Vec<String> {
        let mut words = vec!["kachel-lab run".to_owned(), self.name.display().to_string()];
        words.extend(self.smoke.then(|| "--smoke".to_owned()));
        words.extend(self.selection.words());
        for (name, path) in &self.programs {
            // A program without a folder is searched.
            let folder = if path.components().count() > 1 { "/path/to/" } else { "" };
            let program = server::file_name(path);
            words.extend(["--program".to_owned(), format!("{name}={folder}{program}")]);
        }
        if let Some(out) = &self.out {
            words.extend(["--out".to_owned(), out.display().to_string()]);
        }
        words
    }
}

/// The command of the load generator, without what changes from step to step.
fn load_words(experiment: &Experiment, cores: Option<&str>) -> Vec<String> {
    let load = &experiment.load;
    let mut words: Vec<String> = Vec::new();
    if let Some(cores) = cores {
        words.extend(["taskset", "-c", cores].map(str::to_owned));
    }
    words.push("kachel-lab load".to_owned());
    words.extend(load.arguments.iter().cloned());
    words.extend(["--warm-up-s".to_owned(), load.warm_up_s.to_string()]);
    words.extend(["--duration-s".to_owned(), load.duration_s.to_string()]);
    words
}

fn program(text: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("not SERVER=PATH")?;
    Ok((name.to_owned(), path.into()))
}

/// Runs `kachel-lab run` with the arguments that follow it.
pub(crate) fn run(words: impl Iterator<Item = OsString>) -> ExitCode {
    crate::with_options(command_line(), words, |options: &Options| {
        let mut run = Run::prepare(options)?;
        run.execute()?;
        Ok(run.text())
    })
}

/// The options of `kachel-lab run`.
pub(crate) fn command_line() -> clap::Command {
    Options::command()
}

/// An experiment that is being executed.
struct Run {
    experiment: Experiment,
    folder: PathBuf,
    /// The programs of the servers that are started.
    programs: BTreeMap<String, PathBuf>,
    /// As the experiment says, or none in a smoke run on a machine that lacks them; also those of
    /// the load beside.
    cores: BTreeMap<String, String>,
    load_cores: Option<String>,
    conditions: Conditions,
    journal: Journal,
    /// Held while measuring, so that comparisons do not disturb each other.
    _alone: Option<File>,
    /// Held so that no Kachel pins its threads.
    _pins: Option<PinClaim>,
    /// Steps that this process measured, and the time that they took.
    done: usize,
    took: Duration,
}

/// The folder of an experiment: a path, or a name in the tree, or else one that was installed.
fn source(name: &Path) -> PathBuf {
    if name.components().count() != 1 {
        return name.to_owned();
    }
    let here = Path::new(EXPERIMENTS).join(name);
    let installed = || {
        let binary = std::env::current_exe().ok()?;
        Some(binary.parent()?.join(INSTALLED).join(name))
    };
    match installed().filter(|installed| !here.exists() && installed.exists()) {
        Some(installed) => installed,
        None => here,
    }
}

impl Run {
    /// Reads the experiment, finds its programs and cores, and opens the folder.
    ///
    /// Errors: the experiment is wrong, a program is missing, or the folder has the rows of another
    /// experiment.
    fn prepare(options: &Options) -> Result<Self, String> {
        let source = source(&options.name);
        let mut experiment = Experiment::read(&source.join(FILE))?;
        experiment.select(&options.selection)?;
        arguments::check(&experiment)?;
        if options.smoke {
            experiment.shrink();
        }
        let (cores, load_cores) = cores(&experiment, options.smoke)?;
        let programs = programs(&experiment, options)?;
        let name = options.name.file_name().unwrap_or(options.name.as_os_str()).to_owned();
        let folder = options.out.clone().unwrap_or_else(|| {
            let mut name = name;
            if options.smoke {
                name.push("-smoke");
            }
            Path::new(OUT).join(name)
        });
        let named = |error: std::io::Error| format!("{}: {error}", folder.display());
        std::fs::create_dir_all(&folder).map_err(named)?;
        let journal = Journal::open(&folder)?;
        keep_experiment(&source.join(FILE), &folder)?;
        if folder.join(conditions::FILE).exists() {
            Conditions::read(&folder)?.0.check_selection(&options.selection)?; // I1
        }
        certificate::make(&experiment, &folder)?;
        let alone = if options.smoke { None } else { Some(alone()?) };
        let pins = experiment.no_pins.then(claim_pins);
        let mut conditions = Conditions::look(options.smoke);
        if matches!(pins, Some(None)) {
            conditions.warnings.push("another Kachel has pinned its threads".to_owned());
        }
        conditions.selection = options.selection.clone();
        conditions.command = options.words();
        conditions.load = load_words(&experiment, load_cores.as_deref());
        conditions.beside = experiment.beside.as_ref().map(|it| it.arguments.clone());
        conditions.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
        let (done, took) = (0, Duration::ZERO);
        Ok(Self {
            experiment,
            folder,
            programs,
            cores,
            load_cores,
            conditions,
            journal,
            _alone: alone,
            _pins: pins.flatten(),
            done,
            took,
        })
    }

    /// Measures all steps that have no row yet.
    fn execute(&mut self) -> Result<(), String> {
        for group in self.experiment.groups() {
            let mut is_begun = None;
            for key in &group.steps {
                if self.experiment.is_over(key, &self.journal.rows) {
                    continue;
                }
                let began = Instant::now();
                let (servers, idle_w) = match &mut is_begun {
                    Some(begun) => begun,
                    begun => begun.insert(self.begin(&group)?),
                };
                let case = self.experiment.of_case(key.case.as_deref());
                let rate = self.experiment.rate_of(key);
                let row = self.generator(&case, &group).step(servers, key, rate, idle_w)?;
                self.journal.append(row)?;
                self.done += 1;
                self.took += began.elapsed();
                self.tell();
            }
        }
        Ok(())
    }

    /// Starts and fills the servers of a group, and checks the conditions.
    fn begin(&mut self, group: &Group) -> Result<(Vec<Running>, measure::IdlePower), String> {
        let mut servers = Vec::new();
        let of_group = |cores: &String| filled(cores, &group.options);
        let mut generators = vec![self.load_cores.as_ref().map(of_group)];
        generators
            .extend(self.experiment.beside.iter().map(|_| self.cores.get(BESIDE).map(of_group)));
        for server in &self.experiment.servers {
            let log = self.folder.join(format!("{}.log", server.name));
            let program = self.programs.get(&server.name).map(PathBuf::as_path);
            let cores = self.cores.get(&server.name);
            let cores = cores.map(of_group);
            let cores = cores.as_deref();
            let arguments = self.experiment.words.fill(&server.arguments, &group.options);
            let server = Server { arguments, ..server.clone() };
            let mut running = Running::start(&server, program, &group.options, cores, &log)?;
            running.has_own_cores = cores.is_some_and(|own| server::is_alone(own, &generators));
            servers.push(running);
        }
        let of = |server: &Running| {
            let program = self.programs.get(&server.name);
            Ok(ServerConditions {
                name: server.name.clone(),
                version: server.version.clone(),
                program_sha256: program.map(|path| conditions::sha256(path)).transpose()?,
                command: server.command.clone(),
                cores: self.cores.get(&server.name).cloned(),
            })
        };
        let found = servers.iter().map(of).collect::<Result<Vec<_>, String>>()?;
        let has_file = self.folder.join(conditions::FILE).exists();
        assert!(has_file || self.journal.rows.is_empty(), "I1: rows have conditions");
        self.conditions.keep(&self.folder, found)?; // I1
        let generator = self.generator(&self.experiment, group);
        for (index, server) in self.experiment.servers.iter().enumerate() {
            if server.fill {
                generator.fill(&mut servers, index)?;
            }
        }
        std::thread::sleep(Duration::from_secs_f64(self.experiment.load.rest_s));
        let idle_w = generator.idle()?;
        Ok((servers, idle_w))
    }

    /// The generators of a case.
    fn generator<'r>(&'r self, case: &'r Experiment, group: &'r Group) -> Generator<'r> {
        let Experiment { load, power, words, beside, .. } = case;
        let cores = |cores: &String| filled(cores, &group.options);
        Generator {
            load,
            power,
            options: &group.options,
            words,
            cores: self.load_cores.as_ref().map(cores),
            beside: beside.as_ref(),
            beside_cores: self.cores.get(BESIDE).map(cores),
            folder: &self.folder,
        }
    }

    /// Prints the newest row, and the time left.
    fn tell(&self) {
        let Some(row) = self.journal.rows.last() else { return };
        let left = self.steps_left();
        let all = self.journal.rows.len() + left;
        let rate = row.rate_per_s.map_or(String::new(), |rate| format!(" at {rate:.0}/s"));
        let load = &self.experiment.load;
        let nominal_s = load.warm_up_s + load.duration_s + EXTRA_S;
        let each_s = (self.took.as_secs_f64() + nominal_s) / (self.done + 1) as f64;
        eprintln!(
            "step {} of {all}: round {}, {}{rate}: {:.0}/s, mean {:.0} us, p95 {:.0} us{}; {} left",
            self.journal.rows.len(),
            row.key.round,
            name_of(row),
            row.achieved_per_s,
            row.mean_us,
            row.p95_us,
            if row.errors > 0 { format!(", {} errors", row.errors) } else { String::new() },
            time(each_s * left as f64),
        );
    }

    /// The steps that are not over; some of them may not be necessary.
    fn steps_left(&self) -> usize {
        let groups = self.experiment.groups();
        let steps = groups.iter().flat_map(|group| &group.steps);
        steps.filter(|key| !self.experiment.is_over(key, &self.journal.rows)).count()
    }

    /// The figures and the verdicts.
    fn text(&self) -> String {
        let mut text = summary::text(&self.experiment, &self.journal.rows);
        if self.conditions.is_smoke {
            text.push_str("This was a smoke run: its figures show nothing.\n");
        }
        text + &format!("kachel-lab report {}\n", self.folder.display())
    }
}

impl Experiment {
    /// Makes a smoke run of it: a round of at most two steps of each case, with few keys.
    fn shrink(&mut self) {
        (self.rounds, self.is_smoke) = (1, true);
        self.shorten_steps(SMOKE_STEPS);
        let few = ["--keys", "300"].map(str::to_owned);
        self.load.arguments.extend(few.clone());
        (self.load.duration_s, self.load.warm_up_s, self.load.rest_s) = (0.05, 0.02, 0.0);
        (self.power.idle_s, self.power.every_ms) = (self.power.idle_s.min(0.1), 50);
        if let Some(beside) = &mut self.beside {
            beside.arguments.extend(few);
        }
    }
}

/// Waits until no other comparison runs on this machine.
fn alone() -> Result<File, String> {
    let path = std::env::temp_dir().join(LOCK);
    let named = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = File::options().write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(named)?;
    if file.try_lock().is_err() {
        eprintln!("waiting for {}", path.display());
        file.lock().map_err(named)?;
    }
    Ok(file)
}

/// Takes the right to pin threads, so that no Kachel has it. `None`: another process has it.
fn claim_pins() -> Option<PinClaim> {
    // This process pins nothing, so its own cores do not matter.
    let any = Cores { allowed_count: 1, quota_millicores: None, contained: false };
    any.claim_pins(1).ok()
}

/// The cores of each server and of the load beside, and those of the generator.
///
/// Errors: this machine lacks some of them. A smoke run then goes on without.
fn cores(
    experiment: &Experiment,
    is_smoke: bool,
) -> Result<(BTreeMap<String, String>, Option<String>), String> {
    let may_pin = |cores: &String| {
        experiment.combinations().iter().all(|options| {
            let cores = filled(cores, options);
            let mut command = Command::new("taskset");
            command.args(["-c", &cores, "true"]).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        })
    };
    let wanted = experiment.servers.iter().map(|it| (it.name.clone(), it.cores.clone()));
    let mut found = BTreeMap::new();
    let beside = experiment.beside.as_ref().and_then(|beside| beside.cores.clone());
    let wanted = wanted.chain([(BESIDE.to_owned(), beside)]);
    for (name, cores) in wanted.chain([(String::new(), experiment.load.cores.clone())]) {
        match cores {
            Some(cores) if may_pin(&cores) => drop(found.insert(name, cores)),
            Some(cores) if is_smoke => eprintln!("without pins: no cores {cores} here"),
            Some(cores) => return Err(format!("cores {cores}: taskset cannot use them here")),
            None => {}
        }
    }
    let load = found.remove("");
    Ok((found, load))
}

/// The programs of the servers that are started.
///
/// Errors: one is missing.
fn programs(
    experiment: &Experiment,
    options: &Options,
) -> Result<BTreeMap<String, PathBuf>, String> {
    for (name, _) in &options.programs {
        if !experiment.servers.iter().any(|server| &server.name == name) {
            return Err(format!("--program: the experiment has no server '{name}'"));
        }
    }
    let mut found = BTreeMap::new();
    for server in experiment.servers.iter().filter(|server| server.address.is_none()) {
        let name = &server.name;
        let given = options.programs.iter().rev().find(|(known, _)| known == name);
        let variable = server.variable.as_ref();
        let wanted = given
            .map(|(_, path)| path.clone().into_os_string())
            .or_else(|| std::env::var_os(variable?).filter(|value| !value.is_empty()))
            .or_else(|| server.program.clone().map(OsString::from));
        let path = wanted.as_ref().and_then(|wanted| server::find_program(wanted));
        let Some(path) = path else {
            let wanted = wanted.unwrap_or_default();
            let variable = variable.map_or(String::new(), |it| format!("the variable {it} or "));
            return Err(format!(
                "server '{name}': there is no program '{}'; name it with {variable}--program \
                 {name}=PATH",
                wanted.display()
            ));
        };
        found.insert(name.clone(), path);
    }
    Ok(found)
}

/// Copies the experiment into the folder of its rows.
///
/// Errors: the folder has another experiment.
fn keep_experiment(source: &Path, folder: &Path) -> Result<(), String> {
    let copy = folder.join(FILE);
    let named = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(source).map_err(|error| named(source, error))?;
    match std::fs::read_to_string(&copy) {
        Ok(before) if before == text => Ok(()),
        Ok(_) => Err(format!(
            "{}: its steps are of another version of this experiment; choose another --out",
            folder.display()
        )),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            kachel_host::write_whole(&copy, &text).map_err(|error| named(&copy, error))
        }
        Err(error) => Err(named(&copy, error)),
    }
}

/// The case, and the server with the values of the swept options.
fn name_of(row: &Row) -> String {
    let options = row.key.options.iter().map(|(name, value)| format!(" {name}={value}"));
    let case = row.key.case.as_ref().map_or(String::new(), |case| format!("{case}, "));
    format!("{case}{}{}", row.key.server, options.collect::<String>())
}

/// A time for people.
fn time(seconds: f64) -> String {
    if seconds >= 90.0 { format!("{:.0} min", seconds / 60.0) } else { format!("{seconds:.0} s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_of_the_raw_data_has_no_path_of_a_program() {
        let words = "run capacity --program a=/opt/a/bin/memcached --program b=kachel --rounds 2";
        let options = Options::try_parse_from(words.split(' ')).expect("valid");
        let expected =
            "kachel-lab run capacity --rounds 2 --program a=/path/to/memcached --program b=kachel";
        assert_eq!(options.words().join(" "), expected);
    }
}
