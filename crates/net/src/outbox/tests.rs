//! An outbox: the order of replies, large values as fast as the client reads, and its limits.

use std::sync::Arc;

use kachel_io::{Event, HELD_PIECES_MAX, MemoryNet, Peer, Wait};
use kachel_stdx::Held;

use super::*;
use crate::index::ConnectionIndex;

const ROOM: AnswerRoom = AnswerRoom { line_bytes: 100, value_bytes: 2000 };

fn client() -> ClientIndex {
    ConnectionIndex(0).into()
}

/// All copied bytes that would be sent, those of the open block included.
fn worded(outbox: &Outbox) -> Vec<u8> {
    let blocks = outbox.queued.iter().chain(&outbox.open);
    blocks.flat_map(|block| block.bytes().to_vec()).collect()
}

#[test]
fn replies_keep_the_order_of_their_requests() {
    let (mut outbox, mut pool, mut slots) = (Outbox::new(), BlockPool::new(), Slots::<()>::new());
    outbox.text(b"one ", client(), &mut pool, &mut slots);
    let two = outbox.await_answers((1, ROOM), client(), &mut slots);
    outbox.text(b"three ", client(), &mut pool, &mut slots);
    let four = outbox.await_answers((1, ROOM), client(), &mut slots);
    outbox.text_into(four, b"four ", &mut slots);
    outbox.answered(four, 0, &mut slots);
    outbox.settle(&mut pool, &mut slots, |_| true);
    assert_eq!(worded(&outbox), b"one ");
    outbox.text_into(two, b"two ", &mut slots);
    outbox.answered(two, 0, &mut slots);
    outbox.settle(&mut pool, &mut slots, |_| true);
    assert_eq!(worded(&outbox), b"one two three four ");
    assert_eq!(outbox.slots_in_use(), 0);
}

#[test]
fn a_reply_of_no_bytes_opens_no_block() {
    let (mut outbox, mut pool, mut slots) = (Outbox::new(), BlockPool::new(), Slots::<()>::new());
    outbox.text(b"", client(), &mut pool, &mut slots);
    assert!(!outbox.has_unsent() && outbox.memory_bytes() == 0);
}

#[test]
fn pieces_that_do_not_fit_the_open_block_go_on_in_the_next() {
    let (mut outbox, mut pool, mut slots) = (Outbox::new(), BlockPool::new(), Slots::<()>::new());
    let long = vec![b'x'; SEND_BLOCK_BYTES - 3];
    outbox.text(&long, client(), &mut pool, &mut slots);
    outbox.text_all([b"ab", b"cd", b"e"], client(), &mut pool, &mut slots);
    assert_eq!(worded(&outbox)[long.len()..], *b"abcde");
    assert_eq!(outbox.owed_bytes(), long.len() + 5);
}

const PIECE_BYTES: usize = 10_000;

/// A value in pieces of `PIECE_BYTES`, and a rest.
struct Pattern(Arc<Box<[u8]>>);

impl Pattern {
    fn new(bytes: usize) -> Self {
        Self(Arc::new((0..bytes).map(|index| index.to_le_bytes()[0]).collect()))
    }

    fn range_at(&self, offset: usize) -> std::ops::Range<usize> {
        offset..(offset / PIECE_BYTES * PIECE_BYTES + PIECE_BYTES).min(self.0.len())
    }
}

impl Source for Pattern {
    fn total_bytes(&self) -> usize {
        self.0.len()
    }
    fn piece_at(&self, offset: usize) -> &[u8] {
        &self.0[self.range_at(offset)]
    }
    fn hold_at(&self, offset: usize) -> Held {
        Held::shared(&self.0, self.range_at(offset))
    }
    fn end(&self) -> &'static [u8] {
        b"\r\n"
    }
}

/// A memory backend with one connection, and the other end of that connection.
fn connected() -> (kachel_io::Memory, SocketId, kachel_io::FarEnd) {
    let net = MemoryNet::new();
    let mut io = net.open();
    let listener = io.listen_here();
    let far = net.connect(io.endpoint(), listener, Peer::Local);
    let mut events = Vec::new();
    io.poll(Wait::Now, &mut events).expect("a door in memory");
    let [Event::Accepted { socket, .. }, ..] = events[..] else { panic!("{events:?}") };
    (io, socket, far)
}

