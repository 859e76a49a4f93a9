//! Connections handed from one `Io` to another.

use kachel_io::{Io, Limits, SocketId, Wait};

use crate::Door;
use crate::bench::{Bench, Client};

crate::behaviors! {
    a_connection_moves_and_goes_on: epoll uring;
    a_connection_moves_at_once_though_its_client_has_spoken: epoll uring;
    a_socket_with_unsent_blocks_stays: epoll uring memory;
    what_the_kernel_does_not_watch_is_not_adopted: epoll;
}

fn give_up<D: Door>(bench: &mut Bench<D>, socket: SocketId) -> std::os::fd::OwnedFd {
    loop {
        match bench.io.give_up(socket) {
            Some(fd) => return fd,
            None => bench.poll(Wait::Forever),
        }
    }
}

fn a_connection_moves_and_goes_on<D: Door>(mut bench: Bench<D>) {
    let mut other = Bench::<D>::open(Limits::default()).unwrap();
    let (mut client, socket) = bench.client();
    client.write(b"one ");
    bench.poll_until("the first word", |log| log.received_from(socket) == b"one ");
    bench.send(socket, b"1");
    assert_eq!(bench.carry(&mut client, 1), b"1");
    bench.poll_until("the block", |log| log.sent.len() == 1);

    let fd = give_up(&mut bench, socket);
    client.write(b"two ");
    let adopted = other.io.adopt(fd).expect("the kernel watches it");
    other.poll_until("the second word", |log| log.received_from(adopted) == b"two ");
    other.send(adopted, b"2");
    assert_eq!(other.carry(&mut client, 1), b"2");

    // The first one has forgotten it, and may reuse the slot.
    let (mut second, reused): (Client, SocketId) = bench.client();
    assert_ne!(reused, socket);
    bench.settle(&mut second, reused);
    assert!(bench.log.failed.is_empty() && bench.log.finished.is_empty());

    // And back again, with the end already under way.
    client.finish();
    let fd = give_up(&mut other, adopted);
    let back = bench.io.adopt(fd).expect("the kernel watches it");
    if !other.log.finished.contains(&adopted) {
        bench.poll_until("the end", |log| log.finished.contains(&back));
    }
}

fn a_connection_moves_at_once_though_its_client_has_spoken<D: Door>(mut bench: Bench<D>) {
    let mut other = Bench::<D>::open(Limits::default()).unwrap();
    for round in 0..10 {
        let mut client = bench.dial();
        client.write(b"words");
        bench.poll_until("the client", |log| log.accepted.len() > round);
        let socket = bench.log.accepted[round].1;
        let fd = bench.io.give_up(socket).expect("nothing is under way");
        let adopted = other.io.adopt(fd).expect("the kernel watches it");
        other.poll_until("its words", |log| log.received_from(adopted) == b"words");
        assert!(bench.log.received_from(socket).is_empty());
    }
}

fn a_socket_with_unsent_blocks_stays<D: Door>(mut bench: Bench<D>) {
    let (mut client, socket) = bench.client();
    client.stall();
    bench.send(socket, b"not yet");
    assert!(bench.io.give_up(socket).is_none());
    client.go_on();
    assert_eq!(bench.carry(&mut client, 7), b"not yet");
    bench.poll_until("the block", |log| log.sent.len() == 1);
    drop(give_up(&mut bench, socket));
}

fn what_the_kernel_does_not_watch_is_not_adopted<D: Door>(mut bench: Bench<D>) {
    // Nothing is ever awaited of a file: the kernel refuses it as it does a socket too many.
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(bench.io.adopt(file.into()).is_none());
    let (mut client, socket) = bench.client();
    bench.settle(&mut client, socket);
    assert_eq!(bench.log.accepted.len(), 1, "its slot is free again");
}
