//! `kachel-lab packets` against the small server, by a loopback interface.
//!
//! Upstream:   `cargo test`, by a user who may make network namespaces; for others the tests skip.
//! Downstream: `kachel_load::packets`.

use std::os::fd::AsFd as _;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::*;

/// Of the server, and of the flows. The interface has no MAC address.
const SERVER: &str = "10.9.0.2";
const ENDS: &str = "--interface lo --server-mac 0:0:0:0:0:0 --client 10.9.0.3";
const KEYS: &str = "--keys 500 --key-size 16 --value-size 32";
/// Many requests, each counted.
const COUNTED: &str = "--warm-up-s 0 --duration-s 20 --limit 2000 --flows 4 --window 8";
/// A timeout that no reply exceeds, however busy the machine is.
const PATIENT: &str = "--timeout-ms 20000";

/// A namespace whose loopback interface has the server's address. Its name goes when this is
/// dropped. The kernel takes no frame from 127.0.0.0/8 that a packet socket has sent.
struct Space(String);

impl Drop for Space {
    fn drop(&mut self) {
        let _absent = ip(&format!("netns del {}", self.0));
    }
}

impl Space {
    /// `None`, and a line that says why, if this process may not make one. The calling thread, and
    /// threads that it spawns, are then in the namespace.
    fn enter() -> Option<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let space = Self(format!("kachel-load-{}-{count}", std::process::id()));
        match space.make() {
            Ok(()) => Some(space),
            Err(why) => {
                println!("\nskip packets.network {why}");
                None
            }
        }
    }

    fn make(&self) -> Result<(), String> {
        let Self(name) = self;
        ip(&format!("netns add {name}"))?;
        ip(&format!("-n {name} link set lo up"))?;
        ip(&format!("-n {name} addr add {SERVER}/24 dev lo"))?;
        let file = std::fs::File::open(format!("/run/netns/{name}"));
        let file = file.map_err(|error| format!("{name}: {error}"))?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| format!("the namespace cannot be entered: {error}"))
    }
}

fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip").args(words.split(' ')).output();
    let output = output.map_err(|error| format!("ip, of iproute2: {error}"))?;
    let says = String::from_utf8_lossy(&output.stderr).trim().to_string();
    if output.status.success() { Ok(()) } else { Err(format!("ip {words}: {says}")) }
}

/// Runs the generator; returns the exit code and the JSON file.
fn packets(server: &str, words: &str) -> (ExitCode, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("run.json");
    let words = format!("--server {server} {ENDS} {KEYS} {words}");
    let args = words.split_whitespace().map(OsString::from);
    let code =
        kachel_load::packets::run(args.chain(["--json".into(), json.clone().into_os_string()]));
    let text = std::fs::read_to_string(json).unwrap_or_else(|_| "null".into());
    (code, serde_json::from_str(&text).expect("JSON"))
}

/// A server that has all keys.
fn filled(fault: Fault) -> String {
    let server = serve_at(SERVER, fault);
    let (code, _) = load(&server, &format!("{KEYS} --preload-only"));
    assert_eq!(code, ExitCode::SUCCESS);
    server
}

#[test]
fn every_get_is_answered_once_and_its_value_is_right() {
    let Some(_space) = Space::enter() else { return };
    let server = filled(Fault::None);
    for pace in ["", "--rate 20000", "--rate 20000 --tick-us 500", "--popularity zipf:0.99"] {
        let words =
            format!("{COUNTED} {PATIENT} {pace} --cores 0 --server-pid {}", std::process::id());
        let (code, run) = packets(&server, &words);
        assert_eq!(code, ExitCode::SUCCESS, "{pace}: {run}");
        assert_eq!(number(&run, "/result/hits"), 2_000.0, "{pace}: {run}");
        assert_eq!(number(&run, "/result/response/count"), 2_000.0, "{pace}: {run}");
        assert_eq!(number(&run, "/result/errors/stray"), 0.0, "{pace}: {run}");
        // The run is shorter than a tick of the cores' clock, and threads of other tests end
        // meanwhile. So these may be 0; crates/load/src/meter.rs has tests of them.
        for name in ["server", "generator"] {
            let us = number(&run, &format!("/result/{name}_cpu_us_per_get"));
            assert!((0.0..1e6).contains(&us), "{pace}: {run}");
        }
        let us = number(&run, "/result/cores_us_per_get");
        assert!((0.0..1e6).contains(&us), "{pace}: {run}");
    }
    let (code, run) = packets(&serve_at(SERVER, Fault::None), &format!("{COUNTED} {PATIENT}"));
    assert_eq!(code, ExitCode::SUCCESS, "{run}");
    assert_eq!(number(&run, "/result/misses"), 2_000.0, "the server is empty: {run}");
}

