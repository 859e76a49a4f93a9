//! The cases of an experiment: named loads that are measured on the same servers.
//!
//! Upstream:   `[[case]]` of `experiment.toml`.
//! Downstream: `plan` puts their steps in order; `verdict` and `report` read the rows of one case.
//!
//! A case is an experiment without cases: the load with more arguments, the rates of the case, and
//! the servers that serve it. So capacities, verdicts and figures need to know no case.
//! An experiment without `[[case]]` is one case that has no name.

use serde::{Deserialize, Serialize};

use super::row::{Row, StepKey};
use super::{Experiment, Steps};

/// A named load.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// More arguments of `kachel load`; they override those of `[load]`.
    #[serde(default)]
    pub(crate) arguments: Vec<String>,
    #[serde(default)]
    rates: Vec<f64>,
    scan: Option<String>,
    /// Measured only if it is selected.
    #[serde(default)]
    optional: bool,
}

/// The parts of an experiment that a run measures. An absent field stands for what the file says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
pub(crate) struct Selection {
    /// The cases to measure; all that are not optional without this option.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) cases: Option<Vec<String>>,
    /// The servers to measure, the baseline among them; all that are not optional without it.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) servers: Option<Vec<String>>,
    /// The number of rounds.
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<u32>,
    /// The seconds of each step after its warm-up.
    #[arg(long, value_name = "S")]
    pub(crate) duration_s: Option<f64>,
}

impl Case {
    fn steps(&self) -> Steps {
        Steps { rates: self.rates.clone(), scan: self.scan.clone() }
    }
}

impl Experiment {
    /// The names of the cases in their order; one without a name if the file has no cases.
    pub(crate) fn case_names(&self) -> Vec<Option<String>> {
        match &self.cases[..] {
            [] => vec![None],
            cases => cases.iter().map(|case| Some(case.name.clone())).collect(),
        }
    }

    /// A case as an experiment of its own.
    ///
    /// Panics: there is no such case.
    pub(crate) fn of_case(&self, name: Option<&str>) -> Self {
        let mut of = self.clone();
        let Some(name) = name else {
            assert!(self.cases.is_empty(), "every step of an experiment with cases names its case");
            return of;
        };
        let case = self.cases.iter().find(|case| case.name == name).expect("a case of the file");
        of.load.arguments.extend(case.arguments.iter().cloned());
        of.steps = case.steps();
        of.servers.retain(|server| server.serves(name));
        of.predictions.retain(|prediction| prediction.case.as_deref() == Some(name));
        of.cases.clear();
        of
    }

    /// A case with its rows.
    pub(crate) fn part(&self, name: Option<&str>, rows: &[Row]) -> (Self, Vec<Row>) {
        let rows = rows.iter().filter(|row| row.key.case.as_deref() == name);
        (self.of_case(name), rows.cloned().collect())
    }

    /// The offered rate of a step, `None` in a closed loop.
    ///
    /// Panics: the experiment has no such step.
    pub(crate) fn rate_of(&self, key: &StepKey) -> Option<f64> {
        let rates = self.of_case(key.case.as_deref()).rates().expect("they were checked");
        rates[key.step]
    }

    /// Leaves at most this number of rates in each case.
    pub(crate) fn shorten_steps(&mut self, rates_max: usize) {
        let shorten = |steps: &Steps| {
            let rates = steps.rates().expect("they were checked");
            rates.into_iter().flatten().take(rates_max).collect()
        };
        self.steps = Steps { rates: shorten(&self.steps), scan: None };
        for case in &mut self.cases {
            (case.rates, case.scan) = (shorten(&case.steps()), None);
        }
    }

    /// Errors: a case is wrong, or a server names one that does not exist.
    pub(super) fn check_cases(&self) -> Result<(), String> {
        let names: Vec<&str> = self.cases.iter().map(|case| &case.name[..]).collect();
        if !names.is_empty() && self.steps.rates()? != [None] {
            return Err("steps: each case has its own rates".to_owned());
        }
        for case in &self.cases {
            if case.name.is_empty() || case.name.contains(',') {
                return Err(format!("case '{}': a name has letters, and no ','", case.name));
            }
            if names.iter().filter(|name| **name == case.name).count() != 1 {
                return Err(format!("case '{}': two cases have this name", case.name));
            }
            case.steps().rates().map_err(|error| format!("case '{}': {error}", case.name))?;
        }
        for server in &self.servers {
            let Some(served) = &server.cases else { continue };
            if let Some(unknown) = served.iter().find(|name| !names.contains(&&name[..])) {
                return Err(format!("server '{}': no case is named '{unknown}'", server.name));
            }
            if server.name == self.baseline {
                return Err("the baseline serves all cases".to_owned());
            }
        }
        if self.servers.iter().any(|server| server.name == self.baseline && server.optional) {
            return Err("the baseline is not optional".to_owned());
        }
        if !names.is_empty() && self.cases.iter().all(|case| case.optional) {
            return Err("each case is optional".to_owned());
        }
        Ok(())
    }