/// Sends what is formatted, and takes back the blocks that were sent.
fn send_round(
    outbox: &mut Outbox,
    (io, socket): (&mut kachel_io::Memory, SocketId),
    pool: &mut BlockPool,
) {
    outbox.flush(socket, io);
    let mut events = Vec::new();
    io.poll(Wait::Now, &mut events).expect("a door in memory");
    for event in events {
        if let Event::Sent { block, .. } = event {
            outbox.sent(block, pool);
        }
    }
}

#[test]
fn a_large_value_flows_only_as_fast_as_the_client_reads() {
    let (mut io, socket, far) = connected();
    let (mut outbox, mut pool, mut slots) =
        (Outbox::new(), BlockPool::new(), Slots::<Pattern>::new());
    far.stall();
    let value = Pattern::new(3_000_007);
    let bytes = Arc::clone(&value.0);
    outbox.text(b"VALUE\r\n", client(), &mut pool, &mut slots);
    outbox.stream(Stream::new(value), client(), &mut pool, &mut slots);
    outbox.text(b"END", client(), &mut pool, &mut slots);
    let (mut received, mut most) = (Vec::new(), 0);
    while !outbox.is_empty() {
        send_round(&mut outbox, (&mut io, socket), &mut pool);
        outbox.settle(&mut pool, &mut slots, |_| true);
        most = most.max(outbox.owed_bytes());
        assert!(outbox.memory_bytes() <= OWN_BYTES_PER_CONNECTION + SEND_BLOCK_BYTES);
        far.allow(33_333);
        received.extend(far.read());
    }
    assert!(most <= 3 * HELD_PIECES_MAX * PIECE_BYTES + 16, "{most}");
    assert_eq!(received.len(), bytes.len() + 12);
    assert!(received[7..].starts_with(&bytes) && received.ends_with(b"\r\nEND"));
    assert_eq!(Arc::strong_count(&bytes), 1, "nothing is held any more");
}

/// The fault: a fence that was reached still counted once a part of the value behind it was in
/// blocks, so the rest of the reply waited for nothing.
#[test]
fn a_reached_fence_holds_back_nothing_of_a_reply_that_is_dropped() {
    let (mut outbox, mut pool, mut slots) =
        (Outbox::new(), BlockPool::new(), Slots::<Pattern>::new());
    let slot = outbox.await_answers((1, ROOM), client(), &mut slots);
    outbox.stream_into(slot, Stream::new(Pattern::new(3_000_007)), &mut slots);
    assert_eq!(outbox.first_fence(&slots), None, "it waits for the answer first");
    let fence = Fence { engine: 0, sequence: 5 };
    slots.hold_back(slot, fence);
    outbox.answered(slot, 0, &mut slots);
    outbox.settle(&mut pool, &mut slots, |_| false);
    assert!(!outbox.has_unsent() && outbox.first_fence(&slots) == Some(fence), "I6");
    outbox.settle(&mut pool, &mut slots, |_| true);
    assert!(outbox.has_unsent() && outbox.slots_in_use() == 1, "a part of it is in blocks");
    outbox.discard(&mut pool, &mut slots, |_| true);
    assert!(outbox.is_empty() && outbox.memory_bytes() == 0);
}

#[test]
fn replies_that_are_dropped_leave_the_answers_awaited_that_are_to_come() {
    let (mut outbox, mut pool, mut slots) = (Outbox::new(), BlockPool::new(), Slots::<()>::new());
    let fence = Fence { engine: 0, sequence: 5 };
    assert!(outbox.fence(fence, client(), &mut slots));
    outbox.text(b"one", client(), &mut pool, &mut slots);
    let two = outbox.await_answers((1, ROOM), client(), &mut slots);
    outbox.text(b"three", client(), &mut pool, &mut slots);
    outbox.discard(&mut pool, &mut slots, |held| held == fence);
    assert_eq!(outbox.slots_in_use(), 3);
    outbox.discard(&mut pool, &mut slots, |_| false);
    assert!(outbox.slots_in_use() == 2 && outbox.awaits_answers());
    outbox.answered(two, 0, &mut slots);
    outbox.discard(&mut pool, &mut slots, |_| false);
    assert!(outbox.is_empty() && outbox.memory_bytes() == 0 && slots.in_use() == 0);
}

