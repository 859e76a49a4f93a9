//! Many cold keys wait on one core: what it costs, and that hits do not wait for them.

use kachel_testkit::WorldOptions;

use crate::bench::{Client, Server};

/// Cold keys, and the clients that ask for them, each for as many.
const KEYS: usize = 4096;
const CLIENTS: usize = 256;
const VALUE_BYTES: usize = 4096;
/// Keys that a client stores before it reads the replies.
const STORED_AT_ONCE: usize = 64;
const ENGINES: u16 = 3;

fn value(number: usize) -> String {
    format!("{number:0>VALUE_BYTES$}")
}

/// The reply to a GET of a key.
fn hit(number: usize) -> String {
    format!("VALUE cold{number} 0 {VALUE_BYTES}\r\n{}\r\nEND\r\n", value(number))
}

/// Stores all keys. Their values are durable when the replies have come, so they are cold.
fn fill(server: &mut Server, client: &mut Client) {
    for first in (0..KEYS).step_by(STORED_AT_ONCE) {
        let set = |number| format!("set cold{number} 0 0 {VALUE_BYTES}\r\n{}\r\n", value(number));
        let sets: String = (first..first + STORED_AT_ONCE).map(set).collect();
        let stored = "STORED\r\n".repeat(STORED_AT_ONCE);
        let reply = server.ask(client, sets.as_bytes(), stored.len());
        assert_eq!(String::from_utf8(reply).expect("text"), stored, "{}", server.about);
    }
}

fn options() -> WorldOptions {
    let mut options = WorldOptions { engines: Some(ENGINES), evict: false, ..Default::default() };
    options.plain.connections_max = 2 * CLIENTS as u32;
    options
}

#[test]
fn cold_reads_of_one_core_cost_no_return_from_the_kernel_without_a_cause() {
    Server::each(options(), |mut server| {
        let mut other = server.connect();
        fill(&mut server, &mut other);
        // An empty value is always in memory, one in each engine.
        let names: Vec<String> = (0..20).map(|number| format!("hit{number}")).collect();
        for name in &names {
            server.ask(&mut other, format!("set {name} 0 0 0\r\n\r\n").as_bytes(), 8);
        }
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
        let (polls_before, causes_before) = server.returns.count();
        let parked_before = server.sum(|counters| &counters.parked);
        for (first, client) in clients.iter_mut().enumerate() {
            let gets = (first..KEYS).step_by(CLIENTS).map(|number| format!("get cold{number}\r\n"));
            client.write(gets.collect::<String>().as_bytes());
        }
        server.rest();
        let parked = server.sum(|counters| &counters.parked);
        let gets: String = names.iter().map(|name| format!("get {name}\r\n")).collect();
        let hits: String =
            names.iter().map(|name| format!("VALUE {name} 0 0\r\n\r\nEND\r\n")).collect();
        other.write(gets.as_bytes());
        server.rest();
        if let Client::Far(_) = other {
            assert_eq!(other.so_far(), hits.as_bytes(), "no operation of the disk completes");
            assert!(parked > parked_before);
            assert_eq!(server.sum(|counters| &counters.parked), parked, "a hit takes no record");
        } else {
            assert_eq!(server.read(&mut other, hits.len()), hits.as_bytes());
        }
        for (first, client) in clients.iter_mut().enumerate() {
            let wanted: String = (first..KEYS).step_by(CLIENTS).map(hit).collect();
            let reply = server.read(client, wanted.len());
            assert!(reply == wanted.as_bytes(), "{}: client {first}", server.about);
        }
        let (polls, causes) = server.returns.count();
        let (polls, causes) = (polls - polls_before, causes - causes_before);
        println!("{}: {polls} returns, {causes} causes", server.about);
        assert!(polls <= causes, "{}: {polls} returns, {causes} causes", server.about);
        let parked = server.sum(|counters| &counters.parked) - parked_before;
        assert_eq!(parked, KEYS as u64, "{}: a record for each cold read", server.about);
    });
}
