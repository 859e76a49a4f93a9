//! Tests of the parts of several machines in virtual time, and of the frames between them.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use clap::Parser as _;

use super::counts::Counts;
use super::frame::{Broken, Wire};
use super::message::{Message, PROGRAM, PROTOCOL, agree};
use super::options_of;
use crate::honesty::{RUN_NS, simulate};
use crate::member::{Member, sum};
use crate::options::{Options, SteadyOptions};
use crate::part::Part;
use crate::request::{Kind, Next, Outbox, Source as _};
use crate::step::Step;
use crate::tally::Tally;

fn options(line: &str) -> SteadyOptions {
    let words = std::iter::once("kachel load").chain(line.split(' '));
    Options::try_parse_from(words).expect("valid options").steady
}

/// The requests of one thread, with the times at which they are due.
fn requests(step: &Step<'_>, index: usize) -> (Vec<u64>, Vec<u8>) {
    let mut source = step.source(Some(10_000.0), 7, index, 0, 100_000_000);
    let (mut outbox, mut times) = (Outbox::default(), Vec::new());
    while let Next::Request(pending) = source.next(u64::MAX, &mut outbox) {
        times.push(pending.intended_ns);
    }
    (times, outbox.bytes)
}

#[test]
fn two_machines_send_what_one_machine_with_their_threads_sends() {
    for words in ["--zipf 0.9 --ratio 3:1", "--popularity sequential", "--value-size 1-50"] {
        let two_threads = options(&format!("--threads 2 --connections 5 --keys 1000 {words}"));
        let one_thread = options(&format!("--threads 1 --connections 5 --keys 1000 {words}"));
        let whole = Step::new(&two_threads, Some(Part::WHOLE)).expect("valid");
        let mut connections = 0;
        for index in 0..2 {
            let part = Part { index: index as u64, count: 2 };
            let step = Step::new(&one_thread, Some(part)).expect("valid");
            assert_eq!(requests(&step, 0), requests(&whole, index), "{words} {index}");
            connections += step.connections();
        }
        assert_eq!(connections, 5);
    }
}

/// A tally after the way from an agent to its leader.
fn sent(tally: &Tally) -> Tally {
    let text = serde_json::to_string(&Counts::of(tally)).expect("plain data");
    serde_json::from_str::<Counts>(&text).expect("counts").tally().expect("histograms")
}

fn member(index: usize, tally: Tally) -> Member {
    Member {
        name: format!("agent {index}"),
        connections: 4,
        threads: 1,
        rate: Some(10_000.0),
        tally,
        window_s: RUN_NS as f64 / 1e9,
        busy_cores: 0.5,
        elapsed_s: RUN_NS as f64 / 1e9,
        clock: None,
        late_ns: 0,
    }
}

#[test]
fn the_sum_of_two_agents_has_each_bucket_of_theirs_and_the_rate_that_was_wanted() {
    let options = options("--rate 20000 --ratio 3:1 --keys 1000");
    let tallies = [0, 1].map(|index| {
        let step = Step::new(&options, Some(Part { index, count: 2 })).expect("valid");
        // The server of the second one pauses at other times, and its answers are slower.
        let mut source = step.source(options.rate, options.common.seed, 0, 0, RUN_NS);
        simulate(&mut source, true, 4 - 3 * index as usize)
    });
    let mut members: Vec<Member> =
        tallies.iter().enumerate().map(|(index, tally)| member(index, sent(tally))).collect();
    let total = sum(&members);
    let pairs = (0..Kind::COUNT)
        .map(|kind| (&total.response[kind], [0, 1].map(|index| &tallies[index].response[kind])))
        .chain([(&total.service, [0, 1].map(|index| &tallies[index].service))]);
    let mut buckets = 0;
    for (all, each) in pairs {
        for bucket in all.iter_recorded() {
            let value = bucket.value_iterated_to();
            let counts = each.map(|histogram| histogram.count_at(value));
            assert_eq!(all.count_at(value), counts[0] + counts[1], "{value}");
            buckets += 1;
        }
        assert_eq!(all.len(), each[0].len() + each[1].len());
        assert_eq!(all.max(), each[0].max().max(each[1].max()));
    }
    assert!(buckets > 1_000, "{buckets}");
    let [first, second] = &tallies;
    assert_eq!(total.offered, first.offered + second.offered);
    assert_eq!(total.answered_total(), first.answered_total() + second.answered_total());
    assert_eq!((total.keys, total.hits), (first.keys + second.keys, first.hits + second.hits));
    let window_s = RUN_NS as f64 / 1e9;
    let achieved = total.answered_total() as f64 / window_s;
    for rate in [total.offered as f64 / window_s, achieved] {
        assert!((rate / 20_000.0 - 1.0).abs() < 0.01, "{rate}");
    }
    for tally in &tallies {
        let rate = tally.offered as f64 / window_s;
        assert!((rate / 10_000.0 - 1.0).abs() < 0.01, "{rate}");
    }
    // The first error of the sum tells whose it is.
    members[1].tally.errors.note(|| "SERVER_ERROR x".into());
    assert_eq!(sum(&members).errors.first.as_deref(), Some("agent 1: SERVER_ERROR x"));
}

