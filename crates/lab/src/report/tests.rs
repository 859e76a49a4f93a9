use std::collections::BTreeMap;

use super::figure::{Drawing, Figure};
use super::figures::figures;
use crate::chart::Scale;
use crate::experiment::Experiment;
use crate::experiment::row::tests::row;
use crate::experiment::row::{BesideRow, PowerReading, Row};

const TEXT: &str = r#"
question = "q"
baseline = "a"
rounds = 1
capacity = ["mean:1ms"]
[[server]]
name = "a"
address = "x"
[[server]]
name = "b"
address = "x"
[load]
duration_s = 1
[steps]
rates = [100, 200]
[sweep]
bytes = [8, 64, 1200]
way = ["TCP", "UDP"]
"#;

/// A row of each step. The mean is that of the server, the place of the size, and the way.
fn rows(experiment: &Experiment) -> Vec<Row> {
    let rates = experiment.rates().expect("valid");
    let of_step = |key: crate::experiment::row::StepKey| {
        let rate = rates[key.step];
        let mut mean_us = if key.server == "a" { 1.0 } else { 2.0 };
        mean_us += if key.options["bytes"] == "8" { 10.0 } else { 20.0 };
        mean_us += if key.options["way"] == "TCP" { 100.0 } else { 200.0 };
        let mut row = row(1, &key.server, key.step, rate.unwrap_or(1_000.0), mean_us);
        (row.rate_per_s, row.key) = (rate, key);
        row
    };
    let steps = experiment.groups().into_iter().flat_map(|group| group.steps);
    steps.map(of_step).collect()
}

fn drawn(text: &str) -> Vec<Figure> {
    let experiment = Experiment::parse(text).expect("valid");
    let rows = rows(&experiment);
    figures(&experiment, &rows, "f")
}

fn titles(figures: &[Figure]) -> Vec<&str> {
    figures.iter().map(|figure| &figure.title[..]).collect()
}

#[test]
fn a_swept_option_of_numbers_is_an_axis_of_lines() {
    let one_rate = TEXT.replace("[100, 200]", "[100]");
    let more = "[report]\nx = \"bytes\"\nx_label = \"payload, bytes\"\ncolumns = [\"mean_us\"]\n";
    let figures = drawn(&format!("{one_rate}{more}"));
    assert_eq!(titles(&figures), ["Capacity with mean < 1 ms", "Mean response time"]);
    let Drawing::Lines(chart) = &figures[1].drawing else { panic!("three numbers are lines") };
    assert_eq!((&chart.x_label[..], chart.x_scale), ("payload, bytes", Scale::LogAtPoints));
    let points = |index: usize| {
        let points = chart.lines[index].points.iter();
        (&chart.lines[index].name[..], points.map(|it| (it.x, it.y)).collect::<Vec<_>>())
    };
    assert_eq!(points(0), ("a, way = TCP", vec![(8.0, 111.0), (64.0, 121.0), (1200.0, 121.0)]));
    assert_eq!(points(3), ("b, way = UDP", vec![(8.0, 212.0), (64.0, 222.0), (1200.0, 222.0)]));
    let table = &figures[1].table;
    assert_eq!(table.head[..2], ["payload, bytes", "a, way = TCP"]);
    assert_eq!(table.head[3..5], ["b, way = TCP", "to a"]);
    assert_eq!(table.rows[0][..2], ["8", "111"]);
    assert_eq!(table.rows[0][4], "1.01");
    assert_eq!(table.rows.len(), 3);
    // Few different values are at equal distances.
    let figures = drawn(&format!("{one_rate}{more}").replace("1200]", "128]"));
    let Drawing::Lines(chart) = &figures[1].drawing else { panic!("three numbers are lines") };
    assert_eq!(chart.x_scale, Scale::FromZero);
}

#[test]
fn a_swept_option_of_words_is_groups_of_bars() {
    let closed = TEXT.replace("rates = [100, 200]", "").replace("capacity = [\"mean:1ms\"]", "");
    let figures = drawn(&format!("{closed}[report]\nx = \"way\"\n"));
    assert_eq!(titles(&figures), ["Throughput", "Processor time a request"]);
    let Drawing::Bars(bars) = &figures[0].drawing else { panic!("words are bars") };
    assert_eq!(
        (&bars.groups[..], &bars.x_label[..]),
        (&["TCP", "UDP"].map(str::to_owned)[..], "way")
    );
    let names: Vec<&str> = bars.series.iter().map(|series| &series.name[..]).collect();
    assert_eq!(names.len(), 6);
    assert_eq!(names[..2], ["a, bytes = 8", "a, bytes = 64"]);
    assert!(bars.series.iter().all(|series| series.bars.iter().flatten().count() == 2));
    // Without an axis each combination is a group, and a server is a series.
    let figures = drawn(&closed);
    let Drawing::Bars(bars) = &figures[0].drawing else { panic!("a closed loop is bars") };
    assert_eq!((bars.groups.len(), bars.series.len()), (6, 2));
    assert_eq!(bars.groups[1], "bytes = 8, way = UDP");
}

