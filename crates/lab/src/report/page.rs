//! The report as one HTML file.
//!
//! Upstream:   `mod`, with the runs; `figures`.
//! Downstream: a browser, without a network.
//!
//! The page has everything that it needs, and its policy forbids it to load anything. Each figure
//! with lines is there twice: as SVG, which is printed and needs no script, and as data, from which
//! uPlot draws it on a screen so that a part can be enlarged. The rows of the raw data are part of
//! the page, so a reader can compute with them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::json;

use super::RunData;
use super::cases::{case_figures, loads};
use super::figure::{Drawing, Figure, Table};
use super::figures::figures;
use crate::chart::{COLORS, Chart, Scale, dash, escaped};
use crate::experiment::row::doubts;
use crate::experiment::verdict::Verdict;
use crate::run::NO_VERDICT;
use crate::run::conditions::Conditions;

const CSS: &str = include_str!("page.css");
const LIVE: &str = include_str!("live.js");
/// uPlot 1.6.32 (MIT), as its authors publish it.
const UPLOT: &str = include_str!("uplot/uPlot.iife.min.js");
const UPLOT_CSS: &str = include_str!("uplot/uPlot.min.css");
const UPLOT_LICENSE: &str = include_str!("uplot/LICENSE");

/// The page of these runs. `command` is what makes it again.
pub(super) fn page(runs: &[RunData], command: &str) -> String {
    let mut body = String::new();
    let mut live = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        section(&mut body, &mut live, run, index, command, runs.len() > 1);
    }
    let raw: Vec<String> = runs.iter().map(raw).collect();
    let title = match runs {
        [run] => escaped(&run.experiment.question),
        _ => "Laboratory report".to_owned(),
    };
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
         'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
         <style>\n{UPLOT_CSS}\n{CSS}</style>\n</head>\n<body>\n<h1>{title}</h1>\n\
         <p class=\"hint\">Drag over a chart to enlarge a part of it; a double click shows the whole \
         again; a click on a name hides its line.</p>\n{body}\
         <script type=\"application/json\" id=\"data\">{}</script>\n\
         <script type=\"application/json\" id=\"figures\">{}</script>\n\
         <script>/* {} */\n{UPLOT}</script>\n<script>\n{LIVE}</script>\n</body>\n</html>\n",
        for_script(&format!("[{}]", raw.join(",\n"))),
        for_script(&json!(live).to_string()),
        UPLOT_LICENSE.trim(),
    )
}

/// The raw data of a run as JSON. The rows are copied, because a number that is read and written
/// again may differ in its last digit.
fn raw(run: &RunData) -> String {
    let folder = json!(run.folder.display().to_string());
    let rows: Vec<&str> = run.lines.lines().collect();
    let rows = rows.join(",\n");
    format!(
        "{{\"folder\": {folder}, \"conditions\": {}, \"rows\": [\n{rows}]}}",
        run.raw_conditions
    )
}

/// JSON that cannot end the script it stands in.
fn for_script(json: &str) -> String {
    json.replace('<', "\\u003c")
}

/// A run: verdicts and conditions at the top, then its figures.
fn section(
    body: &mut String,
    live: &mut Vec<serde_json::Value>,
    run: &RunData,
    index: usize,
    command: &str,
    is_one_of_several: bool,
) {
    body.push_str("<section>\n");
    if is_one_of_several {
        let _ = writeln!(body, "<h2>{}</h2>", escaped(&run.experiment.question));
    }
    body.push_str(&verdicts(run));
    body.push_str(&warnings(run));
    body.push_str(&conditions(&run.conditions));
    let remake = format!("{} && {command}", remake(run));
    let (experiment, id) = (&run.experiment, format!("run-{index}"));
    let figures = match experiment.cases.is_empty() {
        true => figures(experiment, &run.rows, &id),
        false => case_figures(experiment, &run.rows, &id),
    };
    if !experiment.cases.is_empty() {
        body.push_str(&html(&loads(experiment), "conditions"));
    }
    for (number, figure) in figures.iter().enumerate() {
        let id = format!("live-{index}-{number}");
        draw(body, live, figure, &id, number + 1, &remake);
    }
    body.push_str("</section>\n");
}

/// The command that measures a run again into its folder, for a shell. A program that a variable
/// names has a place of its own on each machine.
fn remake(run: &RunData) -> String {
    let given = |name: &str| {
        let mut words = run.conditions.command.iter();
        words.any(|word| word.strip_prefix(name).is_some_and(|rest| rest.starts_with('=')))
    };
    let servers = run.experiment.servers.iter().filter(|server| !given(&server.name));
    let variables: BTreeSet<&String> =
        servers.filter_map(|server| server.variable.as_ref()).collect();
    let mut words: Vec<String> =
        variables.into_iter().map(|name| format!("{name}=/path/to/program")).collect();
    let mut of_run = run.conditions.command.iter().peekable();
    // The first word is two: the program and its subcommand.
    words.extend(of_run.next().cloned());
    while let Some(word) = of_run.next() {
        match word.as_str() {
            "--out" => drop(of_run.next()),
            word => words.push(quoted(word)),
        }
    }
    words.extend(["--out".to_owned(), quoted(&run.folder.display().to_string())]);
    words.join(" ")
}

