//! Cases about many connections.

use std::time::{Duration, Instant};

use kachel_testkit::{Client, Look, PATIENCE, Server, wait_until, within};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::subject::{Door, start};
use crate::suite::is_full;

const TURNED_AWAY: &[u8] = b"ERROR Too many open connections\r\n";

/// Lets this process have as many open files as it may.
fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("up to the hard limit");
}

/// A client that was let in, or `None` when it was turned away in words.
fn let_in(mut client: Client) -> Option<Client> {
    // Sent before the answer is known. A refused client may see its connection end while it sends.
    let _turned_away = client.try_send(b"mn\r\n");
    let mut received = Vec::new();
    let mut buffer = [0; 64];
    while received != b"MN\r\n" {
        match client.look(&mut buffer) {
            Look::Bytes(count) => received.extend_from_slice(&buffer[..count]),
            Look::Closed => {
                assert_eq!(received, TURNED_AWAY, "{}", received.escape_ascii());
                return None;
            }
            Look::Nothing => panic!("neither let in nor turned away"),
        }
    }
    Some(client)
}

/// X08.
pub(crate) fn limit(door: Door) -> String {
    const LIMIT: usize = 64;
    const BEYOND: usize = 40;
    let server = start(door, &["-m", "64", "-t", "2", "-c", "64"]);
    let round = |refill: bool| {
        wait_until("an empty server", || {
            // The one that asks has gone from the server's count before the next comes.
            server.stream().is_ok_and(|stream| let_in(Client::new(stream)).is_some())
        });
        let mut clients = Vec::new();
        wait_until("room for all", || {
            clients.extend(let_in(server.connect()));
            clients.len() == LIMIT
        });
        let beyond = (0..BEYOND).filter_map(|_| let_in(server.connect())).count();
        assert_eq!(beyond, 0, "{beyond} more than -c were let in");
        for client in &mut clients {
            assert_eq!(client.ask("mn\r\n", "\n"), "MN\r\n", "those who are in are served");
        }
        let rejected: u64 = clients[0].stats()["rejected_connections"].parse().expect("a number");
        if refill {
            clients.truncate(LIMIT / 2);
            wait_until("room", || {
                clients.extend(let_in(server.connect()));
                clients.len() == LIMIT
            });
            assert!(let_in(server.connect()).is_none(), "and no more than that");
        }
        rejected
    };
    let first = round(true);
    assert!(first >= BEYOND as u64, "{first} counted");
    let second = round(false);
    format!(
        "{LIMIT} let in, {BEYOND} turned away in words; the same again after half had gone; \
             {second} counted"
    )
}

/// X10.
pub(crate) fn come_and_go(door: Door) -> String {
    // One in a hundred of so small a process is less than an allocator moves by.
    const LEAK_BYTES_MAX: u64 = 10;
    const ROUNDS_MAX: usize = 4;
    // By default a server lets in 1,024.
    const AT_ONCE: usize = 256;
    // In the warm-up the server and its allocator see every size and every place: what is kept for
    // clients is not given back.
    let (warm_up, times) = if is_full() { (70_000, 50_000) } else { (10_000, 10_000) };
    let room_bytes = LEAK_BYTES_MAX * times as u64;
    let tcp = start(door, &["-m", "64", "-t", "2"]);
    let unix = start(Door { unix: true, ..door }, &["-m", "64", "-t", "2"]);
    let visit = |number: usize| {
        // However slowly the servers run, no more clients than this are there at once.
        if number.is_multiple_of(AT_ONCE) {
            [&tcp, &unix].into_iter().for_each(Server::wait_until_alone);
        }
        match number % 4 {
            0 | 1 => {
                let mut client = unix.connect();
                assert!(!number.is_multiple_of(3) || client.try_send("get k\r\n"));
            }
            // The server closes first, so that our ports are not used up.
            2 => {
                let mut client = tcp.connect();
                client.send("get k\r\nquit\r\n");
                assert_eq!(client.read_to_end(), b"END\r\n");
            }
            _ => tcp.connect().reset(),
        }
    };
    let rest = || {
        for server in [&tcp, &unix] {
            server.wait_until_alone();
            // The asking connection itself goes last.
            wait_until("its end", || server.stat("curr_connections") == 1);
        }
        [&tcp, &unix].map(|server| (server.files(), server.resident_bytes()))
    };
    (0..warm_up).for_each(visit);
    let mut before = rest();
    (0..times).for_each(visit);
    let mut after = rest();
    let has_grown = |before: &[(usize, u64); 2], after: &[(usize, u64); 2]| {
        let grows = |(&(_, before), &(_, after)): (&(usize, u64), &(usize, u64))| {
            after > before + (before / 100).max(room_bytes)
        };
        before.iter().zip(after).any(grows)
    };
    // On a busy machine more clients than ever before may be there at once, though few, whose
    // buffers are kept. A leak grows in each round.
    for _ in 1..ROUNDS_MAX {
        if !has_grown(&before, &after) {
            break;
        }
        before = after;
        (0..times).for_each(visit);
        after = rest();
    }
    assert!(!has_grown(&before, &after), "resident bytes {after:?}, {before:?} before");
    for (server, (files, _)) in [&tcp, &unix].iter().zip(before) {
        // A socket that was closed is taken down a moment later.
        let same = within(PATIENCE, || server.files().abs_diff(files) <= 1);
        assert!(same, "{} open files, {files} before", server.files());
    }
    let grown: Vec<i64> =
        (0..2).map(|at| after[at].1.cast_signed() - before[at].1.cast_signed()).collect();
    format!("{times} came and went: open files as before; resident {grown:?} bytes more")
}

