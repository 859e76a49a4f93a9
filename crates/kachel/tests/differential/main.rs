//! The same random commands to this server and to a memcached: the replies must be the same.
//!
//! Upstream:   `cargo test`, or `./test`, which installs Debian's memcached as the peer.
//! Downstream: `run` drives both; `rules` lists the differences that are accepted.
//!
//! Environment: `KACHEL_PEER` names another memcached, `KACHEL_DIFF_COMMANDS` a number of commands,
//! `KACHEL_DIFF_SEED` the seed, `KACHEL_DIFF_SERVER` another program in the place of ours.

mod binary;
mod clock;
mod command;
mod compare;
mod generator;
mod malformed;
mod meta;
mod plant;
mod reply;
mod rules;
mod run;
mod statistics;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use kachel_testkit::{Launch, Server, setting};

use plant::Plant;
use rules::RULES;
use run::{Outcome, Plan, peer_age, run};

/// How many commands `./test` compares.
const COMMANDS: u64 = 50_000;
/// The run from which the counts below are demanded; a shorter one proves too little for them.
const COUNTED_COMMANDS: usize = 50_000;
/// How often each verb, and each flag of each meta verb, must at least be asked.
const EACH_MIN: usize = 50;
/// The commands for one binary request. There are fewer of these, because more of them have large
/// values.
const BINARY_SHARE: usize = 8;
/// Within how many commands a planted fault finds its place.
const PLANTED_COMMANDS: usize = 20_000;
/// An item of one second that is there for so long stays for ever.
const EXPIRE_WITHIN: Duration = Duration::from_secs(20);

fn program(name: &str, default: &str) -> PathBuf {
    std::env::var_os(name).map_or_else(|| default.into(), PathBuf::from)
}

/// The server under test, and the peer.
fn servers() -> (Server, Server) {
    let ours = program("KACHEL_DIFF_SERVER", env!("CARGO_BIN_EXE_kachel"));
    let peer = program("KACHEL_PEER", "/usr/bin/memcached");
    let options = ["-U", "0", "-m", "1024", "-t", "2"];
    (Launch::memcached(&ours, &options).start(), Launch::memcached(&peer, &options).start())
}

fn print(outcome: &Outcome, plan_seed: u64) {
    let comparison = &outcome.comparison;
    let malformed: usize = outcome.malformed.values().sum();
    println!("seed {plan_seed}: {} commands, {malformed} malformed", outcome.commands);
    println!("keys asked for {}, found {}", comparison.keys_asked, comparison.keys_found);
    let (ours, peer) = (outcome.outlived_ours, outcome.outlived_peer);
    println!(
        "{} flushes, outlived by {ours} items on ours and {peer} on the peer",
        outcome.flushes
    );
    println!("the peer's clock left a second out: {}", comparison.peer_clock_jumped);
    println!("verbs {:?}", outcome.verbs);
    println!("meta flags {:?}", outcome.flags);
    println!("malformed {:?}", outcome.malformed);
    println!("answers {:?}", comparison.answers);
    for (rule, hits) in RULES.iter().zip(&comparison.hits).filter(|(_, hits)| hits.count > 0) {
        println!(
            "rule {}: {} times, since {}\n      {}",
            rule.name, hits.count, rule.why, hits.example
        );
    }
}

#[test]
fn random_commands_get_the_same_replies() {
    let (ours, peer) = servers();
    let commands = setting("KACHEL_DIFF_COMMANDS", COMMANDS) as usize;
    let seed = setting("KACHEL_DIFF_SEED", 1);
    let outcome = run(&ours, &peer, Plan { seed, commands, plant: None });
    print(&outcome, seed);
    let comparison = &outcome.comparison;
    for difference in &comparison.differences {
        println!("difference at command {}: {}", difference.index, difference.shown);
    }
    let said = ours.last_words();
    assert!(comparison.differences.is_empty(), "the replies differ, see above; ours said: {said}");
    // A memcached in our place is no better than the peer.
    let stand_in = std::env::var_os("KACHEL_DIFF_SERVER").is_some();
    assert!(stand_in || outcome.outlived_ours == 0, "items outlived a flush");
    assert!(stand_in || !comparison.our_clock_jumped, "our second left one out");

    if commands >= COUNTED_COMMANDS {
        for (verb, count) in &outcome.verbs {
            assert!(*count >= EACH_MIN, "{verb} was asked only {count} times");
        }
        for ((verb, flag), count) in &outcome.flags {
            assert!(*count >= EACH_MIN, "{verb} {flag} was asked only {count} times");
        }
        let found = comparison.keys_found * 100 / comparison.keys_asked;
        assert!((30..=70).contains(&found), "{found} % of the keys were found");
        let malformed: usize = outcome.malformed.values().sum();
        assert!(malformed * 20 >= outcome.commands, "only {malformed} commands were malformed");
    }
}

