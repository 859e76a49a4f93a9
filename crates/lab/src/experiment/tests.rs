use std::collections::BTreeMap;

use super::capacity::Capacity;
use super::row::tests::row;
use super::row::{BesideRow, Row, StepKey};
use super::verdict::Verdict;
use super::*;

const TEXT: &str = r#"
question = "Which one is faster?"
baseline = "a"
rounds = 3
capacity = ["mean:1ms", "p95:10ms"]

[[server]]
name = "a"
program = "one"
arguments = ["-p", "{port}"]

[[server]]
name = "b"
address = "127.0.0.1:11211"

[load]
duration_s = 1

[steps]
rates = [100, 200, 300]

[[prediction]]
claim = "b is faster"
figure = "capacity"
promise = "mean:1ms"
server = "b"
ratio = true
at_least = 1.5
"#;

fn experiment() -> Experiment {
    Experiment::parse(TEXT).expect("valid")
}

/// A table of one published figure, and the line that follows.
fn published(figure: &str, more: &str, value: &str) -> String {
    format!(
        "[[published]]\nfigure = \"{figure}\"\nsource = \"a paper\"\n{more}\n\
         [published.values]\ns = {value}\n[steps]"
    )
}

#[test]
fn a_wrong_file_is_refused_with_its_line_or_key() {
    for (old, new, named) in [
        ("rounds = 3", "rounds = 3\nround = 4", "line 5"),
        ("rounds = 3", "rounds = 3\nround = 4", "unknown field `round`"),
        ("duration_s = 1", "duration_s = 1\ncore = 1", "unknown field `core`"),
        ("rounds = 3", "rounds = 0", "rounds"),
        ("rounds = 3", "rounds = 1000", "more than 5000 steps"),
        ("baseline = \"a\"", "baseline = \"c\"", "baseline"),
        ("p95:10ms", "p96:10ms", "p96"),
        ("p95:10ms", "p95", "p95"),
        ("name = \"b\"", "name = \"a\"", "two servers"),
        ("{port}", "11211", "{port}"),
        ("address = \"127.0.0.1:11211\"", "", "a program or an address"),
        ("address", "program = \"x\"\naddress", "either"),
        ("[100, 200, 300]", "[100, 50]", "steps"),
        ("rates = [100, 200, 300]", "scan = \"1:2\"", "steps"),
        ("duration_s = 1", "duration_s = 0", "duration_s"),
        ("[steps]", "[sweep]\nx = []\n[steps]", "sweep"),
        ("[steps]", "[power]\nmeters = [\"watts\"]\n[steps]", "powercap"),
        ("at_least = 1.5", "", "at_least"),
        ("server = \"b\"", "server = \"c\"", "'c'"),
        ("server = \"b\"", "server = \"a\"", "to itself"),
        ("promise = \"mean:1ms\"", "", "promise"),
        ("figure = \"capacity\"", "figure = \"speed\"", "only a capacity"),
        ("figure = \"capacity\"\npromise = \"mean:1ms\"", "figure = \"speed\"", "'speed'"),
        ("figure = \"capacity\"\npromise = \"mean:1ms\"", "figure = \"p99_us\"\nrate = 5", "rate"),
        ("ratio = true", "options = { x = 1 }", "x = '1'"),
        ("[\"-p\", \"{port}\"]", "[\"-p\", \"{port}\", \"{x}\"]", "no x for {x}"),
        ("duration_s = 1", "duration_s = 1\narguments = [\"{key}\"]", "{key}"),
        ("[steps]", "[beside]\narguments = [\"-c{x}\"]\n[steps]", "no x for {x}"),
        ("[steps]", "[beside]\n[steps]", "arguments"),
        ("[steps]", "[words]\nx.y = []\n[steps]", "words: the sweep has no x"),
        ("[steps]", "[words]\nx.y = []\n[sweep]\nx = [\"z\"]\n[steps]", "no list for 'z'"),
        ("[steps]", "[words.x]\ny = []\nz = []\n[sweep]\nx = [\"z\"]\n[steps]", "has no 'y'"),
        ("[steps]", "[report]\nx = \"y\"\n[steps]", "report: the sweep has no y"),
        ("[steps]", "[report]\nx = \"y\"\npanels = [\"y\"]\n[sweep]\ny = [1]\n[steps]", "twice"),
        ("[steps]", "[report]\ncolumns = [\"speed\"]\n[steps]", "report: 'speed'"),
        ("[steps]", "[report]\nx_label = \"y\"\n[steps]", "report: x_label without x"),
        ("{port}\"]", "{port}\"]\nenvironment = { A = \"b{x}\" }", "no x for {x}"),
        ("{port}\"]", "{port}\"]\nenvironment = { A = \"{key}\" }", "no key for {key}"),
        ("{port}\"]", "{port}\"]\ncores = \"{x}\"", "no x for {x}"),
        ("duration_s = 1", "duration_s = 1\ncores = \"{port}\"", "no port for {port}"),
        ("address", "environment = { A = \"b\" }\naddress", "no arguments, environment or cores"),
        ("promise = \"mean:1ms\"", "promise = \"mean:1ms\"\nrate = 100", "a capacity has no rate"),
        ("[steps]", &published("capacity", "", "1"), "needs a promise"),
        ("[steps]", &published("capacity", "promise = \"p50:1ms\"", "1"), "definitions"),
        ("[steps]", &published("watts", "rate = 5", "1"), "not one of the steps"),
        ("[steps]", &published("watts", "rate = 100", "0"), "'s': a value"),
        ("[steps]", &published("watts", "rate = 100", "[2, 1]"), "'s': a value"),
        ("[steps]", &published("watts", "rate = 100", "\"1\""), "a number or a list of two"),
    ] {
        assert!(TEXT.contains(old), "{old}");
        let error = Experiment::parse(&TEXT.replace(old, new)).expect_err(new);
        assert!(error.contains(named), "{new}: {error}");
    }
}

