//! Bytes received into lent memory: all of them, in order, nowhere else; and the memory always
//! comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use kachel_io::{Io, RECEIVE_BUFFER_BYTES, SocketId, Wait};
use kachel_stdx::{LANDING_SPILL_BYTES, Landing, Lender, Piece};

use crate::Door;
use crate::bench::{Bench, Client, Log, pattern};

crate::behaviors! {
    a_landing_brings_what_has_come_and_is_free_again: epoll uring memory;
    a_long_value_lands_piece_by_piece_and_what_follows_is_lent: epoll uring memory;
    a_landing_waits_while_its_socket_is_paused: epoll uring memory;
    a_landing_with_bytes_and_end_brings_both: epoll uring memory;
    a_landing_comes_back_when_its_peer_goes: epoll uring memory;
    a_landing_comes_back_when_its_socket_is_closed: epoll uring memory;
    a_landing_comes_back_when_its_socket_moves: epoll uring memory;
    a_landing_comes_back_when_the_door_goes: epoll uring memory;
    a_socket_that_receives_already_refuses_a_landing: uring;
    a_socket_that_receives_nothing_more_refuses_a_landing: epoll uring memory;
    many_landings_at_once_leave_others_their_turn: epoll uring;
}

/// Bytes of each piece of a shelf's landings; two of them do not adjoin.
const PIECE_BYTES: usize = 10_000;
/// Bytes that such a landing takes.
const ROOM: usize = 2 * PIECE_BYTES + LANDING_SPILL_BYTES;

/// Memory for one landing at a time.
struct Shelf {
    memory: Box<[AtomicU8]>,
    released: AtomicUsize,
}

impl Lender for Shelf {
    fn release(&self, name: [u64; 2]) {
        assert_eq!(name, [7, 8]);
        self.released.fetch_add(1, Ordering::Relaxed);
    }
}

impl Shelf {
    fn new() -> Arc<Self> {
        let memory = (0..4 * PIECE_BYTES).map(|_| AtomicU8::new(0)).collect();
        Arc::new(Self { memory, released: AtomicUsize::new(0) })
    }

    fn lend(self: &Arc<Self>, landing: &mut Landing) {
        landing.begin([7, 8], true);
        for start in [PIECE_BYTES, 3 * PIECE_BYTES] {
            let start = std::ptr::NonNull::new(self.memory[start].as_ptr()).unwrap();
            // SAFETY:
            // - initialized, and alive as long as the shelf: the landing keeps it.
            // - one landing at a time, and the tests read the memory while there is none.
            landing.add(unsafe { Piece::new(start, PIECE_BYTES) });
        }
    }

    fn landing(self: &Arc<Self>) -> Landing {
        let mut landing = Landing::new(Arc::clone(self) as Arc<dyn Lender>);
        self.lend(&mut landing);
        landing
    }

    fn bytes(&self, start: usize, count: usize) -> Vec<u8> {
        self.memory[start..][..count].iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
    }

    fn released(&self) -> usize {
        self.released.load(Ordering::Relaxed)
    }
}

/// Has the client send as much as ends a receive, and brings a landing for what follows.
fn bring<D: Door>(
    bench: &mut Bench<D>,
    client: &mut Client,
    socket: SocketId,
    shelf: &Arc<Shelf>,
) -> usize {
    let before = bench.log.received_from(socket).len() + RECEIVE_BUFFER_BYTES;
    client.write(&pattern(0, RECEIVE_BUFFER_BYTES));
    bench.poll_until("a buffer", |log| log.received_from(socket).len() == before);
    bench.io.receive_into(socket, shelf.landing()).unwrap();
    before
}

fn a_landing_brings_what_has_come_and_is_free_again<D: Door>(mut bench: Bench<D>) {
    let (mut client, socket) = bench.client();
    let shelf = Shelf::new();
    let before = bring(&mut bench, &mut client, socket, &shelf);
    client.write(b"abc");
    bench.poll_until("three bytes", |log| log.received_from(socket).len() == before + 3);
    let (landing, bytes) = bench.log.landed.pop().unwrap();
    assert_eq!((bytes, shelf.released()), (3, 0));
    assert_eq!(&shelf.bytes(PIECE_BYTES, 4), b"abc\0");
    drop(landing);
    assert_eq!(shelf.released(), 1);
    bench.settle(&mut client, socket);
    assert!(bench.log.landed.is_empty(), "a landing lands once");
    assert_eq!(&shelf.bytes(PIECE_BYTES, 4), b"abc\0");
}

