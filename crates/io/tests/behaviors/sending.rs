//! Sent bytes: in order and complete; each block comes back; nothing is sent after a close.

use std::sync::Arc;

use kachel_io::{HELD_PIECES_MAX, Io, SEND_BLOCK_BYTES, SendBlock, Wait};
use kachel_stdx::Held;

use crate::Door;
use crate::bench::{Bench, Log, block, pattern};

crate::behaviors! {
    a_slow_reader_gets_everything_in_order: epoll uring memory;
    several_blocks_of_one_tick_keep_their_order: epoll uring memory;
    what_a_block_holds_goes_between_its_own_bytes: epoll uring memory;
    what_is_held_is_let_go_of_with_its_block: epoll uring memory;
    a_block_that_goes_out_in_parts_says_so: epoll uring;
    the_end_follows_all_that_was_queued: epoll uring memory;
    a_reader_that_goes_away_fails_the_socket: epoll uring memory;
    closing_with_unsent_blocks_leaves_no_trace: epoll uring memory;
    dropping_everything_in_mid_send_is_harmless: epoll uring;
    a_closed_name_is_refused: epoll uring memory;
}

/// More than the kernel's buffers of a connection take.
const STALL_BLOCKS: usize = 2_000;

fn sent_numbers(log: &Log) -> Vec<usize> {
    log.sent
        .iter()
        .map(|(_, block)| u32::from_le_bytes(block.bytes()[..4].try_into().unwrap()) as usize)
        .collect()
}

fn numbered(number: usize) -> Vec<u8> {
    let mut bytes = pattern(number, SEND_BLOCK_BYTES);
    bytes[..4].copy_from_slice(&(number as u32).to_le_bytes());
    bytes
}

fn a_slow_reader_gets_everything_in_order<D: Door>(mut bench: Bench<D>) {
    let (mut client, socket) = bench.client();
    let (mut other, barrier) = bench.client();
    client.stall();
    for number in 0..STALL_BLOCKS {
        bench.send(socket, &numbered(number));
    }
    bench.settle(&mut other, barrier);
    assert!(bench.log.sent.len() < STALL_BLOCKS, "it never stalled");
    client.go_on();
    let bytes = bench.carry(&mut client, STALL_BLOCKS * SEND_BLOCK_BYTES);
    for (number, got) in bytes.chunks(SEND_BLOCK_BYTES).enumerate() {
        assert!(got == numbered(number), "block {number}");
    }
    bench.poll_until("all blocks", |log| log.sent.len() == STALL_BLOCKS);
    assert!(sent_numbers(&bench.log).into_iter().eq(0..STALL_BLOCKS));
    // And the way is free again.
    bench.send(socket, b"more");
    assert_eq!(bench.carry(&mut client, 4), b"more");
}

fn several_blocks_of_one_tick_keep_their_order<D: Door>(mut bench: Bench<D>) {
    let (mut client, socket) = bench.client();
    let mut expected = Vec::new();
    for number in 0..50_u8 {
        let bytes = vec![number; usize::from(number) * 3]; // The first is empty.
        bench.send(socket, &bytes);
        expected.extend(bytes);
    }
    assert_eq!(bench.carry(&mut client, expected.len()), expected);
    bench.poll_until("all blocks", |log| log.sent.len() == 50);
    let lengths = bench.log.sent.iter().map(|(_, block)| block.bytes().len());
    assert!(lengths.eq((0..50).map(|number| number * 3)));
}

/// A block with own bytes and held ones in turn, and what is to come of it.
fn mixed(number: usize, lying: &Arc<Box<[u8]>>) -> (SendBlock, Vec<u8>) {
    let own = pattern(number, 3000);
    let mut block = SendBlock::new();
    let mut expected = Vec::new();
    for place in 0..HELD_PIECES_MAX {
        // Some begin with held bytes, some have two pieces side by side.
        let count = (number + place) % 3 * 50;
        assert_eq!(block.put(&own[..count]), count);
        expected.extend_from_slice(&own[..count]);
        let range = place * 1000..place * 1000 + 1 + (number * 7919 + place * 104_729) % 16_384;
        expected.extend_from_slice(&lying[range.clone()]);
        assert!(block.may_hold());
        block.hold(Held::shared(lying, range));
    }
    assert!(!block.may_hold());
    let count = number % 2 * 3000;
    assert_eq!(block.put(&own[..count]), count);
    expected.extend_from_slice(&own[..count]);
    assert_eq!(block.byte_count(), expected.len());
    (block, expected)
}

fn what_a_block_holds_goes_between_its_own_bytes<D: Door>(mut bench: Bench<D>) {
    const BLOCKS: usize = 60;
    let lying: Arc<Box<[u8]>> = Arc::new(pattern(1, 64 * 1024).into());
    let (mut client, socket) = bench.client();
    client.stall();
    let mut expected = Vec::new();
    for number in 0..BLOCKS {
        let (block, bytes) = mixed(number, &lying);
        bench.io.send(socket, block);
        expected.extend(bytes);
        bench.send(socket, b"between"); // One that holds nothing.
        expected.extend(b"between");
        bench.poll(Wait::Now);
    }
    client.go_on();
    assert!(bench.carry(&mut client, expected.len()) == expected);
    bench.poll_until("all blocks", |log| log.sent.len() == 2 * BLOCKS);
    let bytes = bench.log.sent.iter().map(|(_, block)| block.byte_count()).sum::<usize>();
    assert_eq!(bytes, expected.len());
    bench.log.sent.iter_mut().for_each(|(_, block)| block.clear());
    assert_eq!(Arc::strong_count(&lying), 1);
}

