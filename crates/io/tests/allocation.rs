//! Once warm, a request is received and answered, and an operation on a file is carried out,
//! without an allocation.
//!
//! Alone in its process, because the allocator is the process's.

use std::io::{Read, Write};
use std::net::TcpStream;

use kachel_io::{
    AlignedBuffer, Epoll, Event, FileHandle, FileName, FileOperation, FileWork, Files,
    FolderHandle, Io, Limits, OpenMode, SendBlock, Transfer, Uring, Wait, listener,
};
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

const WRITES: usize = 40;

/// Submits the operations, and returns them when all have come back.
#[expect(clippy::vec_box, reason = "the boxes are submitted as they are")]
fn carry_out(
    io: &mut impl Files,
    events: &mut Vec<Event>,
    operations: &mut Vec<Box<FileOperation>>,
) {
    let count = operations.len();
    for operation in operations.drain(..) {
        io.submit(operation).expect("there is room");
    }
    while operations.len() < count {
        io.poll(Wait::Forever, events).unwrap();
        for event in events.drain(..) {
            let Event::FileDone { operation } = event else { panic!("{event:?}") };
            operation.result().expect("the disk takes it");
            operations.push(operation);
        }
    }
}

fn operations_on_files_are_carried_out_without_allocation(mut io: impl Files) {
    let place = tempfile::tempdir().unwrap();
    let fd = std::fs::File::open(place.path()).unwrap();
    let folder = FolderHandle::new(fd.into(), "folder");
    let name = FileName::new("file").unwrap();
    let mut opening = FileOperation::new(0);
    let mode = OpenMode::CreateNew;
    opening.work = FileWork::Open { folder, name, mode, direct: false, opened: None };
    let (mut events, mut operations) = (Vec::with_capacity(1024), vec![opening]);
    carry_out(&mut io, &mut events, &mut operations);
    let FileWork::Open { opened, .. } = &mut operations[0].work else { panic!("an open") };
    let file: FileHandle = opened.take().expect("it was opened");
    operations.clear();
    for number in 0..WRITES as u64 {
        let (buffer, offset) = (AlignedBuffer::new(4096, 4096), number * 4096);
        let transfer = Transfer { file: file.clone(), offset, buffer, start: 0, bytes: 4096 };
        let mut operation = FileOperation::new(number);
        operation.work = FileWork::Write { transfer, durable: false };
        operations.push(operation);
    }
    let mut counts = Vec::with_capacity(100);
    for _ in 0..100 {
        let work = || carry_out(&mut io, &mut events, &mut operations);
        counts.push(counted(work).1);
    }
    assert_eq!(counts[20..].iter().sum::<u64>(), 0, "allocations with {}", io.kind());
}

fn with_either_backend(epoll: impl FnOnce(Epoll), uring: impl FnOnce(Uring)) {
    epoll(Epoll::new(Limits::default()).unwrap());
    match Uring::new(Limits::default()) {
        Ok(io) => uring(io),
        Err(error) => {
            assert!(matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)), "{error}");
            println!("skip io_uring the kernel forbids it: {error}");
        }
    }
}

#[test]
fn requests_are_answered_without_allocation_by_either_backend() {
    with_either_backend(
        requests_are_answered_without_allocation,
        requests_are_answered_without_allocation,
    );
}

#[test]
fn operations_on_files_are_carried_out_without_allocation_by_either_backend() {
    with_either_backend(
        operations_on_files_are_carried_out_without_allocation,
        operations_on_files_are_carried_out_without_allocation,
    );
}
