//! A server over engines of `flash`: what its clients see, over restarts and failures.
//!
//! Upstream:   `cargo test -p kachel-flash`.
//! Downstream: a server in memory, over a disk in memory.

mod bench;

use std::collections::BTreeSet;

use bench::Bench;
use kachel_io::memory::disk::BLOCK_BYTES;
use kachel_log::{Geometry, SyncMode};
use kachel_testkit::{
    KeptServer as _, every_verb_survives_a_restart, flushes_survive_a_restart,
    requests_for_one_key_keep_their_order, scans_are_right_beside_writes,
    the_flush_of_a_prefix_survives_a_restart,
};

#[test]
fn every_verb_is_answered_and_survives_a_restart() {
    every_verb_survives_a_restart(&mut Bench::new(), 900_000);
}

#[test]
fn flushes_survive_a_restart_and_hold_what_was_stored_before() {
    flushes_survive_a_restart(&mut Bench::new());
}

#[test]
fn requests_for_one_key_are_answered_in_their_order_while_it_is_read() {
    requests_for_one_key_keep_their_order(&mut Bench::new());
}

#[test]
fn the_flush_of_a_prefix_takes_its_keys_in_all_engines() {
    the_flush_of_a_prefix_survives_a_restart(&mut Bench::new());
}

/// The number of flushes of prefixes that are not over.
fn flushed_prefixes(bench: &mut Bench) -> String {
    for _ in 0..2 {
        bench.pass(1);
        bench.expect("mn\r\n", "MN\r\n");
    }
    let stats = bench.ask("stats kachel\r\n");
    let line = stats.lines().find_map(|line| line.strip_prefix("STAT kachel_flushed_prefixes "));
    line.expect("it is told").to_owned()
}

/// The power fails before any log has the flush, or while some have.
#[test]
fn the_flush_of_a_prefix_that_was_answered_survives_a_power_cut() {
    for seed in 0..40 {
        let mut bench = Bench::new();
        bench.start(3);
        let keys: Vec<String> = (0..20).map(|number| format!("user:{number}")).collect();
        for key in keys.iter().map(|key| &key[..]).chain(["users"]) {
            bench.expect(&format!("set {key} 0 0 1\r\n1\r\n"), "STORED\r\n");
        }
        bench.disk_that_takes(1_000_000);
        let other = bench.client();
        other.write(b"flush_prefix user\r\nset user:3 0 0 1\r\n2\r\n");
        bench.pass(0);
        let said = other.read();
        assert!(said.starts_with(b"OK\r\n"), "seed {seed}");
        bench.disk_ends(seed / 4);
        let is_stored = !other.read().is_empty() || said.len() > 4;
        for threads in [1, 2] {
            bench.cut_power(threads, seed);
            let said = bench.ask(&format!("get users {}\r\n", keys.join(" ")));
            let of_users = |more: &str| format!("VALUE users 0 1\r\n1\r\n{more}END\r\n");
            let later = of_users("VALUE user:3 0 1\r\n2\r\n");
            assert!(said == later || !is_stored && said == of_users(""), "seed {seed}: {said}");
        }
        assert_eq!(flushed_prefixes(&mut bench), "0", "each log has it, and no index an item");
    }
}

/// Beyond 64 flushes that are not over, another one is refused, until upkeep has followed.
#[test]
fn flushes_of_prefixes_that_are_not_over_are_bounded() {
    let mut bench = Bench::new();
    bench.start(2);
    bench.disk_that_takes(1_000_000_000);
    let other = bench.client();
    for number in 0..70 {
        other.write(format!("flush_prefix p{number}\r\n").as_bytes());
    }
    bench.pass(0);
    let said = String::from_utf8(other.read()).expect("text");
    let refused = "SERVER_ERROR too many prefixes are being flushed\r\n";
    assert_eq!(said, "OK\r\n".repeat(64) + &refused.repeat(6));
    bench.expect("set p1 0 0 1\r\nx\r\nget p1\r\n", "STORED\r\nVALUE p1 0 1\r\nx\r\nEND\r\n");
    assert_eq!(flushed_prefixes(&mut bench), "0");
    bench.expect("flush_prefix p1\r\nget p1\r\n", "OK\r\nEND\r\n");
}

#[test]
fn scans_are_in_order_and_whole_beside_writes() {
    let mut bench = Bench::new();
    bench.disk_that_takes(1_000);
    scans_are_right_beside_writes(&mut bench);
}

