//! Once warm, a request is received and answered without an allocation.
//!
//! Alone in its process, because the allocator is the process's.

use std::io::{Read, Write};
use std::net::TcpStream;

use kachel_io::{Epoll, Event, Io, Limits, SendBlock, Uring, Wait, listener};
use kachel_stdx::{CountingAllocator, counted};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const CLIENTS: usize = 20;

/// Polls until every client's request was answered and every block came back; requests answered.
fn answer_all(io: &mut impl Io, events: &mut Vec<Event>, blocks: &mut Vec<SendBlock>) -> usize {
    let mut answered = 0;
    let mut given_back = 0;
    while given_back < 2 * CLIENTS {
        io.poll(Wait::Forever, events).unwrap();
        for event in events.drain(..) {
            match event {
                Event::Received { socket, bytes } => {
                    assert_eq!(io.lent(bytes), b"get k\r\n");
                    answered += 1;
                    for _ in 0..2 {
                        let mut block = blocks.pop().unwrap();
                        block.clear();
                        block.put(b"END\r\n");
                        io.send(socket, block);
                    }
                }
                Event::Sent { block, .. } => {
                    given_back += 1;
                    blocks.push(block);
                }
                Event::Accepted { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
    answered
}

fn requests_are_answered_without_allocation(mut io: impl Io) {
    let socket = listener::tcp("127.0.0.1:0".parse().unwrap(), 64, false).unwrap();
    let address = listener::local_addr(&socket).unwrap();
    io.listen(socket);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut blocks: Vec<_> = (0..4 * CLIENTS).map(|_| SendBlock::new()).collect();
    let mut events = Vec::with_capacity(1024);
    let mut counts = Vec::with_capacity(400);
    for _ in 0..400 {
        for client in &mut clients {
            client.write_all(b"get k\r\n").unwrap();
        }
        let (answered, allocations) = counted(|| answer_all(&mut io, &mut events, &mut blocks));
        assert_eq!(answered, CLIENTS);
        counts.push(allocations);
        for client in &mut clients {
            let mut reply = [0; 10];
            client.read_exact(&mut reply).unwrap();
            assert_eq!(&reply, b"END\r\nEND\r\n");
        }
    }
    assert!(counts[0] > 0, "the counter does not count");
    assert_eq!(counts[100..].iter().sum::<u64>(), 0, "allocations with {}", io.kind());
}

#[test]
fn requests_are_answered_without_allocation_by_either_backend() {
    requests_are_answered_without_allocation(Epoll::new(Limits::default()).unwrap());
    match Uring::new(Limits::default()) {
        Ok(uring) => requests_are_answered_without_allocation(uring),
        Err(error) => {
            assert!(matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)), "{error}");
            println!("skip io_uring the kernel forbids it: {error}");
        }
    }
}