/// A word for a shell.
pub(super) fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=,:+@%".contains(letter);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// The verdict on each prediction.
fn verdicts(run: &RunData) -> String {
    let mut table = Table {
        head: ["verdict", "prediction", "figure", "median [interval]"].map(Into::into).to_vec(),
        rows: Vec::new(),
    };
    for prediction in &run.experiment.predictions {
        let (verdict, summary) = run.experiment.judge(prediction, &run.rows);
        let found = summary.map_or("-".to_owned(), |it| {
            let percent = it.confidence() * 100.0;
            let interval = format!("{:.3} [{:.3}, {:.3}]", it.median, it.low, it.high);
            format!("{interval}, {} rounds: {percent:.0} % confidence", it.rounds)
        });
        let verdict = match run.conditions.is_smoke {
            true => NO_VERDICT.to_owned(),
            false => verdict_text(verdict),
        };
        let terms = prediction.terms(&run.experiment.baseline);
        table.rows.push(vec![verdict, prediction.claim.clone(), terms, found]);
    }
    if table.rows.is_empty() { String::new() } else { html(&table, "verdicts") }
}

fn verdict_text(verdict: Verdict) -> String {
    let sign = match verdict {
        Verdict::Confirmed => "\u{2713}",
        Verdict::Refuted => "\u{2717}",
        Verdict::Undecided | Verdict::NoData => "?",
    };
    format!("{sign} {}", verdict.text())
}

/// Reasons to doubt the figures.
fn warnings(run: &RunData) -> String {
    let mut all = run.conditions.warnings.clone();
    if run.conditions.is_smoke {
        all.insert(
            0,
            "This was a smoke run of fractions of a second: its figures show nothing.".to_owned(),
        );
    }
    all.extend(doubts(&run.rows));
    let meters = run.rows.iter().flat_map(|row| &row.power);
    if let Some(reading) = meters.clone().find(|reading| reading.is_estimate) {
        all.push(format!("Power by {} is an estimate, not measured.", reading.meter));
    }
    if let Some(error) = meters.clone().find_map(|reading| reading.error.clone()) {
        all.push(format!("A meter failed for some time: {error}."));
    }
    if all.is_empty() {
        return String::new();
    }
    let items = all.iter().map(|warning| format!("<li>{}</li>", escaped(warning)));
    format!("<div class=\"warnings\"><ul>{}</ul></div>\n", items.collect::<String>())
}

/// The conditions, as a table of names and values.
fn conditions(conditions: &Conditions) -> String {
    let unknown = || "unknown".to_owned();
    let busy = conditions.busy.iter().map(|share| format!("{:.0} %", share * 100.0));
    let memory = conditions.memory_bytes as f64 / f64::from(1 << 30);
    let mut rows = vec![
        ("begun".to_owned(), date(conditions.begin_unix_s)),
        ("processor".to_owned(), format!("{}, {} cores", conditions.processor, conditions.cores)),
        ("memory".to_owned(), format!("{memory:.1} GiB")),
        ("kernel".to_owned(), format!("Linux {}", conditions.kernel)),
        ("governor".to_owned(), conditions.governor.clone().unwrap_or_else(unknown)),
        (
            "load before".to_owned(),
            format!(
                "{:.2}; cores busy {}",
                conditions.load_average,
                busy.collect::<Vec<_>>().join(", ")
            ),
        ),
        ("commit".to_owned(), conditions.commit.clone().unwrap_or_else(unknown)),
        ("laboratory".to_owned(), format!("kachel-lab {}", conditions.laboratory)),
        ("generator".to_owned(), conditions.load.join(" ")),
    ];
    if let Some(beside) = &conditions.beside {
        rows.push(("load beside".to_owned(), format!("kachel-lab load {}", beside.join(" "))));
    }
    for server in &conditions.servers {
        let cores = server.cores.as_ref().map_or(String::new(), |it| format!(" on cores {it}"));
        let build = server.program_sha256.as_ref();
        let build = build.map_or(String::new(), |it| format!(", program {it:.12}"));
        let version = format!("answers version {}{build}{cores}", server.version);
        rows.push((server.name.clone(), format!("{version}: {}", server.command.join(" "))));
    }
    let rows = rows.into_iter().map(|(name, value)| vec![name, value]).collect();
    let head = vec!["condition".to_owned(), String::new()];
    html(&Table { head, rows }, "conditions")
}

/// The date and time of Unix seconds, in UTC.
fn date(unix_s: f64) -> String {
    let since = UNIX_EPOCH + Duration::from_secs_f64(unix_s.max(0.0));
    let seconds = since.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (mut year, mut day) = (1970, days);
    let length = |year: u64| {
        let is_leap =
            year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
        if is_leap { 366 } else { 365 }
    };
    while day >= length(year) {
        day -= length(year);
        year += 1;
    }
    let february = length(year) - 337;
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < days {
            break;
        }
        day -= days;
        month += 1;
    }
    let (hour, minute) = (rest / 3_600, rest % 3_600 / 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02} UTC", day + 1)
}

