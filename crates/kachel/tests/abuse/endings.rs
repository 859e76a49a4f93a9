//! Cases about connections that end during a request, and about the end of the process.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kachel_testkit::{Client, Look, Server, set_request, wait_until, within};
use rustix::process::Signal;

use crate::subject::{Door, own_port, start, start_apart, start_at};
use crate::suite::is_full;

/// Of every server here.
const OPTIONS: &[&str] = &["-m", "64", "-t", "2"];
/// The time that a server gives clients that do not read, once it is told to end.
const DRAIN: Duration = Duration::from_secs(5);
/// The server says this when it ends before it has sent all replies.
const OWES: &str = "ended with replies not sent";
/// How often two signals come at once. Before the replies that are owed were looked at, four of
/// five such servers said that they owed some.
const QUICK_TRIES: usize = 5;
/// How often a second signal is given, on a machine that may let the first one's time pass.
const SIGNAL_TRIES: usize = 10;

/// Waits until the process has ended; its status.
fn end_within(server: &mut Server, time: Duration) -> std::process::ExitStatus {
    let mut status = None;
    let ended = within(time, || {
        status = server.process.try_wait().expect("our child");
        status.is_some()
    });
    assert!(ended, "still there after {time:?}");
    status.expect("it ended")
}

/// X11.
pub(crate) fn resets(door: Door) -> String {
    const ROUNDS: usize = 300;
    const TIMES: usize = 3;
    let server = start(door, OPTIONS);
    let mut other = server.connect();
    let large = vec![b'x'; 900_000];
    other.set("large", &large);
    other.set("kept", b"before");
    let leave = |mut client: Client, round: usize| {
        // A TCP socket that is closed with bytes unread is reset anyway; so are all of these.
        match round % 6 {
            0 => client.send("get ke"),
            1 => client.send("set kept 0 0 10\r\nafter"),
            2 => client.send([b"set kept 0 0 900000\r\n", &large[..600_000]].concat()),
            3 => client.send("get large large large\r\n"),
            4 => client.send([&b"set kept 0 0 900000\r\n"[..], &large, b"\r"].concat()),
            _ => {
                client.send(b"get large\r\n".repeat(100));
                assert!(matches!(client.look(&mut [0; 1000]), Look::Bytes(_)));
            }
        }
        if round.is_multiple_of(2) { client.reset() } else { drop(client) }
    };
    let rest = || {
        wait_until("their end", || server.stat("curr_connections") == 2);
        // Gauges are told once a second, and blocks come back a tick later.
        let second = server.stat("uptime");
        wait_until("the next look", || server.stat("uptime") > second + 2);
        let stats = server.stats();
        let number = |name: &str| stats[name].parse::<u64>().expect("a number");
        (number("kachel_memory_spent"), number("bytes"), number("evictions"), server.files())
    };
    (0..ROUNDS).for_each(|round| leave(server.connect(), round));
    let before = rest();
    // What a server keeps of its clients follows how many came at once, which the machine decides:
    // its own memory, and the segments that they filled together. A leak grows each time.
    let mut after = before;
    let grown = [(); TIMES].map(|()| {
        let (resident, spent) = (server.resident_bytes(), after.0);
        (0..ROUNDS).for_each(|round| leave(server.connect(), round));
        after = rest();
        [server.resident_bytes().saturating_sub(resident), after.0.saturating_sub(spent)]
    });
    let [grown, spent] = [0, 1].map(|of| grown.iter().map(|bytes| bytes[of]).min().expect("some"));
    // 70 MB were begun each time; a segment of 128 KiB may have been opened.
    assert!(spent <= 256 << 10, "{spent} bytes more are spent each time");
    assert_eq!((after.1, after.2), (before.1, 0), "bytes of items, evictions");
    // A socket that was closed is taken down a moment later.
    wait_until("their sockets' end", || server.files() <= before.3);
    assert_eq!(other.get("kept").as_deref(), Some(&b"before"[..]), "nothing in part");
    assert!(other.get("large").is_some_and(|value| value == large));
    assert!(grown <= 2 << 20, "{grown} bytes more");
    format!(
        "{TIMES} times {ROUNDS} resets: items and files as before, {grown} bytes of memory more \
             in one of them"
    )
}