    /// Leaves out what is not selected.
    ///
    /// Errors: a name is unknown, or the rest is no experiment.
    pub(crate) fn select(&mut self, selection: &Selection) -> Result<(), String> {
        let known: Vec<&String> = self.cases.iter().map(|case| &case.name).collect();
        let chosen = |option: &str, wanted: &Option<Vec<String>>, known: &[&String]| {
            let unknown = wanted.iter().flatten().find(|name| !known.contains(name));
            match unknown {
                Some(name) => Err(format!("{option}: the experiment has no '{name}'")),
                None => Ok(()),
            }
        };
        chosen("--cases", &selection.cases, &known)?;
        let known: Vec<&String> = self.servers.iter().map(|server| &server.name).collect();
        chosen("--servers", &selection.servers, &known)?;
        let is_chosen = |wanted: &Option<Vec<String>>, name: &String, is_optional: bool| {
            wanted.as_ref().map_or(!is_optional, |wanted| wanted.contains(name))
        };
        self.cases.retain(|case| is_chosen(&selection.cases, &case.name, case.optional));
        self.servers.retain(|it| is_chosen(&selection.servers, &it.name, it.optional));
        self.cases.iter_mut().for_each(|case| case.optional = false);
        let cases: Vec<String> = self.cases.iter().map(|case| case.name.clone()).collect();
        for server in &mut self.servers {
            server.optional = false;
            if let Some(served) = &mut server.cases {
                served.retain(|name| cases.contains(name));
            }
        }
        // A server that serves no case that is left has nothing to do.
        self.servers.retain(|it| it.cases.as_ref().is_none_or(|cases| !cases.is_empty()));
        self.rounds = selection.rounds.unwrap_or(self.rounds);
        self.load.duration_s = selection.duration_s.unwrap_or(self.load.duration_s);
        let has_server = |name: &String| self.servers.iter().any(|server| &server.name == name);
        if !has_server(&self.baseline) {
            return Err(format!("--servers: without the baseline, '{}'", self.baseline));
        }
        let is_there = |case: &Option<String>| case.as_ref().is_none_or(|it| cases.contains(it));
        self.predictions.retain(|it| is_there(&it.case) && has_server(&it.server));
        self.check()
    }
}

impl Selection {
    /// The options as a command line has them.
    pub(crate) fn words(&self) -> Vec<String> {
        let list = |names: &Option<Vec<String>>| names.as_ref().map(|names| names.join(","));
        let all = [
            ("--cases", list(&self.cases)),
            ("--servers", list(&self.servers)),
            ("--rounds", self.rounds.map(|it| it.to_string())),
            ("--duration-s", self.duration_s.map(|it| it.to_string())),
        ];
        let given = all.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?]));
        given.flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::row::tests::row;
    use super::super::verdict::Verdict;
    use super::*;

    const TEXT: &str = r#"
question = "Which?"
baseline = "a"
rounds = 2

[[server]]
name = "a"
address = "x"

[[server]]
name = "b"
address = "y"

[[server]]
name = "floor"
address = "z"
cases = ["gets", "open"]
optional = true

[load]
arguments = ["--keys", "1000"]
duration_s = 1

[[case]]
name = "gets"
arguments = ["-d", "4"]

[[case]]
name = "sets"

[[case]]
name = "open"
rates = [100, 200]
optional = true

