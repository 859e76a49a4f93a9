//! A frame: the lines that show a server, for a terminal of any size.
//!
//! Upstream:   `run`, once a second.
//! Downstream: `view` and `findings` have the content; `screen` or standard output shows the lines.
//!
//! ```text
//! Well: 20,000 requests/s, nothing is refused.          the finding
//! 127.0.0.1:11211   Kachel 0.1.0 ...                    who
//!
//! Requests     20,000/s   gets 18,000/s  ...            rows of numbers
//! ...
//!           #                                           requests of each second, newest right
//! ```
//!
//! Invariants:
//! - T3  of the crate: lines are cut at the width, and the frame at its height. All is ASCII, so a
//!   byte is a column.

use kachel_observe::{Severity, shown_bytes, shown_count, shown_percent, shown_rate, shown_time};
use kachel_stdx::printable;

use crate::findings::finding;
use crate::reading::{Counts, Reading};
use crate::view::{HISTORY_MAX, View};

/// The width of the names of rows.
const NAME_COLUMNS: usize = 13;
/// The cells of the bar of memory.
const BAR_CELLS: usize = 30;
/// The most lines of the chart.
const CHART_LINES_MAX: usize = 20;
/// The most characters of a version that a server tells.
const VERSION_CHARACTERS_MAX: usize = 20;

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) columns: usize,
    pub(crate) lines: usize,
}

/// A line of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) text: String,
    pub(crate) style: Style,
}

/// How a line is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    /// The finding.
    Finding(Severity),
}

/// The frame of a server. Every line is ASCII without control bytes, and fits (T3).
pub(crate) fn frame(view: &View, size: Size) -> Vec<Line> {
    let finding = finding(view);
    let mut texts = vec![who(view), String::new()];
    if let Some(reading) = view.last() {
        texts.extend(rows(reading, view));
        let taken = 1 + texts.len();
        texts.extend(chart(view, size, size.lines.saturating_sub(taken)));
    }
    let mut lines = vec![Line { text: finding.sentence, style: Style::Finding(finding.severity) }];
    lines.extend(texts.into_iter().map(|text| Line { text, style: Style::Plain }));
    lines.truncate(size.lines);
    for line in &mut lines {
        debug_assert!(line.text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "T1");
        line.text.truncate(size.columns);
    }
    lines
}

/// The address, the server and its age.
fn who(view: &View) -> String {
    let Some(reading) = view.last() else { return view.address.clone() };
    let version = |text: &str| printable(text.as_bytes(), VERSION_CHARACTERS_MAX);
    let memcached = version(&reading.version);
    let server = match &reading.kachel_version {
        Some(kachel) => format!("Kachel {} (as memcached {memcached})", version(kachel)),
        None => format!("memcached {memcached}"),
    };
    format!("{}   {server}   up {}", view.address, shown_time(reading.uptime_s))
}

/// A row of numbers under its name.
fn row(name: &str, parts: &[String]) -> String {
    let parts = parts.iter().map(|part| format!("{part:<16} "));
    let text = format!("{name:<NAME_COLUMNS$}{}", parts.collect::<String>());
    text.trim_end().to_owned()
}

/// A rate, or that there is none.
fn rate(rates: Option<&Counts>, of: fn(&Counts) -> f64) -> String {
    rates.map_or_else(|| "-".into(), |rates| format!("{}/s", shown_rate(of(rates))))
}

fn rows(reading: &Reading, view: &View) -> Vec<String> {
    let rates = view.rates.as_ref();
    let mut rows = traffic(rates);
    rows.push(String::new());
    rows.extend(contents(reading, rates));
    rows.push(String::new());
    rows.extend(resources(reading, rates));
    rows.extend(loads(&view.loads));
    rows.push(String::new());
    rows
}

/// What clients ask for.
fn traffic(rates: Option<&Counts>) -> Vec<String> {
    let rate = |of| rate(rates, of);
    let bytes = |of: fn(&Counts) -> f64| {
        rates.map_or_else(|| "-".into(), |rates| format!("{}/s", shown_bytes(of(rates))))
    };
    let read = rates.filter(|rates| rates.gets() > 0.0);
    let hit_ratio = read.map(|rates| shown_percent(rates.hits / rates.gets()));
    vec![
        row(
            "Requests",
            &[
                rate(|rates| rates.requests),
                format!("gets {}", rate(Counts::gets)),
                format!("sets {}", rate(|rates| rates.sets)),
                format!("others {}", rate(|rates| rates.others)),
            ],
        ),
        row(
            "Hits",
            &[
                hit_ratio.unwrap_or_else(|| "-".into()),
                format!("misses {}", rate(|rates| rates.misses)),
            ],
        ),
        row(
            "Network",
            &[
                format!("in {}", bytes(|rates| rates.received_bytes)),
                format!("out {}", bytes(|rates| rates.sent_bytes)),
            ],
        ),
    ]
}