#[test]
fn panels_divide_the_figures() {
    let more = "[report]\npanels = [\"way\"]\ncolumns = [\"mean_us\"]\n";
    let figures = drawn(&format!("{TEXT}{more}"));
    let expected = [
        "Capacity: way = TCP",
        "Mean response time: way = TCP",
        "Capacity: way = UDP",
        "Mean response time: way = UDP",
    ];
    assert_eq!(titles(&figures), expected);
    let Drawing::Lines(chart) = &figures[3].drawing else { panic!("a load is lines") };
    let of_first = &chart.lines[0];
    assert_eq!((&of_first.name[..], of_first.points[0].y), ("a, bytes = 8", 211.0));
    assert_eq!((chart.lines.len(), of_first.points.len()), (6, 2));
}

#[test]
fn the_load_beside_has_figures() {
    let mut experiment = Experiment::parse(TEXT).expect("valid");
    let mut rows = rows(&experiment);
    assert!(!titles(&figures(&experiment, &rows, "f")).iter().any(|it| it.contains("beside")));
    for row in &mut rows {
        row.beside = Some(beside(0, &[]));
    }
    experiment.report.columns = vec!["beside_per_s".to_owned(), "beside_p50_us".to_owned()];
    let drawn = figures(&experiment, &rows, "f");
    let first = |figure: &Figure| match &figure.drawing {
        Drawing::Lines(chart) => chart.lines[0].points[0].y,
        _ => panic!("a load is lines"),
    };
    assert_eq!((drawn.len(), first(&drawn[1]), first(&drawn[2])), (3, 7.0, 9.0));
}

#[test]
fn published_figures_stand_beside_measured_ones() {
    let published = "[[published]]\nfigure = \"capacity\"\npromise = \"mean:1ms\"\n\
                     source = \"a\\n paper\"\n[published.values]\nfast = 5000\nslow = [2, 10]\n\
                     [[published]]\nfigure = \"watts\"\nrate = 100\nsource = \"p\"\n\
                     [published.values]\nfast = 50\n";
    let text = format!("{TEXT}{published}").replace("way = [\"TCP\", \"UDP\"]", "way = [\"TCP\"]");
    let text = text.replace("[8, 64, 1200]", "[8]");
    let experiment = Experiment::parse(&text).expect("valid");
    let mut rows = rows(&experiment);
    let of = |rows: &[Row]| -> Vec<BTreeMap<String, String>> {
        let all = figures(&experiment, rows, "f");
        let tables = all.into_iter().filter_map(|figure| match figure.drawing {
            Drawing::Ranking(_) => Some(figure.table),
            _ => None,
        });
        let row = |row: Vec<String>| (row[0].clone(), row[1..].join("; "));
        tables.map(|table| table.rows.into_iter().map(row).collect()).collect()
    };
    let tables = of(&rows);
    let a = "a, bytes = 8, way = TCP";
    assert_eq!(tables.len(), 2);
    assert_eq!(tables[0][a], "> 200; measured here");
    assert_eq!(tables[0]["fast"], "5,000; published");
    assert_eq!(tables[0]["slow"], "2 to 10; published");
    assert_eq!((tables[0].len(), &tables[1][a][..]), (4, "no meter; measured here"));
    for row in &mut rows {
        let (meter, is_estimate, error) = ("m".to_owned(), false, None);
        let (idle_w, loaded_w, covered) = (None, Some(60.0), 1.0);
        row.power = vec![PowerReading { meter, is_estimate, idle_w, loaded_w, covered, error }];
    }
    assert_eq!(of(&rows)[1][a], "60.0; measured here");
    rows[0].power[0].is_estimate = true;
    assert_eq!(of(&rows)[1][a], "60.0 (an estimate); measured here");
    let all = figures(&experiment, &rows, "f");
    let note = |part: &str| all.iter().find(|it| it.title.contains(part)).map(|it| &it.note[..]);
    let note = note("Capacity with mean < 1 ms, beside").expect("a figure");
    assert!(note.contains("those of a paper."), "{note}");
}

fn beside(errors: u64, warnings: &[&str]) -> BesideRow {
    BesideRow {
        rate_per_s: None,
        achieved_per_s: 7.0,
        errors,
        mean_us: 1.0,
        p50_us: 9.0,
        p95_us: 1.0,
        p99_us: 1.0,
        warnings: warnings.iter().map(|it| (*it).to_owned()).collect(),
    }
}