fn a_long_value_lands_piece_by_piece_and_what_follows_is_lent<D: Door>(mut bench: Bench<D>) {
    let (mut client, socket) = bench.client();
    let shelf = Shelf::new();
    let before = bring(&mut bench, &mut client, socket, &shelf);
    let value = pattern(3, 10 * ROOM + 1234);
    let mut unsent = value.chunks(70_000);
    while bench.log.received_from(socket).len() < before + value.len() {
        if let Some(piece) = unsent.next() {
            client.write(piece);
        }
        // Landing after landing, each brought in the tick in which the last came back.
        loop {
            bench.poll(Wait::AtMostNs(20_000_000));
            let Some((mut landing, bytes)) = bench.log.landed.pop() else { break };
            assert!(bench.log.landed.is_empty(), "one a poll");
            let in_first = bytes.min(PIECE_BYTES);
            let landed = &bench.log.received_from(socket);
            let landed = &landed[landed.len() - bytes..];
            assert!(shelf.bytes(PIECE_BYTES, in_first) == landed[..in_first], "in the first piece");
            landing.take_back();
            shelf.lend(&mut landing);
            bench.io.receive_into(socket, landing).unwrap();
        }
    }
    assert!(bench.log.received_from(socket)[before..] == value);
    assert!(bench.log.lands >= value.len() / ROOM, "it landed: {} times", bench.log.lands);
    for gap in [0, 2 * PIECE_BYTES] {
        assert!(shelf.bytes(gap, PIECE_BYTES) == [0; PIECE_BYTES], "nowhere else");
    }
    // The landing that is still there takes what comes next; then bytes are lent again.
    let lands = bench.log.lands;
    client.write(b"tail");
    let all = before + value.len() + 4;
    bench.poll_until("the tail", |log| log.received_from(socket).len() == all);
    assert_eq!(bench.log.lands, lands + 1);
    bench.settle(&mut client, socket);
    assert_eq!((bench.log.lands, shelf.released()), (lands + 1, 0));
}

fn a_landing_waits_while_its_socket_is_paused<D: Door>(mut bench: Bench<D>) {
    let (mut client, socket) = bench.client();
    let (mut other, barrier) = bench.client();
    let shelf = Shelf::new();
    let before = bring(&mut bench, &mut client, socket, &shelf);
    for round in 0..3 {
        bench.settle(&mut other, barrier); // The receive is under way.
        bench.io.pause(socket);
        bench.settle(&mut other, barrier);
        if round == 2 {
            client.write(b"patience");
        }
        bench.settle(&mut other, barrier);
        assert_eq!((bench.log.received_from(socket).len(), shelf.released()), (before, 0));
        bench.io.resume(socket);
    }
    bench.poll_until("the bytes", |log| log.received_from(socket).len() == before + 8);
    assert_eq!(bench.log.landed.len(), 1);
    assert_eq!(shelf.bytes(PIECE_BYTES, 8), b"patience");
}

fn a_landing_with_bytes_and_end_brings_both<D: Door>(mut bench: Bench<D>) {
    let (mut client, socket) = bench.client();
    let shelf = Shelf::new();
    let before = bring(&mut bench, &mut client, socket, &shelf);
    client.write(b"the last");
    client.finish();
    bench.poll_until("the end", |log| log.finished.contains(&socket));
    assert_eq!(&bench.log.received_from(socket)[before..], b"the last");
    assert_eq!(bench.log.landed.len(), 1);
}

