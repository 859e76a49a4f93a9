//! Cases about clients that send requests and never read the replies.

use std::time::Duration;

use kachel_testkit::{Client, Server, set_request, wait_until};
use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::subject::{Door, on_one_core, start};
use crate::suite::is_full;
use crate::turns::{best_ratio, p99, small_reads};

/// What is asked of a client that does not read, all told, beyond the reply under way.
const OWED_BYTES_MAX: u64 = 64 * 1024;
/// Bytes of the value that floods ask for.
const FLOOD_VALUE_BYTES: usize = 1_000;

/// X05.
pub(crate) fn flood(door: Door) -> String {
    let [one, two] = [1, 2].map(|threads| on_one_core(|cores| flood_of(door, threads, cores)));
    let drops = drops(door);
    format!("1 thread: {one}; 2 threads: {two}; request by request: {drops} bytes of memory each")
}

/// Has each thread of the server touch all that it receives into, which is no client's cost: as
/// many clients as it has room for find it stopped, and send much.
fn warm_up(server: &Server, threads: usize) {
    const VALUE_BYTES: usize = 100_000;
    const CLIENTS: usize = 80;
    let mut clients: Vec<Client> = (0..CLIENTS * threads).map(|_| server.connect()).collect();
    for client in &mut clients {
        assert_eq!(client.ask("mn\r\n", "\n"), "MN\r\n", "it is where it stays");
    }
    server.stop();
    let value = set_request("large", 0, &[b'l'; VALUE_BYTES]);
    clients.iter_mut().for_each(|client| client.send(&value));
    server.signal(Signal::CONT);
    for client in &mut clients {
        assert_eq!(client.read_until(b"\r\n"), b"STORED\r\n");
    }
    assert_eq!(clients[0].ask("delete large\r\n", "\n"), "DELETED\r\n");
    drop(clients);
    server.wait_until_alone();
}

/// A server with `threads` threads to flood, and another one. The machine's own work for a flood
/// must not count against the server, so the rounds that it is compared with flood the other one.
fn servers_to_flood(door: Door, threads: usize) -> [Server; 2] {
    // On a busy machine a flood may take longer than a reader has by default.
    let threads_text = threads.to_string();
    let options = ["-m", "64", "-t", &threads_text, "--reader-timeout=0"];
    let [server, another] = [1, 2].map(|_| start(door, &options));
    warm_up(&server, threads);
    for server in [&server, &another] {
        server.connect().set("k", &[b'v'; FLOOD_VALUE_BYTES]);
        wait_until("its end", || server.stat("curr_connections") == 1);
    }
    [server, another]
}

/// Floods a server with `threads` threads, from any of `cores`.
fn flood_of(door: Door, threads: usize, cores: &CpuSet) -> String {
    const FLOODERS: u64 = 64;
    const READS: usize = 1_000;
    const MOMENTS: usize = 5;
    let [server, another] = servers_to_flood(door, threads);
    let mut other = server.connect();
    other.set("small", b"value");
    let wait_until_left = |server: &Server| {
        // By all clients except the reader and the one that requests the statistics.
        wait_until("the others' end", || server.stat("curr_connections") <= 2);
    };
    let requests = b"get k\r\n".repeat(10_000);
    let mut round = |flooded: &Server, flooders: u64| {
        let before = flooded.resident_bytes();
        let mut flooders: Vec<Client> = (0..flooders).map(|_| flooded.connect()).collect();
        let (taken, during) = std::thread::scope(|scope| {
            let flood = scope.spawn(|| {
                sched_setaffinity(None, cores).expect("the cores that we had");
                if is_full() {
                    // Otherwise a reader on the same core waits for the flood's turn to end. Where
                    // times are not judged, the flood must not starve beside other programs.
                    rustix::process::nice(19).expect("any thread may be nicer");
                }
                kachel_testkit::flood(&mut flooders, &requests)
            });
            let mut times = Vec::new();
            while times.len() < READS || !flood.is_finished() {
                times.push(other.time_get(b"get small\r\n", b"END\r\n"));
            }
            (flood.join().expect("the server takes or waits"), p99(times))
        });
        // It writes replies for longer than the kernel takes requests.
        wait_until("the flood to stand", || flooded.is_at_rest());
        let grown = flooded.resident_bytes().saturating_sub(before);
        // The floods stand, and owe. What the machine does disturbs one moment, what the server
        // does all of them.
        let moments = (0..MOMENTS).map(|_| small_reads(&mut other, READS));
        let behind = moments.min().expect("some");
        drop(flooders);
        wait_until_left(flooded);
        (taken, grown, behind, during)
    };
    // What every server touches that is in use is no client's cost.
    round(&server, 2);
    let (taken, grown, mut near, mut during) = round(&server, FLOODERS);
    let (taken, each) = (taken / FLOODERS, grown / FLOODERS);
    let reply_bytes = FLOOD_VALUE_BYTES as u64 + 40;
    let allowed = OWED_BYTES_MAX + reply_bytes;
    assert!(each <= allowed, "{each} bytes of memory each, not {allowed}");
    if !is_full() {
        return format!(
            "{taken} bytes of requests taken of each of {FLOODERS} floods, {each} bytes of memory \
                 each; times not judged"
        );
    }
    let mut far = Duration::MAX;
    let ratio = best_ratio(2.0, || {
        far = far.min(round(&another, FLOODERS).2);
        let (.., behind, meanwhile) = round(&server, FLOODERS);
        (near, during) = (near.min(behind), during.min(meanwhile));
        near.as_secs_f64() / far.as_secs_f64()
    });
    assert!(ratio <= 2.0, "others' p99 is {ratio:.2} times: {near:?}, not {far:?}");
    format!(
        "{taken} bytes of requests taken of each of {FLOODERS} floods, {each} bytes of memory \
             each, others' p99 {ratio:.2} times that beside floods of another server, and {during:?} \
             while they come in"
    )
}

