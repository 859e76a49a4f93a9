//! A server over engines of RocksDB: what its clients see, over restarts and failures.
//!
//! Upstream:   `cargo test -p kachel-rocks`.
//! Downstream: a server in memory, whose disk makes the calls of the library when they are due.
//!
//! Each test runs over RocksDB and over the library that stands in for it. Where RocksDB is not
//! installed, `KACHEL_FAKE_ROCKSDB=1` says so; otherwise the tests fail there.

mod bench;

use bench::{Bench, Kind, sentences};
use kachel_io::FarEnd;
use kachel_rocks::RocksSync;
use kachel_testkit::{
    KeptServer as _, every_verb_survives_a_restart, flushes_survive_a_restart,
    requests_for_one_key_keep_their_order, scans_are_right_beside_writes,
    the_flush_of_a_prefix_survives_a_restart,
};

/// Runs a test over both libraries.
fn with_both(test: impl Fn(&mut Bench)) {
    for kind in Kind::all() {
        test(&mut Bench::new(kind));
    }
}

#[test]
fn every_verb_is_answered_and_survives_a_restart() {
    with_both(|bench| every_verb_survives_a_restart(bench, 300_000));
}

#[test]
fn flushes_survive_a_restart_and_hold_what_was_stored_before() {
    with_both(flushes_survive_a_restart);
}

#[test]
fn requests_for_one_key_are_answered_in_their_order_while_it_is_read() {
    with_both(requests_for_one_key_keep_their_order);
}

/// A flush stops the core for a sync, so the other clients have their turns in between.
#[test]
fn a_turn_has_one_flush() {
    const FLUSHES: usize = 10;
    let mut bench = Bench::new(Kind::Fake);
    bench.start(1);
    let binary_flush = [&[0x80, 8], &[0; 22][..]].concat();
    let text = ["flush_all\r\n", "flush_all 9\r\n", "flush_prefix p\r\n"].map(str::as_bytes);
    for request in text.into_iter().chain([&binary_flush[..]]) {
        let busy = bench.client();
        bench.pass(0);
        busy.write(&request.repeat(FLUSHES));
        let reply_bytes = if request[0] == 0x80 { 24 } else { "OK\r\n".len() };
        let mut flushed = 0;
        for _ in 0..2 * FLUSHES {
            bench.turn();
            let replies = busy.read().len() / reply_bytes;
            assert!(replies <= 1, "{replies} flushes of {} in a turn", request.escape_ascii());
            flushed += replies;
        }
        assert_eq!(flushed, FLUSHES);
    }
}

/// The delayed flush was carried out in a second that the next start has not reached.
#[test]
fn a_clock_that_goes_back_over_a_delayed_flush_lets_no_item_survive_a_later_one() {
    with_both(|bench| {
        for threads in [1, 3] {
            bench.start(2);
            bench.expect("set a 0 0 1\r\n1\r\nflush_all 10\r\n", "STORED\r\nOK\r\n");
            bench.pass(20);
            let b = "VALUE b 0 1\r\n2\r\n";
            bench.expect("get a\r\nset b 0 0 1\r\n2\r\n", "END\r\nSTORED\r\n");
            // Each of these starts is before the flush.
            for threads in [threads, 2] {
                bench.restart(threads, -30);
                bench.expect("get a b\r\n", &format!("{b}END\r\n"));
            }
            bench.expect("flush_all\r\nget b\r\nset c 0 0 1\r\n3\r\n", "OK\r\nEND\r\nSTORED\r\n");
            bench.restart(threads, 100);
            bench.expect("get a b c\r\n", "VALUE c 0 1\r\n3\r\nEND\r\n");
            bench.stop();
        }
    });
}

#[test]
fn databases_that_are_newer_than_the_file_of_the_flushes_are_refused() {
    with_both(|bench| {
        bench.start(1);
        let old = bench.copy_of("kachel.flush");
        bench.expect("flush_all\r\nset a 0 0 1\r\n1\r\n", "OK\r\nSTORED\r\n");
        bench.stop();
        bench.write("kachel.flush", &old);
        let said = bench.refusal(1);
        assert!(said.ends_with("flushes that kachel.flush does not have: it is older"), "{said}");
    });
}

#[test]
fn the_flush_of_a_prefix_takes_its_keys_in_all_engines() {
    with_both(the_flush_of_a_prefix_survives_a_restart);
}

