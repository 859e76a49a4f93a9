//! Frames of recorded statistics.
//!
//! `data/` has those of Kachel, of memcached 1.6.45 and of Debian's memcached, each twice, a second
//! apart, under load. `KACHEL_BLESS=1 cargo test -p kachel-top` writes the frames.

use std::path::PathBuf;

use kachel_observe::Severity;

use crate::findings::{Finding, finding};
use crate::frame::{Size, Style, frame};
use crate::numbers::Numbers;
use crate::reading::{Evicted, Reading};
use crate::view::{HISTORY_MAX, View};

const KACHEL: &str = include_str!("../data/kachel.txt");
const KACHEL_METRICS: &str = include_str!("../data/kachel-metrics.txt");
const MEMCACHED: &str = include_str!("../data/memcached-1.6.45.txt");
const DEBIANS: &str = include_str!("../data/memcached-1.6.18.txt");

const SIZE: Size = Size { columns: 80, lines: 24 };

/// The readings of a record: each has the answers to two questions.
fn of_stats(record: &str) -> [Reading; 2] {
    let answers: Vec<&str> = record.split_inclusive("END\n").collect();
    let reading = |answers: &[&str]| {
        let mut numbers = Numbers::default();
        for answer in answers {
            numbers.take_stats(answer.as_bytes()).expect("a whole answer");
        }
        Reading::of(&numbers).expect("a server")
    };
    assert_eq!(answers.len(), 4);
    [reading(&answers[..2]), reading(&answers[2..])]
}

fn of_metrics(record: &str) -> [Reading; 2] {
    let mut texts = record.split("END\n");
    std::array::from_fn(|_| {
        let text = texts.next().expect("two");
        Reading::of(&Numbers::of_metrics(text.as_bytes())).expect("a server")
    })
}

/// A view of these readings, a second apart.
fn view(readings: impl IntoIterator<Item = Reading>) -> View {
    let mut view = View::new("127.0.0.1:11211".into());
    for (second, reading) in readings.into_iter().enumerate() {
        view.take(second as f64, Ok(reading));
    }
    view
}

fn text(view: &View, size: Size) -> String {
    frame(view, size).into_iter().map(|line| line.text + "\n").collect()
}

#[test]
fn the_frames_are_the_recorded_ones() {
    for (name, readings) in [
        ("kachel", of_stats(KACHEL)),
        ("kachel-metrics", of_metrics(KACHEL_METRICS)),
        ("memcached-1.6.45", of_stats(MEMCACHED)),
        ("memcached-1.6.18", of_stats(DEBIANS)),
    ] {
        let shown = text(&view(readings), SIZE);
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("data/{name}.frame"));
        if std::env::var_os("KACHEL_BLESS").is_some() {
            std::fs::write(&path, &shown).expect("it can be written");
        }
        let wanted = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(shown == wanted, "{name} differs; KACHEL_BLESS=1 writes it:\n{shown}");
    }
}

/// T3, and T1: what a server says is shown escaped.
#[test]
fn frames_fit_and_have_no_control_bytes_whatever_a_server_says() {
    let hostile = "STAT uptime 1e300\nSTAT version \x1b[2J\x07\u{202e}\u{9b}31m\nSTAT pid x\n\
        STAT kachel_version \r\nSTAT limit_maxbytes 0\nSTAT bytes 1e308\nSTAT cmd_set 1e308\n\
        STAT curr_items 0\nSTAT threads 0\nSTAT kachel_awake_cores 99999999999\nEND\n";
    let mut numbers = Numbers::default();
    assert_eq!(numbers.take_stats(hostile.as_bytes()), Ok(()));
    let reading = Reading::of(&numbers).expect("a server");
    let views = [
        view([]),
        view([reading.clone()]),
        view([Reading::default(), reading.clone(), reading]),
        view(of_stats(KACHEL)),
    ];
    for view in &views {
        for (columns, lines) in [(80, 24), (200, 60), (20, 5), (1, 1), (79, 18), (300, 19)] {
            let frame = frame(view, Size { columns, lines });
            assert!((1..=lines).contains(&frame.len()), "{} lines of {lines}", frame.len());
            for line in frame {
                assert!(line.text.len() <= columns, "{columns}: {}", line.text);
                let is_shown = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
                assert!(line.text.bytes().all(is_shown), "{:?}", line.text);
            }
        }
    }
}