/// As the flood, but each request comes alone and its reply is small: what is owed then lies in
/// many pieces. Returns what each client costs.
fn drops(door: Door) -> u64 {
    const CLIENTS: u64 = 32;
    const REQUESTS: usize = 4_000;
    let server = start(door, &["-m", "64", "-t", "1"]);
    warm_up(&server, 1);
    let mut other = server.connect();
    let before = server.resident_bytes();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.connect()).collect();
    for _ in 0..REQUESTS {
        for client in &mut clients {
            client.offer(b"mn\r\n");
        }
        // Answered behind them: they have been served.
        assert_eq!(other.ask("mn\r\n", "\n"), "MN\r\n");
    }
    let each = server.resident_bytes().saturating_sub(before) / CLIENTS;
    assert!(each <= OWED_BYTES_MAX, "{each} bytes of memory each, request by request");
    each
}

/// X07.
pub(crate) fn multiget(door: Door) -> String {
    const KEYS: usize = 10_000;
    /// Of those, different ones.
    const DISTINCT: usize = 300;
    const VALUE_BYTES: usize = 100_000;
    let server = start(door, &["-m", "64", "-t", "2"]);
    let mut other = server.connect();
    // All memory is in use before, so that what comes on top is the slow reader's.
    for key in 0..2_000 {
        other.set(&format!("fill{key}"), &[b'f'; VALUE_BYTES]);
    }
    other.set("k", &[b'v'; VALUE_BYTES]);
    let before = server.resident_bytes();
    let mut slow = server.connect();
    let keys = (0..KEYS / 2).map(|number| format!(" fill{} k", 1_999 - number % DISTINCT));
    slow.send(format!("get{}\r\n", keys.collect::<String>()));
    assert!(!slow.is_ended_within(Duration::from_millis(500)), "a slow client is not closed");
    let extra = server.resident_bytes().saturating_sub(before);
    assert!(extra <= 1 << 20, "{extra} bytes of memory for it");
    // Three times the memory is stored meanwhile.
    for key in 0..2_000 {
        other.set(&format!("more{key}"), &[b'm'; VALUE_BYTES]);
        if key % 100 == 0 {
            other.set("k", &[b'v'; VALUE_BYTES]);
        }
    }
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown <= 2 << 20, "{grown} bytes of memory while storing goes on");
    // Now it reads, and gets the values that it requested, except those evicted in the meantime.
    let mut found = [0, 0];
    while found[1] < 100 {
        let mut head = [0; 6];
        assert_eq!(slow.read_whole(&mut head), b"VALUE ");
        let line = slow.read_line();
        let (key, byte) = if line == b"k 0 100000\r\n" { (1, b'v') } else { (0, b'f') };
        assert!(key == 1 || line.starts_with(b"fill"), "{}", line.escape_ascii());
        let mut value = vec![0; VALUE_BYTES + 2];
        slow.read_whole(&mut value);
        assert!(value[..VALUE_BYTES].iter().all(|&found| found == byte), "a whole value");
        found[key] += 1;
    }
    drop(slow);
    format!(
        "{KEYS} keys of {VALUE_BYTES} bytes, {DISTINCT} different ones: {extra} bytes of memory; \
             2,000 more stored meanwhile; {} values read at last",
        found[0] + found[1]
    )
}
