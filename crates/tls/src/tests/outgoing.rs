//! Blocks of replies, encrypted, and what comes back for them.

use std::sync::Arc;

use kachel_io::{Event, SEND_BLOCK_BYTES, SendBlock, SocketId};
use kachel_stdx::Held;
use rustls::version::{TLS12, TLS13};

use super::Pair;
use crate::limits::{CIPHER_BLOCKS_MAX, OWN_BLOCKS_MAX};
use crate::outgoing::{Blocks, Outgoing};

const SOCKET: SocketId = SocketId::new(0, 1);

fn block(bytes: &[u8]) -> SendBlock {
    let mut block = SendBlock::new();
    assert_eq!(block.put(bytes), bytes.len());
    block
}

/// A block with its own bytes around large pieces.
fn holding() -> SendBlock {
    let value: Arc<Box<[u8]>> = Arc::new((0..200_000).map(|at| (at % 251) as u8).collect());
    let mut block = block(b"VALUE a 0 200000\r\n");
    for start in (0..200_000).step_by(50_000) {
        block.hold(Held::shared(&value, start..start + 50_000));
    }
    block.put(b"\r\nEND\r\n");
    block
}

fn bytes_of(block: &SendBlock) -> Vec<u8> {
    block.pieces().flatten().copied().collect()
}

/// Encrypts and sends all; returns the plain bytes that the client gets, and the lengths of the
/// blocks that come back.
fn send_all(
    pair: &mut Pair,
    outgoing: &mut Outgoing,
    blocks: &mut Blocks,
) -> (Vec<u8>, Vec<usize>) {
    let (mut received, mut back) = (Vec::new(), Vec::new());
    let mut progress = 0;
    while !outgoing.is_empty() {
        let mut sent = Vec::new();
        while let Some(record) = outgoing.encrypt_next(&mut pair.session, blocks).expect("keys") {
            received.extend(pair.take(record.bytes()));
            sent.push(record);
        }
        assert!((1..=CIPHER_BLOCKS_MAX).contains(&sent.len()), "O2");
        for record in sent {
            // The kernel takes half of it first.
            let half = outgoing.taken(SOCKET, record.byte_count() / 2);
            if let Some(Event::Taken { block_bytes, .. }) = half {
                assert!(block_bytes >= progress, "O3");
                progress = block_bytes;
            }
            match outgoing.sent(SOCKET, record, blocks) {
                Some(Event::Sent { block, .. }) => {
                    assert!(progress <= block.byte_count(), "O3");
                    progress = 0;
                    back.push(block.byte_count());
                }
                Some(Event::Taken { block_bytes, .. }) => {
                    assert!(block_bytes >= progress, "O3");
                    progress = block_bytes;
                }
                other => assert!(other.is_none(), "{other:?}"),
            }
        }
    }
    (received, back)
}

#[test]
fn every_block_comes_back_with_its_length_and_its_bytes_arrive() {
    for version in [&TLS13, &TLS12] {
        let mut pair = Pair::established(version);
        let (mut outgoing, mut blocks) = (Outgoing::default(), Blocks::default());
        let full = vec![b'f'; SEND_BLOCK_BYTES];
        let wanted = [block(b"END\r\n"), block(b""), block(&full), holding(), block(b"STORED\r\n")];
        let lengths: Vec<usize> = wanted.iter().map(SendBlock::byte_count).collect();
        let bytes: Vec<u8> = wanted.iter().flat_map(bytes_of).collect();
        wanted.into_iter().for_each(|block| outgoing.push(block));
        let (received, back) = send_all(&mut pair, &mut outgoing, &mut blocks);
        assert!(received == bytes && back == lengths, "O1: {back:?}");
    }
}

#[test]
fn a_broken_connection_encrypts_nothing_more() {
    let mut pair = Pair::established(&TLS13);
    assert!(pair.give(b"get a\r\n").is_err());
    let (mut outgoing, mut blocks) = (Outgoing::default(), Blocks::default());
    outgoing.push(block(b"END\r\n"));
    assert!(outgoing.encrypt_next(&mut pair.session, &mut blocks).is_err());
    outgoing.drop_waiting();
    assert!(outgoing.is_empty() && outgoing.is_encrypted());
}

/// A client of TLS 1.2 gets a warning for each new handshake that it asks for. With a request in
/// between, rustls sends as many as it likes.
#[test]
fn records_of_tls_itself_that_nobody_reads_are_bounded() {
    let mut outgoing = Outgoing::default();
    let taken = (0..1_000).take_while(|_| outgoing.note_own_record().is_ok()).count();
    assert_eq!(taken, CIPHER_BLOCKS_MAX + OWN_BLOCKS_MAX, "O2");
    let sent = outgoing.sent(SOCKET, SendBlock::new(), &mut Blocks::default());
    assert!(sent.is_none() && outgoing.note_own_record().is_ok(), "there is room again");
}