/// The process ends before any database has the flush.
#[test]
fn the_flush_of_a_prefix_that_was_answered_survives_a_crash() {
    with_both(|bench| {
        bench.start(3);
        let keys: Vec<String> = (0..20).map(|number| format!("user:{number}")).collect();
        for key in keys.iter().map(|key| &key[..]).chain(["users"]) {
            bench.expect(&format!("set {key} 0 0 1\r\n1\r\n"), "STORED\r\n");
        }
        bench.disk_that_takes(1_000_000_000);
        let other = bench.client();
        other.write(b"flush_prefix user\r\n");
        bench.pass(0);
        assert_eq!(other.read(), b"OK\r\n");
        assert_eq!(flushed_prefixes(bench), 1);
        for threads in [1, 2] {
            bench.restart(threads, 1);
            let all = format!("get users {}\r\n", keys.join(" "));
            let user_7 = "VALUE user:7 0 1\r\n2\r\n";
            let kept = if threads == 2 { user_7 } else { "" };
            bench.expect(&all, &format!("VALUE users 0 1\r\n1\r\n{kept}END\r\n"));
            // What is stored later is not flushed once more.
            bench.expect("set user:7 0 0 1\r\n2\r\n", "STORED\r\n");
            bench.pass(2);
            assert_eq!(flushed_prefixes(bench), 0, "each database has it");
        }
    });
}

/// The number of flushes of prefixes that are not over.
fn flushed_prefixes(bench: &mut Bench) -> u64 {
    stat(bench, "kachel_flushed_prefixes")
}

#[test]
fn flushes_of_prefixes_that_are_not_written_are_bounded() {
    let mut bench = Bench::new(Kind::Fake);
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
    assert_eq!(flushed_prefixes(&mut bench), 64);
    // The batches under way, and those that wait for them.
    (0..3).for_each(|_| bench.pass(1));
    assert_eq!(flushed_prefixes(&mut bench), 0);
    bench.expect("flush_prefix p\r\n", "OK\r\n");
}

#[test]
fn no_token_is_given_out_twice() {
    with_both(|bench| {
        let mut tokens = std::collections::BTreeSet::new();
        for threads in [1, 3, 2, 1] {
            bench.start(threads);
            for number in 0..30 {
                let reply = bench.ask(&format!("ms k{number} 1 c\r\nx\r\n"));
                let token = reply.trim().strip_prefix("HD c").expect("stored").to_owned();
                assert!(tokens.insert(token), "{reply}");
            }
            bench.stop();
        }
    });
}

#[test]
fn a_listing_shows_every_item_once_and_no_dead_one() {
    with_both(|bench| {
        bench.start(2);
        for number in 0..300 {
            bench.expect(&format!("set k{number} 0 0 1\r\nx\r\n"), "STORED\r\n");
        }
        bench.restart(2, 1);
        bench.expect(
            "delete k7\r\nset k8 0 1 1\r\ny\r\nset new 0 0 1\r\nx\r\n",
            "DELETED\r\nSTORED\r\nSTORED\r\n",
        );
        bench.pass(2);
        let dump = bench.ask("lru_crawler metadump all\r\n");
        let keys: std::collections::BTreeSet<_> =
            dump.lines().filter_map(|line| line.split(' ').next()?.strip_prefix("key=")).collect();
        assert_eq!((keys.len(), dump.lines().count()), (299, 301), "{dump}");
        assert!(keys.contains("new") && !keys.contains("k7") && !keys.contains("k8"));
    });
}

