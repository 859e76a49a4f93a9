//! Measurements with agents: real ones in this process, and one that is played by the test.
//!
//! Upstream:   the small server and the helpers of `main`.
//! Downstream: none.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Fault, SMALL, load, number, serve};

/// A measurement that is to end early would take this long.
const ENDLESS: &str = "--keys 500 --connections 4 --warm-up-s 0 --duration-s 3600";
/// The end is expected within a second.
const HANG: Duration = Duration::from_secs(120);
/// Attempts to start an agent, and to reach it.
const ATTEMPTS_MAX: usize = 1_000;

/// Starts an agent, which serves until the test process ends. Returns its address.
fn agent(words: &str) -> String {
    for _ in 0..ATTEMPTS_MAX {
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
        let words = format!("agent --listen {port} {words}");
        let args: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        let agent = std::thread::spawn(move || kachel_load::run(args.into_iter()));
        while !agent.is_finished() {
            if TcpStream::connect(port).is_ok() {
                return port.to_string();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // Another test has taken the port meanwhile.
    }
    panic!("no agent");
}

/// An agent that the test plays: answers each message of the leader, until `answer` has no answer.
fn played(mut answer: impl FnMut(&Value) -> Option<Value> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a leader");
        let mut length = [0; 4];
        while stream.read_exact(&mut length).is_ok() {
            let mut text = vec![0; u32::from_be_bytes(length) as usize];
            stream.read_exact(&mut text).expect("a whole frame");
            let message: Value = serde_json::from_slice(&text).expect("JSON");
            if message["kind"] == "alive" {
                continue;
            }
            let Some(answer) = answer(&message) else { return };
            let text = answer.to_string();
            stream.write_all(&(text.len() as u32).to_be_bytes()).expect("sent");
            stream.write_all(text.as_bytes()).expect("sent");
        }
    });
    address
}

/// Follows the protocol up to the message of this kind.
fn obedient_until(last: &'static str) -> impl FnMut(&Value) -> Option<Value> + Send {
    move |message| match message["kind"].as_str().expect("a kind") {
        kind if kind == last => None,
        "hello" => {
            let protocol = &message["protocol"];
            Some(json!({"kind": "welcome", "protocol": protocol, "program": "played"}))
        }
        "plan" => Some(json!({"kind": "planned"})),
        "step" => Some(json!({"kind": "ready", "preload": null})),
        "ping" => Some(json!({"kind": "pong", "at_ns": 5})),
        other => panic!("{other}"),
    }
}

fn members(run: &Value) -> &Vec<Value> {
    run.pointer("/result/members").and_then(Value::as_array).expect("members")
}

#[test]
fn the_machines_of_a_measurement_share_its_load() {
    let server = serve(Fault::None);
    let agents = format!("--agents {},{}", agent(""), agent(""));
    let words = format!("{SMALL} {agents} --rate 3000 --arrivals fixed --check --ratio 3:1");
    let (code, run) = load(&server, &words);
    assert_eq!(code, ExitCode::SUCCESS, "{run}");
    let sum = |path: &str| members(&run).iter().map(|part| number(part, path)).sum::<f64>();
    let each = |path: &str| members(&run).iter().map(|part| number(part, path)).collect::<Vec<_>>();
    assert_eq!(each("/connections"), [2.0, 1.0, 1.0], "{run}");
    assert_eq!(each("/rate_per_s"), [1_000.0; 3], "{run}");
    // Each machine is to send 300 requests in the 0.3 s.
    assert!(each("/offered").iter().all(|offered| (offered - 300.0).abs() <= 1.0), "{run}");
    for (part, whole) in [("/offered", "/result/offered"), ("/requests", "/result/requests")] {
        assert_eq!(sum(part), number(&run, whole), "{part} {run}");
    }
    for agent in &members(&run)[1..] {
        // All machines of this test have one clock. A wrong sum would be years wrong.
        assert!(number(agent, "/clock_offset_us").abs() < 60e6, "{agent}");
    }
    assert_eq!(sum("/response/count"), number(&run, "/result/response/count"), "{run}");
    // Together the machines have stored each key once.
    assert_eq!(number(&run, "/preload/keys"), 500.0, "{run}");
    assert_eq!(number(&run, "/preload/response/count"), 500.0, "{run}");
    assert_eq!(number(&run, "/result/hit_ratio"), 1.0, "{run}");
    // The agents alone, at several rates.
    let words = format!("{SMALL} {agents} --agents-only --scan 1000:2000:1000 --arrivals fixed");
    let (code, run) = load(&server, &words);
    assert_eq!(code, ExitCode::SUCCESS, "{run}");
    let steps = run.pointer("/sweep/steps").and_then(Value::as_array).expect("steps");
    for (step, offered) in steps.iter().zip([300.0, 600.0]) {
        assert!((number(step, "/response/count") - offered).abs() <= 2.0, "{step}");
    }
    assert_eq!(members(&run).len(), 2, "{run}");
    assert_eq!(number(&run, "/preload/keys"), 500.0, "{run}");
}