/// R1.
#[test]
fn a_restart_is_told_and_makes_no_spike() {
    let [before, after] = of_stats(KACHEL);
    let mut restarted = view([before.clone(), after.clone()]);
    let told = |view: &View| finding(view).sentence;
    let young = Reading { uptime_s: 1.0, ..before };
    restarted.take(2.0, Ok(young.clone()));
    assert!(told(&restarted).contains("restarted 1 s ago"), "{}", told(&restarted));
    assert_eq!(restarted.rates, None);
    restarted.take(3.0, Ok(Reading { uptime_s: 2.0, ..young.clone() }));
    assert!(restarted.rates.is_some_and(|rates| rates.requests == 0.0), "rates begin anew");
    assert!(told(&restarted).contains("restarted 2 s ago"), "{}", told(&restarted));
    restarted.take(19.0, Ok(Reading { uptime_s: 18.0, ..young }));
    assert!(!told(&restarted).contains("restarted"), "{}", told(&restarted));
    let most = restarted.history.iter().flatten().copied().fold(0.0, f64::max);
    assert!(most < 2.0 * after.counts.requests, "{most}");
    assert_eq!(restarted.history.iter().filter(|second| second.is_none()).count(), 2);
}

#[test]
fn the_load_of_each_thread_is_shown_if_the_server_tells_it() {
    let busy = |row: &str| {
        let mut numbers = Numbers::default();
        let answer = format!("STAT uptime 1\nSTAT kachel_busy_ms {row}\nEND\n");
        numbers.take_stats(answer.as_bytes()).expect("a whole answer");
        Reading::of(&numbers).expect("a server")
    };
    let shown = |row: &str, later: &str| {
        let text = text(&view([busy(row), busy(later)]), SIZE);
        text.lines().find(|line| line.starts_with("Load")).map(str::to_owned)
    };
    let wanted = "Load         [093]            thread 1 most, 100.0 %";
    assert_eq!(shown("0:5,1:0,2:7", "0:5,1:2000,2:307,others:9").as_deref(), Some(wanted));
    // Another number of threads, a reset, and what is no number.
    let others = [("0:5", "0:5,1:6"), ("0:5", "0:4"), ("x", "y"), ("0:NaN", "0:inf"), ("", "")];
    for (row, later) in others {
        assert_eq!(shown(row, later), None, "{row} {later}");
    }
    assert!(text(&view(of_stats(MEMCACHED)), SIZE).lines().all(|line| !line.starts_with("Load")));
}

/// R1: `stats reset` lets counts fall in the same life.
#[test]
fn counts_that_fall_have_no_rate() {
    let [before, mut after] = of_stats(KACHEL);
    after.counts.hits = 0.0;
    let reset = view([before, after]);
    assert_eq!(reset.rates, None);
    assert_eq!(finding(&reset).severity, Severity::Good);
}

#[test]
fn a_silent_server_is_told_with_the_reason_and_the_last_state_stays() {
    let mut silent = view(of_stats(MEMCACHED));
    silent.take(2.0, Err("nothing listens there".into()));
    silent.take(7.0, Err("nothing listens there".into()));
    let Finding { severity, sentence } = finding(&silent);
    let wanted = "No answer for 5 s: nothing listens there.";
    assert_eq!((severity, sentence.as_str()), (Severity::Problem, wanted));
    let lines = frame(&silent, SIZE);
    assert_eq!(lines[0].style, Style::Finding(Severity::Problem));
    assert!(lines.iter().any(|line| line.text.starts_with("Memory")), "the last state stays");
}