/// Listings wait for the disk, and the server rests meanwhile (`kachel_testkit::World`, I2). Each
/// of them is whole, for more clients than there may be pages, and if some of them leave or do not
/// read.
#[test]
fn listings_of_many_clients_wait_for_the_disk_and_are_whole() {
    const ITEMS: usize = 300;
    for crew in [true, false] {
        let mut bench = Bench::new(Kind::Fake);
        bench.crew(crew);
        bench.start(2);
        for number in 0..ITEMS {
            bench.expect(&format!("set k{number} 0 0 1\r\nx\r\n"), "STORED\r\n");
        }
        bench.disk_that_takes(300_000_000);
        let asks =
            ["lru_crawler metadump all\r\n", "lru_crawler mgdump all\r\n", "stats items\r\n"];
        let clients: Vec<_> = (0..60).map(|_| bench.client()).collect();
        bench.pass(0);
        for (number, client) in clients.iter().enumerate() {
            client.write(asks[number % 3].as_bytes());
            match number % 10 {
                7 => client.reset(),
                8 => client.stall(),
                _ => {}
            }
        }
        (0..15).for_each(|_| bench.pass(1));
        clients.iter().for_each(FarEnd::allow_all);
        (0..15).for_each(|_| bench.pass(1));
        for (number, client) in clients.iter().enumerate().filter(|(number, _)| number % 10 != 7) {
            let said = String::from_utf8(client.read()).expect("text");
            let is_key = |line: &&str| line.starts_with("key=") || line.starts_with("mg ");
            let keys = said.lines().filter(is_key).count();
            match number % 3 {
                0 => assert!(keys == ITEMS && said.ends_with("END\r\n"), "{keys}: {number}"),
                1 => assert!(keys == ITEMS && said.ends_with("EN\r\n"), "{keys}: {number}"),
                _ => assert!(said.contains(":number 300\r\n"), "{number}: {said}"),
            }
        }
    }
}

#[test]
fn scans_are_in_order_and_whole_beside_writes() {
    for crew in [true, false] {
        with_both(|bench| {
            bench.crew(crew);
            scans_are_right_beside_writes(bench);
        });
    }
}

#[test]
fn a_scan_whose_items_cannot_be_read_ends_with_an_error() {
    let mut bench = Bench::new(Kind::Fake);
    bench.start(1);
    for number in 0..200 {
        bench.expect(&format!("set k{number:03} 0 0 1\r\nx\r\n"), "STORED\r\n");
    }
    bench.stop();
    bench.direct("fail-page", "100");
    bench.start(1);
    let said = bench.ask("mscan k 200 k\r\n");
    assert!(said.starts_with("HD kk000\r\n") && said.ends_with("SERVER_ERROR disk error\r\n"));
    assert!(said.lines().count() > 60, "{said}");
    bench.expect("mscan k 2 k\r\n", "HD kk000\r\nHD kk001\r\nMO kk001\r\n");
}

#[test]
fn a_listing_whose_items_cannot_be_read_ends_with_an_error() {
    let mut bench = Bench::new(Kind::Fake);
    bench.start(1);
    for number in 0..200 {
        bench.expect(&format!("set k{number} 0 0 1\r\nx\r\n"), "STORED\r\n");
    }
    bench.stop();
    bench.direct("fail-page", "100");
    bench.start(1);
    let error = "SERVER_ERROR disk error\r\n";
    for input in ["lru_crawler metadump all\r\n", "lru_crawler mgdump all\r\n"] {
        let said = bench.ask(input);
        assert!(said.lines().count() > 60 && said.ends_with(error), "{said}");
    }
    for input in ["stats items\r\n", "stats slabs\r\n"] {
        bench.expect(input, error);
    }
    bench.expect("get none\r\n", "END\r\n");
}

/// A row of `stats engine`.
fn engine_stat(bench: &mut Bench, name: &str) -> String {
    let said = bench.ask("stats engine\r\n");
    assert!(said.ends_with("END\r\n"), "{said}");
    let name = format!("STAT kachel_engine_{name} ");
    let line = said.lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap_or_else(|| panic!("no {name}: {said}")).to_owned()
}

#[test]
fn the_files_of_the_engines_are_reported() {
    with_both(|bench| {
        bench.start(2);
        for number in 0..20 {
            bench.expect(&format!("set k{number} 0 0 1\r\n1\r\n"), "STORED\r\n");
        }
        (0..2).for_each(|_| bench.pass(1));
        let number = |bench: &mut Bench, name: &str| {
            engine_stat(bench, name).parse::<u64>().expect("a number")
        };
        assert_eq!((number(bench, "commits"), number(bench, "syncs")), (20, 20));
        assert!(number(bench, "cache_bytes") > 0 && number(bench, "write_buffer_bytes") > 0);
        assert_eq!((number(bench, "read_only"), number(bench, "stopped")), (0, 0));
        assert_eq!(engine_stat(bench, "first_error"), "none");
        // The binary protocol has the same rows, and an empty one at the end.
        let rows = bench.ask("stats engine\r\n").lines().count() - 1;
        let ask = [&[0x80, 0x10, 0, 6, 0, 0, 0, 0, 0, 0, 0, 6][..], &[0; 12], b"engine"].concat();
        let binary = bench.client();
        binary.write(&ask);
        bench.pass(0);
        let said = binary.read();
        let heads = said.windows(4).filter(|bytes| bytes[..2] == [0x81, 0x10]).count();
        assert_eq!((heads, rows), (12, 11));
        // Each engine has the note of its own.
        let items: u64 = stat_of(bench, "stats\r\n", "curr_items");
        assert_eq!(items, 22);
        // The databases write their buffers to files when they are opened.
        bench.restart(2, 1);
        (0..3).for_each(|_| bench.pass(1));
        assert!(number(bench, "files") >= 2 && number(bench, "disk_bytes") > 0);
    });
}