/// X20.
pub(crate) fn killed(door: Door) -> String {
    const ROUNDS: usize = 5;
    let folder = tempfile::tempdir().expect("a folder");
    let place = if door.unix {
        folder.path().join("socket").to_str().expect("UTF-8").to_owned()
    } else {
        own_port().to_string()
    };
    for round in 0..ROUNDS {
        let mut server = start_at(door, OPTIONS, Some(&place));
        let mut clients: Vec<Client> = (0..20).map(|_| server.connect()).collect();
        let mut reader = server.connect();
        assert_eq!(reader.get("k"), None, "a new process is empty");
        reader.set("k", b"whole");
        let stop = AtomicBool::new(false);
        let replies = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut writer = server.connect();
                let request = set_request("k", 0, &[b'n'; 9_000]);
                while !stop.load(Ordering::Relaxed) && writer.try_send(&request) {
                    let mut buffer = [0; 64];
                    if writer.look(&mut buffer) == Look::Closed {
                        return;
                    }
                    replies.fetch_add(1, Ordering::Relaxed);
                }
            });
            for (at, client) in clients.iter_mut().enumerate() {
                client.send(["set k 0 0 100\r\nhalf", "set k", "get k\r\nget"][(at + round) % 3]);
            }
            wait_until("writes", || replies.load(Ordering::Relaxed) > 20);
            server.signal(Signal::KILL);
            writer.join().expect("the writer sees the end");
            stop.store(true, Ordering::Relaxed);
        });
        for client in &mut clients {
            let closed =
                within(Duration::from_secs(10), || client.look(&mut [0; 1 << 14]) == Look::Closed);
            assert!(closed, "clients see the end");
        }
        end_within(&mut server, Duration::from_secs(10));
    }
    format!(
        "{ROUNDS} times killed amid writes and started again at the same place: all clients \
             saw the end"
    )
}

/// X21.
pub(crate) fn terminated(door: Door) -> String {
    let mut server = start_apart(door, OPTIONS);
    let took = end_under_load(&mut server, |_| ());
    assert!(!server.last_words().contains(OWES), "{}", server.last_words());
    // Someone is owed what he does not take: it ends after 5 s, or at a second signal.
    let mut server = start_apart(door, OPTIONS);
    let slow = owed(&server);
    let waited = end_under_load(&mut server, |_| ());
    assert!(waited >= Duration::from_secs(4), "{waited:?}: the slow reader got no time");
    assert!(!is_full() || waited <= Duration::from_secs(7), "ended only after {waited:?}");
    assert!(server.last_words().contains(OWES), "{}", server.last_words());
    drop(slow);
    (0..QUICK_TRIES).for_each(|_| end_quickly(door));
    let forced = (0..SIGNAL_TRIES).find_map(|_| forced(door));
    let [refused, forced] = forced.expect("a second signal ends it before its five seconds do");
    format!(
        "ended with 0 after {took:.0?}; after {waited:.1?} with a slow reader; refuses after \
             {refused:.0?}, another listens in its place, and a second signal ends it after \
             {forced:.0?}"
    )
}

/// Ends a server whose clients have all their replies by two signals at once.
fn end_quickly(door: Door) {
    let mut server = start_apart(door, OPTIONS);
    let clients: Vec<Client> = (0..20).map(|_| server.connect()).collect();
    let mut asking = server.connect();
    assert_eq!(asking.get("k"), None);
    server.signal(Signal::TERM);
    std::thread::yield_now();
    server.signal(Signal::TERM);
    let status = end_within(&mut server, 10 * DRAIN);
    let words = server.last_words();
    assert!(status.success() && !words.contains(OWES), "nothing is owed: {status}: {words}");
    drop(clients);
}

/// Ends a server that waits for a slow reader by a second signal: how long until it refused
/// clients, and until it ended. `None`: its five seconds were over by then, and may have ended it.
fn forced(door: Door) -> Option<[Duration; 2]> {
    let mut server = start_apart(door, OPTIONS);
    let slow = owed(&server);
    let mut refused = Duration::ZERO;
    let took = end_under_load(&mut server, |server| {
        let began = Instant::now();
        wait_until("new clients to be refused", || server.stream().is_err());
        refused = began.elapsed();
        let next = start_at(door, OPTIONS, Some(&server.place()));
        assert_eq!(next.connect().get("large"), None, "the next one serves, and is empty");
        drop(next);
        // One that came before the first is taken would be the same one.
        server.signal(Signal::TERM);
    });
    assert!(server.last_words().contains(OWES), "{}", server.last_words());
    drop(slow);
    (took < DRAIN).then_some([refused, took])
}

/// A client that does not read its replies.
fn owed(server: &Server) -> Client {
    let mut slow = server.connect();
    slow.set("large", &vec![b'x'; 900_000]);
    slow.send(b"get large\r\n".repeat(100));
    slow
}

/// Ends a server that four clients keep busy, by a signal and `then`; how long it took, from before
/// the signal.
fn end_under_load(server: &mut Server, then: impl FnOnce(&mut Server)) -> Duration {
    let served = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|number| {
                let (mut client, served) = (server.connect(), &served);
                scope.spawn(move || {
                    let request = set_request(&format!("k{number}"), 0, b"value");
                    let mut buffer = [0; 64];
                    while client.try_send(&request) {
                        match client.look(&mut buffer) {
                            Look::Bytes(8) => served.fetch_add(1, Ordering::Relaxed),
                            Look::Closed => return,
                            other => panic!("{other:?}"),
                        };
                    }
                })
            })
            .collect();
        wait_until("load", || served.load(Ordering::Relaxed) > 1_000);
        let began = Instant::now();
        server.signal(Signal::TERM);
        then(server);
        let status = end_within(server, 10 * DRAIN);
        let took = began.elapsed();
        assert!(status.success(), "{status}: {}", server.last_words());
        for client in clients {
            client.join().expect("clients see the end");
        }
        wait_until("nobody to listen any more", || server.stream().is_err());
        took
    })
}