#[test]
fn an_agent_that_dies_ends_the_measurement_of_all() {
    let real = agent("");
    for last in ["plan", "step", "ping", "start"] {
        let dying = played(obedient_until(last));
        let began = Instant::now();
        let words = format!("{ENDLESS} --agents {real},{dying}");
        assert_eq!(load(&serve(Fault::None), &words), (ExitCode::from(2), Value::Null), "{last}");
        assert!(began.elapsed() < HANG, "{last}");
    }
    // The other agent has stopped, too, and serves the next leader.
    let words = format!("{SMALL} --agents {real}");
    let (code, run) = load(&serve(Fault::None), &words);
    assert_eq!(code, ExitCode::SUCCESS, "{run}");
}

#[test]
fn an_agent_that_loses_the_server_ends_the_measurement_of_all() {
    // An error of the preload is one of the measurement.
    let real = agent("");
    let words = format!("{ENDLESS} --agents {real} --agents-only");
    let server = serve(Fault::Close { at_get: 50 });
    let (code, run) = load(&server, &format!("{words} --patience-s 0.5"));
    // The counts come back: a server that hangs up is a result.
    assert_eq!(code, ExitCode::FAILURE, "{run}");
    assert_eq!(number(&run, "/result/errors/lost"), 4.0, "{run}");
    let first = run.pointer("/result/errors/first").and_then(Value::as_str).expect("an error");
    assert!(first.starts_with(&format!("agent {real}: ")), "{first}");
}

#[test]
fn agents_and_leaders_that_do_not_fit_refuse_each_other() {
    let server = serve(Fault::None);
    let refused = |agent: &str, words: &str| {
        let (code, run) = load(&server, &format!("{SMALL} --agents {agent} {words}"));
        (code, run) == (ExitCode::from(2), Value::Null)
    };
    // Another version, and nobody.
    let old = json!({"kind": "welcome", "protocol": 0, "program": "0.0"});
    assert!(refused(&played(move |_| Some(old.clone())), ""));
    assert!(refused("127.0.0.1:1", ""));
    // A token that is missing, wrong and right.
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        format!("--token {}", path.display())
    };
    let right = file("right", "0123456789abcdef0123456789abcdef\n");
    let wrong = file("wrong", "0123456789abcdef0123456789abcdee\n");
    let agent = agent(&right);
    assert!(refused(&agent, "") && refused(&agent, &wrong));
    assert!(!refused(&agent, &right));
    // Beyond the machine an agent listens only with a token.
    let words = ["agent", "--listen", "0.0.0.0:0"].map(OsString::from);
    let agent = std::thread::spawn(|| kachel_load::run(words.into_iter()));
    let began = Instant::now();
    while !agent.is_finished() {
        assert!(began.elapsed() < HANG, "it listens");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(agent.join().expect("no panic"), ExitCode::from(2));
}
