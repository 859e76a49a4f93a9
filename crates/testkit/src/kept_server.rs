//! What clients of a server see whose engines keep items on a disk, whatever engine it is.
//!
//! Upstream:   the tests of `flash` and of `rocks`, which implement [`KeptServer`].
//! Downstream: their servers in memory.

use kachel_io::FarEnd;

use crate::random::Random;
use crate::scans::{ScanJudge, ScanReply};

/// A server in memory over engines that keep items. It can be started again. One client asks.
pub trait KeptServer {
    /// Starts the server with this number of shards. A new store is for as many engines.
    fn start(&mut self, shards: u16);

    /// Stops the server, and starts it again when the Unix time is later by this number of seconds.
    fn restart(&mut self, shards: u16, seconds: i64);

    /// Has each operation of the disk take a time.
    fn disk_that_takes(&self, ns: u64);

    /// Sends a request, and returns the reply once nothing is in flight.
    fn ask(&mut self, input: &str) -> String;

    /// A client beside the one that asks.
    fn other(&self) -> FarEnd;

    /// Lets each shard tick once, and the disk do what is due next.
    fn step(&mut self);

    /// Sends a request, and sees that this is the reply.
    fn expect(&mut self, input: &str, reply: &str) {
        let said = self.ask(input);
        let (asked, said) = (&input[..input.len().min(100)], &*said);
        assert!(said == reply, "{} to {}", said.escape_debug(), asked.escape_debug());
    }
}

/// Each verb is answered, and what it has done is there after restarts.
pub fn every_verb_survives_a_restart(bench: &mut impl KeptServer, large_bytes: usize) {
    bench.start(2);
    bench.expect("set a 7 0 3 noreply\r\nold\r\nset a 5 0 5\r\nfirst\r\n", "STORED\r\n");
    bench.expect("append a 0 0 1\r\n!\r\nprepend a 0 0 1\r\n<\r\n", "STORED\r\nSTORED\r\n");
    bench.expect("add a 0 0 1\r\nx\r\nreplace b 0 0 1\r\nx\r\n", "NOT_STORED\r\nNOT_STORED\r\n");
    bench.expect("set n 0 0 2\r\n41\r\nincr n 1\r\ndecr n 2\r\n", "STORED\r\n42\r\n40\r\n");
    bench.expect("set gone 0 0 1\r\nx\r\ndelete gone\r\n", "STORED\r\nDELETED\r\n");
    bench.expect("set short 0 10 1\r\nx\r\nset long 0 10 1\r\nx\r\n", "STORED\r\nSTORED\r\n");
    bench.expect("touch long 1000\r\nmd a I q\r\nmn\r\n", "TOUCHED\r\nMN\r\n");
    let large = "x".repeat(large_bytes);
    bench.expect(&format!("ms big {large_bytes}\r\n{large}\r\n"), "HD\r\n");
    for threads in [1, 3, 2] {
        bench.restart(threads, 5);
        // The item is stale, and the first client that asks wins.
        let marks = if threads == 1 { "X W" } else { "Z X" };
        bench.expect("mg a f v s t\r\n", &format!("VA 7 f5 s7 t-1 {marks}\r\n<first!\r\n"));
        let short = if threads == 1 { "VALUE short 0 1\r\nx\r\n" } else { "" };
        bench.expect("get n gone\r\n", "VALUE n 0 2\r\n40\r\nEND\r\n");
        bench.expect("get short\r\n", &format!("{short}END\r\n"));
        bench.expect("get long\r\n", "VALUE long 0 1\r\nx\r\nEND\r\n");
        bench.expect("mg big s\r\n", &format!("HD s{large_bytes}\r\n"));
        let reply = format!("VALUE big 0 {large_bytes}\r\n{large}\r\nEND\r\n");
        bench.expect("get big\r\n", &reply);
    }
}

/// Flushes are kept, those that are pending too, and take what was stored before them.
pub fn flushes_survive_a_restart(bench: &mut impl KeptServer) {
    bench.start(3);
    bench.expect(
        "set a 0 0 1\r\n1\r\nflush_all\r\nset b 0 0 1\r\n2\r\n",
        "STORED\r\nOK\r\nSTORED\r\n",
    );
    bench.restart(2, 1);
    bench.expect(
        "get a b\r\nflush_all 100\r\nset c 0 0 1\r\n3\r\n",
        "VALUE b 0 1\r\n2\r\nEND\r\nOK\r\nSTORED\r\n",
    );
    bench.restart(1, 50);
    bench.expect("get a b c\r\n", "VALUE b 0 1\r\n2\r\nVALUE c 0 1\r\n3\r\nEND\r\n");
    bench.restart(4, 60);
    bench.expect("get a b c\r\nset d 0 0 1\r\n4\r\n", "END\r\nSTORED\r\n");
    bench.restart(1, 1);
    bench.expect(
        "get a b c d\r\nflush_all\r\nget d\r\n",
        "VALUE d 0 1\r\n4\r\nEND\r\nOK\r\nEND\r\n",
    );
}