#[test]
fn a_large_value_is_sent_from_where_it_lies() {
    let (mut outbox, mut pool, mut slots) =
        (Outbox::new(), BlockPool::new(), Slots::<Pattern>::new());
    // Two pieces, and a rest that is copied.
    outbox.stream(
        Stream::new(Pattern::new(2 * PIECE_BYTES + HELD_BYTES_MIN - 1)),
        client(),
        &mut pool,
        &mut slots,
    );
    assert_eq!((outbox.slots_in_use(), outbox.memory_bytes()), (0, SEND_BLOCK_BYTES));
    assert_eq!(worded(&outbox).len(), HELD_BYTES_MIN - 1 + 2);
    assert_eq!(outbox.owed_bytes(), 2 * PIECE_BYTES + HELD_BYTES_MIN - 1 + 2);
}

#[test]
fn requests_wait_while_the_answers_under_way_may_fill_the_limit() {
    let (mut outbox, mut slots) = (Outbox::new(), Slots::<()>::new());
    outbox.widen();
    let mut awaited = Vec::new();
    while !outbox.is_full(0) {
        awaited.push(outbox.await_answers((1, ROOM), client(), &mut slots));
    }
    assert_eq!(awaited.len(), BEGUN_BYTES_MAX.div_ceil(ROOM.bytes() + SLOT_BYTES));
    for slot in awaited {
        assert!(outbox.awaits_answers());
        outbox.answered(slot, 0, &mut slots);
    }
    assert!(!outbox.awaits_answers() && !outbox.is_full(0) && outbox.narrow());
}

#[test]
fn requests_wait_while_those_kept_and_the_replies_may_fill_the_limit() {
    let (mut outbox, mut pool, mut slots) = (Outbox::new(), BlockPool::new(), Slots::<()>::new());
    outbox.widen();
    assert!(!outbox.is_full(usize::MAX), "who is owed nothing is served, whatever he keeps");
    let reply = vec![b'x'; BEGUN_BYTES_MAX - KEPT_BYTES_MAX];
    outbox.text(&reply[1..], client(), &mut pool, &mut slots);
    assert!(!outbox.is_full(usize::MAX));
    outbox.text(b"x", client(), &mut pool, &mut slots);
    assert!(outbox.is_full(usize::MAX) && !outbox.is_full(KEPT_BYTES_MAX - 1));
}

#[test]
fn a_block_that_is_not_full_waits_for_those_under_way() {
    let (mut io, socket, _far) = connected();
    let (mut outbox, mut pool, mut slots) = (Outbox::new(), BlockPool::new(), Slots::<()>::new());
    for _ in 0..100 {
        outbox.text(b"MN\r\n", client(), &mut pool, &mut slots);
        outbox.flush(socket, &mut io);
    }
    assert_eq!(outbox.memory_bytes(), 2 * SEND_BLOCK_BYTES);
    let mut first = SendBlock::new();
    first.put(b"MN\r\n");
    outbox.sent(first, &mut pool);
    assert!(outbox.has_unsent());
    outbox.flush(socket, &mut io);
    assert!(!outbox.has_unsent() && outbox.memory_bytes() == SEND_BLOCK_BYTES);
}

#[test]
fn short_values_after_long_ones_are_given_little_room_again() {
    let (mut outbox, mut slots) = (Outbox::new(), Slots::<()>::new());
    let mut answer = |value_bytes| {
        let slot = outbox.await_answers((1, ROOM), client(), &mut slots);
        outbox.answered(slot, value_bytes, &mut slots);
        outbox.value_room_bytes()
    };
    assert_eq!(answer(100_000), VALUE_ROOM_MAX);
    let rooms: Vec<u16> = (0..60).map(|_| answer(300)).collect();
    assert!(rooms[0] > 14_000 && rooms[59] == 300, "{rooms:?}");
}
