//! The description of an experiment: the file `experiment.toml`.
//!
//! Upstream:   `experiments/NAME/experiment.toml`, or its copy beside the raw data.
//! Downstream: `plan` puts its steps in order; `run` executes them; `report` draws the results.
//!
//! BENCHMARKING.md documents every key. A key that is not known is an error, because a misspelled
//! one would change the experiment without a word.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use serde::{Deserialize, Deserializer};

pub(crate) mod capacity;
pub(crate) mod case;
pub(crate) mod drawing;
pub(crate) mod place;
pub(crate) mod plan;
pub(crate) mod row;
pub(crate) mod statistics;
pub(crate) mod verdict;
pub(crate) mod words;

use crate::power::MeterName;
use capacity::Promise;
use case::Case;
use drawing::{PublishedFigures, ReportPlan};
use words::Words;

/// The name of the file.
pub(crate) const FILE: &str = "experiment.toml";
/// The most steps of one experiment: hours. The order of the rest is computed anew after each step,
/// at a cost that grows with the square of their number.
const STEPS_MAX: usize = 5_000;

/// An experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Experiment {
    pub(crate) question: String,
    /// The server that the others are compared with.
    pub(crate) baseline: String,
    pub(crate) rounds: u32,
    /// The definitions of capacity that the report shows.
    #[serde(default)]
    pub(crate) capacity: Vec<Promise>,
    #[serde(default, rename = "prediction")]
    pub(crate) predictions: Vec<Prediction>,
    #[serde(rename = "server")]
    pub(crate) servers: Vec<Server>,
    pub(crate) load: Load,
    /// A load that runs beside the measured one.
    pub(crate) beside: Option<Beside>,
    #[serde(default)]
    pub(crate) steps: Steps,
    /// Loads that are measured one after the other.
    #[serde(default, rename = "case")]
    pub(crate) cases: Vec<Case>,
    /// Values of `{NAME}` in arguments; every combination is measured.
    #[serde(default)]
    pub(crate) sweep: BTreeMap<String, Vec<Setting>>,
    /// Values that change together; each is measured with every combination of `sweep`.
    #[serde(default, rename = "setting")]
    pub(crate) settings: Vec<BTreeMap<String, Setting>>,
    /// Whether no Kachel may pin its threads to cores.
    #[serde(default)]
    pub(crate) no_pins: bool,
    /// Arguments that values of swept options stand for.
    #[serde(default)]
    pub(crate) words: Words,
    #[serde(default)]
    pub(crate) power: PowerPlan,
    #[serde(default)]
    pub(crate) report: ReportPlan,
    #[serde(default)]
    pub(crate) published: Vec<PublishedFigures>,
    /// Whether the experiment was made shorter for a smoke run.
    #[serde(skip)]
    pub(crate) is_smoke: bool,
}

/// A claim that the results confirm or refute.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Prediction {
    pub(crate) claim: String,
    /// `capacity`, or a column of the raw data.
    pub(crate) figure: String,
    /// With `capacity`: its definition.
    pub(crate) promise: Option<Promise>,
    /// With a column: the step's rate.
    pub(crate) rate: Option<f64>,
    /// The case, in an experiment that has cases.
    pub(crate) case: Option<String>,
    pub(crate) server: String,
    /// The values of the swept options; those that are not named may have any value.
    #[serde(default)]
    pub(crate) options: BTreeMap<String, Setting>,
    /// Whether the limits are for the ratio to the baseline.
    #[serde(default)]
    pub(crate) ratio: bool,
    pub(crate) at_least: Option<f64>,
    pub(crate) at_most: Option<f64>,
}

/// A server that is started, or one that runs already.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Server {
    pub(crate) name: String,
    /// The program to start. One without a slash is also searched beside this program.
    pub(crate) program: Option<String>,
    /// A variable of the environment that replaces the program.
    pub(crate) variable: Option<String>,
    #[serde(default)]
    pub(crate) arguments: Vec<String>,
    #[serde(default)]
    pub(crate) environment: BTreeMap<String, String>,
    /// The cores to pin it to, as `taskset -c` takes them. It may have `{NAME}` of an option.
    pub(crate) cores: Option<String>,
    /// The address of a server that is not started.
    pub(crate) address: Option<String>,
    /// Whether the keys are stored in it before it is measured.
    #[serde(default = "yes")]
    pub(crate) fill: bool,
    /// The cases that it can serve; all of them if absent.
    pub(crate) cases: Option<Vec<String>>,
    /// Measured only if it is selected.
    #[serde(default)]
    pub(crate) optional: bool,
    /// Its color in all figures. `None`: it is the only server of the file, so colors are those of
    /// the values of options.
    #[serde(skip)]
    pub(crate) color: Option<usize>,
}