#[test]
fn servers_take_turns_and_each_is_first_equally_often() {
    let text = TEXT.replace("[100, 200, 300]", "[100, 200]");
    let groups = Experiment::parse(&text).expect("valid").groups();
    let order = |group: &plan::Group| -> Vec<String> {
        group.steps.iter().map(|key| format!("{}{}", key.server, key.step)).collect()
    };
    assert_eq!(groups.len(), 3);
    assert_eq!(order(&groups[0]), ["a0", "b0", "b1", "a1"]);
    assert_eq!(order(&groups[1]), ["b0", "a0", "a1", "b1"]);
    assert_eq!((groups[2].round, order(&groups[2])), (3, order(&groups[0])));
}

#[test]
fn a_sweep_of_options_has_every_combination() {
    let text = TEXT.replace("[steps]", "[sweep]\nx = [1, \"two\"]\ny = [3, 4]\n[steps]");
    let text = text.replace("[100, 200, 300]", "[100]");
    let experiment = Experiment::parse(&text).expect("valid");
    let all = experiment.combinations();
    let pairs: Vec<(&str, &str)> = all.iter().map(|it| (&it["x"][..], &it["y"][..])).collect();
    assert_eq!(pairs, [("1", "3"), ("1", "4"), ("two", "3"), ("two", "4")]);
    assert_eq!(experiment.groups().len(), 12);
    let smoke = Experiment { is_smoke: true, ..experiment.clone() };
    assert_eq!(smoke.combinations(), [all[0].clone(), all[3].clone()]);
    assert_eq!(experiment.subjects()[3].name(), "a, x = two, y = 4");
}

#[test]
fn a_finished_step_is_over_and_an_overloaded_server_is_left_alone() {
    let experiment = experiment();
    let key = |round: u32, server: &str, step: usize| {
        let server = server.to_owned();
        StepKey { round, options: BTreeMap::new(), case: None, server, step }
    };
    let mut rows = vec![row(1, "a", 0, 100.0, 10.0), row(1, "a", 1, 200.0, 20_000.0)];
    assert!(
        experiment.is_over(&key(1, "a", 0), &rows) && experiment.is_over(&key(1, "a", 1), &rows)
    );
    for open in [key(1, "a", 2), key(1, "b", 0), key(2, "a", 0)] {
        assert!(!experiment.is_over(&open, &rows), "{open:?}");
    }
    rows.push(row(1, "a", 2, 300.0, 20_000.0));
    assert!(experiment.is_over(&key(1, "a", 3), &rows), "two steps broke both promises");
    assert!(
        !experiment.is_over(&key(1, "b", 3), &rows) && !experiment.is_over(&key(2, "a", 3), &rows)
    );
    // The mean breaks its promise; the 95th percentile, 4 ms, keeps its own.
    rows[2] = row(1, "a", 2, 300.0, 2_000.0);
    assert!(!experiment.is_over(&key(1, "a", 3), &rows));
}

