//! Locked pages, which the kernel takes back only by another call, or not at all.

use kachel_testkit::{Client, Server, wait_until};
use rustix::io::Errno;

use crate::kernel::{Refusal, refusing};
use crate::{ask, start};

const VALUE: [u8; 200] = [b'v'; 200];
/// Keys for which 16 MiB are too few.
const KEYS_MANY: usize = 80_000;
/// Requests in progress at a time: so few that no connection keeps more bytes than are its own.
const BATCH: usize = 50;

/// `madvise` with one advice refused, as where the kernel does not know it.
fn unknown_advice(advice: libc::c_int) -> Refusal {
    let advice = u32::try_from(advice).expect("an advice");
    Refusal { call: libc::SYS_madvise, argument: Some((2, advice)), error: Errno::INVAL }
}

/// MADV_DONTNEED_LOCKED (linux/mman.h), since Linux 5.18.
const DONTNEED_LOCKED: libc::c_int = 24;

/// MADV_POPULATE_WRITE (linux/mman.h), since Linux 5.14.
const POPULATE_WRITE: libc::c_int = 23;

#[test]
fn a_server_that_gets_no_huge_pages_says_so_and_serves() {
    let refusals = [unknown_advice(libc::MADV_HUGEPAGE), unknown_advice(POPULATE_WRITE)];
    let mut server = refusing(&refusals, || start(&["-L", "-v", "-m", "16", "-t", "2"]));
    let mut client = server.connect();
    fill(&mut client, BATCH);
    assert_eq!(found(&mut client, BATCH), BATCH);
    // A thread writes the lines.
    for line in ["-L: this machine has no huge pages to give", "memory: 16 MiB in ordinary pages"] {
        wait_until(line, || server.log().contains(line));
    }
    server.assert_alive();
}

fn fill(client: &mut Client, keys: usize) {
    for first in (0..keys).step_by(BATCH) {
        let mut requests = Vec::new();
        for number in first..first + BATCH {
            requests.extend(format!("set k{number} 0 0 {}\r\n", VALUE.len()).bytes());
            requests.extend(VALUE);
            requests.extend(b"\r\n");
        }
        client.send(&requests);
        assert_eq!(client.read_lines(BATCH), b"STORED\r\n".repeat(BATCH));
    }
}

/// How many of the keys are there.
fn found(client: &mut Client, keys: usize) -> usize {
    let mut found = 0;
    for first in (0..keys).step_by(BATCH) {
        let requests: String =
            (first..first + BATCH).map(|number| format!("mg k{number}\r\n")).collect();
        client.send(&requests);
        found += client
            .read_lines(BATCH)
            .split(|&byte| byte == b'\n')
            .filter(|line| *line == b"HD\r")
            .count();
    }
    found
}

/// Grows and shrinks a server.
fn grow_and_shrink(mut server: Server) {
    let mut client = server.connect();
    for _ in 0..2 {
        fill(&mut client, KEYS_MANY);
        assert_eq!(ask(&mut client, "cache_memlimit 8"), "OK");
        while client.stat("limit_maxbytes") < client.stat("kachel_memory_spent") {}
        assert_eq!(ask(&mut client, "flush_all"), "OK");
        assert_eq!(ask(&mut client, "cache_memlimit 16"), "OK");
        assert_eq!(found(&mut client, KEYS_MANY), 0);
    }
    server.assert_alive();
}

/// A server that has locked its memory; `None`, and said so, where tests may not do that.
fn start_locked() -> Option<Server> {
    let server = start(&["-k", "-m", "16", "-t", "2"]);
    if server.last_words().contains("memory is not locked:") {
        println!("skip memory.locked this process may not lock memory without a limit");
        return None;
    }
    Some(server)
}

#[test]
fn a_server_that_locks_its_memory_gives_it_back() {
    start_locked().into_iter().for_each(grow_and_shrink);
}

#[test]
fn locked_memory_comes_back_from_a_linux_before_5_18() {
    let refusals = [unknown_advice(DONTNEED_LOCKED)];
    refusing(&refusals, start_locked).into_iter().for_each(grow_and_shrink);
}

/// Where no test may lock memory: the kernel refuses as it does for locked pages.
#[test]
fn a_server_whose_memory_is_refused_as_locked_gives_it_back() {
    let refusals = [unknown_advice(libc::MADV_DONTNEED)];
    grow_and_shrink(refusing(&refusals, || start(&["-m", "16", "-t", "2"])));
}

#[test]
fn memory_that_the_kernel_does_not_take_back_stays_in_use() {
    let refusals = [unknown_advice(libc::MADV_DONTNEED), unknown_advice(DONTNEED_LOCKED)];
    let mut server = refusing(&refusals, || start(&["-m", "16", "-t", "2"]));
    let mut client = server.connect();
    fill(&mut client, KEYS_MANY);
    let before = found(&mut client, KEYS_MANY);
    assert_eq!(ask(&mut client, "cache_memlimit 8"), "OK");
    // Looking gives the shards ticks in which they would drop what they could.
    let after: Vec<usize> = (0..3).map(|_| found(&mut client, KEYS_MANY)).collect();
    let least = before / 5 * 4;
    assert!(after.iter().all(|&after| after > least), "{before} keys before, then {after:?}");
    fill(&mut client, KEYS_MANY);
    let again = found(&mut client, KEYS_MANY);
    assert!(again > least, "{before} keys before, {again} after they were stored again");
    server.assert_alive();
}