#[test]
fn no_token_is_given_out_twice() {
    let mut bench = Bench::new();
    let mut tokens = BTreeSet::new();
    for (threads, seed) in [(1, 1), (3, 2), (2, 3), (1, 4)] {
        if bench.is_running() {
            bench.cut_power(threads, seed)
        } else {
            bench.start(threads)
        }
        for number in 0..30 {
            let reply = bench.ask(&format!("ms k{number} 1 c\r\nx\r\n"));
            let token = reply.trim().strip_prefix("HD c").expect("stored").to_owned();
            assert!(tokens.insert(token), "{reply}");
        }
    }
}

/// No client sees a change before it is durable, neither its own nor that of another one.
#[test]
fn a_change_is_seen_once_it_is_durable() {
    let mut bench = Bench::new();
    bench.start(1);
    bench.expect("set a 0 0 1\r\n1\r\nset b 0 0 1\r\n1\r\n", "STORED\r\nSTORED\r\n");
    bench.disk_that_takes(1_000_000_000);
    let other = bench.client();
    bench.send("set a 0 0 1\r\n2\r\ndelete b\r\n");
    bench.pass(0);
    other.write(b"get a\r\nget b\r\n");
    bench.pass(0);
    assert_eq!(other.read(), b"");
    assert_eq!(bench.ask(""), "STORED\r\nDELETED\r\n");
    assert_eq!(other.read(), b"VALUE a 0 1\r\n2\r\nEND\r\nEND\r\n");
}

/// More items than memory holds: the others are read from the disk.
#[test]
fn items_that_leave_the_memory_are_read_from_the_disk() {
    let mut bench = Bench::new().with_memory(8 << 20);
    bench.start(1);
    let value = "v".repeat(10_000);
    for number in 0..1500 {
        bench.expect(&format!("set k{number} 3 0 10000\r\n{value}\r\n"), "STORED\r\n");
    }
    for number in 0..1500 {
        let expected = format!("VALUE k{number} 3 10000\r\n{value}\r\nEND\r\n");
        bench.expect(&format!("get k{number}\r\n"), &expected);
    }
    let stats = bench.ask("stats\r\n");
    assert!(stats.contains("STAT curr_items 1500\r\n"), "{stats}");
    assert!(stats.contains("STAT evictions 0\r\n"), "{stats}");
}

/// Much more is written than the disk has space for.
#[test]
fn what_was_overwritten_gives_its_space_back() {
    let mut bench = Bench::with(SyncMode::Always, Geometry::new(1 << 20, 16 << 20));
    bench.start(1);
    let value = |number: usize| format!("{number:>width$}", width = 100 + number * 7919 % 40_000);
    let big = "b".repeat(300_000);
    for round in 0..40 {
        for number in 0..100 {
            let value = value(number + round);
            let set = format!("set k{number} 0 0 {}\r\n{value}\r\n", value.len());
            bench.expect(&set, "STORED\r\n");
        }
        let set = format!("set big{} 0 0 {}\r\n{big}\r\n", round % 3, big.len());
        bench.expect(&set, "STORED\r\n");
        bench.expect(&format!("delete k{}\r\n", round + 40), "DELETED\r\n");
        if round % 10 == 9 {
            bench.restart(1, 1);
        }
        for number in (0..100).filter(|number| *number != round + 40) {
            let value = value(number + round);
            let expected = format!("VALUE k{number} 0 {}\r\n{value}\r\nEND\r\n", value.len());
            bench.expect(&format!("get k{number}\r\n"), &expected);
        }
        bench.expect(&format!("get k{}\r\n", round + 40), "END\r\n");
        let expected = format!("VALUE big0 0 {}\r\n{big}\r\nEND\r\n", big.len());
        bench.expect("get big0\r\n", &expected);
    }
}

/// A store that is full refuses what is new, and takes deletions. Then it has room again.
#[test]
fn a_full_store_refuses_new_items_and_heals() {
    let bench = Bench::with(SyncMode::Always, Geometry::new(1 << 20, 16 << 20));
    fill_and_empty(bench);
}

/// The same if the file system is full before the store is.
#[test]
fn a_full_file_system_refuses_new_items_and_heals() {
    let bench = Bench::with(SyncMode::Always, Geometry::new(1 << 20, 1 << 30));
    bench.disk().set_blocks_max((16 << 20) / BLOCK_BYTES);
    fill_and_empty(bench);
}