#[test]
fn random_commands_of_the_binary_protocol_get_the_same_replies() {
    let (ours, peer) = servers();
    let requests = setting("KACHEL_DIFF_COMMANDS", COMMANDS) as usize / BINARY_SHARE;
    let seed = setting("KACHEL_DIFF_SEED", 1);
    let replies = binary::compare([&ours, &peer], seed, requests, false);
    let said = ours.last_words();
    let replies = replies.unwrap_or_else(|difference| panic!("{difference}; ours said: {said}"));
    println!("seed {seed}: {requests} binary requests, {replies} replies");
    assert!(replies * 3 >= requests, "only {replies} replies");
}

#[test]
fn a_wrong_status_of_the_binary_protocol_is_caught() {
    let (ours, peer) = servers();
    binary::compare([&ours, &peer], 2, PLANTED_COMMANDS, true).expect_err("a wrong reply is found");
}

/// Runs until the wrong reply is in and found; it must be found in the batch that it was put into.
fn is_caught(plant: Plant) {
    let (ours, peer) = servers();
    let plan = Plan { seed: 2, commands: PLANTED_COMMANDS, plant: Some(plant) };
    let outcome = run(&ours, &peer, plan);
    let planted = outcome.planted.expect("some batch takes the wrong reply");
    let difference = outcome.comparison.differences.first().expect("the wrong reply is found");
    assert!(planted.contains(&difference.index), "found elsewhere: {}", difference.shown);
}

#[test]
fn a_swapped_end_is_caught() {
    is_caught(plant::end_swapped);
}

#[test]
fn a_flipped_value_byte_is_caught() {
    is_caught(plant::value_byte_flipped);
}

#[test]
fn a_dropped_reply_is_caught() {
    is_caught(plant::reply_dropped);
}

#[test]
fn a_decreased_token_is_caught() {
    is_caught(plant::token_decreased);
}

#[test]
fn a_time_off_by_five_is_caught() {
    is_caught(plant::time_off_by_five);
}

#[test]
fn stats_shows_the_peers_keys_in_its_order_but_for_those_listed() {
    let (ours, peer) = servers();
    let [our_stats, peer_stats] =
        [&ours, &peer].map(|server| server.connect().ask("stats\r\n", "END\r\n"));
    let wrong = statistics::wrong(&our_stats, &peer_stats, peer_age(&peer));
    assert!(wrong.is_empty(), "{wrong:#?}");
    let used = |name: &str| {
        let text = our_stats.lines().find_map(|line| line.strip_prefix(name)).expect("a time");
        let (seconds, rest) = text.split_once('.').expect("a point");
        assert_eq!(rest.len(), 6, "{name}{text}");
        let number = |digits: &str| digits.parse::<u64>().expect("a number");
        number(seconds) * 1_000_000 + number(rest)
    };
    assert!(used("STAT rusage_user ") + used("STAT rusage_system ") > 0, "it has run");
}

#[test]
fn items_of_one_second_are_gone_from_both() {
    let (ours, peer) = servers();
    for server in [&ours, &peer] {
        server.connect().ask("set short 0 1 1\r\nx\r\nset long 0 3600 1\r\ny\r\nmn\r\n", "MN\r\n");
    }
    let began = Instant::now();
    for server in [&ours, &peer] {
        while server.connect().ask("get short\r\n", "END\r\n") != "END\r\n" {
            assert!(began.elapsed() < EXPIRE_WITHIN, "still there after {EXPIRE_WITHIN:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(
            server.connect().ask("get long\r\n", "END\r\n"),
            "VALUE long 0 1\r\ny\r\nEND\r\n"
        );
    }
}