/// What the cache holds, and what leaves it.
fn contents(reading: &Reading, rates: Option<&Counts>) -> Vec<String> {
    let rate = |of| rate(rates, of);
    let age = rates.and_then(|rates| reading.evicted_age_s(rates));
    let age = age.map(|age| format!("{} after the last use", shown_time(age)));
    let mean = if reading.items > 0.0 { reading.used_bytes / reading.items } else { 0.0 };
    let refused = rate(|rates| rates.refused_stores);
    vec![
        format!("{:<NAME_COLUMNS$}{}", "Memory", memory(reading)),
        row("Items", &[shown_count(reading.items), format!("{} each", shown_bytes(mean))]),
        row("Evicted", &[rate(|rates| rates.evictions), age.unwrap_or_default()]),
        row("Expired", &[rate(|rates| rates.expired), format!("refused stores {refused}")]),
    ]
}

/// Connections, processor time and threads.
fn resources(reading: &Reading, rates: Option<&Counts>) -> Vec<String> {
    let rate = |of| rate(rates, of);
    let threads = reading.threads.map_or_else(|| "-".into(), shown_count);
    let awake =
        reading.awake_cores.map(|awake| format!("{} of {threads} awake", shown_count(awake)));
    let open = shown_count(reading.connections);
    let most = reading.connections_max.map(|most| format!("{open} of {}", shown_count(most)));
    vec![
        row(
            "Connections",
            &[
                most.unwrap_or(open),
                format!("new {}", rate(|rates| rates.opened)),
                format!("refused {}", rate(|rates| rates.refused_clients)),
            ],
        ),
        row("Processor", &processor(rates)),
        row("Threads", &[awake.unwrap_or(threads)]),
    ]
}

/// How busy each thread was: a digit each, 9 from 90 % on. `None` where it is not known.
fn loads(loads: &[f64]) -> Option<String> {
    let most = loads.iter().copied().enumerate().max_by(|one, other| one.1.total_cmp(&other.1));
    let (thread, most) = most?;
    let digit = |load: &f64| char::from(b'0' + (load * 10.0).clamp(0.0, 9.0) as u8);
    let digits: String = loads.iter().map(digit).collect();
    let most = format!("thread {thread} most, {}", shown_percent(most));
    Some(row("Load", &[format!("[{digits}]"), most]))
}

/// A bar, and the numbers that it shows.
fn memory(reading: &Reading) -> String {
    let part =
        if reading.limit_bytes > 0.0 { reading.used_bytes / reading.limit_bytes } else { 0.0 };
    let full = ((part.min(1.0) * BAR_CELLS as f64).round() as usize).min(BAR_CELLS);
    let (used, limit) = (shown_bytes(reading.used_bytes), shown_bytes(reading.limit_bytes));
    let bar = format!("{}{}", "#".repeat(full), ".".repeat(BAR_CELLS - full));
    format!("[{bar}] {used} of {limit}, {}", shown_percent(part))
}

fn processor(rates: Option<&Counts>) -> [String; 3] {
    let Some(rates) = rates else { return ["-".into(), String::new(), String::new()] };
    let cores = rates.user_s + rates.system_s;
    let kernel = if cores > 0.0 { rates.system_s / cores } else { 0.0 };
    let each = if rates.requests >= 1.0 {
        format!("{:.1} us a request", cores / rates.requests * 1e6)
    } else {
        String::new()
    };
    [format!("{cores:.2} cores"), each, format!("kernel {}", shown_percent(kernel))]
}

/// The requests of the last seconds, a column each: at most `lines` lines, with a heading.
fn chart(view: &View, size: Size, lines: usize) -> Vec<String> {
    let Some(height) = lines.checked_sub(1).filter(|height| *height > 0) else { return Vec::new() };
    let height = height.min(CHART_LINES_MAX);
    let columns = size.columns.min(HISTORY_MAX).min(view.history.len());
    let shown = view.history.iter().skip(view.history.len() - columns);
    let most = shown.clone().flatten().copied().fold(0.0, f64::max);
    let heading = format!("Requests/s of the last {columns} s, at most {}:", shown_rate(most));
    let line = |line: usize| {
        let cell = |value: &Option<f64>| match value {
            None if line == 0 => '?',
            Some(value) if most > 0.0 && value / most * height as f64 > line as f64 + 0.25 => '#',
            Some(_) if line == 0 => '.',
            _ => ' ',
        };
        shown.clone().map(cell).collect::<String>().trim_end().to_owned()
    };
    std::iter::once(heading).chain((0..height).rev().map(line)).collect()
}