#[test]
fn histograms_that_are_none_are_refused() {
    let tally = member(0, simulated()).tally;
    let whole = serde_json::to_value(Counts::of(&tally)).expect("plain data");
    let refused = |path: &str, value: serde_json::Value| {
        let mut changed = whole.clone();
        *changed.pointer_mut(path).expect("there") = value;
        let counts: Result<Counts, _> = serde_json::from_value(changed);
        counts.map_or(true, |counts| counts.tally().is_err())
    };
    let text = whole.pointer("/service").and_then(|text| text.as_str()).expect("a text").to_owned();
    assert!(!refused("/service", text.clone().into()), "the whole one is right");
    assert!(refused("/service", "".into()) && refused("/service", "AAAA".into()));
    assert!(refused("/service", text[..text.len() / 8 * 4].into()), "cut off");
    assert!(refused("/response/0", "*".into()));
    assert!(refused("/turns/empty", 1_000_000_000.into()));
    // Two digits instead of three.
    let other = hdrhistogram::Histogram::<u64>::new_with_bounds(1, 1_000, 2).expect("bounds");
    assert!(refused("/service", super::counts::pack(&other).into()), "another shape");
}

fn simulated() -> Tally {
    let options = options("--rate 1000 --keys 100");
    let step = Step::new(&options, Some(Part::WHOLE)).expect("valid");
    simulate(&mut step.source(options.rate, 1, 0, 0, RUN_NS), true, 4)
}

/// Two ends of a connection.
fn ends() -> (TcpStream, Wire) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let stream = TcpStream::connect(address).expect("connected");
    let (accepted, _) = listener.accept().expect("accepted");
    (stream, Wire::new(accepted).expect("options"))
}

#[test]
fn frames_are_cut_out_of_the_bytes_and_limited_by_their_length() {
    let (mut stream, mut wire) = ends();
    let frames: Vec<u8> = [&br#"{"kind":"alive"}"#[..], br#"{"kind":"pong","at_ns":5}"#]
        .iter()
        .flat_map(|text| [&(text.len() as u32).to_be_bytes()[..], text].concat())
        .collect();
    for byte in frames {
        stream.write_all(&[byte]).expect("sent");
    }
    assert!(matches!(wire.next(), Ok(Message::Pong { at_ns: 5 })));
    // A length of 5,000 is too much before the greeting, and not after it.
    stream.write_all(&5_000_u32.to_be_bytes()).expect("sent");
    let second = wire.next_within(Duration::from_secs(60));
    assert!(matches!(second, Err(Broken::Garbled(_))), "{second:?}");
    wire.trust();
    assert!(matches!(wire.poll(Duration::ZERO), Ok(None)));
    let (mut stream, mut wire) = ends();
    wire.trust();
    stream.write_all(&u32::MAX.to_be_bytes()).expect("sent");
    assert!(matches!(wire.next(), Err(Broken::Garbled(_))));
    let (mut stream, mut wire) = ends();
    stream.write_all(b"\0\0\0\x0fGET / HTTP/1.1\r").expect("sent");
    assert!(matches!(wire.next(), Err(Broken::Garbled(_))));
}

#[test]
fn a_stranger_that_says_nothing_or_leaves_is_given_up() {
    let (stream, mut wire) = ends();
    // A byte now and then does not prolong it.
    let dripping = std::thread::spawn(move || {
        let mut stream = &stream;
        for byte in [0, 0, 1, 0].into_iter().chain([b' '; 20]) {
            std::thread::sleep(Duration::from_millis(5));
            if stream.write_all(&[byte]).is_err() {
                return;
            }
        }
    });
    assert!(matches!(wire.next_within(Duration::from_millis(20)), Err(Broken::Silent(0))));
    dripping.join().expect("no panic");
    assert!(matches!(wire.next(), Err(Broken::Closed)));
}

#[test]
fn a_plan_leaves_the_leaders_files_and_process_alone() {
    let words = ["--json", "/x", "--server-pid", "7", "--pin", "3", "--rate", "5"];
    let words = words.map(str::to_owned);
    let options = options_of(&words, None).expect("a plan");
    let common = &options.common;
    assert_eq!((&common.json, common.server_pid, &common.pin), (&None, None, &None));
    assert_eq!(options.rate, Some(5.0));
    for words in [&["replay", "/etc/passwd"][..], &["agent"], &["--rate", "0"], &["--help"]] {
        let words: Vec<String> = words.iter().map(|&word| word.into()).collect();
        assert!(options_of(&words, None).is_err(), "{words:?}");
    }
}

#[test]
fn versions_that_differ_are_both_named() {
    assert_eq!(agree(PROTOCOL, PROGRAM), Ok(()));
    let error = agree(PROTOCOL, "0.0.9").expect_err("its options may be others");
    assert!(error.contains("version 0.0.9"), "{error}");
    let error = agree(PROTOCOL + 1, "9.9").expect_err("another version");
    assert!(error.contains("9.9") && error.contains(env!("CARGO_PKG_VERSION")), "{error}");
}
