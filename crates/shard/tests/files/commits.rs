//! A client pipelines stores that hit eight engines: replies in their order, none before its change
//! is durable, and one write for all changes of a commit.

use kachel_testkit::WorldOptions;

use crate::bench::{Client, Server};

const ENGINES: u16 = 8;
const SETS: usize = 100;
/// Writes of an engine: of what it has when the first one begins, of all that comes meanwhile, and
/// of what the limit on the replies of a client has held back until then.
const WRITES: usize = 3;

/// A set and a get of what it stores, and their reply. The last field is what must be durable.
fn step(number: usize) -> [String; 3] {
    let value = format!("value-{:08}-{number:04}", number * 7919);
    let ask = format!("set key{number} 0 0 {0}\r\n{value}\r\nget key{number}\r\n", value.len());
    let reply = format!("STORED\r\nVALUE key{number} 0 {}\r\n{value}\r\nEND\r\n", value.len());
    [ask, reply, value]
}

/// Checks that the first `bytes` bytes of the replies tell of nothing that is not durable.
fn check_durable(server: &Server, steps: &[[String; 3]], mut bytes: usize) {
    let files = server.files();
    for [_, reply, value] in steps {
        if bytes < "STORED\r\n".len() {
            return;
        }
        let is_durable =
            files.iter().any(|file| file.windows(value.len()).any(|part| part == value.as_bytes()));
        assert!(is_durable, "{}: {value} is told of before its fence", server.about);
        bytes = bytes.saturating_sub(reply.len());
    }
}

#[test]
fn a_commit_is_one_write_and_no_reply_comes_before_its_fence() {
    for (shards, crew) in [(1, true), (2, true), (3, true), (2, false), (3, false)] {
        let options = WorldOptions {
            shards,
            engines: Some(ENGINES),
            crew,
            evict: false,
            stays: true,
            ..WorldOptions::default()
        };
        let steps: Vec<_> = (0..SETS).map(step).collect();
        let asked: String = steps.iter().map(|step| step[0].as_str()).collect();
        let wanted: String = steps.iter().map(|step| step[1].as_str()).collect();
        Server::each(options, |mut server| {
            let mut client = server.connect();
            let about = format!("{shards} cores, crew: {crew}, {}", server.about);
            if let Client::Stream(_) = client {
                let reply = server.ask(&mut client, asked.as_bytes(), wanted.len());
                assert_eq!(String::from_utf8(reply).expect("text"), wanted, "{about}");
                return check_durable(&server, &steps, wanted.len());
            }
            while server.step() {} // The files are open.
            let before = server.disk().counts().operations;
            client.write(asked.as_bytes());
            let mut reply = Vec::new();
            while server.step() {
                let new = client.so_far();
                reply.extend_from_slice(&new);
                assert!(wanted.as_bytes().starts_with(&reply), "{about}: in their order");
                if !new.is_empty() {
                    check_durable(&server, &steps, reply.len());
                }
            }
            assert_eq!(String::from_utf8(reply).expect("text"), wanted, "{about}");
            let writes = server.disk().counts().operations - before;
            let writes_max = u64::from(ENGINES) * WRITES as u64;
            assert!(writes <= writes_max, "{about}: {writes} writes for {SETS} stores");
        });
    }
}