#[test]
fn the_first_failure_is_told_and_the_engine_is_read_only() {
    let mut bench = Bench::new(Kind::Fake);
    bench.start(1);
    bench.stop();
    bench.direct("fail-write", "2");
    bench.start(1);
    assert_eq!(bench.ask("set a 0 0 1\r\n1\r\n"), "");
    bench.connect();
    assert_eq!(engine_stat(&mut bench, "read_only"), "1");
    let error =
        "engine 0 changes nothing any more: RocksDB cannot write: IO error: as the test wants it";
    assert_eq!(engine_stat(&mut bench, "first_error"), error);
}

/// The values of all requests need more memory than there is, and those of one request of each
/// client do not. Each waits until others are written.
#[test]
fn a_large_value_waits_for_memory_and_is_not_refused() {
    const CLIENTS: usize = 10;
    const VALUES: usize = 4;
    with_both(|bench| {
        bench.start(1);
        bench.disk_that_takes(1_000_000);
        let value = "x".repeat(1_000_000);
        let clients: Vec<_> = (0..CLIENTS).map(|_| bench.client()).collect();
        for (number, client) in clients.iter().enumerate() {
            for place in 0..VALUES {
                let head = format!("set k{number}:{place} 0 0 {}\r\n", value.len());
                client.write(format!("{head}{value}\r\n").as_bytes());
            }
        }
        bench.expect("get none\r\n", "END\r\n");
        for client in clients {
            assert_eq!(client.read(), b"STORED\r\n".repeat(VALUES));
        }
    });
}

/// A number of `stats kachel`. No operation on a disk ends meanwhile.
fn stat(bench: &mut Bench, name: &str) -> u64 {
    stat_of(bench, "stats kachel\r\n", name)
}

/// A number of a topic of `stats`, in the same way.
fn stat_of(bench: &mut Bench, topic: &str, name: &str) -> u64 {
    let asking = bench.client();
    asking.write(topic.as_bytes());
    bench.pass(0);
    let stats = String::from_utf8(asking.read()).expect("text");
    let line = stats.lines().find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name));
    line.expect("it is told").trim().parse().expect("a number")
}

/// The bytes of values that are being sent.
fn pinned_bytes(bench: &mut Bench) -> u64 {
    stat(bench, "kachel_pinned_bytes")
}

#[test]
fn clients_that_do_not_read_pin_a_quarter_of_memory_at_most() {
    const READERS: usize = 40;
    const VALUE_BYTES: usize = 900_000;
    const QUARTER_BYTES: u64 = 16 << 20;
    with_both(|bench| {
        bench.start(2);
        let value = "v".repeat(VALUE_BYTES);
        for number in 0..READERS {
            bench.expect(&format!("set k{number} 0 0 {VALUE_BYTES}\r\n{value}\r\n"), "STORED\r\n");
        }
        assert_eq!(pinned_bytes(bench), 0);
        let readers: Vec<_> = (0..READERS).map(|_| bench.client()).collect();
        for (number, reader) in readers.iter().enumerate() {
            reader.stall();
            reader.write(format!("get k{number}\r\n").as_bytes());
        }
        bench.expect("get none\r\n", "END\r\n");
        assert!(pinned_bytes(bench) > 2 * QUARTER_BYTES - (4 << 20));
        (0..READERS).for_each(|_| bench.pass(1));
        let closed = readers.iter().filter(|reader| reader.is_closed()).count();
        assert!((READERS / 3..READERS).contains(&closed), "{closed} are closed");
        let behind = pinned_bytes(bench);
        assert!((QUARTER_BYTES / 2..=QUARTER_BYTES).contains(&behind), "{behind} bytes are pinned");
        // Nothing is lost for the others, and nothing stays pinned.
        for (number, reader) in readers.iter().enumerate().filter(|(_, one)| !one.is_closed()) {
            reader.allow_all();
            bench.pass(0);
            let head = format!("VALUE k{number} 0 {VALUE_BYTES}\r\n");
            assert_eq!(reader.read().len(), head.len() + VALUE_BYTES + "\r\nEND\r\n".len());
        }
        assert_eq!(pinned_bytes(bench), 0);
    });
}

