//! The answers of an `Io` to questions about a connection.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use kachel_io::{Peer, SEND_BLOCK_BYTES, SocketId, Wait};

use crate::Door;
use crate::bench::{Bench, Client, PATIENCE, pattern};

crate::behaviors! {
    what_a_reader_takes_is_seen_though_the_kernel_asks_for_nothing_more: epoll uring memory;
    a_peer_that_has_taken_all_leaves_nothing: epoll uring;
    a_unix_socket_counts_what_its_process_has_not_read: epoll uring;
    a_connection_is_called_by_its_peer_and_descriptor: epoll uring;
}

/// Far more than the kernel holds of a connection.
const BLOCKS: usize = 2_000;

fn unacknowledged<D: Door>(bench: &mut Bench<D>, socket: SocketId) -> u64 {
    use kachel_io::Io as _;
    bench.io.unacknowledged_bytes(socket).expect("this kernel says it")
}

/// Queues blocks until no more of them leave.
fn fill<D: Door>(bench: &mut Bench<D>, socket: SocketId) {
    (0..BLOCKS).for_each(|number| bench.send(socket, &pattern(number, SEND_BLOCK_BYTES)));
    let gone = |bench: &Bench<D>| (bench.log.sent.len(), bench.log.taken.len());
    let mut before = (usize::MAX, usize::MAX);
    while gone(bench) != before {
        before = gone(bench);
        // Events end a wait early; a whole one without any says that the kernel is full.
        (0..3).for_each(|_| bench.poll(Wait::AtMostNs(100_000_000)));
    }
    assert!(before.0 < BLOCKS, "the kernel takes all");
}

fn what_a_reader_takes_is_seen_though_the_kernel_asks_for_nothing_more<D: Door>(
    mut bench: Bench<D>,
) {
    let (mut client, socket) = bench.client();
    assert_eq!(unacknowledged(&mut bench, socket), 0);
    if let Client::Far(far) = &client {
        far.put_buffer(1 << 20);
    }
    fill(&mut bench, socket);
    let before = unacknowledged(&mut bench, socket);
    assert!(before > 0 && unacknowledged(&mut bench, socket) == before, "nobody reads");
    // In pieces, until it is seen: a receiver tells of room when it has some.
    let start = Instant::now();
    while unacknowledged(&mut bench, socket) == before {
        client.read_some(64 * 1024);
        assert!(start.elapsed() < PATIENCE, "never seen");
    }
}

fn a_peer_that_has_taken_all_leaves_nothing<D: Door>(mut bench: Bench<D>) {
    let (mut client, socket) = bench.client();
    fill(&mut bench, socket);
    assert!(unacknowledged(&mut bench, socket) > 0);
    bench.carry(&mut client, BLOCKS * SEND_BLOCK_BYTES);
    bench.poll_until("all blocks", |log| log.sent.len() == BLOCKS);
    let start = Instant::now();
    while unacknowledged(&mut bench, socket) > 0 {
        assert!(start.elapsed() < PATIENCE, "never acknowledged");
        std::thread::yield_now();
    }
}

fn a_unix_socket_counts_what_its_process_has_not_read<D: Door>(mut bench: Bench<D>) {
    use kachel_io::Io as _;
    let (near, far) = UnixStream::pair().unwrap();
    let socket = bench.io.adopt(OwnedFd::from(near)).expect("it is watched");
    assert_eq!(bench.io.name(socket).peer, Peer::Local);
    bench.send(socket, b"abc");
    bench.poll_until("the block", |log| log.sent.len() == 1);
    assert!(unacknowledged(&mut bench, socket) > 0);
    let mut bytes = [0; 3];
    std::io::Read::read_exact(&mut &far, &mut bytes).unwrap();
    assert_eq!((&bytes, unacknowledged(&mut bench, socket)), (b"abc", 0));
}

fn a_connection_is_called_by_its_peer_and_descriptor<D: Door>(mut bench: Bench<D>) {
    use kachel_io::Io as _;
    let (client, socket) = bench.client();
    let Client::Stream(stream) = &client else { unreachable!("not in memory") };
    let address = stream.local_addr().unwrap();
    let name = bench.io.name(socket);
    assert_eq!(name.peer, Peer::from(address));
    assert!(name.descriptor > 2);
    assert_eq!(name.to_string(), format!("{address}, fd {}", name.descriptor));
}