fn fill_and_empty(mut bench: Bench) {
    bench.start(1);
    let value = "v".repeat(10_000);
    for round in 0..3 {
        let mut stored = 0;
        loop {
            let set = format!("set k{stored} 0 0 10000\r\n{value}\r\n");
            match &*bench.ask(&set) {
                "STORED\r\n" => stored += 1,
                "SERVER_ERROR out of memory storing object\r\n" => break,
                other => panic!("{other}"),
            }
            assert!(stored < 2000, "there is not so much space");
        }
        assert!(stored > 700, "{stored} items in 16 MiB");
        // A refused store keeps the old value.
        bench.expect(
            &format!("set k0 0 0 10000\r\n{value}\r\nget k0\r\n"),
            &format!(
                "SERVER_ERROR out of memory storing object\r\nVALUE k0 0 10000\r\n{value}\r\nEND\r\n"
            ),
        );
        for number in 0..stored {
            bench.expect(&format!("touch k{number} 0\r\n"), "TOUCHED\r\n");
            bench.expect(&format!("delete k{number}\r\n"), "DELETED\r\n");
        }
        bench.pass(1);
        bench.restart(1 + round, 1);
        bench.expect("get k0 k1 k2\r\n", "END\r\n");
    }
}

#[test]
fn a_listing_shows_every_item_once_and_no_dead_one() {
    let mut bench = Bench::new();
    bench.start(2);
    for number in 0..300 {
        bench.expect(&format!("set k{number} 0 0 1\r\nx\r\n"), "STORED\r\n");
    }
    let big = "b".repeat(100_000);
    bench.expect(&format!("set big 0 0 100000\r\n{big}\r\n"), "STORED\r\n");
    bench.restart(2, 1);
    bench.expect(
        "delete k7\r\nset k8 0 1 1\r\ny\r\nset new 0 0 1\r\nx\r\n",
        "DELETED\r\nSTORED\r\nSTORED\r\n",
    );
    bench.pass(2);
    let dump = bench.ask("lru_crawler metadump all\r\n");
    let keys: BTreeSet<_> =
        dump.lines().filter_map(|line| line.split(' ').next()?.strip_prefix("key=")).collect();
    assert_eq!((keys.len(), dump.lines().count()), (300, 302), "{dump}");
    assert!(keys.contains("new") && keys.contains("big"), "{dump}");
    assert!(!keys.contains("k7") && !keys.contains("k8"), "{dump}");
}

/// The fault: the 17th listing displaced another one, which ended with an error of a healthy disk.
#[test]
fn listings_of_many_clients_are_whole() {
    const ITEMS: usize = 300;
    let mut bench = Bench::new();
    bench.start(2);
    for number in 0..ITEMS {
        bench.expect(&format!("set k{number} 0 0 1\r\nx\r\n"), "STORED\r\n");
    }
    bench.restart(2, 1);
    bench.disk_that_takes(1_000_000);
    let clients: Vec<_> = (0..60).map(|_| bench.client()).collect();
    clients.iter().for_each(|client| client.write(b"lru_crawler metadump all\r\n"));
    bench.expect("get none\r\n", "END\r\n");
    for (number, client) in clients.iter().enumerate() {
        let said = String::from_utf8(client.read()).expect("text");
        let keys = said.lines().filter(|line| line.starts_with("key=")).count();
        assert!(keys == ITEMS && said.ends_with("END\r\n"), "client {number}: {keys} keys");
    }
}

/// A delayed flush was carried out, and the clock goes back before it. What was stored since then
/// has the number of the next flush, which must not be given out again.
#[test]
fn a_flush_after_a_clock_that_went_back_takes_all_that_was_stored() {
    let mut bench = Bench::new();
    bench.start(1);
    bench.expect("set a 0 0 1\r\n1\r\nflush_all 100\r\n", "STORED\r\nOK\r\n");
    bench.pass(101);
    bench.expect("get a\r\nset b 0 0 1\r\n2\r\n", "END\r\nSTORED\r\n");
    bench.restart(1, -90);
    bench.expect("get a b\r\n", "VALUE b 0 1\r\n2\r\nEND\r\n");
    bench.expect("flush_all\r\nget a b\r\n", "OK\r\nEND\r\n");
    bench.restart(1, 1);
    bench.expect("get a b\r\n", "END\r\n");
}
