//! Cases that wait: slow lines, slow readers, a process that was stopped.

use std::time::{Duration, Instant};

use kachel_testkit::{Client, Look, PATIENCE, Server, wait_until};
use rustix::process::Signal;

use crate::subject::{Door, start};
use crate::suite::is_full;

/// Between two bytes of a slow client.
const PACE: Duration = Duration::from_millis(400);
/// What a deadline may take longer, since the server looks once a second. Only the long form judges
/// it: the machine may be busy.
const LATE: Duration = Duration::from_millis(4000);
/// The time limit of a client that does not read.
const READER: Duration = Duration::from_secs(60);
/// A quarter of it: so often the server asks the kernel what the client has acknowledged. What is
/// acknowledged soon after the first question counts as progress only at the second.
const ASKED: Duration = Duration::from_secs(15);
/// The server gives a line so long.
const LINE: Duration = Duration::from_secs(10);
/// How often a client tries to send a slow line in time, on a machine that may stop the client.
const FAIR_TRIES: usize = 10;

/// Sends `first` and then a byte at a time until the server closes; how long that took, from before
/// the server can have begun to count. Panics after ten times what is expected.
fn trickle(server: &Server, first: &str, expected: Duration) -> Duration {
    let mut client = server.connect();
    let began = Instant::now();
    client.send(first);
    client.set_patience(PACE);
    while began.elapsed() < 10 * expected {
        match client.look(&mut [0; 64]) {
            Look::Closed => return began.elapsed(),
            // Lines of the server itself may come before the end.
            Look::Bytes(_) => {}
            Look::Nothing => {
                client.try_send(b"a");
            }
        }
    }
    panic!("still open after {:?}: {first:?}", began.elapsed());
}

/// Sends a byte a second, but a whole line in time; whether it is answered. A line that is not must
/// have taken this client longer than the server gives it.
fn is_fair_line_answered(server: &Server) -> bool {
    let mut client = server.connect();
    let began = Instant::now();
    client.set_patience(Duration::from_secs(1));
    let mut buffer = [0; 64];
    let sent = b"get k\r"
        .iter()
        .all(|&byte| client.try_send([byte]) && client.look(&mut buffer) == Look::Nothing);
    client.set_patience(PATIENCE);
    let is_answered = sent && client.try_send("\n") && client.look(&mut buffer) == Look::Bytes(5);
    assert!(is_answered || began.elapsed() > LINE, "closed after {:?}", began.elapsed());
    assert!(!is_answered || buffer.starts_with(b"END\r\n"));
    is_answered
}

/// X02.
pub(crate) fn slow_lines(door: Door) -> String {
    let server = start(door, &["-m", "64", "-t", "2"]);
    // The first byte, a line in its middle, a small data block, a large value: with their seconds.
    let slow = [("g", 10), ("get ", 10), ("set a 0 0 16000\r\n", 10), ("set b 0 0 655360\r\n", 20)];
    let (took, fair): (Vec<_>, _) = std::thread::scope(|scope| {
        let server = &server;
        let slow = slow.map(|(first, seconds)| {
            scope.spawn(move || trickle(server, first, Duration::from_secs(seconds)))
        });
        let fair = scope.spawn(move || (0..FAIR_TRIES).any(|_| is_fair_line_answered(server)));
        let took = slow.into_iter().map(|slow| slow.join().expect("closed")).collect();
        (took, fair.join().expect("answered"))
    });
    assert!(fair, "no line of 6 s is answered");
    for ((first, seconds), took) in slow.iter().zip(&took) {
        let allowed = Duration::from_secs(*seconds);
        assert!(*took >= allowed, "{first:?} ended after {took:?}, before {allowed:?}");
        if is_full() {
            assert!(*took < allowed + LATE, "{first:?} ended after {took:?}, not {allowed:?}");
        }
    }
    server.wait_until_alone();
    let shown: Vec<String> = took.iter().map(|took| format!("{:.1}", took.as_secs_f64())).collect();
    format!("ended after {} s; a line of 6 s answered", shown.join(", "))
}

/// X06.
pub(crate) fn slow_reader(door: Door) -> String {
    let server = start(door, &["-m", "64", "-t", "2"]);
    let mut other = server.connect();
    other.set("k", &[b'v'; 10_000]);
    let mut slow = server.connect();
    // Before the last byte can have been taken.
    let began = Instant::now();
    let taken = slow.flood(&b"get k\r\n".repeat(1000));
    let flooded = Instant::now();
    slow.set_patience(PACE);
    let mut read = 0;
    while !slow.is_ended_within(Duration::from_secs(1)) {
        assert!(began.elapsed() < 20 * PATIENCE, "still open after {:?}", began.elapsed());
        if let Look::Bytes(count) = slow.look(&mut [0; 1]) {
            read += count;
        }
        assert!(other.get("k").is_some(), "others are served");
    }
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(58), "dropped after {took:?}");
    let late = flooded.elapsed();
    assert!(!is_full() || late < READER + ASKED + LATE, "dropped {late:?} after the flood");
    drop(slow);
    wait_until("the slow one to be gone", || server.stat("curr_connections") == 2);
    format!(
        "{taken} bytes of requests taken, {read} read, dropped after {:.1} s",
        took.as_secs_f64()
    )
}

/// X19.
pub(crate) fn stopped(door: Door) -> String {
    let server = start(door, &["-m", "64", "-t", "2"]);
    let mut clients: Vec<Client> = (0..50).map(|_| server.connect()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        for key in 0..100 {
            client.send(kachel_testkit::set_request(&format!("short{number}.{key}"), 2, b"x"));
            client.read_until(b"STORED\r\n");
        }
        client.set(&format!("long{number}"), b"y");
    }
    server.stop();
    // What is sent meanwhile waits in the kernel.
    let stopped = Instant::now();
    let mut late = server.connect();
    late.send("get long0\r\n");
    late.set_patience(Duration::from_secs(4));
    assert_eq!(late.look(&mut [0; 8]), Look::Nothing, "it is stopped");
    let used = server.processor_time();
    server.signal(Signal::CONT);
    late.set_patience(PATIENCE);
    let continued = Instant::now();
    assert!(late.read_until(b"END\r\n").starts_with(b"VALUE long0"));
    let answered = continued.elapsed();
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.get(&format!("short{number}.{}", number * 2)), None, "expired meanwhile");
        assert_eq!(client.get(&format!("long{number}")).as_deref(), Some(&b"y"[..]));
    }
    // No storm: two seconds of nothing cost nothing. It sleeps meanwhile: nothing to wait for.
    late.set_patience(Duration::from_secs(2));
    assert_eq!(late.look(&mut [0; 8]), Look::Nothing);
    let (used, whole) = (server.processor_time() - used, stopped.elapsed());
    let is_quiet = used < Duration::from_millis(500);
    assert!(!is_full() || is_quiet, "{used:?} of processor time afterwards");
    wait_until("expired items' end", || server.stat("curr_items") == 50);
    format!("answered {answered:.0?} after it went on; {used:?} processor time in {whole:.0?}")
}