/// The flush of a prefix takes what was stored before under its keys, and nothing else, over starts
/// with other numbers of threads.
pub fn the_flush_of_a_prefix_survives_a_restart(bench: &mut impl KeptServer) {
    bench.start(3);
    for number in 0..20 {
        bench.expect(&format!("set user:{number} 0 0 1\r\n1\r\n"), "STORED\r\n");
    }
    bench.expect("set user 0 0 1\r\n1\r\nset users 0 0 1\r\n1\r\n", "STORED\r\nSTORED\r\n");
    bench.restart(2, 1);
    bench.expect("get user:1\r\n", "VALUE user:1 0 1\r\n1\r\nEND\r\n");
    // What is stored after the flush stays, also in the same second.
    bench.expect(
        "flush_prefix user\r\nset user:7 0 0 1\r\n2\r\nget user:1 user:7 user users\r\n",
        "OK\r\nSTORED\r\nVALUE user:7 0 1\r\n2\r\nVALUE users 0 1\r\n1\r\nEND\r\n",
    );
    let keys: String = (0..20).map(|number| format!(" user:{number}")).collect();
    for threads in [3, 1, 2] {
        bench.restart(threads, 1);
        bench.expect(
            &format!("get user users{keys}\r\n"),
            "VALUE users 0 1\r\n1\r\nVALUE user:7 0 1\r\n2\r\nEND\r\n",
        );
    }
}

/// A read of an item that is not in memory waits for the disk, and later requests for it behind.
pub fn requests_for_one_key_keep_their_order(bench: &mut impl KeptServer) {
    bench.start(1);
    bench.expect("set a 0 0 1\r\n1\r\nset b 0 0 1\r\n1\r\n", "STORED\r\nSTORED\r\n");
    bench.restart(1, 1);
    bench.disk_that_takes(1_000_000);
    let (a1, a8) = ("VALUE a 0 1\r\n1\r\n", "VALUE a 0 1\r\n8\r\n");
    let b1 = "VALUE b 0 1\r\n1\r\n";
    bench.expect(
        "get a\r\nincr a 1\r\nset a 0 0 1\r\n7\r\nincr a 1\r\nget a b\r\ndelete b\r\nget b\r\n",
        &format!("{a1}END\r\n2\r\nSTORED\r\n8\r\n{a8}{b1}END\r\nDELETED\r\nEND\r\n"),
    );
}

/// Steps within which a request is answered: many times what it takes.
const STEPS_MAX: usize = 1_000_000;

/// Steps until `client` has what `read` finds in its replies.
fn step_until<R>(
    bench: &mut impl KeptServer,
    client: &FarEnd,
    mut between: impl FnMut(),
    read: impl Fn(&[u8]) -> Option<R>,
) -> R {
    let mut replies = Vec::new();
    for _ in 0..STEPS_MAX {
        between();
        bench.step();
        replies.extend(client.read());
        if let Some(found) = read(&replies) {
            return found;
        }
    }
    panic!("no reply: {}", replies.escape_ascii());
}

/// Scans are in order and whole, beside writes that come while their pieces are read, for items
/// that are in memory and for those that are not. The server must allow scans.
pub fn scans_are_right_beside_writes(bench: &mut impl KeptServer) {
    let (mut random, mut judge) = (Random::new(11), ScanJudge::default());
    let key = |random: &mut Random| format!("{}:{:02}", random.pick(&["a", "b"]), random.below(90));
    let value = |random: &mut Random| {
        let bytes = random.pick(&[0, 30, 3_000, 16_383]);
        vec![b'a' + random.below(26) as u8; random.below(bytes + 1) as usize]
    };
    bench.start(2);
    let mut returned = 0;
    for round in 0..8 {
        for _ in 0..60 {
            let (key, value) = (key(&mut random), value(&mut random));
            let text = String::from_utf8(value.clone()).expect("letters");
            bench.expect(&format!("set {key} 0 0 {}\r\n{text}\r\n", value.len()), "STORED\r\n");
            judge.change(key.as_bytes(), Some(&value));
        }
        let shards = [2, 1, 3][round % 3];
        if round % 2 == 1 {
            bench.restart(shards, 1);
        }
        let (scanner, writer) = (bench.other(), bench.other());
        judge.begin();
        let count = [3, 20, 200][round % 3];
        loop {
            scanner.write(judge.request(count).as_bytes());
            let mut is_written = true;
            let mut write = |judge: &mut ScanJudge| {
                is_written |= !writer.read().is_empty();
                if random.below(3) > 0 || !is_written {
                    return;
                }
                let key = key(&mut random);
                let value = (random.below(3) > 0).then(|| value(&mut random));
                let line = match &value {
                    Some(value) => format!("ms {key} {}\r\n", value.len()),
                    None => format!("md {key}\r\n"),
                };
                let end: &[u8] = if value.is_some() { b"\r\n" } else { b"" };
                let value = value.as_deref();
                writer.write(&[line.as_bytes(), value.unwrap_or_default(), end].concat());
                judge.change(key.as_bytes(), value);
                is_written = false;
            };
            let reply = step_until(bench, &scanner, || write(&mut judge), ScanReply::read);
            if !is_written {
                step_until(bench, &writer, || {}, |reply| reply.last().map(drop));
            }
            if judge.judge(&reply, count) {
                break;
            }
        }
        returned += judge.returned();
        if round == 5 && bench.ask("flush_prefix a\r\n") == "OK\r\n" {
            let flushed: Vec<_> =
                judge.items().keys().filter(|key| key[0] == b'a').cloned().collect();
            flushed.iter().for_each(|key| judge.change(key, None));
        }
        if round == 6 {
            bench.expect("flush_all\r\n", "OK\r\n");
            let flushed: Vec<_> = judge.items().keys().cloned().collect();
            flushed.iter().for_each(|key| judge.change(key, None));
        }
    }
    assert!(returned > 400, "{returned} items");
}
