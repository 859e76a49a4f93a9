//! The server with the pipe, over a cable between two network namespaces.
//!
//! Upstream:   `cargo test --features pipe`. Without the rights, the tests skip.
//!             `KACHEL_PIPE_CHANGES` says how many changes are made.
//! Downstream: the server's binary.

mod checksums;
mod histories;
mod kills;
mod network;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kachel_testkit::{Random, setting};
use rustix::process::Signal;
use rustix::thread::CpuSet;

use crate::network::{Network, SERVER, Tcp, Udp};

/// The key that most tests use.
const KEY: &str = "a-key-of-a-usual-length";

/// Reads the key over UDP until the pipe has its copy.
fn make_hot(udp: &mut Udp, key: &str) {
    for _ in 0..8 {
        udp.ask(format!("get {key}\r\n"));
    }
}

#[test]
fn hot_items_are_answered_by_the_pipe_in_each_protocol() {
    let Some(network) = Network::new() else { return };
    let server = network.serve(&[]);
    let line = server.said.iter().find(|line| line.contains(": --pipe ")).expect("a line");
    assert!(line.contains("native mode") && line.contains("10.9.0.2:11311"), "{line}");
    assert!(line.ends_with(", before the host's firewall"), "{line}");
    let (mut tcp, mut udp, mut udp6) = (Tcp::new(), Udp::new(), Udp::new6());
    assert_eq!(tcp.ask(&format!("set {KEY} 7 0 5\r\nhello\r\n")), "STORED\r\n");
    make_hot(&mut udp, KEY);
    let before = tcp.stat("kachel_pipe_answered");
    assert!(before > 0, "a later read is answered by the pipe");
    let get = format!("VALUE {KEY} 7 5\r\nhello\r\nEND\r\n").into_bytes();
    assert_eq!(tcp.get("get", KEY), get);
    let gets = tcp.get("gets", KEY);
    let mut binary = vec![0x80, 0x0c, 0, KEY.len() as u8, 0, 0, 0, 0, 0, 0, 0, KEY.len() as u8];
    binary.extend([0; 12]);
    binary.extend(KEY.as_bytes());
    for udp in [&mut udp, &mut udp6] {
        assert_eq!(udp.ask(format!("get {KEY}\r\n")), get);
        assert_eq!(udp.ask(format!("gets {KEY}\r\n")), gets);
        assert_eq!(udp.ask(format!("mg {KEY} v f s\r\n")), b"VA 5 f7 s5\r\nhello\r\n");
        assert!(udp.ask(&binary).ends_with(format!("{KEY}hello").as_bytes()));
    }
    assert_eq!(tcp.stat("kachel_pipe_answered"), before + 8);
    // Two keys are a packet and two reads.
    tcp.ask("set another-key 0 0 5\r\nworld\r\n");
    udp.ask(format!("get {KEY} another-key\r\n"));
    make_hot(&mut udp, "another-key");
    let before = tcp.stat("kachel_pipe_answered");
    let both = format!("VALUE {KEY} 7 5\r\nhello\r\nVALUE another-key 0 5\r\nworld\r\nEND\r\n");
    assert_eq!(udp.ask(format!("get {KEY} another-key\r\n")), both.as_bytes());
    assert_eq!(tcp.stat("kachel_pipe_answered"), before + 1);
    // The server counts these reads within a second, with those that it has answered itself.
    let end = Instant::now() + Duration::from_secs(20);
    let reads = 8 + 2 + 2 * 4 + 2 + 8 + 2;
    while tcp.stat("get_hits") != reads {
        assert!(Instant::now() < end, "hits of the pipe are hits: {}", tcp.stat("get_hits"));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The pipe has answered all reads since the key is observed.
#[test]
fn a_key_is_hot_also_if_only_the_pipe_answers_its_reads() {
    let Some(network) = Network::new() else { return };
    let _server = network.serve(&[]);
    let (mut tcp, mut udp) = (Tcp::new(), Udp::new());
    tcp.ask(&format!("set {KEY} 0 0 5\r\nhello\r\n"));
    make_hot(&mut udp, KEY);
    let hash = tcp.ask(&format!("observe hash {KEY}\r\n"));
    let shown = hash.trim().strip_prefix("HASH ").expect("a hash").to_owned();
    assert_eq!(tcp.ask("observe hotkeys on\r\n"), "OK\r\n");
    let end = Instant::now() + Duration::from_secs(20);
    // The pipe's reads are looked at from time to time.
    let told = loop {
        assert!(Instant::now() < end, "{:?}", tcp.stats("hotkeys"));
        make_hot(&mut udp, KEY);
        let told: HashMap<_, _> = tcp.stats("hotkeys").into_iter().collect();
        if let Some(key) = told.get("reads:1:key") {
            assert!([&shown, KEY].contains(&&**key), "{told:?}");
            break told;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let rate: f64 = told["reads:1:requests_per_s"].parse().expect("a number");
    assert!(rate > 0.0, "{told:?}");
    assert_eq!(told["reads_by_bytes:1:key"], told["reads:1:key"]);
}

/// Each packet counts at the core that the program ran on, and the sums are those of all cores.
#[test]
fn stats_pipe_counts_each_packet_at_its_core() {
    let Some(network) = Network::new() else { return };
    let _server = network.serve(&[]);
    let (mut tcp, mut udp) = (Tcp::new(), Udp::new());
    tcp.ask(&format!("set {KEY} 0 0 5\r\nhello\r\n"));
    make_hot(&mut udp, KEY);
    let facts = |tcp: &mut Tcp| tcp.stats("pipe").into_iter().collect::<HashMap<_, _>>();
    let number = |facts: &HashMap<String, String>, name: &str| {
        facts.get(name).map_or(0, |number| number.parse::<u64>().expect("a number"))
    };
    let cores = rustix::thread::sched_getaffinity(None).expect("the cores of this thread");
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| cores.is_set(*core)).collect();
    // The kernel runs the program on the core that has sent the packet over the cable.
    for core in cores.into_iter().take(4) {
        let mut only = CpuSet::new();
        only.set(core);
        rustix::thread::sched_setaffinity(None, &only).expect("one of our cores");
        let name = format!("cpu:{core}:answered");
        let before = number(&facts(&mut tcp), &name);
        for _ in 0..10 {
            udp.ask(format!("get {KEY}\r\n"));
        }
        assert!(number(&facts(&mut tcp), &name) >= before + 10, "core {core}");
    }
    let facts = facts(&mut tcp);
    println!("{facts:?}");
    for (name, value) in [("state", "on"), ("interface", "kachel0"), ("mode", "native")] {
        assert_eq!(facts[name], value);
    }
    for (name, value) in [("items", 1), ("promotions", 1), ("demotions", 0), ("dropped", 0)] {
        assert_eq!(number(&facts, name), value, "{name}");
    }
    assert!(number(&facts, "passed_miss") > 0 && number(&facts, "items_max") > 1000);
    for name in facts.keys().filter(|name| name.starts_with("passed_") || *name == "answered") {
        let of_cores = facts.keys().filter(|core| core.starts_with("cpu:"));
        let of_cores = of_cores.filter(|core| core.rsplit(':').next() == Some(name));
        let sum: u64 = of_cores.map(|core| number(&facts, core)).sum();
        // Packets of TCP come while the lines are made.
        let is_sum = name == "passed_other" || sum == number(&facts, name);
        assert!(is_sum, "{name}: {sum} on all cores");
    }
    // A change drops the copy.
    tcp.ask(&format!("set {KEY} 0 0 5\r\nworld\r\n"));
    let stats: HashMap<_, _> = tcp.stats("pipe").into_iter().collect();
    assert_eq!((number(&stats, "items"), number(&stats, "invalidations")), (0, 1));
    assert_eq!((tcp.stat("kachel_pipe_on"), tcp.stat("kachel_pipe_items")), (1, 0));
    assert!(tcp.stat("kachel_pipe_passed") > number(&stats, "passed_miss"));
}

#[test]
fn the_pipe_is_switched_off_and_on_again_while_the_server_serves() {
    let Some(network) = Network::new() else { return };
    let _server = network.serve(&[]);
    let (mut tcp, mut udp) = (Tcp::new(), Udp::new());
    let answered = |tcp: &mut Tcp| tcp.stat("kachel_pipe_answered");
    tcp.ask(&format!("set {KEY} 0 0 5\r\nhello\r\n"));
    make_hot(&mut udp, KEY);
    let before = answered(&mut tcp);
    assert!(before > 0 && tcp.stat("kachel_pipe_on") == 1);
    assert_eq!(tcp.ask("pipe off\r\n"), "OK\r\n");
    make_hot(&mut udp, KEY);
    assert_eq!((answered(&mut tcp), tcp.stat("kachel_pipe_on")), (before, 0));
    assert!(tcp.stats("pipe").contains(&("state".into(), "off".into())));
    tcp.ask(&format!("set {KEY} 0 0 5\r\nworld\r\n"));
    assert_eq!(tcp.ask("pipe on\r\n"), "OK\r\n");
    let reply = format!("VALUE {KEY} 0 5\r\nworld\r\nEND\r\n").into_bytes();
    for _ in 0..8 {
        assert_eq!(udp.ask(format!("get {KEY}\r\n")), reply);
    }
    assert!(answered(&mut tcp) > before, "it answers again");
    // The kernel does not let `ip` take away a program that a process has linked.
    assert!(network.ip_of_server("link set dev kachel0 xdp off").is_err());
    assert!(tcp.stats("pipe").contains(&("state".into(), "on".into())));
}

#[test]
fn a_pipe_without_its_interface_says_so() {
    let Some(network) = Network::new() else { return };
    for words in [
        "link add kachel2 type veth peer name kachel3",
        "addr add 10.9.1.2/24 dev kachel2",
        "link set kachel3 up",
        "link set kachel2 up",
    ] {
        network.ip_of_server(words).expect("root may make interfaces");
    }
    let _server = network.serve(&["--pipe", "kachel2", "-u", "nobody"]);
    let mut tcp = Tcp::new();
    let state = |tcp: &mut Tcp| tcp.stats("pipe").swap_remove(0).1;
    assert_eq!((state(&mut tcp).as_str(), tcp.ask("pipe off\r\n").as_str()), ("on", "OK\r\n"));
    network.ip_of_server("link del kachel2").expect("root may remove interfaces");
    assert_eq!(state(&mut tcp), "detached");
    assert_eq!(tcp.ask("pipe on\r\n"), "SERVER_ERROR pipe detached from its interface\r\n");
    assert_eq!(tcp.ask("pipe off\r\n"), "OK\r\n");
}

/// The fault: an interface whose other end takes no packet of a program lost each reply for ever.
#[test]
fn a_pipe_whose_replies_are_lost_switches_itself_off_and_says_why() {
    let Some(network) = Network::without_program_at_clients() else { return };
    let server = network.serve(&[]);
    let (mut tcp, mut udp) = (Tcp::new(), Udp::new());
    tcp.ask(&format!("set {KEY} 0 0 5\r\nhello\r\n"));
    let get = format!("get {KEY}\r\n");
    let reply = format!("VALUE {KEY} 0 5\r\nhello\r\nEND\r\n").into_bytes();
    let row = |tcp: &mut Tcp, name: &str| {
        tcp.stats("pipe").into_iter().find(|row| row.0 == name).map(|row| row.1)
    };
    for _ in 0..2 {
        // Requests that get no reply go on, because a client goes on.
        let end = Instant::now() + Duration::from_secs(60);
        while row(&mut tcp, "state").as_deref() == Some("on") {
            assert!(Instant::now() < end, "it notices: {:?}", tcp.stats("pipe"));
            udp.is_answered(&get);
            udp.send_all(&get, 16);
        }
        let said = server.line_with("--pipe kachel0: off: the interface has dropped ");
        assert_eq!(row(&mut tcp, "state").as_deref(), Some("off"));
        let reason = row(&mut tcp, "reason").expect("it says why");
        assert!(said.ends_with(&reason) && reason.contains("veth"), "{reason}, {said}");
        let answered = tcp.stat("kachel_pipe_answered");
        assert!(answered > 0 && tcp.stat("kachel_pipe_on") == 0, "{answered}");
        for _ in 0..8 {
            assert_eq!(udp.ask(&get), reply, "the server answers");
        }
        assert_eq!(tcp.stat("kachel_pipe_answered"), answered);
        // An operator may try again.
        assert_eq!(tcp.ask("pipe on\r\n"), "OK\r\n");
        assert_eq!(row(&mut tcp, "reason"), None);
    }
}

/// Another address of the host, and the addresses of its networks that no host has. A frame for
/// another host reaches the interface, too, and so does one from all hosts.
#[test]
fn the_pipe_answers_only_whom_the_kernel_would_answer() {
    let Some(network) = Network::new() else { return };
    let server = network.serve(&[]);
    let (mut tcp, mut udp) = (Tcp::new(), Udp::new());
    tcp.ask(&format!("set {KEY} 0 0 5\r\nhello\r\n"));
    make_hot(&mut udp, KEY);
    let get = format!("get {KEY}\r\n");
    let answered = |tcp: &mut Tcp| tcp.stat("kachel_pipe_answered");
    // An address that the interface gets while the server serves is the server's own.
    network.ip_of_server("addr add 10.9.0.77/24 dev kachel0").expect("root may add addresses");
    network.ip_of_client("addr add 10.9.0.77/24 dev kachel1").expect("root may add addresses");
    let end = Instant::now() + Duration::from_secs(20);
    let mut as_the_server = Udp::between("10.9.0.77:0", SERVER);
    let passed = |tcp: &mut Tcp| {
        let facts: HashMap<_, _> = tcp.stats("pipe").into_iter().collect();
        facts["passed_not_answerable"].parse::<u64>().expect("a number")
    };
    while passed(&mut tcp) == 0 {
        assert!(Instant::now() < end, "the program hears of the address");
        udp.ask(&get); // It looks at the interface while the pipe answers.
        as_the_server.is_answered(&get);
    }
    let before = answered(&mut tcp);
    assert!(!as_the_server.is_answered(&get), "neither by the pipe nor by the kernel");
    assert_eq!(answered(&mut tcp), before);
    assert!(udp.is_answered(&get) && answered(&mut tcp) == before + 1, "{:?}", server.said);
    // What is sent to an address that the interface has lost is not answered.
    let mut to_second = Udp::between("10.9.0.1:0", "10.9.0.2:11311");
    network.ip_of_server("addr del 10.9.0.2/24 dev kachel0").expect("root may remove addresses");
    while to_second.is_answered(&get) {
        assert!(Instant::now() < end + Duration::from_secs(20), "the program hears of it");
    }
}

/// The rights to load the program, as bits: NET_ADMIN, SYS_ADMIN, PERFMON, BPF.
const LOADING: u64 = 1 << 12 | 1 << 21 | 1 << 38 | 1 << 39;

/// Whether this process may give each of these rights to another, which needs SETPCAP.
fn has_rights_to_give() -> bool {
    let wanted = LOADING & !(1 << 21) | 1 << 8;
    let status = std::fs::read_to_string("/proc/self/status").expect("a file of the kernel");
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("a set");
    u64::from_str_radix(rights.trim(), 16).expect("a number") & wanted == wanted
}

/// A server that stays root, and one that was given no more than it needs.
#[test]
fn the_rights_to_load_the_program_are_given_up_and_the_pipe_answers() {
    const NEEDED: &str = "-all,+bpf,+net_admin,+perfmon";
    let Some(network) = Network::new() else { return };
    let given = ["--bounding-set", "--inh-caps", "--ambient-caps"].map(|set| [set, NEEDED]);
    let given = ["setpriv"].into_iter().chain(given.into_iter().flatten()).collect::<Vec<_>>();
    for (program, rest) in [(&[][..], true), (&given, false)] {
        if !rest && !has_rights_to_give() {
            return kachel_testkit::skip("pipe.rights", "this process has not all of them to give");
        }
        let server = network.serve_by(program, &["-t", "2"]);
        let (mut tcp, mut udp) = (Tcp::new(), Udp::new());
        tcp.ask(&format!("set {KEY} 0 0 5\r\nhello\r\n"));
        make_hot(&mut udp, KEY);
        assert!(tcp.stat("kachel_pipe_answered") > 0, "{:?}", server.said);
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            let threads = server.rights(set);
            assert!(threads.len() > 2, "the shards are threads");
            assert!(threads.iter().all(|rights| rights & LOADING == 0), "{set}: {threads:x?}");
        }
        // A server that stays root keeps its other rights, and none comes back by `exec`.
        assert_eq!(server.rights("CapEff").iter().all(|rights| *rights != 0), rest);
        assert_eq!(server.rights("CapBnd").iter().all(|rights| rights & LOADING == 0), rest);
        assert_eq!(tcp.ask("pipe off\r\n"), "OK\r\n");
        assert!(tcp.stats("pipe").contains(&("state".into(), "off".into())));
    }
}

/// A random change of an item, or of all items. `value` differs from change to change.
fn change(tcp: &mut Tcp, udp: &mut Udp, key: &str, value: u64, dice: &mut Random) {
    let value = format!("{value}");
    let bytes = value.len();
    let block = format!("{bytes}\r\n{value}\r\n");
    let request = match dice.below(16) {
        0..5 => format!("set {key} 3 0 {block}"),
        5 => format!("set {key} 3 1 {block}"),
        6 => format!("delete {key}\r\n"),
        7 => format!("touch {key} {}\r\n", dice.pick(&[-1, 0, 1, 100])),
        8 => format!("incr {key} 1\r\n"),
        9 => format!("append {key} 0 0 1\r\n7\r\n"),
        10 => format!("ms {key} {bytes} T{}\r\n{value}\r\n", dice.pick(&[0, 1, 100])),
        11 => format!("md {key} I T30\r\n"),
        12 => format!("mg {key} T{}\r\n", dice.pick(&[0, 1, 100])),
        13 if dice.percent(20) => "flush_all\r\n".into(),
        13 if dice.percent(40) => format!("flush_prefix {key} bytes\r\n"),
        14 => format!("set {key} 9 0 600\r\n{}\r\n", "v".repeat(600)),
        _ => format!("set {key} 4 100 {block}"),
    };
    // Changes come over either transport.
    match dice.percent(30) {
        true => drop(udp.ask(request)),
        false => drop(tcp.ask(&request)),
    }
}

#[test]
fn a_read_over_udp_is_never_older_than_a_read_over_tcp() {
    let Some(network) = Network::new() else { return };
    let _server = network.serve(&["-t", "2"]);
    let (mut tcp, mut udp) = (Tcp::new(), Udp::new());
    let changes = setting("KACHEL_PIPE_CHANGES", 4_000);
    let seed = setting("KACHEL_SEED", 18);
    let mut dice = Random::new(seed);
    for round in 0..changes {
        let key = format!("some-key-number-{}", dice.below(8));
        if dice.percent(40) {
            change(&mut tcp, &mut udp, &key, 1_000_000 + round, &mut dice);
        }
        let verb = dice.pick(&["get", "get", "gets"]);
        let over_tcp = tcp.get(verb, &key);
        let over_udp = udp.ask(format!("{verb} {key}\r\n"));
        // An item may expire between the two.
        let is_gone = over_udp == b"END\r\n" && over_tcp != b"END\r\n";
        let is_gone = is_gone && tcp.get("get", &key) == b"END\r\n";
        let shown = |reply: &[u8]| String::from_utf8_lossy(reply).into_owned();
        assert!(
            over_tcp == over_udp || is_gone,
            "round {round} of seed {seed}: {:?} over TCP, then {:?}",
            shown(&over_tcp),
            shown(&over_udp)
        );
    }
    let answered = tcp.stat("kachel_pipe_answered");
    println!("{answered} of {changes} reads were answered by the pipe");
    assert!(answered > changes / 20, "{answered}");
}

/// The number that a reply of `get` has as its value.
fn number_in(reply: &[u8]) -> u64 {
    let text = String::from_utf8(reply.to_vec()).expect("text");
    text.lines().nth(1).expect("a value").parse().expect("a number")
}

#[test]
fn no_reader_sees_a_value_that_was_replaced() {
    let Some(network) = Network::new() else { return };
    let _server = network.serve(&["-t", "2"]);
    let (acknowledged, is_over) = (AtomicU64::new(1), AtomicBool::new(false));
    let writes = setting("KACHEL_PIPE_CHANGES", 4_000);
    let mut tcp = Tcp::new();
    assert_eq!(tcp.ask(&format!("set {KEY} 0 0 1\r\n1\r\n")), "STORED\r\n");
    let stale = std::thread::scope(|scope| {
        let reader = |over_tcp: bool| {
            let (acknowledged, is_over) = (&acknowledged, &is_over);
            let (mut tcp, mut udp) = (Tcp::new(), Udp::new());
            scope.spawn(move || {
                let (mut last, mut reads) = (0, 0_u64);
                while !is_over.load(Ordering::Relaxed) {
                    let least = acknowledged.load(Ordering::SeqCst).max(last);
                    // A value that one transport has shown is the least that the other one shows.
                    let reply = match over_tcp && reads.is_multiple_of(3) {
                        true => tcp.get("get", KEY),
                        false => udp.ask(format!("get {KEY}\r\n")),
                    };
                    last = number_in(&reply);
                    reads += 1;
                    if last < least {
                        return Some((last, least));
                    }
                }
                None
            })
        };
        let readers = [reader(false), reader(true)];
        for number in 2..=writes {
            let text = number.to_string();
            let request = format!("set {KEY} 0 0 {}\r\n{text}\r\n", text.len());
            assert_eq!(tcp.ask(&request), "STORED\r\n");
            acknowledged.store(number, Ordering::SeqCst);
            if readers.iter().any(|reader| reader.is_finished()) {
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
        readers.map(|reader| reader.join().expect("a reader ends"))
    });
    assert_eq!(stale, [None, None], "a value, and the least that it may be");
    let answered = tcp.stat("kachel_pipe_answered");
    println!("{answered} reads were answered by the pipe during {writes} writes");
    assert!(answered > 0, "the pipe took part");
}

#[test]
fn items_expire_and_are_flushed_in_the_pipe_to_the_second() {
    let Some(network) = Network::new() else { return };
    let _server = network.serve(&[]);
    let (mut tcp, mut udp) = (Tcp::new(), Udp::new());
    tcp.ask(&format!("set {KEY} 0 4 5\r\nhello\r\n"));
    make_hot(&mut udp, KEY);
    let answered = tcp.stat("kachel_pipe_answered");
    let end = Instant::now() + Duration::from_secs(20);
    // From the first miss over TCP on, the pipe has none either.
    while tcp.get("get", KEY) != b"END\r\n" {
        assert!(Instant::now() < end, "it expires");
        udp.ask(format!("get {KEY}\r\n"));
    }
    assert_eq!(udp.ask(format!("get {KEY}\r\n")), b"END\r\n");
    assert!(tcp.stat("kachel_pipe_answered") > answered, "it was answered until then");

    tcp.ask(&format!("set {KEY} 0 0 5\r\nhello\r\n"));
    make_hot(&mut udp, KEY);
    tcp.ask("flush_all 4\r\n");
    while tcp.get("get", KEY) != b"END\r\n" {
        assert!(Instant::now() < end + Duration::from_secs(20), "it is flushed");
        udp.ask(format!("get {KEY}\r\n"));
    }
    assert_eq!(udp.ask(format!("get {KEY}\r\n")), b"END\r\n");
    tcp.ask(&format!("set {KEY} 0 0 5\r\nagain\r\n"));
    let answered = tcp.stat("kachel_pipe_answered");
    make_hot(&mut udp, KEY);
    assert!(tcp.stat("kachel_pipe_answered") > answered, "the pipe answers again");
}

/// A server that stands still at the second of the flush shows that the pipe knows of the second by
/// itself: the engines of the new server have not noted the flush yet.
#[test]
fn a_flush_that_was_pending_at_a_warm_restart_is_kept_by_the_pipe() {
    // Long enough to begin before the flush, and less than the silence that the program suffers.
    const STANDS_STILL: Duration = Duration::from_millis(1_800);
    let Some(network) = Network::new() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("items");
    let saved = ["-e", file.to_str().expect("text")];
    let get = format!("get {KEY}\r\n");
    // A busy machine may need several seconds for a restart.
    for seconds in [6, 30, 120] {
        let server = network.serve(&saved);
        let mut tcp = Tcp::new();
        tcp.ask(&format!("set {KEY} 0 0 5\r\nhello\r\n"));
        tcp.ask(&format!("flush_all {seconds}\r\n"));
        // As in memcached, the flush is a second early.
        let flushed_at = Instant::now() + Duration::from_secs(seconds - 1);
        server.save();

        let server = network.serve(&saved);
        let (mut tcp, mut udp) = (Tcp::new(), Udp::new());
        make_hot(&mut udp, KEY);
        let answered = tcp.stat("kachel_pipe_answered");
        let left = flushed_at.saturating_duration_since(Instant::now() + STANDS_STILL);
        if answered == 0 || left.is_zero() {
            println!("{seconds} seconds were not enough");
            continue;
        }
        std::thread::sleep(left);
        server.signal(Signal::STOP);
        let was_answered = udp.is_answered(&get);
        std::thread::sleep(flushed_at.saturating_duration_since(Instant::now()));
        let is_answered = udp.is_answered(&get);
        server.signal(Signal::CONT);
        assert!(!is_answered, "it is flushed in the pipe");
        if !was_answered {
            println!("stopped too late");
            continue;
        }
        assert_eq!(
            (tcp.get("get", KEY), udp.ask(&get)),
            (b"END\r\n".to_vec(), b"END\r\n".to_vec())
        );
        tcp.ask(&format!("set {KEY} 0 0 5\r\nhello\r\n"));
        let answered = tcp.stat("kachel_pipe_answered");
        make_hot(&mut udp, KEY);
        assert!(tcp.stat("kachel_pipe_answered") > answered, "the pipe answers again");
        return;
    }
    panic!("this machine needs minutes for a restart");
}

#[test]
fn nothing_is_answered_for_a_server_that_is_dead_or_has_restarted() {
    let Some(network) = Network::new() else { return };
    let mut udp = Udp::new();
    for round in 0..setting("KACHEL_PIPE_KILLS", 3) {
        let mut server = network.serve(&[]);
        assert_eq!(udp.ask(format!("get {KEY}\r\n")), b"END\r\n", "round {round}");
        let mut tcp = Tcp::new();
        tcp.ask(&format!("set {KEY} 0 0 5\r\nhello\r\n"));
        make_hot(&mut udp, KEY);
        assert!(tcp.stat("kachel_pipe_answered") > 0);
        server.kill();
        assert!(!udp.is_answered(&format!("get {KEY}\r\n")), "round {round}: the server is dead");
    }
}

#[test]
fn a_server_that_cannot_have_the_pipe_says_why_and_serves() {
    let Some(network) = Network::new() else { return };
    let server = network.serve(&["--pipe", "no-such-one"]);
    let line = server.said.iter().find(|line| line.contains(": --pipe ")).expect("a line");
    assert!(line.contains("warning: --pipe no-such-one: off: "), "{line}");
    let (mut tcp, mut udp) = (Tcp::new(), Udp::new());
    assert_eq!(tcp.ask(&format!("set {KEY} 0 0 5\r\nhello\r\n")), "STORED\r\n");
    let reply = format!("VALUE {KEY} 0 5\r\nhello\r\nEND\r\n").into_bytes();
    assert_eq!(udp.ask(format!("get {KEY}\r\n")), reply);
    assert_eq!((tcp.stats("pipe"), tcp.ask("pipe on\r\n").as_str()), (vec![], NOT_ENABLED));
}

const NOT_ENABLED: &str = "SERVER_ERROR pipe not enabled\r\n";