/// Rows of three rounds: `a` keeps the mean up to 100/s, and `b` up to the rate of each round.
fn rows(of_b: [f64; 3]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (round, last) in (1..).zip(of_b) {
        for (step, rate) in [100.0, 200.0, 300.0].into_iter().enumerate() {
            let mean_us = |last: f64| if rate <= last { 10.0 } else { 5_000.0 };
            rows.push(row(round, "a", step, rate, mean_us(100.0)));
            rows.push(row(round, "b", step, rate, mean_us(last)));
        }
    }
    rows
}

fn verdict(change: (&str, &str), of_b: [f64; 3]) -> (Verdict, Option<f64>) {
    let experiment = Experiment::parse(&TEXT.replace(change.0, change.1)).expect("valid");
    let (verdict, summary) = experiment.judge(&experiment.predictions[0], &rows(of_b));
    (verdict, summary.map(|summary| summary.median))
}

#[test]
fn a_verdict_needs_the_whole_interval() {
    let same = ("", "");
    assert_eq!(verdict(same, [200.0, 200.0, 200.0]), (Verdict::Confirmed, Some(2.0)));
    assert_eq!(verdict(same, [100.0, 100.0, 100.0]), (Verdict::Refuted, Some(1.0)));
    assert_eq!(verdict(same, [200.0, 100.0, 200.0]), (Verdict::Undecided, Some(2.0)));
    // The sweep ended before the capacity of `b`.
    assert_eq!(verdict(same, [200.0, 300.0, 200.0]), (Verdict::Undecided, Some(2.0)));
    let most = ("at_least = 1.5", "at_most = 1.5");
    assert_eq!(verdict(most, [200.0, 200.0, 200.0]), (Verdict::Refuted, Some(2.0)));
    let absolute = ("ratio = true\nat_least = 1.5", "at_least = 150\nat_most = 250");
    assert_eq!(verdict(absolute, [200.0, 200.0, 200.0]), (Verdict::Confirmed, Some(200.0)));
    let column = "figure = \"p95_us\"\nrate = 200";
    let column = ("figure = \"capacity\"\npromise = \"mean:1ms\"", column);
    assert_eq!(verdict(column, [100.0, 100.0, 100.0]), (Verdict::Refuted, Some(1.0)));
    let watts = ("figure = \"capacity\"\npromise = \"mean:1ms\"", "figure = \"watts\"\nrate = 200");
    assert_eq!(verdict(watts, [100.0, 100.0, 100.0]), (Verdict::NoData, None));
}

/// The verdict on a prediction about the column `p95_us` at 200/s, after a change of the rows.
fn column_verdict(terms: &str, change: impl FnOnce(&mut Vec<Row>)) -> Verdict {
    let text = TEXT.replace(
        "figure = \"capacity\"\npromise = \"mean:1ms\"",
        "figure = \"p95_us\"\nrate = 200",
    );
    let text = text.replace("ratio = true\nat_least = 1.5", terms);
    let experiment = Experiment::parse(&text).expect("valid");
    let mut rows = rows([300.0; 3]);
    change(&mut rows);
    experiment.judge(&experiment.predictions[0], &rows).0
}

/// The step of a server at 200/s in a round.
fn step_of<'r>(rows: &'r mut [Row], round: u32, server: &str) -> &'r mut Row {
    let is_it =
        |row: &&mut Row| (row.key.round, &row.key.server[..], row.key.step) == (round, server, 1);
    rows.iter_mut().find(is_it).expect("the step is there")
}