fn a_block_that_goes_out_in_parts_says_so<D: Door>(mut bench: Bench<D>) {
    // More than the kernel's buffers of a connection take, behind a block that they do.
    let lying: Arc<Box<[u8]>> = Arc::new(pattern(1, 2 << 20).into());
    let (mut client, socket) = bench.client();
    client.stall();
    let mut large = SendBlock::new();
    while large.may_hold() {
        large.hold(Held::shared(&lying, 0..lying.len()));
    }
    let large_bytes = large.byte_count();
    bench.send(socket, b"before");
    bench.io.send(socket, large);
    bench.poll_until("a part", |log| !log.taken.is_empty());
    assert_eq!(bench.log.sent.len(), 1, "what went before is gone");
    client.go_on();
    bench.carry(&mut client, 6 + large_bytes);
    bench.poll_until("all blocks", |log| log.sent.len() == 2);
    let taken = &bench.log.taken;
    assert!(taken.iter().all(|(of, bytes)| *of == socket && *bytes < large_bytes));
    assert!(taken.is_sorted_by(|before, next| before.1 < next.1), "{taken:?}");
    assert!(taken.len() > 1, "{taken:?}");
}

fn what_is_held_is_let_go_of_with_its_block<D: Door>(mut bench: Bench<D>) {
    let lying: Arc<Box<[u8]>> = Arc::new(pattern(1, 64 * 1024).into());
    let (mut client, socket) = bench.client();
    client.stall();
    for number in 0..200 {
        bench.io.send(socket, mixed(number, &lying).0);
        bench.poll(Wait::Now);
    }
    let sent = std::mem::take(&mut bench.log.sent).len();
    assert!(sent < 200 && Arc::strong_count(&lying) > HELD_PIECES_MAX);
    bench.io.close(socket);
    bench.poll_until("nobody to hold it", |_| Arc::strong_count(&lying) == 1);
    client.go_on();
    bench.carry_end(&mut client);
    let (mut next, reused) = bench.client();
    bench.io.send(reused, block(b"more"));
    assert_eq!(bench.carry(&mut next, 4), b"more");
}

fn the_end_follows_all_that_was_queued<D: Door>(mut bench: Bench<D>) {
    let (mut client, socket) = bench.client();
    for number in 0..STALL_BLOCKS {
        bench.send(socket, &numbered(number));
    }
    bench.io.finish_sending(socket);
    assert_eq!(bench.carry_end(&mut client).len(), STALL_BLOCKS * SEND_BLOCK_BYTES);
    // The other direction still works.
    client.write(b"thanks");
    bench.poll_until("the thanks", |log| log.received_from(socket) == b"thanks");
}

fn a_reader_that_goes_away_fails_the_socket<D: Door>(mut bench: Bench<D>) {
    let (mut client, socket) = bench.client();
    client.stall();
    for number in 0..STALL_BLOCKS {
        bench.send(socket, &numbered(number));
    }
    bench.poll(Wait::Now);
    client.reset();
    bench.poll_until("the failure", |log| log.failed.contains(&socket));
    assert!(bench.log.sent.len() < STALL_BLOCKS);
    bench.io.close(socket);
    let (mut other, barrier) = bench.client();
    bench.settle(&mut other, barrier);
}

fn closing_with_unsent_blocks_leaves_no_trace<D: Door>(mut bench: Bench<D>) {
    for _ in 0..20 {
        let (mut client, socket) = bench.client();
        client.stall();
        for number in 0..STALL_BLOCKS / 4 {
            bench.send(socket, &numbered(number));
        }
        bench.poll(Wait::Now);
        client.write(b"unheard");
        bench.io.close(socket);
        bench.log = Log::default();
        // The next client gets another name, perhaps the same slot, and none of the old events.
        let (mut next, reused) = bench.client();
        assert_ne!(reused, socket);
        bench.settle(&mut next, reused);
        assert_eq!(bench.log.received_from(reused), b"..");
        assert!(bench.log.sent.is_empty() && bench.log.failed.is_empty());
        assert!(bench.log.finished.is_empty() && bench.log.received.len() == 1);
        client.go_on();
        bench.carry_end(&mut client);
        bench.io.close(reused);
    }
    // Slots are reused: twenty rounds of two need no more than a few.
    let (_client, last) = bench.client();
    assert!(last.index() < 8, "slots leak: {last:?}");
}

fn dropping_everything_in_mid_send_is_harmless<D: Door>(mut bench: Bench<D>) {
    let (mut client, socket) = bench.client();
    client.stall();
    for number in 0..STALL_BLOCKS {
        bench.send(socket, &numbered(number));
    }
    bench.poll(Wait::Now);
    client.write(b"x");
    drop(bench);
    let mut bytes = Vec::new();
    while !client.read_available(&mut bytes) {
        std::thread::yield_now();
    }
    for (number, got) in bytes.chunks_exact(SEND_BLOCK_BYTES).enumerate() {
        assert!(got == numbered(number), "block {number}");
    }
}

fn a_closed_name_is_refused<D: Door>(mut bench: Bench<D>) {
    let (_client, socket) = bench.client();
    bench.io.close(socket);
    let mut io = std::panic::AssertUnwindSafe(&mut bench.io);
    assert!(std::panic::catch_unwind(move || io.pause(socket)).is_err());
}
