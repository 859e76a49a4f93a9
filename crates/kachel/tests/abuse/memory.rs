//! Cases about memory that is spent, pinned, or of the wrong size.

use std::time::Duration;

use crate::client::{Client, set_request};
use crate::subject::{Door, is_release, start, within};

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
        // Whoever is refused loses nothing but the value of that key, as in memcached.
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

/// X13.
pub(crate) fn pinned(door: Door) -> String {
    const VALUES: usize = 64;
    let server = start(door, &["-m", "64", "-t", "2"]);
    let mut client = server.connect();
    let value = vec![b'p'; 1_000_000];
    fill(&mut client, "k", VALUES, &value);
    // Someone asks for each value that is there, more often than the kernel's buffers hold, and
    // reads none of it.
    let mut readers: Vec<Client> = (0..VALUES)
        .map(|number| {
            let mut reader = server.connect();
            reader.send(format!("get{}\r\n", format!(" k{number:07}").repeat(20)));
            reader
        })
        .collect();
    assert!(client.get("none").is_none());
    let (mut stored, mut refused) = (0, 0);
    for number in 0..2 * VALUES {
        match client.try_set(&format!("new{number}"), &value).as_str() {
            "STORED\r\n" => stored += 1,
            OUT_OF_MEMORY => refused += 1,
            other => panic!("neither stored nor refused: {other:?}"),
        }
        client.set("small", b"value");
        assert_eq!(client.get("small").as_deref(), Some(&b"value"[..]), "reading goes on");
    }
    // A reader that reads at last gets whole values, whatever became of its key.
    let mut whole = 0;
    for (number, reader) in readers.iter_mut().enumerate().take(8) {
        let reply = reader.read_until(b"END\r\n");
        let one =
            [format!("VALUE k{number:07} 0 1000000\r\n").as_bytes(), &value, b"\r\n"].concat();
        let values = &reply[..reply.len() - b"END\r\n".len()];
        assert!(values.chunks(one.len()).all(|chunk| chunk == one), "a value in part");
        whole += values.len() / one.len();
    }
    assert!(whole > 0, "nobody was pinning anything");
    drop(readers);
    let again = within(Duration::from_secs(10), || {
        (0..10).all(|number| client.try_set(&format!("after{number}"), &value) == "STORED\r\n")
    });
    assert!(again, "memory does not come back");
    let peak = server.memory_bytes("VmHWM:") >> 20;
    format!(
        "while {VALUES} readers wait: {stored} stored, {refused} refused; 8 of them then read \
         {whole} values, all whole; {peak} MiB resident at the most"
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
    fill(&mut client, "t", count, &value);
    let held = found(&mut client, "t", count, &value) * (value.len() + 8);
    let share = held * 100 / MEMORY;
    assert!(share >= 85, "{share} % of -m holds keys and values of 10 KB");
    // -m, 5 % of it, 32 MiB, 2 MiB a shard, 32 KiB a connection; and, in a debug build, what its
    // shadow of item memory takes (crates/segment/src/audit.rs).
    let shadow = if is_release() { 0 } else { MEMORY };
    let promise = (MEMORY + MEMORY / 20 + (36 << 20) + (64 << 10) + shadow) as u64;
    let peak = server.memory_bytes("VmHWM:");
    assert!(peak <= promise, "{peak} bytes resident at the most, promised were {promise}");
    format!(
        "{share} % of -m is keys and values of 10 KB; {} MiB resident at the most of {}",
        peak >> 20,
        promise >> 20
    )
}
