//! Whole shards as threads, with a scheduler that chooses every step.
//!
//! Upstream:   `tests/schedules/run`, which builds with `--cfg shuttle`; without it, this file is
//!             empty.
//! Downstream: `world`, shards and clients of a server in memory.
//!
//! Shuttle runs one thread at a time and changes between them at every word that they share: at
//! random, and by priorities that change a few times (PCT, Burckhardt and others, ASPLOS 2010). It
//! does not reorder memory; loom's models of the lock, the sleeper and quiescence do.
#![cfg(shuttle)]

mod world;

use kachel_shard::PlainOptions;
use kachel_testkit::WorldOptions;
use world::{Client, explore, servers};

/// A client that sends each request on the left and awaits the reply on its right.
fn client(script: &[(&str, &str)]) -> Client {
    let script = script.iter().map(|&(ask, answer)| (ask.to_owned(), answer.to_owned()));
    Client { script: script.collect() }
}

/// A client that sends all requests at once, for keys of its own: some belong to the other shard.
fn pipelined(number: usize) -> Client {
    let mut asks = String::new();
    let mut answers = String::new();
    for key in 0..4 {
        asks += &format!("set k{number}{key} 7 0 2\r\nv{key}\r\n");
        answers += "STORED\r\n";
        asks += &format!("get k{number}{key}\r\n");
        answers += &format!("VALUE k{number}{key} 7 2\r\nv{key}\r\nEND\r\n");
    }
    asks += &format!("get k{number}3 k{number}0 none k{number}1\r\n");
    for key in [3, 0, 1] {
        answers += &format!("VALUE k{number}{key} 7 2\r\nv{key}\r\n");
    }
    answers += "END\r\n";
    client(&[(&asks, &answers)])
}

#[test]
fn replies_of_parked_requests_come_in_order() {
    explore("parked in order", servers(2, false), || vec![pipelined(1), pipelined(2)]);
    explore("parked in order, crew", servers(2, true), || vec![pipelined(1), pipelined(2)]);
}

#[test]
fn nobody_sleeps_while_something_waits() {
    // One request at a time: a lost wake-up ends the conversation.
    let one_by_one = |number: usize| {
        let mut script = Vec::new();
        for key in 0..3 {
            let name = format!("k{number}{key}");
            script.push((format!("set {name} 0 0 1\r\n{key}\r\n"), "STORED\r\n".to_owned()));
            script
                .push((format!("get {name}\r\n"), format!("VALUE {name} 0 1\r\n{key}\r\nEND\r\n")));
        }
        Client { script }
    };
    explore("wake-ups", servers(3, false), move || vec![one_by_one(1), one_by_one(2)]);
    // The third core is the home of no engine.
    let options = WorldOptions { engines: Some(2), ..servers(3, true) };
    explore("wake-ups, crew", options, move || vec![one_by_one(1), one_by_one(2)]);
}

#[test]
fn connections_that_move_are_served_in_order() {
    let options = WorldOptions {
        plain: PlainOptions { cores_max: Some(3), ..servers(3, true).plain },
        ..servers(3, true)
    };
    let happened = explore("moves", options, || {
        let turn = |number: usize| pipelined(number).script.remove(0);
        (1..4).map(|number| Client { script: (0..4).map(|_| turn(number)).collect() }).collect()
    });
    assert!(happened.moved > 0, "every connection stayed where it came in");
}

#[test]
fn connections_that_are_handed_over_are_served() {
    // The second is for another shard, and the third, unless they have spoken before.
    let happened = explore("adoption", servers(3, false), || {
        (1..4)
            .map(|number| {
                let set = format!("set a{number} 0 0 1\r\n{number}\r\n");
                let get = format!("get a{number}\r\n");
                let value = format!("VALUE a{number} 0 1\r\n{number}\r\nEND\r\n");
                client(&[(&set, "STORED\r\n"), (&get, &value)])
            })
            .collect()
    });
    assert!(happened.adopted > 0, "every connection stayed where it came in");
}

#[test]
fn nothing_is_lost_where_no_record_is_left() {
    // Half of the requests are for the other shard, and the 64 KiB of a core for what waits hold 43
    // of them. All together are less than a turn, so the client waits for nothing but a record.
    let options = WorldOptions { memory_bytes: 1 << 20, ..servers(2, false) };
    let happened = explore("no record", options, || {
        let value = "x".repeat(700);
        let mut asks = String::new();
        let mut answers = String::new();
        for key in 0..94 {
            asks += &format!("set f{key} 0 0 700\r\n{value}\r\n");
            answers += "STORED\r\n";
        }
        vec![client(&[(&asks, &answers)])]
    });
    assert!(happened.resumptions > 0, "there was always a record");
}
