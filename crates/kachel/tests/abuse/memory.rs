//! Cases about memory that is full, pinned, or limited.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kachel_testkit::{Client, Look, Server, set_request, wait_until, within};

use crate::subject::{Door, is_release, start};
use crate::suite::is_full;

const OUT_OF_MEMORY: &str = "SERVER_ERROR out of memory storing object\r\n";

/// Stores `value` under `count` keys that begin with `prefix`, many at once.
pub(crate) fn fill(client: &mut Client, prefix: &str, count: usize, value: &[u8]) {
    let together = (1 << 18) / (value.len() + 64) + 1;
    let mut next = 0;
    while next < count {
        let last = count.min(next + together);
        let mut requests = Vec::new();
        for number in next..last {
            requests.extend(set_request(&format!("{prefix}{number:07}"), 0, value));
        }
        client.send(requests);
        for _ in next..last {
            let mut line = [0; 8];
            assert_eq!(client.read_whole(&mut line), b"STORED\r\n");
        }
        next = last;
    }
}

/// How many of `count` keys that begin with `prefix` are there with `value`.
fn found(client: &mut Client, prefix: &str, count: usize, value: &[u8]) -> usize {
    (0..count)
        .filter(|number| match client.get(&format!("{prefix}{number:07}")) {
            None => false,
            Some(found) => {
                assert!(found == value, "a value that was never stored");
                true
            }
        })
        .count()
}

/// X12.
pub(crate) fn full(door: Door) -> String {
    const VALUE_BYTES: usize = 400_000;
    let server = start(door, &["-m", "64", "-t", "2", "-M"]);
    let mut client = server.connect();
    let value = vec![b'f'; VALUE_BYTES];
    let mut stored = 0;
    loop {
        let answer = client.try_set(&format!("k{stored:07}"), &value);
        if answer == OUT_OF_MEMORY {
            break;
        }
        assert_eq!(answer, "STORED\r\n");
        stored += 1;
        assert!(stored < 1000, "more than memory holds");
    }
    assert!(stored * VALUE_BYTES >= (64 << 20) / 100 * 85, "full after {stored} values");
    for _ in 0..100 {
        // A refused store loses nothing except the value of its key, as in memcached.
        assert_eq!(client.try_set("another", &value), OUT_OF_MEMORY);
    }
    assert_eq!(found(&mut client, "k", stored, &value), stored, "reads go on");
    assert_eq!(client.ask("delete k0000000\r\n", "\n"), "DELETED\r\n");
    let again = within(Duration::from_secs(10), || client.try_set("again", &value) == "STORED\r\n");
    assert!(again, "deleting makes no room");
    assert_eq!(server.stat("evictions"), 0);
    format!(
        "refused in words after {stored} values of 400 KB; all of them read; room again after \
             a delete"
    )
}

/// Reads one large value after the other at 2 MB/s until it is told to end; returns the bytes.
/// Panics if it is closed.
fn read_fairly(mut client: Client, is_over: &AtomicBool) -> u64 {
    const BYTES_PER_MS: u64 = 2_000;
    let mut buffer = vec![0; 1 << 16];
    let (began, mut bytes) = (Instant::now(), 0);
    while !is_over.load(Ordering::Relaxed) {
        // Not there, now and then: the others have it evicted, and it is stored again.
        client.send("get fair fair fair\r\n");
        let mut reply = Vec::new();
        while !reply.ends_with(b"END\r\n") {
            match client.look(&mut buffer) {
                Look::Bytes(count) => reply.extend_from_slice(&buffer[..count]),
                other => panic!("{other:?}: who reads at a fair rate is closed"),
            }
            let due = Duration::from_millis((bytes + reply.len() as u64) / BYTES_PER_MS);
            std::thread::sleep(due.saturating_sub(began.elapsed()).max(Duration::from_millis(1)));
        }
        bytes += reply.len() as u64;
    }
    bytes
}