/// The page of these rows.
fn page_of(text: &str, rows: Vec<Row>) -> String {
    let raw_conditions = r#"{"begin_unix_s": 0, "command":
        ["kachel-lab run", "c", "--cases", "many keys", "--out", "bench-out/old"],
        "is_smoke": false, "processor": "p",
        "cores": 2, "memory_bytes": 1, "kernel": "6", "governor": null, "laboratory": "0.1",
        "commit": null, "load_average": 0, "busy": [], "warnings": ["the first"], "servers": [],
        "load": []}"#;
    let run = super::RunData {
        folder: "f".into(),
        experiment: Experiment::parse(text).expect("valid"),
        conditions: serde_json::from_str(raw_conditions).expect("conditions"),
        raw_conditions: raw_conditions.to_owned(),
        rows,
        lines: String::new(),
    };
    super::page::page(&[run], "kachel-lab report f")
}

#[test]
fn the_page_warns_of_errors_and_of_the_generator_of_each_load() {
    let experiment = Experiment::parse(TEXT).expect("valid");
    let mut rows = rows(&experiment);
    assert!(!page_of(TEXT, rows.clone()).contains("<li>In "), "nothing to warn of");
    rows[0].errors = 5;
    rows[1].beside = Some(beside(1, &[]));
    rows[2].beside = Some(beside(0, &["late"]));
    rows[3].warnings.push("late".to_owned());
    let page = page_of(TEXT, rows);
    for warning in [
        "the first",
        "In 2 of 24 steps there were errors.",
        "In 1 of 24 steps the load generator may have been the limit.",
        "In 1 of 24 steps the generator of the load beside may have been the limit.",
    ] {
        assert!(page.contains(&format!("<li>{warning}</li>")), "{warning}");
    }
}

/// A logarithmic axis shows no 0.
#[test]
fn a_figure_with_a_zero_in_one_round_is_drawn() {
    let two = TEXT.replace("rounds = 1", "rounds = 3");
    let swept = format!("{two}[report]\nx = \"bytes\"\ncolumns = [\"p95_us\"]\n");
    let swept = swept.replace("[100, 200]", "[100]");
    for text in [two, swept] {
        let experiment = Experiment::parse(&text).expect("valid");
        let drawn = |rows: &[Row]| {
            let figures = figures(&experiment, rows, "f");
            let is_it = |it: &&Figure| it.title.starts_with("95th percentile");
            match &figures.iter().find(is_it).expect("a figure").drawing {
                Drawing::Lines(chart) => (chart.y_scale, chart.svg().starts_with("<svg")),
                _ => panic!("lines"),
            }
        };
        let mut rows = rows(&experiment);
        assert_eq!(drawn(&rows), (Scale::Log, true));
        rows[0].p95_us = 0.0;
        assert_eq!(drawn(&rows), (Scale::FromZero, true));
    }
}

/// The published figures that experiments draw are those that the laboratory has.
#[test]
fn published_figures_of_the_tree_are_the_known_ones() {
    let known: serde_json::Value =
        serde_json::from_str(include_str!("../cost/published.json")).expect("JSON");
    let mut numbers: Vec<(String, f64)> = Vec::new();
    for row in known.as_object().expect("tables").values().filter_map(|it| it.as_array()).flatten()
    {
        let name = row["system"].as_str().expect("a name");
        let memory = row.get("ram_gb").map_or(String::new(), |gb| format!(", {gb} GB"));
        let memory = if row.get("nodes").is_some() { ", 256 GB".to_owned() } else { memory };
        let columns = row.as_object().expect("a row").iter();
        for value in columns.filter_map(|(column, value)| (column != "system").then_some(value)) {
            let ends = value.as_array().map_or(vec![value.clone()], Clone::clone);
            let ends = ends.iter().filter_map(serde_json::Value::as_f64);
            numbers.extend(ends.map(|value| (format!("{name}{memory}"), value)));
        }
    }
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/papers");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the papers") {
        let path = entry.expect("an entry").path().join(crate::experiment::FILE);
        if !path.is_file() {
            continue;
        }
        for published in Experiment::read(&path).expect("valid").published {
            for (system, value) in &published.values {
                let (least, most) = value.range();
                for value in [least, most] {
                    let is_it = |(name, number): &(String, f64)| {
                        let same = |unit: f64| (number * unit - value).abs() < 1e-6 * value;
                        name == system && [1.0, 1e3, 1e6].into_iter().any(same)
                    };
                    assert!(numbers.iter().any(is_it), "{}: {system}: {value}", path.display());
                    count += 1;
                }
            }
        }
    }
    assert!(count > 80, "{count}");
}