fn a_landing_comes_back_when_its_peer_goes<D: Door>(mut bench: Bench<D>) {
    for resets in [false, true] {
        let (mut client, socket) = bench.client();
        let shelf = Shelf::new();
        bring(&mut bench, &mut client, socket, &shelf);
        bench.poll(Wait::Now);
        assert_eq!(shelf.released(), 0);
        if resets {
            client.reset();
        } else {
            client.finish();
        }
        bench.poll_until("the landing", |_| shelf.released() == 1);
        let ended = |log: &Log| log.finished.contains(&socket) || log.failed.contains(&socket);
        bench.poll_until("the end", ended);
        bench.io.close(socket);
        bench.poll(Wait::Now);
        assert_eq!((shelf.released(), bench.log.landed.len()), (1, 0));
    }
}

fn a_landing_comes_back_when_its_socket_is_closed<D: Door>(mut bench: Bench<D>) {
    for begun in [false, true] {
        let (mut client, socket) = bench.client();
        let (mut other, barrier) = bench.client();
        let shelf = Shelf::new();
        bring(&mut bench, &mut client, socket, &shelf);
        if begun {
            bench.settle(&mut other, barrier);
        }
        assert_eq!(shelf.released(), 0);
        bench.io.close(socket);
        bench.poll_until("the landing", |_| shelf.released() == 1);
        let before = shelf.bytes(0, 4 * PIECE_BYTES);
        bench.settle(&mut other, barrier);
        assert!(shelf.bytes(0, 4 * PIECE_BYTES) == before && bench.log.landed.is_empty());
    }
}

fn a_landing_comes_back_when_its_socket_moves<D: Door>(mut bench: Bench<D>) {
    let (mut client, socket) = bench.client();
    let shelf = Shelf::new();
    bring(&mut bench, &mut client, socket, &shelf);
    bench.poll(Wait::Now);
    while bench.io.give_up(socket).is_none() {
        bench.poll(Wait::Forever);
    }
    assert_eq!(shelf.released(), 1);
}

fn a_landing_comes_back_when_the_door_goes<D: Door>(mut bench: Bench<D>) {
    let (mut client, socket) = bench.client();
    let shelf = Shelf::new();
    bring(&mut bench, &mut client, socket, &shelf);
    bench.poll(Wait::Now);
    drop(bench);
    assert_eq!(shelf.released(), 1);
}

fn a_socket_that_receives_already_refuses_a_landing<D: Door>(mut bench: Bench<D>) {
    let (mut client, socket) = bench.client();
    bench.settle(&mut client, socket);
    let shelf = Shelf::new();
    let refused = bench.io.receive_into(socket, shelf.landing()).unwrap_err();
    assert_eq!((refused.room(), shelf.released()), (ROOM, 0));
    bench.settle(&mut client, socket);
}

fn a_socket_that_receives_nothing_more_refuses_a_landing<D: Door>(mut bench: Bench<D>) {
    let (mut client, socket) = bench.client();
    client.finish();
    bench.poll_until("the end", |log| log.finished.contains(&socket));
    let shelf = Shelf::new();
    assert!(bench.io.receive_into(socket, shelf.landing()).is_err());
    assert_eq!(shelf.released(), 1, "dropped here");
}

fn many_landings_at_once_leave_others_their_turn<D: Door>(mut bench: Bench<D>) {
    const CLIENTS: usize = 150;
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| bench.client()).collect();
    let shelves: Vec<_> = (0..CLIENTS).map(|_| Shelf::new()).collect();
    for ((client, socket), shelf) in clients.iter_mut().zip(&shelves) {
        bring(&mut bench, client, *socket, shelf);
    }
    for (seed, (client, _)) in clients.iter_mut().enumerate() {
        client.write(&pattern(seed, ROOM));
    }
    let before = bench.log.lands;
    bench.poll(Wait::AtMostNs(100_000_000));
    // A megabyte a poll, and the last landing whole.
    let lands = bench.log.lands - before;
    assert!(lands > 0 && lands * ROOM <= (1 << 20) + ROOM, "{lands} landings in one poll");
    for (seed, (_, socket)) in clients.iter().enumerate() {
        let all = RECEIVE_BUFFER_BYTES + ROOM;
        bench.poll_until("all bytes", |log| log.received_from(*socket).len() == all);
        let landed = &bench.log.received_from(*socket)[RECEIVE_BUFFER_BYTES..];
        assert!(*landed == pattern(seed, ROOM), "client {seed}");
    }
}