/// What was read before a flush is out of date when the request that waits for it is executed.
#[test]
fn a_flush_counts_that_has_overtaken_the_read_of_a_key() {
    with_both(|bench| {
        bench.start(1);
        for key in ["p:a", "p:b"] {
            bench.expect(&format!("set {key} 0 0 1\r\n1\r\n"), "STORED\r\n");
        }
        bench.restart(1, 1);
        let mut waited = 0;
        for key in ["p:a", "p:b"] {
            bench.disk_that_takes(1_000_000_000);
            let other = bench.client();
            bench.send(&format!("incr {key} 1\r\n"));
            bench.pass(0); // The read begins.
            other.write(b"flush_prefix p\r\n");
            bench.pass(0);
            assert_eq!(other.read(), b"OK\r\n");
            bench.pass(2); // The read and the flush complete in one poll.
            // A key that is in memory is not waited for.
            waited += u32::from(bench.ask("") == "NOT_FOUND\r\n");
            bench.expect(&format!("get {key}\r\n"), "END\r\n");
        }
        assert!(waited > 0, "a key had to be read");
    });
}

/// The N-th write of an engine fails, for each N. What was acknowledged is there after a restart.
/// Until then the server answers each request that would change something by an error.
#[test]
fn after_a_write_that_fails_nothing_is_changed_any_more() {
    for fails_at in 1..=8 {
        let mut bench = Bench::new(Kind::Fake);
        bench.start(1);
        bench.stop();
        bench.direct("fail-write", &fails_at.to_string());
        bench.start_and_see_it_fail(fails_at == 1);
        if fails_at == 1 {
            continue;
        }
        // The first write was the note of the tokens.
        for number in 2..fails_at {
            bench.expect(&format!("set k{number} 0 0 1\r\n1\r\n"), "STORED\r\n");
        }
        assert_eq!(bench.ask("set lost 0 0 1\r\n1\r\n"), "", "its client does not know");
        assert!(bench.is_closed());
        bench.connect();
        for input in sentences() {
            bench.expect(input, "SERVER_ERROR disk error\r\n");
        }
        for number in 2..fails_at {
            bench.expect(
                &format!("get k{number}\r\n"),
                &format!("VALUE k{number} 0 1\r\n1\r\nEND\r\n"),
            );
        }
        bench.expect("get other\r\n", "END\r\n");
        bench.stop();
        bench.direct("fail-write", "0");
        bench.start(1);
        bench.expect("get lost\r\nset lost 0 0 1\r\n2\r\n", "END\r\nSTORED\r\n");
        for number in 2..fails_at {
            bench.expect(
                &format!("get k{number}\r\n"),
                &format!("VALUE k{number} 0 1\r\n1\r\nEND\r\n"),
            );
        }
    }
}

#[test]
fn a_flush_that_cannot_be_written_is_made_and_ends_all_changes() {
    let mut bench = Bench::new(Kind::Fake);
    bench.start(2);
    bench.expect("set a 0 0 1\r\n1\r\nflush_all 9\r\n", "STORED\r\nOK\r\n");
    bench.refuse_flushes();
    bench.expect("flush_all\r\nget a\r\n", "SERVER_ERROR disk error\r\nEND\r\n");
    for input in sentences().into_iter().filter(|input| !input.contains("lost")) {
        bench.expect(input, "SERVER_ERROR disk error\r\n");
    }
}