/// Reads what comes for the reader of value `number` until the end of the reply, or until it is
/// closed: whole values and, if it is closed, a part of one. Returns how many, and whether it was.
fn read_at_last(reader: &mut Client, number: usize, value: &[u8]) -> (usize, bool) {
    let head = format!("VALUE k{number:07} 0 {}\r\n", value.len());
    let one = [head.as_bytes(), value, b"\r\n"].concat();
    let (mut reply, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    let is_closed = loop {
        match reader.look(&mut buffer) {
            Look::Bytes(count) => reply.extend_from_slice(&buffer[..count]),
            Look::Closed => break true,
            Look::Nothing => panic!("neither an end nor more"),
        }
        if reply.ends_with(b"END\r\n") {
            reply.truncate(reply.len() - b"END\r\n".len());
            break false;
        }
    };
    let is_right = |part: &[u8]| if is_closed { one.starts_with(part) } else { part == one };
    assert!(reply.chunks(one.len()).all(is_right), "a value that was never stored");
    (reply.len() / one.len(), is_closed)
}

/// Stores; whether there was memory for it. A client whose request could not even be read is told
/// so and closed, and connects anew.
fn store(server: &Server, client: &mut Client, key: &str, value: &[u8]) -> bool {
    match client.try_set(key, value).as_str() {
        "STORED\r\n" => true,
        OUT_OF_MEMORY => false,
        "SERVER_ERROR out of memory reading request\r\n" => {
            *client = server.connect();
            false
        }
        other => panic!("neither stored nor refused: {other:?}"),
    }
}

/// X13.
pub(crate) fn pinned(door: Door) -> String {
    const MEMORY: u64 = 64 << 20;
    const VALUES: usize = 64;
    /// The grace of slow readers, and the time that the server needs to recognize them.
    const PINNED_FOR_MAX: Duration = Duration::from_secs(8);
    let server = start(door, &["-m", "64", "-t", "2"]);
    let mut client = server.connect();
    let value = vec![b'p'; 1_000_000];
    fill(&mut client, "k", VALUES, &value);
    client.set("fair", &value);
    let (is_over, fair) = (Arc::new(AtomicBool::new(false)), server.connect());
    let fair_is_over = Arc::clone(&is_over);
    let fair = std::thread::spawn(move || read_fairly(fair, &fair_is_over));
    // Someone asks for each value that is there, more often than the kernel's buffers hold, and
    // reads none of it.
    let mut readers: Vec<Client> = (0..VALUES)
        .map(|number| {
            let mut reader = server.connect();
            reader.send(format!("get{}\r\n", format!(" k{number:07}").repeat(20)));
            reader
        })
        .collect();
    let (began, mut most, mut refused) = (Instant::now(), 0, 0);
    let patience = if is_full() { PINNED_FOR_MAX } else { 10 * PINNED_FOR_MAX };
    let let_go = within(patience, || {
        refused += u32::from(!store(&server, &mut client, "new", &value));
        refused += u32::from(!store(&server, &mut client, "fair", &value));
        // Small values find room all the time, though there is none for a segment more.
        client.set("small", b"value");
        // It may have been evicted for the last value, and is answered.
        assert!(client.get("small").is_none_or(|value| value == b"value"));
        let pinned = server.stat("kachel_pinned_bytes");
        most = most.max(pinned);
        most > MEMORY / 2 && pinned <= MEMORY / 4
    });
    let took = began.elapsed();
    assert!(let_go, "{most} bytes were pinned at the most, and are");
    for number in 0..2 * VALUES {
        client.set(&format!("new{number}"), &value);
    }
    let kept = (0..2 * VALUES).filter(|number| client.get(&format!("new{number}")).is_some());
    let kept = kept.count();
    assert!(kept >= VALUES / 2, "{kept} values of those just stored are there");
    let closes = server.stat("kachel_pinned_closes");
    // A reader that reads at last gets whole values, whatever became of its key.
    let ends: Vec<(usize, bool)> = readers
        .iter_mut()
        .enumerate()
        .map(|(number, reader)| read_at_last(reader, number, &value))
        .collect();
    let closed = ends.iter().filter(|(_, is_closed)| *is_closed).count();
    assert_eq!(closed as u64, closes, "readers that were closed");
    let whole: usize =
        ends.iter().filter(|(_, is_closed)| !is_closed).map(|(whole, _)| whole).sum();
    assert!(closed < VALUES, "nobody is left");
    drop(readers);
    is_over.store(true, Ordering::Relaxed);
    let fair = fair.join().expect("who reads at a fair rate is not closed") / 1_000_000;
    wait_until("the last pin", || server.stat("kachel_pinned_bytes") == 0);
    let peak = server.peak_bytes() >> 20;
    let seconds = took.as_secs_f64();
    format!(
        "{} MiB pinned by {VALUES} readers, {refused} sets refused; after {seconds:.1} s {closed} \
             are closed and 128 of 128 sets stored, {kept} of them still there; the others got \
             {whole} values, all whole; {fair} MB at 2 MB/s meanwhile; {peak} MiB resident at \
             the most",
        most >> 20,
    )
}

/// X25.
pub(crate) fn sizes_shift(door: Door) -> String {
    const MEMORY: usize = 64 << 20;
    let server = start(door, &["-m", "64", "-t", "2"]);
    let mut client = server.connect();
    fill(&mut client, "s", 2 * MEMORY / 107, &[b's'; 100]);
    let value = [b't'; 10_000];
    let count = 3 * MEMORY / value.len();
    let began = Instant::now();
    fill(&mut client, "t", count, &value);
    let took = began.elapsed();
    let held = found(&mut client, "t", count, &value) * (value.len() + 8);
    let share = held * 100 / MEMORY;
    assert!(share >= 90, "{share} % of -m holds keys and values of 10 KB");
    assert!(!is_full() || took <= Duration::from_secs(60), "{took:?} until it does");
    // -m, 5 % of it, 32 MiB, 2 MiB a shard, 32 KiB a connection; and, in a debug build, what its
    // shadow of item memory takes (crates/segment/src/audit.rs).
    let shadow = if is_release() { 0 } else { MEMORY };
    let promise = (MEMORY + MEMORY / 20 + (36 << 20) + (64 << 10) + shadow) as u64;
    let peak = server.peak_bytes();
    assert!(peak <= promise, "{peak} bytes resident at the most, promised were {promise}");
    format!(
        "{share} % of -m is keys and values of 10 KB after {took:.1?}; {} MiB resident at the most of {}",
        peak >> 20,
        promise >> 20
    )
}