/// Servers that have the same colors in all reports. The others of a file get the colors behind
/// these, in the order of the file.
const COLORED: [&str; 2] = ["memcached", "kachel"];

/// The load generator.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Load {
    /// Arguments of `kachel load` in the fill and in each step.
    #[serde(default)]
    pub(crate) arguments: Vec<String>,
    /// More arguments of the fill.
    #[serde(default)]
    pub(crate) fill: Vec<String>,
    #[serde(default)]
    pub(crate) rest_s: f64,
    pub(crate) cores: Option<String>,
    pub(crate) duration_s: f64,
    #[serde(default = "one_second")]
    pub(crate) warm_up_s: f64,
}

/// A second generator, which loads the same server during each step.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Beside {
    /// All its arguments of `kachel load`, except the server and the times.
    pub(crate) arguments: Vec<String>,
    pub(crate) cores: Option<String>,
}

/// The offered rates. Without them the load is a closed loop.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Steps {
    #[serde(default)]
    rates: Vec<f64>,
    /// `FROM:TO:STEP`.
    scan: Option<String>,
}

/// The meters of power.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PowerPlan {
    #[serde(default, deserialize_with = "meters")]
    pub(crate) meters: Vec<MeterName>,
    /// Seconds of the idle machine, with the servers running, before each group of steps.
    #[serde(default = "five_seconds")]
    pub(crate) idle_s: f64,
    #[serde(default = "half_a_second_ms")]
    pub(crate) every_ms: u64,
}

impl Default for PowerPlan {
    fn default() -> Self {
        let (idle_s, every_ms) = (five_seconds(), half_a_second_ms());
        Self { meters: Vec::new(), idle_s, every_ms }
    }
}

/// A value of an option, as text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Setting(pub(crate) String);

impl<'de> Deserialize<'de> for Setting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a text or a whole number")]
        enum Value {
            Text(String),
            Number(i64),
        }
        Ok(Self(match Value::deserialize(deserializer)? {
            Value::Text(text) => text,
            Value::Number(number) => number.to_string(),
        }))
    }
}

fn meters<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<MeterName>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    names.iter().map(|name| MeterName::parse(name).map_err(serde::de::Error::custom)).collect()
}

fn yes() -> bool {
    true
}

fn one_second() -> f64 {
    1.0
}

fn five_seconds() -> f64 {
    5.0
}

fn half_a_second_ms() -> u64 {
    500
}

impl Experiment {
    /// Reads the file.
    ///
    /// Errors: it cannot be read, or is no experiment; the message names the file and the line.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let named = |error: &dyn Display| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| named(&error))?;
        Self::parse(&text).map_err(|error| named(&error))
    }

    /// Parses and checks the text of a file.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut experiment: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        experiment.check()?;
        experiment.color();
        experiment.report.check_used(&experiment)?;
        Ok(experiment)
    }

    /// The offered rates in order; a closed loop is one step without a rate.
    pub(crate) fn rates(&self) -> Result<Vec<Option<f64>>, String> {
        self.steps.rates()
    }

    /// Gives the servers their colors, before some are left out.
    fn color(&mut self) {
        let mut next = COLORED.len();
        let is_alone = self.servers.len() == 1;
        for server in self.servers.iter_mut().filter(|_| !is_alone) {
            let known = COLORED.iter().position(|name| *name == server.name);
            server.color = Some(known.unwrap_or(next));
            next += usize::from(known.is_none());
        }
    }

    fn check(&self) -> Result<(), String> {
        let named = |name: &str| self.servers.iter().filter(|server| server.name == name).count();
        for server in &self.servers {
            server.check(named(&server.name))?;
        }
        if named(&self.baseline) == 0 {
            return Err(format!("baseline: no server is named '{}'", self.baseline));
        }
        if self.rounds == 0 {
            return Err("rounds: at least 1".to_owned());
        }
        let load = &self.load;
        let is_time = |seconds: f64| (0.0..=86_400.0).contains(&seconds);
        if !is_time(load.duration_s) || load.duration_s == 0.0 || !is_time(load.warm_up_s) {
            return Err("load: duration_s and warm_up_s are up to a day".to_owned());
        }
        if !is_time(load.rest_s) || !is_time(self.power.idle_s) || self.power.every_ms < 10 {
            return Err("rest_s, idle_s and every_ms: too large or too small".to_owned());
        }
        self.check_options()?;
        self.check_cases()?;
        let mut count = 0;
        for name in self.case_names() {
            let case = self.of_case(name.as_deref());
            count += case.rates()?.len() * case.servers.len();
        }
        if count * self.combinations().len() * self.rounds as usize > STEPS_MAX {
            return Err(format!("more than {STEPS_MAX} steps"));
        }
        for prediction in &self.predictions {
            self.check_prediction(prediction)
                .map_err(|error| format!("prediction '{}': {error}", prediction.claim))?;
        }
        if !self.cases.is_empty() && !self.published.is_empty() {
            return Err("published: only in an experiment without cases".to_owned());
        }
        let rates = self.steps.rates()?;
        for published in &self.published {
            published
                .check(self, &rates)
                .map_err(|error| format!("published {}: {error}", published.figure))?;
        }
        self.words.check(self)?;
        self.report.check(self)
    }

    fn check_options(&self) -> Result<(), String> {
        if self.sweep.values().any(Vec::is_empty) {
            return Err("sweep: an option without a value".to_owned());
        }
        let is_other = |setting: &BTreeMap<String, Setting>| {
            !setting.keys().eq(self.settings[0].keys())
                || setting.keys().any(|name| self.sweep.contains_key(name))
        };
        if self.settings.iter().any(is_other) {
            return Err("setting: all have the same options, and none that is swept".to_owned());
        }
        let all = self.combinations();
        if (1..all.len()).any(|index| all[..index].contains(&all[index])) {
            return Err("sweep: two combinations are the same".to_owned());
        }
        Ok(())
    }

    fn check_prediction(&self, prediction: &Prediction) -> Result<(), String> {
        let case = prediction.case.as_ref();
        match case {
            None if !self.cases.is_empty() => return Err("needs a case".to_owned()),
            Some(case) if !self.cases.iter().any(|it| &it.name == case) => {
                return Err(format!("no case is named '{case}'"));
            }
            _ => {}
        }
        let of = self.of_case(case.map(String::as_str));
        prediction.check(&of, &of.rates()?)
    }
}