/// The batch was begun before the flush, and ends after it.
#[test]
fn a_change_under_way_when_a_flush_fails_is_not_acknowledged() {
    let mut bench = Bench::new(Kind::Fake);
    bench.start(1);
    bench.expect("set a 0 0 1\r\n1\r\n", "STORED\r\n");
    bench.disk_that_takes(1_000_000_000);
    let other = bench.client();
    bench.send("set a 0 0 1\r\n2\r\n");
    bench.pass(0); // The write begins.
    bench.refuse_flushes();
    other.write(b"flush_all\r\n");
    bench.pass(0);
    assert_eq!(other.read(), b"SERVER_ERROR disk error\r\n");
    assert_eq!(bench.ask(""), "", "its client does not know");
    assert!(bench.is_closed());
}

#[test]
fn a_sync_that_fails_ends_all_changes_and_one_of_an_interval_comes_in_time() {
    let mut bench = Bench::with(Kind::Fake, RocksSync::Interval(500_000_000));
    bench.start(1);
    bench.expect("set a 0 0 1\r\n1\r\n", "STORED\r\n");
    bench.restart(1, 1);
    bench.stop();
    bench.direct("fail-write", "-1");
    bench.start(1);
    bench.expect("set a 0 0 1\r\n2\r\n", "STORED\r\n");
    bench.pass(1);
    bench.expect("set a 0 0 1\r\n3\r\n", "SERVER_ERROR disk error\r\n");
    bench.expect("get a\r\n", "VALUE a 0 1\r\n2\r\nEND\r\n");
}

#[test]
fn a_key_that_cannot_be_read_errs_and_the_others_do_not() {
    let mut bench = Bench::new(Kind::Fake);
    bench.start(1);
    bench.expect("set a 0 0 1\r\n1\r\nset b 0 0 1\r\n1\r\n", "STORED\r\nSTORED\r\n");
    bench.stop();
    bench.direct("fail-read", "1");
    bench.start(1);
    let replies =
        ["get a\r\n", "get b\r\n", "append a 0 0 1\r\nx\r\n"].map(|input| bench.ask(input));
    let failed = replies.iter().filter(|reply| *reply == "SERVER_ERROR disk error\r\n").count();
    assert!(failed >= 1, "one of two keys is not in memory: {replies:?}");
    bench.expect("set a 0 0 1\r\n3\r\nget a\r\n", "STORED\r\nVALUE a 0 1\r\n3\r\nEND\r\n");
    bench.expect("get none\r\n", "END\r\n");
}

/// A part that was lost is not made anew, and nothing that is left is changed. A start that has
/// failed before the directory was finished leaves nothing that the next one refuses.
#[test]
fn a_store_that_lacks_a_part_is_not_served_and_one_that_was_not_finished_is() {
    with_both(|bench| {
        bench.options("no_such_option=1");
        let said = bench.refusal(3);
        assert!(said.contains("no_such_option"), "{said}");
        bench.options("");
        bench.start(2);
        bench.expect("set a 0 0 1\r\n1\r\n", "STORED\r\n");
        bench.stop();
        for part in ["engine-0001", "engine-0000/CURRENT", "kachel.flush"] {
            let back = bench.take_away(part);
            let said = bench.refusal(2);
            assert!(said.ends_with(&format!(": {part} is missing")), "{said}");
            back(bench);
        }
        let back = bench.take_away("kachel.root");
        let said = bench.refusal(2);
        assert!(said.ends_with(" and no kachel.root"), "{said}");
        back(bench);
        bench.start(2);
        bench.expect("get a\r\n", "VALUE a 0 1\r\n1\r\nEND\r\n");
    });
}

#[test]
fn what_cannot_be_opened_is_named() {
    let mut bench = Bench::new(Kind::Fake);
    bench.start(2);
    let said = bench.refusal(2);
    assert!(said.ends_with("another server has the directory open"), "{said}");
    bench.stop();
    let said = bench.refusal(3);
    assert!(said.ends_with("was made for 2 engines, and is opened for 3"), "{said}");
    bench.options("no_such_option=1");
    let said = bench.refusal(2);
    assert!(said.ends_with("engine-0000: Invalid argument: no_such_option"), "{said}");
    bench.options("");
    bench.direct("fail-open", "1");
    let said = bench.refusal(2);
    assert!(said.ends_with("engine-0000: Corruption: as the test wants it"), "{said}");
    let said = Bench::without("rocksdb_writebatch_putv").refusal(1);
    assert!(
        said.ends_with("has no function rocksdb_writebatch_putv: the version does not fit"),
        "{said}"
    );
}