/// Each fault that the statistics show has its sentence; without one, the server is well.
#[test]
fn each_fault_has_its_sentence() {
    let [before, _] = of_stats(KACHEL);
    let found = |change: &dyn Fn(&mut Reading)| {
        let mut after = before.clone();
        after.counts.hits += 1000.0;
        after.counts.requests += 1000.0;
        change(&mut after);
        finding(&view([before.clone(), after]))
    };
    assert_eq!(found(&|_| {}).severity, Severity::Good);
    type Change<'c> = &'c dyn Fn(&mut Reading);
    let faults: [(Change<'_>, &str); 8] = [
        (&|after| after.stopped_shards = 2.0, "2 shards have not answered for a second"),
        (&|after| after.is_ready = false, "it drains"),
        (&|after| after.connections = 1020.0, "1,020 of 1,024 connections are open"),
        (&|after| after.counts.refused_clients += 1.0, "Clients are refused"),
        (&|after| after.counts.refused_stores += 5.0, "5.0 stores/s are refused"),
        (
            &|after| {
                after.counts.evictions += 10.0;
                after.counts.evicted_age_s += 400.0;
            },
            "Evicting items that were used 40 s ago: too little memory",
        ),
        (&|after| after.counts.user_s += 1.9, "The threads use 95.0 % of their cores"),
        (&|after| after.counts.misses += 3000.0, "75.0 % of the reads miss"),
    ];
    for (change, wanted) in faults {
        let Finding { severity, sentence } = found(change);
        assert!(sentence.contains(wanted) && severity != Severity::Good, "{wanted}: {sentence}");
    }
    let old_ones_leave = found(&|after| {
        after.counts.evictions += 10.0;
        after.counts.evicted_age_s += 864_000.0;
    });
    assert_eq!(old_ones_leave.severity, Severity::Good, "{}", old_ones_leave.sentence);
}

/// Regression: a class from which nothing leaves any more had the youngest evicted item.
#[test]
fn the_age_of_evicted_items_is_that_of_the_classes_that_evict() {
    let [before, mut after] = of_stats(MEMCACHED);
    let class = |count, age_s| Evicted { count, age_s };
    let [mut long_ago, mut now] = [before.clone(), before];
    long_ago.evicted_by_class =
        [("1".into(), class(9.0, 2.0)), ("2".into(), class(5.0, 1.0))].into();
    now.evicted_by_class =
        [("1".into(), class(9.0, 2.0)), ("2".into(), class(25.0, 90_000.0))].into();
    now.counts.evictions += 20.0;
    let rates = now.rates(&long_ago, 1.0).expect("the same life");
    assert_eq!(now.evicted_age_s(&rates), Some(90_000.0));
    after.evicted_by_class.clear();
    assert_eq!(after.evicted_age_s(&rates), None, "an exporter does not tell it");
}

/// V1.
#[test]
fn the_history_is_bounded() {
    let [reading, _] = of_stats(KACHEL);
    let long = view(std::iter::repeat_n(reading, 2 * HISTORY_MAX));
    assert_eq!(long.history.len(), HISTORY_MAX);
}

#[test]
fn what_is_no_server_is_refused() {
    let mut numbers = Numbers::default();
    assert_eq!(numbers.take_stats(b"STAT a 1\nEND\n"), Ok(()));
    assert!(Reading::of(&numbers).is_err());
    let ending = Numbers::of_metrics(b"kachel_ready 0\nmemcached_up 0\n");
    assert!(Reading::of(&ending).is_err_and(|why| why.contains("starts or ends")));
}

/// The fault: while a name was resolved or a connection hung, the last frame said that all is well.
#[test]
fn a_wait_for_an_answer_is_shown() {
    let [before, after] = of_stats(KACHEL);
    let mut waits = view([before.clone(), after.clone()]);
    let told = |view: &View| finding(view).sentence;
    let before_wait = told(&waits);
    waits.wait(2.5);
    assert_eq!(told(&waits), before_wait);
    let columns = waits.history.len();
    for second in [3.1, 3.2, 3.3, 4.2, 63.0] {
        waits.wait(second);
        assert_eq!((waits.rates, waits.loads.is_empty()), (None, true));
    }
    let sentence = "Waiting for an answer for 1 min 2 s: the figures are from before.";
    assert_eq!(told(&waits), sentence);
    assert_eq!(waits.history.len(), columns + 3, "a column for each second that was drawn");
    assert!(text(&waits, SIZE).contains("\nMemory "), "the last figures stay");
    waits.take(64.0, Ok(Reading { uptime_s: after.uptime_s + 62.0, ..after }));
    assert!(!told(&waits).starts_with("Waiting"), "{}", told(&waits));
    let mut first = view([]);
    assert_eq!(told(&first), "Waiting for the first answer.");
    first.wait(7.0);
    let sentence = "Waiting for an answer for 7 s: the server is slow, or its name is not found.";
    assert_eq!(told(&first), sentence);
}
