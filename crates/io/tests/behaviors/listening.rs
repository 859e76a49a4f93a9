//! Which clients are accepted, and which wait.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use kachel_io::{Io, Limits, Peer, Wait, listener};

use crate::Door;
use crate::bench::{Bench, Client};

crate::behaviors! {
    the_peer_is_known: epoll uring;
    a_unix_socket_is_served: epoll uring;
    two_hundred_clients_are_let_in: epoll uring memory;
    clients_that_reset_at_once_are_reported: epoll uring;
    a_closed_listener_turns_everyone_away: epoll uring memory;
    a_closed_unix_listener_makes_room_for_another: epoll uring;
    at_the_limit_clients_wait_until_one_leaves: epoll uring memory;
}

fn the_peer_is_known<D: Door>(mut bench: Bench<D>) {
    let (client, _) = bench.client();
    let Client::Stream(stream) = client else { panic!("a real socket") };
    assert_eq!(bench.log.accepted[0].2, Peer::from(stream.local_addr().unwrap()));
}

fn a_unix_socket_is_served<D: Door>(mut bench: Bench<D>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kachel.sock");
    let second = bench.io.listen(listener::unix(&path, 0o700, 16).unwrap());
    let mut stream = UnixStream::connect(&path).unwrap();
    bench.poll_until("the client", |log| log.accepted.len() == 1);
    let (listener, socket, peer) = bench.log.accepted[0];
    assert_eq!((listener, peer), (second, Peer::Local));
    stream.write_all(b"ping").unwrap();
    bench.poll_until("the bytes", |log| log.received_from(socket) == b"ping");
    bench.send(socket, b"pong");
    bench.io.finish_sending(socket);
    bench.poll_until("the block", |log| log.sent.len() == 1);
    assert_eq!(std::io::read_to_string(&stream).unwrap(), "pong");
    drop(stream);
    bench.poll_until("the end", |log| log.finished.contains(&socket));
}

fn two_hundred_clients_are_let_in<D: Door>(mut bench: Bench<D>) {
    let clients: Vec<_> = (0..200).map(|_| bench.dial()).collect();
    bench.poll_until("all clients", |log| log.accepted.len() == clients.len());
    let mut indices: Vec<_> = bench.log.accepted.iter().map(|each| each.1.index()).collect();
    indices.sort_unstable();
    assert!(indices.into_iter().eq(0..200), "small dense indices, each once");
}

/// As health checks do. Whether one is accepted before it is gone is a race.
fn clients_that_reset_at_once_are_reported<D: Door>(mut bench: Bench<D>) {
    const CLIENTS: usize = 50;
    (0..CLIENTS).for_each(|_| bench.dial().reset());
    bench.poll_until("all clients", |log| log.accepted.len() + log.gone >= CLIENTS);
    let (mut client, socket) = bench.client();
    bench.settle(&mut client, socket);
    assert_eq!(bench.log.accepted.len() + bench.log.gone, CLIENTS + 1, "each once");
}

fn a_closed_listener_turns_everyone_away<D: Door>(_: Bench<D>) {
    // At the limit, so that the second client waits in the kernel.
    let Some(mut bench) = Bench::<D>::open(Limits { sockets_max: 1, ..Limits::default() }) else {
        return;
    };
    let (mut client, socket) = bench.client();
    let mut waiting = bench.dial();
    bench.settle(&mut client, socket);
    bench.io.listen_close(bench.listener);
    assert!(bench.carry_end(&mut waiting).is_empty());
    if let Client::Far(_) = client {
        let mut late = bench.dial();
        assert!(bench.carry_end(&mut late).is_empty());
    } else {
        // No other process listens there: the kernel gives a port to nobody that asks for any, as
        // long as a connection that was accepted on it lives.
        let late = TcpStream::connect(bench.address);
        assert_eq!(late.expect_err("closed").kind(), ErrorKind::ConnectionRefused);
    }
    // Accepted clients stay, and room for one more changes nothing.
    bench.settle(&mut client, socket);
    bench.io.close(socket);
    bench.poll(Wait::AtMostNs(1_000_000));
    assert_eq!(bench.log.accepted.len(), 1);
}

fn a_closed_unix_listener_makes_room_for_another<D: Door>(mut bench: Bench<D>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kachel.sock");
    let first = bench.io.listen(listener::unix(&path, 0o700, 16).unwrap());
    let _client = UnixStream::connect(&path).unwrap();
    bench.poll_until("the client", |log| log.accepted.len() == 1);
    assert!(listener::unix(&path, 0o700, 16).is_err(), "it listens");
    bench.io.listen_close(first);
    let late = UnixStream::connect(&path);
    assert_eq!(late.expect_err("closed").kind(), ErrorKind::ConnectionRefused);
    let second = bench.io.listen(listener::unix(&path, 0o700, 16).unwrap());
    let _next = UnixStream::connect(&path).unwrap();
    bench.poll_until("the next client", |log| log.accepted.len() == 2);
    assert_eq!(bench.log.accepted[1].0, second);
}

fn at_the_limit_clients_wait_until_one_leaves<D: Door>(_: Bench<D>) {
    let Some(mut bench) = Bench::<D>::open(Limits { sockets_max: 2, ..Limits::default() }) else {
        return;
    };
    let (_first, leaving) = bench.client();
    let (mut client, socket) = bench.client();
    bench.settle(&mut client, socket);
    let _waiting = bench.dial();
    bench.settle(&mut client, socket);
    assert_eq!(bench.log.accepted.len(), 2);
    if D::KIND != "memory" {
        // A client that waits to be accepted does not keep the server awake.
        let polls = bench.log.polls;
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(30) {
            bench.poll(Wait::AtMostNs(30_000_000));
        }
        assert!(bench.log.polls - polls <= 4, "a busy loop");
    }
    bench.io.close(leaving);
    bench.poll_until("the third client", |log| log.accepted.len() == 3);
    bench.poll(Wait::Now);
}
