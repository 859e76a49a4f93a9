//! Mixes, presets, phases, several servers and several rates.
//!
//! Upstream:   the small server and the helpers of `main`.
//! Downstream: none.

use std::io::{BufRead, BufReader, Write};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::{Fault, SMALL, by_kind, load, number, serve};

#[test]
fn every_protocol_sends_every_kind_of_request() {
    let words = "--ratio 4:2:0:2:2:1 --key-size 20 --popularity latest --check --depth 4";
    for protocol in ["text", "meta", "binary"] {
        let server = serve(Fault::None);
        let (code, run) = load(&server, &format!("{SMALL} {words} --protocol {protocol}"));
        assert_eq!(code, ExitCode::SUCCESS, "{protocol}: {run}");
        // Keys and counters.
        assert_eq!(number(&run, "/preload/keys"), 1_000.0);
        let kinds = by_kind(&run);
        assert!(["get", "set", "other"].iter().all(|&kind| kinds[kind] > 0), "{run}");
        assert_eq!(number(&run, "/result/hit_ratio"), 1.0, "{protocol}: {run}");
        assert_eq!(number(&run, "/result/not_done"), 0.0, "{protocol}: {run}");
        // A key that is deleted twice is not there the second time.
        let words = format!("{SMALL} --ratio 1:0:1 --keys 5 --protocol {protocol}");
        let (code, run) = load(&server, &words);
        assert_eq!(code, ExitCode::SUCCESS, "{protocol}: {run}");
        assert!(number(&run, "/result/not_done") > 0.0, "{protocol}: {run}");
        assert!(number(&run, "/result/misses") > 0.0, "{protocol}: {run}");
    }
}

#[test]
fn several_servers_share_the_keys_as_ketama_says() {
    let servers = [serve(Fault::None), serve(Fault::None), serve(Fault::None)];
    let list = servers.join(",");
    // Every kind of request finds its key where the preload left it.
    for words in ["--rate 2000", "--threads 2 --depth 8", "--ratio 4:2:0:2:2:1 --key-size 20"] {
        let (code, run) = load(&list, &format!("{SMALL} --check --value-size 0 {words}"));
        assert_eq!(code, ExitCode::SUCCESS, "{words}: {run}");
        assert_eq!(number(&run, "/result/hit_ratio"), 1.0, "{words}: {run}");
        assert_eq!(number(&run, "/result/not_done"), 0.0, "{words}: {run}");
    }
    // Together the servers have each of the 500 keys once.
    let stored: Vec<usize> = servers.iter().map(|server| stored_keys(server)).collect();
    assert!(stored.iter().all(|&keys| keys > 50), "{stored:?}");
    assert_eq!(stored.iter().sum::<usize>(), 500, "{stored:?}");
}

/// The number of the 500 keys of `SMALL` that this server has.
fn stored_keys(server: &str) -> usize {
    let stream = std::net::TcpStream::connect(server).expect("connected");
    let keys: String = (0..500).map(|number| format!(" k{number:029}")).collect();
    (&stream).write_all(format!("get{keys}\r\n").as_bytes()).expect("sent");
    let lines = BufReader::new(&stream).lines().map(|line| line.expect("text"));
    lines.take_while(|line| line != "END").filter(|line| line.starts_with("VALUE k")).count()
}

#[test]
fn a_server_of_several_that_hangs_up_ends_its_clients() {
    let list = [serve(Fault::None), serve(Fault::Close { at_get: 50 })].join(",");
    let (code, run) = load(&list, SMALL);
    assert_eq!(code, ExitCode::FAILURE, "{run}");
    assert!(number(&run, "/result/errors/lost") >= 4.0, "{run}");
}

#[test]
fn an_open_loop_whose_connections_close_while_idle_keeps_its_window_and_every_request() {
    // A request every 20 ms: each of the four connections is closed long before its next one.
    let words = "--keys 100 --no-preload --warm-up-s 0 --duration-s 0.8 --rate 50 --arrivals fixed";
    for threads in [1, 2] {
        let words = format!("{words} --connections 4 --threads {threads}");
        let (code, run) = load(&serve(Fault::CloseEach { after: 5 }), &words);
        assert_eq!(code, ExitCode::FAILURE, "{run}");
        let offered = number(&run, "/result/offered");
        assert!((39.0..=41.0).contains(&offered), "{run}");
        assert_eq!(number(&run, "/result/response/count"), offered, "{run}");
        assert_eq!(number(&run, "/result/window_s"), 0.8, "{run}");
        assert!(number(&run, "/result/errors/lost") >= 4.0, "{run}");
        let requests = number(&run, "/result/requests");
        let unanswered = number(&run, "/result/errors/unanswered");
        assert!(requests <= 20.0 && unanswered >= 16.0, "{run}");
    }
}

#[test]
fn a_fill_or_a_trace_whose_connections_close_while_idle_fails() {
    let words = "--keys 60 --fill-rate 100 --connections 4 --duration-s 0.1 --warm-up-s 0";
    let failed = (ExitCode::from(2), Value::Null);
    assert_eq!(load(&serve(Fault::CloseEach { after: 5 }), words), failed);
    // A delete every 10 ms, for 0.5 s.
    let lines: String =
        (0..50).map(|number| format!("{number},k{number},3,1,1,delete,0\n")).collect();
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), lines).expect("written");
    let words = format!("replay {} --pace trace --speed 100", file.path().display());
    let server = serve(Fault::CloseEach { after: 5 });
    let (code, run) = load(&server, &format!("{words} --connections 4"));
    assert_eq!(code, ExitCode::FAILURE, "{run}");
    let [requests, lost, unanswered] = ["requests", "errors/lost", "errors/unanswered"]
        .map(|name| number(&run, &format!("/result/{name}")));
    // A connection that closes without a request in flight counts as one that is lost, too.
    assert!(requests + unanswered <= 50.0 && requests + unanswered + lost >= 50.0, "{run}");
    assert_eq!(number(&run, "/result/response/count"), number(&run, "/result/offered"), "{run}");
}