#[test]
fn a_step_with_errors_decides_nothing() {
    let own = "at_most = 100";
    let ratio = "ratio = true\nat_most = 0.5";
    for terms in [own, ratio] {
        assert_eq!(column_verdict(terms, |_| ()), Verdict::Confirmed, "{terms}");
        let errors = |rows: &mut Vec<Row>| step_of(rows, 2, "b").errors = 1;
        assert_eq!(column_verdict(terms, errors), Verdict::Undecided, "{terms}");
        let beside = |rows: &mut Vec<Row>| {
            step_of(rows, 3, "b").beside = Some(BesideRow {
                rate_per_s: None,
                achieved_per_s: 7.0,
                errors: 1,
                mean_us: 1.0,
                p50_us: 1.0,
                p95_us: 1.0,
                p99_us: 1.0,
                warnings: Vec::new(),
            });
        };
        assert_eq!(column_verdict(terms, beside), Verdict::Undecided, "{terms}");
    }
    let of_baseline = |rows: &mut Vec<Row>| step_of(rows, 1, "a").errors = 1;
    assert_eq!(column_verdict(ratio, of_baseline), Verdict::Undecided);
    assert_eq!(column_verdict(own, of_baseline), Verdict::Confirmed, "the baseline is not used");
    let at_another_rate = |rows: &mut Vec<Row>| {
        step_of(rows, 1, "b").key.step = 2;
        rows.iter_mut().filter(|row| row.rate_per_s != Some(200.0)).for_each(|row| row.errors = 1);
    };
    assert_eq!(column_verdict(own, at_another_rate), Verdict::Confirmed);
}

#[test]
fn a_round_without_a_figure_decides_nothing() {
    let without = |round: u32, server: &'static str| {
        move |rows: &mut Vec<Row>| {
            rows.retain(|row| (row.key.round, &row.key.server[..]) != (round, server));
        }
    };
    for terms in ["at_most = 100", "at_least = 100", "ratio = true\nat_most = 0.5"] {
        assert_eq!(column_verdict(terms, without(3, "b")), Verdict::Undecided, "{terms}");
    }
    let of_baseline = column_verdict("ratio = true\nat_most = 0.5", without(3, "a"));
    assert_eq!(of_baseline, Verdict::Undecided);
    let experiment = experiment();
    let mut rows = rows([200.0; 3]);
    assert_eq!(experiment.judge(&experiment.predictions[0], &rows).0, Verdict::Confirmed);
    without(1, "b")(&mut rows);
    assert_eq!(experiment.judge(&experiment.predictions[0], &rows).0, Verdict::Undecided);
}

#[test]
fn a_combination_without_data_is_not_hidden_by_another_one() {
    let text = TEXT.replace("[steps]", "[sweep]\nx = [1, 2]\n[steps]");
    let experiment = Experiment::parse(&text).expect("valid");
    let with = |value: &str| {
        let mut rows = rows([200.0; 3]);
        for row in &mut rows {
            row.key.options = BTreeMap::from([("x".to_owned(), value.to_owned())]);
        }
        rows
    };
    let judged = |rows: &[Row]| experiment.judge(&experiment.predictions[0], rows).0;
    assert_eq!(judged(&[with("1"), with("2")].concat()), Verdict::Confirmed);
    for only in ["1", "2"] {
        assert_eq!(judged(&with(only)), Verdict::NoData, "only x = {only} was measured");
    }
}

#[test]
fn ratios_are_of_the_same_round() {
    let figures = BTreeMap::from([(1, 10.0), (2, 40.0), (3, 5.0)]);
    let baseline = BTreeMap::from([(1, 5.0), (2, 10.0), (4, 1.0)]);
    let expected = BTreeMap::from([(1, 2.0), (2, 4.0)]);
    assert_eq!(verdict::ratios(&figures, &baseline), expected);
    let experiment = experiment();
    let subject = &experiment.subjects()[1];
    let capacities =
        experiment.capacities(&rows([100.0, 200.0, 300.0]), subject, experiment.capacity[0]);
    let expected = [Capacity::Rate(100.0), Capacity::Rate(200.0), Capacity::AtLeast(300.0)];
    assert_eq!(capacities.into_values().collect::<Vec<_>>(), expected);
}