impl Server {
    /// Whether it can serve this case.
    pub(crate) fn serves(&self, case: &str) -> bool {
        self.cases.as_ref().is_none_or(|cases| cases.iter().any(|name| name == case))
    }

    /// `count`: the number of servers with this name.
    fn check(&self, count: usize) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("server '{}': {what}", self.name));
        let is_started = self.program.is_some() || self.variable.is_some();
        match is_started {
            _ if count != 1 => wrong("two servers have this name"),
            _ if self.name.is_empty() || self.name.contains(['/', '=', ',']) => {
                wrong("a name has letters, and no '/', '=' or ','")
            }
            true if self.address.is_some() => wrong("either a program or an address"),
            true if !self.arguments.iter().any(|word| word.contains("{port}")) => {
                wrong("no argument has {port}, the port that is chosen for it")
            }
            false if self.address.is_none() => wrong("needs a program or an address"),
            false
                if !self.arguments.is_empty()
                    || !self.environment.is_empty()
                    || self.cores.is_some() =>
            {
                wrong("a server that is not started has no arguments, environment or cores")
            }
            _ => Ok(()),
        }
    }
}

impl Steps {
    fn rates(&self) -> Result<Vec<Option<f64>>, String> {
        let rates = match &self.scan {
            Some(_) if !self.rates.is_empty() => return Err("steps: rates or scan".to_owned()),
            Some(scan) => {
                let scan: kachel_load::Scan =
                    scan.parse().map_err(|error| format!("steps: {error}"))?;
                scan.rates().collect()
            }
            None => self.rates.clone(),
        };
        let is_increasing = rates.windows(2).all(|pair| pair[0] < pair[1]);
        if !is_increasing || rates.iter().any(|rate| !(rate.is_finite() && *rate >= 1.0)) {
            return Err("steps: the rates are at least 1 and increase".to_owned());
        }
        if rates.is_empty() { Ok(vec![None]) } else { Ok(rates.into_iter().map(Some).collect()) }
    }
}

impl Prediction {
    fn check(&self, experiment: &Experiment, rates: &[Option<f64>]) -> Result<(), String> {
        if !experiment.servers.iter().any(|server| server.name == self.server) {
            return Err(format!("no server is named '{}'", self.server));
        }
        if self.ratio && self.server == experiment.baseline {
            return Err("the ratio of the baseline to itself".to_owned());
        }
        for (name, value) in &self.options {
            let has = |options: &BTreeMap<_, _>| options.get(name) == Some(&value.0);
            if !experiment.combinations().iter().any(has) {
                return Err(format!("the sweep has no {name} = '{}'", value.0));
            }
        }
        if self.at_least.is_none() && self.at_most.is_none() {
            return Err("needs at_least or at_most".to_owned());
        }
        drawing::check_figure(&self.figure, self.promise, self.rate, rates)
    }
}

#[cfg(test)]
mod tests;