#[test]
fn a_fill_keeps_its_rate_and_is_reported() {
    let words = format!("{SMALL} --fill-rate 2000 --threads 2 --rest-s 0.2");
    let (code, run) = load(&serve(Fault::None), &words);
    assert_eq!(code, ExitCode::SUCCESS, "{run}");
    // Each of two threads has 250 keys at 1,000 a second, so the last one is due after 249 ms.
    assert!(number(&run, "/preload/elapsed_s") > 0.248, "{run}");
    assert_eq!(number(&run, "/preload/response/count"), 500.0, "{run}");
    assert_eq!(number(&run, "/result/hit_ratio"), 1.0, "{run}");
}

#[test]
fn a_scan_and_a_search_measure_their_steps() {
    let words = "--keys 100 --warm-up-s 0 --duration-s 0.1 --connections 2 --arrivals fixed";
    let (code, run) = load(&serve(Fault::None), &format!("{words} --scan 500:1500:500"));
    assert_eq!(code, ExitCode::SUCCESS, "{run}");
    let steps = run.pointer("/sweep/steps").and_then(Value::as_array).expect("steps");
    let rates: Vec<f64> = steps.iter().map(|step| number(step, "/rate_per_s")).collect();
    assert_eq!(rates, [500.0, 1_000.0, 1_500.0]);
    for (step, rate) in steps.iter().zip(rates) {
        let count = number(step, "/response/count");
        assert!((count - rate / 10.0).abs() <= 1.0, "{step}");
    }
    assert_eq!(number(&run, "/preload/keys"), 100.0);
    // Refusals break a promise at any rate, until a step has fewer requests than it needs.
    let (code, run) =
        load(&serve(Fault::Refuse), &format!("{words} --search p50:10s --search-from 2000"));
    assert_eq!((code, run), (ExitCode::from(2), Value::Null));
}

/// The short form of an option is the long one in the JSON.
#[test]
fn the_json_names_the_distribution_of_keys_that_was_used() {
    let words = "--keys 500 --duration-s 0.1 --warm-up-s 0 --connections 2";
    for (option, name, theta) in [
        ("--zipf 0.9", "zipf", 0.9),
        ("--popularity zipf:0.9", "zipf", 0.9),
        ("--popularity latest:0.5", "latest", 0.5),
    ] {
        let (code, run) = load(&serve(Fault::None), &format!("{words} {option}"));
        assert_eq!(code, ExitCode::SUCCESS, "{run}");
        assert_eq!(number(&run, &format!("/options/popularity/{name}")), theta, "{run}");
        assert_eq!(run.pointer("/options/zipf"), None, "one answer, not two: {run}");
    }
}

#[test]
fn a_preset_runs_and_one_that_cannot_is_refused() {
    let words = "--preset ycsb-d --keys 500 --duration-s 0.2 --warm-up-s 0 --connections 4 --check";
    let (code, run) = load(&serve(Fault::None), words);
    assert_eq!(code, ExitCode::SUCCESS, "{run}");
    assert_eq!(number(&run, "/result/hit_ratio"), 1.0, "{run}");
    assert_eq!(number(&run, "/options/ratio/inserts"), 5.0, "{run}");
    let (code, run) = load(&serve(Fault::None), "--preset cluster5");
    assert_eq!((code, run), (ExitCode::from(2), Value::Null));
}

#[test]
fn ycsb_e_scans_and_checks_what_it_gets() {
    let words = "--preset ycsb-e --keys 500 --duration-s 0.3 --warm-up-s 0 --connections 4 --check";
    let (code, run) = load(&serve(Fault::None), words);
    assert_eq!(code, ExitCode::SUCCESS, "{run}");
    let by_kind = run.pointer("/result/by_kind").expect("by kind").to_string();
    assert!(by_kind.contains("scan") && by_kind.contains("set"), "{by_kind}");
    assert_eq!(number(&run, "/options/ratio/scans"), 95.0, "{run}");
    // A scan has 50.5 items on average, and fewer at the end of the keys.
    let per_request = number(&run, "/result/scanned_items") / number(&run, "/result/requests");
    assert!((30.0..52.0).contains(&per_request), "{run}");
    let (code, run) = load(&serve(Fault::WrongByte { at_get: 20 }), words);
    assert_ne!(code, ExitCode::SUCCESS, "{run}");
    for words in ["--protocol text", "--udp"] {
        let (code, _) = load(&serve(Fault::None), &format!("--preset ycsb-e {words}"));
        assert_eq!(code, ExitCode::from(2), "{words}");
    }
}

/// A meter beside the run finds the window's energy by it: no preload, no warm-up, no late answers.
#[test]
fn the_report_says_when_the_window_began() {
    let now_s = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
    let server = serve(Fault::None);
    let before_s = now_s();
    let (code, run) = load(&server, "--keys 500 --warm-up-s 0.2 --duration-s 0.1 --connections 4");
    assert_eq!(code, ExitCode::SUCCESS, "{run}");
    let begin_s = number(&run, "/result/begin_unix_s");
    let end_s = begin_s + number(&run, "/result/window_s");
    assert!(before_s + 0.2 <= begin_s && end_s <= now_s(), "{before_s} {begin_s} {end_s}");
}