/// The median of the rounds that are left says nothing about those that were overloaded before.
#[test]
fn a_point_of_few_rounds_is_marked_in_the_chart_and_the_table() {
    let text = TEXT.replace("rounds = 1", "rounds = 3");
    let text = text.replace("[8, 64, 1200]", "[8]").replace("[\"TCP\", \"UDP\"]", "[\"TCP\"]");
    let experiment = Experiment::parse(&text).expect("valid");
    let mut rows = rows(&experiment);
    let is_at = |row: &Row, server: &str, step: usize, round: u32| {
        (&row.key.server[..], row.key.step, row.key.round) == (server, step, round)
    };
    // Of server a, one round broke the limit and one did not come to the second rate.
    rows.retain(|row| !is_at(row, "a", 1, 2));
    let broken = rows.iter_mut().find(|row| is_at(row, "a", 1, 3)).expect("a row");
    broken.mean_us = 1e6;
    // Of server b, two rounds had errors at the first rate.
    rows.iter_mut()
        .filter(|row| is_at(row, "b", 0, 1) || is_at(row, "b", 0, 2))
        .for_each(|row| row.errors = 1);
    let figures = figures(&experiment, &rows, "f");
    let mean = figures.iter().find(|it| it.title == "Mean response time").expect("a figure");
    let Drawing::Lines(chart) = &mean.drawing else { panic!("lines") };
    let counts = |line: usize| {
        let points = chart.lines[line].points.iter();
        points.map(|it| it.unsupported.map(|rounds| rounds.text())).collect::<Vec<_>>()
    };
    let one = Some("1 of 3".to_owned());
    assert_eq!((counts(0), counts(1)), (vec![None, one.clone()], vec![one, None]));
    let cell = |row: usize, column: usize| &mean.table.rows[row][column];
    assert!(cell(1, 1).ends_with(", 1 of 3 rounds"), "{}", cell(1, 1));
    assert!(!cell(0, 1).contains("rounds"), "{}", cell(0, 1));
}

/// Also in a figure of a case that other servers do not serve.
#[test]
fn a_server_has_the_same_color_in_each_figure() {
    let mut text = TEXT.replace("name = \"b\"", "name = \"kachel\"");
    text += "[[server]]\nname = \"memcached\"\naddress = \"x\"\n\
             [[server]]\nname = \"c\"\naddress = \"x\"\n";
    let mut experiment = Experiment::parse(&text).expect("valid");
    let colors = |experiment: &Experiment| {
        let rows = rows(experiment);
        let figures = figures(experiment, &rows, "f");
        let lines = figures.iter().find_map(|figure| match &figure.drawing {
            Drawing::Lines(chart) => Some(&chart.lines),
            _ => None,
        });
        let of = |line: &crate::chart::Line| {
            (line.name.split(',').next().expect("a name").to_owned(), line.color)
        };
        lines.expect("lines").iter().map(of).collect::<BTreeMap<_, _>>()
    };
    let expected = [("a", 2), ("c", 3), ("kachel", 1), ("memcached", 0)];
    assert_eq!(colors(&experiment), expected.map(|(name, color)| (name.to_owned(), color)).into());
    experiment.servers.retain(|server| server.name != "kachel");
    assert_eq!(colors(&experiment)["c"], 3);
}

#[test]
fn a_capacity_that_was_not_found_is_none_and_has_no_ratio() {
    let text = TEXT.replace("[8, 64, 1200]", "[8]").replace("[\"TCP\", \"UDP\"]", "[\"TCP\"]");
    let experiment = Experiment::parse(&text).expect("valid");
    let mut rows = rows(&experiment);
    rows.iter_mut().filter(|row| row.key.server == "b").for_each(|row| row.mean_us = 1e6);
    let figures = figures(&experiment, &rows, "f");
    let capacity = figures.iter().find(|it| it.title == "Capacity").expect("a figure");
    assert_eq!(capacity.table.rows[0][1..], ["200", "none, 0 of 1 rounds", "-"]);
    let Drawing::Bars(bars) = &capacity.drawing else { panic!("bars") };
    let bar = bars.series[1].bars[0].as_ref().expect("a bar");
    assert!(bar.text.starts_with("none (< "), "{}", bar.text);
    // All servers without one: the figure says so.
    rows.iter_mut().for_each(|row| row.mean_us = 1e6);
    let figures = super::figures::figures(&experiment, &rows, "f");
    assert!(figures.iter().any(|it| it.title == "Capacity" && it.table.rows.len() == 1));
}

/// The command measures into the folder that is shown, quotes its words, and names the variables of
/// programs.
#[test]
fn the_page_says_how_it_is_made_again() {
    let text = TEXT.replacen("address = \"x\"", "variable = \"PEER\"\narguments = [\"{port}\"]", 1);
    let rows = rows(&Experiment::parse(TEXT).expect("valid"));
    let page = page_of(&text, rows);
    let command = "PEER=/path/to/program kachel-lab run c --cases 'many keys' --out f \
                   &amp;&amp; kachel-lab report f";
    assert!(page.contains(&format!("Made again by <code>{command}</code>")), "{page:.9000}");
}