#[test]
fn lost_replies_are_sent_for_again_and_others_find_no_request() {
    let Some(_space) = Space::enter() else { return };
    // A busy machine may lose more.
    for fault in [Fault::Lost { at_get: 20 }, Fault::Id { at_get: 20 }] {
        let (code, run) = packets(&filled(fault), &format!("{COUNTED} --timeout-ms 500"));
        assert_eq!(code, ExitCode::FAILURE, "{fault:?}: {run}");
        let dropped = number(&run, "/result/errors/dropped");
        assert!(dropped >= 1.0, "{fault:?}: {run}");
        assert_eq!(number(&run, "/result/errors/total"), dropped, "{fault:?}: {run}");
        assert_eq!(number(&run, "/result/hits"), 2_000.0, "{fault:?}: {run}");
        let is_stray = number(&run, "/result/errors/stray") >= 1.0;
        assert!(is_stray || fault == Fault::Lost { at_get: 20 }, "{run}");
    }
    let (code, run) =
        packets(&filled(Fault::Twice { at_get: 20 }), &format!("{COUNTED} {PATIENT}"));
    assert_eq!(code, ExitCode::SUCCESS, "{run}");
    assert_eq!(number(&run, "/result/errors/stray"), 1.0, "{run}");
}

#[test]
fn wrong_replies_are_errors() {
    let Some(_space) = Space::enter() else { return };
    for fault in
        [Fault::WrongByte { at_get: 1_990 }, Fault::Sequence { at_get: 1_999 }, Fault::Refuse]
    {
        let (code, run) = packets(&filled(fault), &format!("{COUNTED} {PATIENT}"));
        assert_eq!(code, ExitCode::FAILURE, "{fault:?}: {run}");
        let wrong = match fault {
            Fault::WrongByte { .. } => 10.0,
            Fault::Sequence { .. } => 1.0,
            _ => 2_000.0,
        };
        assert_eq!(number(&run, "/result/errors/wrong"), wrong, "{fault:?}: {run}");
    }
}

#[test]
fn sets_have_their_share_and_a_value_that_was_replaced_is_stale() {
    let Some(_space) = Space::enter() else { return };
    let words = format!("{COUNTED} {PATIENT} --sets 0.2 --popularity zipf:1.5");
    let (code, run) = packets(&filled(Fault::None), &words);
    assert_eq!(code, ExitCode::SUCCESS, "{run}");
    assert_eq!(number(&run, "/result/stale"), 0.0, "{run}");
    let sets = number(&run, "/result/sets");
    assert!((499.0..=500.0).contains(&sets), "a set for 4 gets: {run}");
    let (code, run) = packets(&filled(Fault::KeepsFirst), &words);
    assert_eq!(code, ExitCode::FAILURE, "{run}");
    assert!(number(&run, "/result/stale") > 0.0, "{run}");
    assert_eq!(number(&run, "/result/errors/wrong"), 0.0, "{run}");
}

/// Starts a server that sends each datagram back after a pause. Returns its address.
fn echo(pause: Duration) -> String {
    let socket = UdpSocket::bind((SERVER, 0)).expect("a port");
    let server = socket.local_addr().expect("bound").to_string();
    std::thread::spawn(move || {
        let mut datagram = [0; 2_048];
        while let Ok((bytes, from)) = socket.recv_from(&mut datagram) {
            std::thread::sleep(pause);
            // A generator that has ended does not receive it.
            let _ = socket.send_to(&datagram[..bytes], from);
        }
    });
    server
}

