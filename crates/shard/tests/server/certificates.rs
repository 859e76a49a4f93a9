//! `refresh_certs`: which clients are answered, when, and with which reply.

use kachel_io::FarEnd;
use kachel_shard::Certificates;
use kachel_testkit::{World, WorldOptions};

fn world(certificates: Certificates) -> World {
    World::new(WorldOptions { shards: 2, certificates, ..WorldOptions::default() })
}

/// Has the process read the certificates, with this result, for all who have asked.
fn read(world: &mut World, result: Result<(), &str>) {
    assert!(world.shared.take_refresh(), "the process is told");
    assert!(!world.shared.take_refresh(), "once");
    let asked = world.shared.refresh_asked().expect("somebody has asked");
    world.shared.note_refreshed(asked, result.map_err(str::to_string));
    world.shards.iter().for_each(|shard| shard.waker().wake());
    world.settle();
}

#[test]
fn a_server_without_tls_does_not_know_the_command() {
    for (certificates, reply) in [
        (Certificates::Unknown, &b"ERROR\r\n"[..]),
        (Certificates::NotEnabled, b"Error TLS not enabled\r\n"),
    ] {
        let mut world = world(certificates);
        let client = world.connect();
        assert_eq!(world.ask(&client, b"refresh_certs\r\n"), reply);
        assert!(!world.shared.take_refresh());
    }
}

/// The reply waits for the reading, and later replies of the client for it. Other clients do not.
#[test]
fn a_client_is_answered_when_the_files_were_read() {
    let mut world = world(Certificates::Readable);
    let clients: Vec<FarEnd> = (0..3).map(|_| world.connect()).collect();
    for client in &clients[..2] {
        assert_eq!(world.ask(client, b"refresh_certs\r\nset a 0 0 1\r\nx\r\n"), b"");
    }
    assert_eq!(world.ask(&clients[2], b"get a\r\n"), b"VALUE a 0 1\r\nx\r\nEND\r\n");
    read(&mut world, Ok(()));
    for client in &clients[..2] {
        assert_eq!(client.read(), b"OK\r\nSTORED\r\n");
    }
    assert_eq!(world.shared.refresh_asked(), None);
}

#[test]
fn an_error_is_told_and_cut_if_it_is_long() {
    let mut world = world(Certificates::Readable);
    let client = world.connect();
    for (sentence, bytes) in [("no such file", 14), (&"long ".repeat(1000), 512)] {
        // Without `noreply`, and with it: an error is told all the same, as in memcached.
        assert_eq!(world.ask(&client, b"refresh_certs\r\nrefresh_certs noreply\r\n"), b"");
        read(&mut world, Err(sentence));
        let reply = client.read();
        assert_eq!(reply.len(), 2 * bytes);
        assert!(reply.ends_with(b"\r\n") && reply.starts_with(&sentence.as_bytes()[..bytes - 2]));
    }
    assert_eq!(world.ask(&client, b"refresh_certs noreply\r\nmn\r\n"), b"");
    read(&mut world, Ok(()));
    assert_eq!(client.read(), b"MN\r\n");
}

/// I1, I2: a request that comes while the files are read waits for the next reading.
#[test]
fn a_reading_answers_no_request_that_came_after_it_began() {
    let mut world = world(Certificates::Readable);
    let clients = [world.connect(), world.connect()];
    assert_eq!(world.ask(&clients[0], b"refresh_certs\r\n"), b"");
    assert!(world.shared.take_refresh());
    let asked = world.shared.refresh_asked().expect("the first one");
    assert_eq!(world.ask(&clients[1], b"refresh_certs\r\n"), b"");
    world.shared.note_refreshed(asked, Ok(()));
    world.shards.iter().for_each(|shard| shard.waker().wake());
    world.settle();
    assert_eq!((clients[0].read(), clients[1].read()), (b"OK\r\n".to_vec(), vec![]));
    read(&mut world, Ok(()));
    assert_eq!(clients[1].read(), b"OK\r\n");
}

/// A client that leaves, and a process that ends, leave nothing behind.
#[test]
fn nobody_waits_for_a_reading_that_does_not_come() {
    let mut world = world(Certificates::Readable);
    let (left, stays) = (world.connect(), world.connect());
    for client in [&left, &stays] {
        assert_eq!(world.ask(client, b"refresh_certs\r\n"), b"");
    }
    left.reset();
    world.settle();
    world.shared.stop();
    for _ in 0..20 {
        world.turn();
    }
    assert!(stays.is_finished());
}