/// X23.
pub(crate) fn hot_key(door: Door) -> String {
    const CLIENTS: usize = 1_000;
    const REPLIES: u64 = 100_000;
    let rounds_count = if is_full() { 5 } else { 1 };
    // One shard: with two on a busy machine it would be the kernel's turns that are seen.
    let server = start(door, &["-m", "64", "-t", "1"]);
    server.connect().set("hot", &[b'h'; 100]);
    let reply_bytes = b"VALUE hot 0 100\r\n".len() + 100 + b"\r\nEND\r\n".len();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.connect()).collect();
    clients.iter_mut().for_each(|client| client.send("get hot\r\n"));
    let mut partial = vec![0; CLIENTS];
    let mut rounds: Vec<(u64, u64)> = (0..rounds_count)
        .map(|_| {
            let served = serve_in_turns(&mut clients, &mut partial, reply_bytes, REPLIES);
            (served[0], served[CLIENTS / 2])
        })
        .collect();
    // What else the machine does disturbs some rounds, what the server does all of them.
    rounds.sort_unstable_by_key(|(slowest, median)| slowest * 1000 / median);
    let (slowest, median) = rounds[rounds_count / 2];
    assert!(slowest > 0, "a client got no reply, the median {median}");
    let is_fair = slowest * 2 >= median;
    assert!(!is_full() || is_fair, "the slowest got {slowest} replies, the median {median}");
    format!(
        "{REPLIES} replies to {CLIENTS} clients, the middle of {rounds_count} rounds: the slowest \
             {slowest}, the median {median}"
    )
}

/// Asks again on each connection that was answered, until there were `replies`; how many each got,
/// the fewest first. `partial` holds the bytes of replies under way.
fn serve_in_turns(
    clients: &mut [Client],
    partial: &mut [usize],
    reply_bytes: usize,
    replies: u64,
) -> Vec<u64> {
    let mut served = vec![0u64; clients.len()];
    let mut buffer = [0; 4096];
    let deadline = Instant::now() + 4 * PATIENCE;
    while served.iter().sum::<u64>() < replies {
        assert!(Instant::now() < deadline, "{} replies", served.iter().sum::<u64>());
        let mut asked: Vec<PollFd<'_>> =
            clients.iter().map(|client| PollFd::new(client.socket(), PollFlags::IN)).collect();
        poll(&mut asked, None).expect("sockets");
        let ready: Vec<bool> = asked.iter().map(|asked| !asked.revents().is_empty()).collect();
        drop(asked);
        for at in (0..clients.len()).filter(|&at| ready[at]) {
            let Look::Bytes(count) = clients[at].look(&mut buffer) else { panic!("closed") };
            partial[at] += count;
            if partial[at] >= reply_bytes {
                assert_eq!(partial[at], reply_bytes);
                partial[at] = 0;
                served[at] += 1;
                clients[at].send("get hot\r\n");
            }
        }
    }
    served.sort_unstable();
    served
}

/// 10,000 idle connections.
pub(crate) fn idle(door: Door) -> String {
    const CLIENTS: usize = 10_000;
    const EACH_BYTES_MAX: u64 = 1024;
    raise_open_files();
    let limit = (CLIENTS + 100).to_string();
    let server = start(door, &["-m", "64", "-t", "2", "-c", &limit]);
    let ask = |client: &mut Client| assert_eq!(client.ask("get k\r\n", "END\r\n"), "END\r\n");
    // What the first ones touch, a server has in any case.
    let mut clients: Vec<Client> = (0..100).map(|_| server.connect()).collect();
    clients.iter_mut().for_each(ask);
    let before = server.resident_bytes();
    while clients.len() < CLIENTS + 100 {
        let mut client = server.connect();
        ask(&mut client);
        clients.push(client);
    }
    let each = server.resident_bytes().saturating_sub(before) / CLIENTS as u64;
    assert!(each <= EACH_BYTES_MAX, "{each} bytes of memory each");
    // They are there, and served.
    clients.iter_mut().step_by(97).for_each(ask);
    let peak = if is_full() { server.peak_bytes() } else { 0 };
    drop(clients);
    within(Duration::from_secs(60), || server.stat("curr_connections") == 1);
    let full = if peak > 0 { format!(", at most {peak} resident") } else { String::new() };
    format!("{CLIENTS} connections that asked once: {each} bytes of memory each{full}")
}