#[test]
fn requests_that_were_due_and_not_sent_are_offered_and_unanswered() {
    let Some(_space) = Space::enter() else { return };
    let server = echo(Duration::from_millis(10));
    // It answers at most 100 of the 500 until half a second after the end.
    let words = "--flows 1 --rate 1000 --arrivals fixed --warm-up-s 0 --duration-s 0.5 --echo";
    let (code, run) = packets(&server, &format!("{words} {PATIENT}"));
    assert_eq!(code, ExitCode::FAILURE, "{run}");
    assert_eq!(number(&run, "/result/offered_per_s"), 1_000.0, "{run}");
    assert_eq!(number(&run, "/result/response/count"), 500.0, "{run}");
    let answered = number(&run, "/result/service/count");
    assert!(answered <= 101.0, "{run}");
    assert_eq!(number(&run, "/result/errors/unanswered"), 500.0 - answered, "{run}");
    // So many that not each is counted by itself.
    let words = words.replace("--rate 1000", "--rate 100000000");
    let (code, run) = packets(&server, &format!("{words} {PATIENT}"));
    assert_eq!(code, ExitCode::FAILURE, "{run}");
    let offered = number(&run, "/result/offered_per_s");
    assert!((offered / 1e8 - 1.0).abs() < 1e-6, "{run}");
}

#[test]
fn sets_are_apart_from_the_gets_of_an_open_loop() {
    let Some(_space) = Space::enter() else { return };
    let words = format!("{COUNTED} {PATIENT} --sets 0.5 --rate 20000");
    let (code, run) = packets(&filled(Fault::None), &words);
    assert_eq!(code, ExitCode::SUCCESS, "{run}");
    let offered = number(&run, "/result/offered_per_s") * number(&run, "/result/window_s");
    assert_eq!(offered.round(), 2_000.0, "{run}");
    assert_eq!(number(&run, "/result/service/count"), 2_000.0, "{run}");
    assert_eq!(number(&run, "/result/set_response/count"), 2_000.0, "{run}");
    // The errors of the sets are those of the run.
    let (code, run) = packets(&filled(Fault::RefusesLater), &words);
    assert_eq!(code, ExitCode::FAILURE, "{run}");
    assert_eq!(number(&run, "/result/errors/refused"), 2_000.0, "{run}");
}

#[test]
fn a_limit_counts_from_the_end_of_the_warm_up() {
    let Some(_space) = Space::enter() else { return };
    let server = filled(Fault::None);
    for (pace, most) in [("", 2_032.0), ("--rate 20000", 2_000.0)] {
        let words = COUNTED.replace("--warm-up-s 0", "--warm-up-s 0.2");
        let (code, run) = packets(&server, &format!("{words} {PATIENT} {pace}"));
        assert_eq!(code, ExitCode::SUCCESS, "{run}");
        // In a closed loop, also replies to gets of the warm-up.
        let count = number(&run, "/result/response/count");
        assert!((2_000.0..=most).contains(&count), "{pace}: {run}");
        assert!(number(&run, "/result/gets") >= 2_000.0, "{pace}: {run}");
    }
}

#[test]
fn requests_that_come_back_are_the_replies_of_an_echo() {
    let Some(_space) = Space::enter() else { return };
    let server = echo(Duration::ZERO);
    let (code, run) = packets(&server, &format!("{COUNTED} {PATIENT} --echo"));
    assert_eq!(code, ExitCode::SUCCESS, "{run}");
    assert_eq!(number(&run, "/result/hits"), 2_000.0, "{run}");
    let (code, run) = packets(&server, &format!("{COUNTED} {PATIENT}"));
    assert_eq!(code, ExitCode::FAILURE, "{run}");
    assert_eq!(number(&run, "/result/errors/wrong"), 2_000.0, "it is no server: {run}");
}

#[test]
fn an_interface_that_is_not_there_is_named() {
    let words = format!("--server 127.0.0.1:1 {ENDS} --interface kachel-none");
    let code = kachel_load::packets::run(words.split_whitespace().map(OsString::from));
    assert_eq!(code, ExitCode::from(2));
}