/// A figure with its note, its table and its command.
fn draw(
    body: &mut String,
    live: &mut Vec<serde_json::Value>,
    figure: &Figure,
    id: &str,
    number: usize,
    remake: &str,
) {
    let svg = match &figure.drawing {
        Drawing::Lines(chart) => chart.svg(),
        Drawing::Bars(bars) => bars.svg(),
        Drawing::Ranking(ranking) => ranking.svg(),
    };
    let title = escaped(&figure.title);
    let _ = writeln!(body, "<h3>Figure {number}. {title}</h3>\n<figure>");
    if let Drawing::Lines(chart) = &figure.drawing {
        live.push(live_figure(chart, id));
        let _ = writeln!(
            body,
            "<div class=\"still\">{svg}</div>\n<div class=\"live\" id=\"{id}\"></div>"
        );
    } else {
        let _ = writeln!(body, "<div>{svg}</div>");
    }
    let _ = writeln!(
        body,
        "<figcaption>{}</figcaption>\n</figure>\n{}{}<p>Made again by <code>{}</code></p>",
        escaped(&figure.note),
        html(&figure.table, "numbers"),
        figure.published.as_ref().map_or(String::new(), |table| html(table, "published")),
        escaped(remake)
    );
}

/// The data from which the page draws a chart.
fn live_figure(chart: &Chart, id: &str) -> serde_json::Value {
    let points = || chart.lines.iter().flat_map(|line| &line.points);
    let mut x: Vec<f64> = points().map(|point| point.x).collect();
    x.sort_by(f64::total_cmp);
    x.dedup();
    let limit = chart.limit.iter().map(|limit| limit.y);
    let ends = points().flat_map(|point| {
        let (low, high) = point.range.unwrap_or((point.y, point.y));
        [low, high]
    });
    let values: Vec<f64> = ends.chain(limit).collect();
    let line = |(index, line): (usize, &crate::chart::Line)| {
        let point = |point: &crate::chart::Point| {
            let (low, high) = point.range.unwrap_or((point.y, point.y));
            let count = point.unsupported.map(crate::chart::Rounds::text);
            json!([point.x, point.y, low, high, count])
        };
        let dash: Vec<u32> = dash(index).split(' ').filter_map(|it| it.parse().ok()).collect();
        json!({
            "name": line.name,
            "color": COLORS[line.color % COLORS.len()],
            "dash": dash,
            "sign": index % 3,
            "points": line.points.iter().map(point).collect::<Vec<_>>(),
        })
    };
    json!({
        "id": id,
        "x_label": chart.x_label,
        "x_is_log": chart.x_scale != Scale::FromZero,
        "y_label": chart.y_label,
        "y_is_log": chart.y_scale != Scale::FromZero,
        "x": x,
        "least": values.iter().copied().fold(f64::INFINITY, f64::min),
        "most": values.iter().copied().fold(0.0, f64::max),
        "limit": chart.limit.as_ref().map(|limit| json!({"name": limit.name, "y": limit.y})),
        "lines": chart.lines.iter().enumerate().map(line).collect::<Vec<_>>(),
    })
}

/// A table in HTML. The first cell of a row names it.
fn html(table: &Table, class: &str) -> String {
    let mut html = format!("<table class=\"{class}\">\n<thead><tr>");
    for cell in &table.head {
        let _ = write!(html, "<th>{}</th>", escaped(cell));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        for (index, cell) in row.iter().enumerate() {
            let (begin, end) = if index == 0 { ("<tr><th>", "</th>") } else { ("<td>", "</td>") };
            let _ = write!(html, "{begin}{}{end}", escaped(cell));
        }
        html.push_str("</tr>\n");
    }
    html + "</tbody>\n</table>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix_s, expected) in [
            (0.0, "1970-01-01 00:00 UTC"),
            (951_782_399.0, "2000-02-28 23:59 UTC"),
            (951_782_400.0, "2000-02-29 00:00 UTC"),
            (951_868_800.0, "2000-03-01 00:00 UTC"),
            (1_735_689_599.9, "2024-12-31 23:59 UTC"),
        ] {
            assert_eq!(date(unix_s), expected, "{unix_s}");
        }
    }

    #[test]
    fn words_for_a_shell_are_quoted_where_they_must_be() {
        for (word, expected) in [
            ("bench-out/a.b", "bench-out/a.b"),
            ("many keys,gets", "'many keys,gets'"),
            ("", "''"),
            ("it's", "'it'\\''s'"),
            ("$(a)", "'$(a)'"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }

    #[test]
    fn data_cannot_end_its_script() {
        let text = for_script(&json!({"a": "</script><!--"}).to_string());
        assert!(!text.contains('<'), "{text}");
        let back: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(back["a"], "</script><!--");
    }
}