[[prediction]]
claim = "b needs less for gets"
figure = "p50_us"
case = "gets"
server = "b"
ratio = true
at_most = 0.9
"#;

    fn experiment() -> Experiment {
        Experiment::parse(TEXT).expect("valid")
    }

    fn selected(cases: &[&str], servers: &[&str]) -> Result<Experiment, String> {
        let list = |names: &[&str]| {
            (!names.is_empty()).then(|| names.iter().map(|name| (*name).to_owned()).collect())
        };
        let selection =
            Selection { cases: list(cases), servers: list(servers), ..Selection::default() };
        let mut experiment = experiment();
        experiment.select(&selection).map(|()| experiment)
    }

    fn names(experiment: &Experiment) -> (Vec<&str>, Vec<&str>) {
        let cases = experiment.cases.iter().map(|case| &case.name[..]).collect();
        (cases, experiment.servers.iter().map(|server| &server.name[..]).collect())
    }

    #[test]
    fn wrong_cases_are_refused_by_name() {
        for (old, new, named) in [
            ("name = \"sets\"", "name = \"gets\"", "two cases have this name"),
            ("name = \"sets\"", "name = \"s,t\"", "case 's,t'"),
            ("rates = [100, 200]", "rates = [200, 100]", "case 'open': steps"),
            ("rates = [100, 200]", "rate = 100", "unknown field `rate`"),
            ("\"open\"]", "\"opens\"]", "no case is named 'opens'"),
            ("address = \"x\"", "address = \"x\"\ncases = [\"gets\"]", "serves all cases"),
            ("address = \"x\"", "address = \"x\"\noptional = true", "not optional"),
            ("[load]", "[steps]\nrates = [5]\n[load]", "each case has its own rates"),
            ("case = \"gets\"", "", "needs a case"),
            (
                "rates = [100, 200]\noptional = true",
                "[report]\ncolumns = [\"p95_us\"]",
                "several rates",
            ),
            ("case = \"gets\"", "case = \"get\"", "no case is named 'get'"),
            ("case = \"gets\"", "case = \"open\"", "its rate is not one of the steps"),
            ("case = \"gets\"\nserver = \"b\"", "case = \"sets\"\nserver = \"floor\"", "'floor'"),
        ] {
            assert!(TEXT.contains(old), "{old}");
            let error = Experiment::parse(&TEXT.replace(old, new)).expect_err(new);
            assert!(error.contains(named), "{new}: {error}");
        }
    }

    #[test]
    fn a_report_may_be_about_a_case_that_is_not_selected() {
        let text = format!("{TEXT}[report]\ncolumns = [\"p95_us\"]\n");
        let mut experiment = Experiment::parse(&text).expect("a case has two rates");
        experiment.select(&Selection::default()).expect("that case is optional");
        assert_eq!(experiment.report.columns, ["p95_us"]);
    }

    #[test]
    fn the_servers_of_each_case_take_turns() {
        let experiment = selected(&["gets", "sets", "open"], &["a", "b", "floor"]).expect("valid");
        let groups = experiment.groups();
        let order = |index: usize| -> Vec<String> {
            let name = |key: &StepKey| {
                format!("{}{} {}", key.case.as_deref().expect("a case"), key.step, key.server)
            };
            groups[index].steps.iter().map(name).collect()
        };
        let first = [
            "gets0 a",
            "gets0 b",
            "gets0 floor",
            "sets0 b",
            "sets0 a",
            "open0 floor",
            "open0 a",
            "open0 b",
            "open1 a",
            "open1 b",
            "open1 floor",
        ];
        assert_eq!(order(0), first);
        assert_eq!(order(1)[..5], ["gets0 b", "gets0 floor", "gets0 a", "sets0 a", "sets0 b"]);
        assert_eq!(groups.len(), 2, "the servers are filled once a round");
        // The same server has the same step in another case.
        let mut measured = row(1, "a", 0, 0.0, 10.0);
        measured.key = groups[0].steps[0].clone();
        let is_over = |key: &&StepKey| experiment.is_over(key, &[measured.clone()]);
        assert_eq!(groups[0].steps.iter().filter(is_over).count(), 1);
    }

    #[test]
    fn a_case_is_an_experiment_with_its_own_load() {
        let experiment = experiment();
        let gets = experiment.of_case(Some("gets"));
        assert_eq!(gets.load.arguments, ["--keys", "1000", "-d", "4"]);
        assert_eq!((gets.rates(), gets.predictions.len()), (Ok(vec![None]), 1));
        let open = experiment.of_case(Some("open"));
        assert_eq!(open.rates(), Ok(vec![Some(100.0), Some(200.0)]));
        assert_eq!((names(&open).1, open.predictions.len()), (vec!["a", "b", "floor"], 0));
        assert_eq!(names(&experiment.of_case(Some("sets"))).1, ["a", "b"]);
        let mut short = experiment;
        short.shorten_steps(1);
        assert_eq!(short.of_case(Some("open")).rates(), Ok(vec![Some(100.0)]));
    }

    #[test]
    fn optional_parts_are_measured_only_if_they_are_selected() {
        let all = selected(&[], &[]).expect("valid");
        assert_eq!(names(&all), (vec!["gets", "sets"], vec!["a", "b"]));
        let open = selected(&["open"], &["floor", "a"]).expect("valid");
        assert_eq!(names(&open), (vec!["open"], vec!["a", "floor"]));
        assert_eq!((all.predictions.len(), open.predictions.len()), (1, 0));
        // The server has no case left.
        let sets = selected(&["sets"], &["a", "floor"]).expect("valid");
        assert_eq!(names(&sets), (vec!["sets"], vec!["a"]));
        for (cases, servers, named) in [
            (&["get"][..], &[][..], "--cases: the experiment has no 'get'"),
            (&[], &["c"], "--servers: the experiment has no 'c'"),
            (&[], &["b"], "without the baseline, 'a'"),
        ] {
            let error = selected(cases, servers).expect_err(named);
            assert!(error.contains(named), "{error}");
        }
        let mut longer = experiment();
        let numbers = Selection { rounds: Some(7), duration_s: Some(2.5), ..Selection::default() };
        longer.select(&numbers).expect("valid");
        assert_eq!((longer.rounds, longer.load.duration_s), (7, 2.5));
        assert_eq!(numbers.words(), ["--rounds", "7", "--duration-s", "2.5"]);
        let none = Selection { rounds: Some(0), ..Selection::default() };
        assert!(experiment().select(&none).expect_err("no round").contains("rounds"));
    }

    #[test]
    fn a_verdict_is_about_the_rows_of_its_case() {
        let experiment = experiment();
        let cased = |round: u32, case: &str, server: &str, mean_us: f64| {
            let mut row = row(round, server, 0, 0.0, mean_us);
            (row.key.case, row.rate_per_s) = (Some(case.to_owned()), None);
            row
        };
        // Of the other case the ratio is 2.
        let of_round = |round: u32| {
            [
                cased(round, "sets", "a", 5.0),
                cased(round, "sets", "b", 10.0),
                cased(round, "gets", "a", 10.0),
                cased(round, "gets", "b", 5.0),
            ]
        };
        let rows = [of_round(1), of_round(2)].concat();
        let prediction = &experiment.predictions[0];
        let (verdict, summary) = experiment.judge(prediction, &rows);
        assert_eq!(verdict, Verdict::Confirmed, "{summary:?}");
        let unfinished = experiment.judge(prediction, &rows[..6]);
        assert_eq!(unfinished.0, Verdict::Undecided, "one round of two");
        assert_eq!(unfinished.1.map(|summary| summary.rounds), Some(1));
        assert_eq!(experiment.judge(prediction, &rows[..2]).0, Verdict::NoData);
        assert!(prediction.terms("a").starts_with("p50_us of b, gets"), "{prediction:?}");
    }

    #[test]
    fn settings_change_together_and_multiply_with_a_sweep() {
        let settings = "[[setting]]\nt = 1\ncores = \"0\"\n[[setting]]\nt = 2\ncores = \"0-1\"\n";
        let text = format!("{TEXT}{settings}[sweep]\nx = [3, 4]\n");
        let experiment = Experiment::parse(&text).expect("valid");
        let all = experiment.combinations();
        let one =
            |it: &BTreeMap<String, String>| format!("{} {} {}", it["t"], it["cores"], it["x"]);
        assert_eq!(
            all.iter().map(one).collect::<Vec<_>>(),
            ["1 0 3", "1 0 4", "2 0-1 3", "2 0-1 4"]
        );
        for (old, new, named) in [
            ("cores = \"0-1\"", "", "setting"),
            ("x = [3, 4]", "t = [3]", "setting"),
            ("t = 2\ncores = \"0-1\"", "t = 1\ncores = \"0\"", "two combinations"),
            ("x = [3, 4]", "x = [3, 3]", "two combinations"),
        ] {
            let error = Experiment::parse(&text.replace(old, new)).expect_err(new);
            assert!(error.contains(named), "{new}: {error}");
        }
    }

    #[test]
    fn every_experiment_of_the_repository_is_valid() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments");
        let folders = std::fs::read_dir(folder).expect("the experiments");
        let files = folders.map(|entry| entry.expect("an entry").path().join(super::super::FILE));
        let mut count = 0;
        for file in files.filter(|file| file.exists()) {
            let mut experiment = Experiment::read(&file).expect("valid");
            experiment.select(&Selection::default()).expect("valid without the optional parts");
            count += 1;
        }
        assert!(count >= 8, "{count} experiments");
    }
}
