//! Runs the cases, stores the observations, and writes the table.
//!
//! Upstream:   the table of cases in `main`.
//! Downstream: each case's function; `target/abuse.md`, or `abuse_release.md`.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use kachel_testkit::{is_usable, tell};

use crate::subject::{Door, is_release};

/// How many cases that need the processor run at a time where no time is judged. Each of them also
/// waits, so one alone leaves a core idle.
const WORKERS: usize = 2;

const fn door(io: &'static str, unix: bool) -> Door {
    Door { io, unix }
}

/// Over both doors and both transports.
pub(crate) const EVERY_WAY: &[Door] =
    &[door("uring", false), door("epoll", false), door("uring", true), door("epoll", true)];
/// Over both doors, by TCP.
pub(crate) const DOORS: &[Door] = &[door("uring", false), door("epoll", false)];
/// By TCP and epoll.
pub(crate) const EPOLL: &[Door] = &[door("epoll", false)];
/// What concerns TCP alone.
pub(crate) const TCP: &[Door] = DOORS;

/// How a case passes its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It waits for a deadline: beside others.
    Waits,
    /// It needs the processor: alone where times are judged, else beside one other.
    Works,
    /// It mostly rests, but would disturb one that measures: after those where times are judged.
    Rests,
}

/// A row of the table.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) id: &'static str,
    pub(crate) test: &'static str,
    pub(crate) kind: Kind,
    pub(crate) doors: &'static [Door],
    /// Panics when what is asked is not so; returns what was seen.
    pub(crate) run: fn(Door) -> String,
    pub(crate) asked: &'static str,
}

impl Case {
    /// The doors that this machine has, and without the long form no more than show every backend
    /// and every transport once.
    fn doors(self) -> impl Iterator<Item = Door> {
        let in_pairs = self.doors != EVERY_WAY || is_full() || !is_usable("uring");
        let doors = self.doors.iter().copied().filter(|door| is_usable(door.io));
        doors.filter(move |door| in_pairs || door.unix == (door.io == "epoll"))
    }
}

/// What came of a case behind a door.
struct Outcome {
    test: &'static str,
    door: Door,
    seen: Result<String, String>,
    took: Duration,
}

/// Whether the long form runs.
pub(crate) fn is_full() -> bool {
    std::env::var_os("KACHEL_FULL").is_some()
}

/// Whether `arguments`, those of `cargo test` after the program's name, select this test.
fn is_chosen(test: &str, mut arguments: impl Iterator<Item = String>) -> bool {
    let (mut filters, mut skips) = (Vec::new(), Vec::new());
    while let Some(word) = arguments.next() {
        if word == "--skip" {
            skips.extend(arguments.next());
        } else if !word.starts_with('-') {
            filters.push(word);
        }
    }
    let names = |words: &[String]| words.iter().any(|word| test.contains(word.as_str()));
    !names(&skips) && (filters.is_empty() || names(&filters))
}

#[test]
fn a_skipped_case_does_not_run() {
    let chosen = |test, line: &str| is_chosen(test, line.split(' ').map(str::to_owned));
    assert!(chosen("x01_gone", "--show-output"));
    assert!(chosen("x01_gone", "x01") && !chosen("x02_slow", "x01"));
    assert!(!chosen("x01_gone", "--skip x01") && chosen("x02_slow", "--skip x01"));
    assert!(!chosen("x01_gone", "x0 --skip x01") && chosen("x02_slow", "x0 --skip x01"));
}

fn carry_out(case: &Case, door: Door) -> Outcome {
    let began = Instant::now();
    let seen = catch_unwind(AssertUnwindSafe(|| (case.run)(door))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "a panic without words".to_owned())
    });
    let outcome = Outcome { test: case.test, door, seen, took: began.elapsed() };
    // Past the test harness's capture: a run takes minutes.
    tell(row(case, &outcome).trim_end());
    outcome
}

fn run(cases: &[Case]) -> Vec<Outcome> {
    let chosen = |kind| {
        let of_kind = cases.iter().filter(move |case| {
            case.kind == kind && is_chosen(case.test, std::env::args().skip(1))
        });
        of_kind.flat_map(|case| case.doors().map(move |door| (case, door)))
    };
    let works = Mutex::new(chosen(Kind::Works));
    // The lock is released before the case runs.
    let next = || works.lock().expect("no case runs under the lock").next();
    let workers = if is_full() { 1 } else { WORKERS };
    std::thread::scope(|scope| {
        let begin = |kind| -> Vec<_> {
            let begun = chosen(kind).map(|(case, door)| scope.spawn(move || carry_out(case, door)));
            begun.collect()
        };
        let mut begun = begin(Kind::Waits);
        if !is_full() {
            begun.extend(begin(Kind::Rests));
        }
        let work = || std::iter::from_fn(next).map(|(case, door)| carry_out(case, door)).collect();
        let working: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let ended = working.into_iter().map(|thread| thread.join().expect("panics are caught"));
        let mut outcomes: Vec<Outcome> = ended.flat_map(|outcomes: Vec<_>| outcomes).collect();
        if is_full() {
            begun.extend(begin(Kind::Rests));
        }
        outcomes.extend(begun.into_iter().map(|thread| thread.join().expect("panics are caught")));
        outcomes
    })
}

fn row(case: &Case, outcome: &Outcome) -> String {
    let seen = match &outcome.seen {
        Ok(seen) => seen.clone(),
        Err(why) => format!("FAILED: {}", why.replace(['\n', '\r', '|'], " ")),
    };
    let (id, asked, door) = (case.id, case.asked, outcome.door);
    format!("| {id} | {asked} | {door} | {seen} | {:.1} |\n", outcome.took.as_secs_f64())
}

/// The table, for a person.
fn table(cases: &[Case], elsewhere: &[(&str, &str)], outcomes: &[Outcome]) -> String {
    let mut text = String::from("| id | asked | where | seen | s |\n|---|---|---|---|---|\n");
    for case in cases {
        let of_case = outcomes.iter().filter(|outcome| outcome.test == case.test);
        text.extend(of_case.map(|outcome| row(case, outcome)));
    }
    for (id, why) in elsewhere {
        let _infallible = writeln!(text, "| {id} | {why} | | not run here | |");
    }
    text
}

/// Runs all cases if no test has yet; then says what came of the one of `test`.
///
/// Panics: if the case failed behind any door, with what each said.
pub(crate) fn judge(cases: &[Case], elsewhere: &[(&str, &str)], test: &str) {
    static OUTCOMES: OnceLock<Vec<Outcome>> = OnceLock::new();
    let outcomes = OUTCOMES.get_or_init(|| {
        let outcomes = run(cases);
        let table = table(cases, elsewhere, &outcomes);
        let name = if is_release() { "abuse_release.md" } else { "abuse.md" };
        let path = concat!(env!("CARGO_TARGET_TMPDIR"), "/..");
        std::fs::write(format!("{path}/{name}"), table).expect("the table is written");
        outcomes
    });
    let case = cases.iter().find(|case| case.test == test).expect("a case");
    let of_case: Vec<_> = outcomes.iter().filter(|outcome| outcome.test == test).collect();
    assert_eq!(of_case.len(), case.doors().count(), "behind every door");
    let failed: Vec<String> = of_case
        .iter()
        .filter_map(|outcome| Some((outcome.door, outcome.seen.as_ref().err()?)))
        .map(|(door, why)| format!("{door}: {why}"))
        .collect();
    assert!(failed.is_empty(), "{} {}\n{}", case.id, case.asked, failed.join("\n"));
}
