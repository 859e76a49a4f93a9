//! Requests over UDP, and a whole server in memory. Each datagram is answered as the same bytes of
//! a new TCP client, and nothing of it is left for the next one.
//!
//! Upstream:   the udp target. Its bytes are a list of datagrams, see [`Datagrams`].
//! Downstream: `testkit`. One server gets the datagrams. Another gets each request that was in a
//!             frame as the input of a new connection, which then ends.
//!
//! Invariants:
//! - I1  A datagram draws at most one reply, to its sender and with its request ID. The reply is in
//!   frames that are numbered from 0 on, of at most 1,400 bytes and as many as the server allows. A
//!   datagram without a right frame draws none, nor does a datagram that begins as a reply.
//! - I2  The reply is that of the connection, except for requests that UDP refuses. After such a
//!   request, only I1 is checked.
//! - I3  At the end the server holds nothing for the datagrams.
//!
//! A client watches the log meanwhile, and requests are counted by prefix: neither changes a reply.

use std::net::SocketAddr;

use kachel_io::FarEnd;
use kachel_net::DATAGRAM_REPLY_BYTES_MAX;
use kachel_testkit::{World, WorldOptions};
use kachel_wire::{BinaryStatus, FRAME_BYTES, Frame, Reply};

use crate::connection::{START_UNIX_S, holds_nothing, watch};

/// The memory of a server.
const MEMORY_BYTES: u64 = 8 << 20;
/// The most datagrams of one input.
const DATAGRAMS_MAX: usize = 24;
/// Bytes that a datagram is filled up with if it is to be longer than a server takes.
const FILLER_BYTES: usize = 17_000;

/// More than the bytes of a reply that says that a request is not answered over UDP.
const REFUSAL_BYTES_MAX: usize = 80;
/// Bytes of the shortest request of the binary protocol.
const BINARY_REQUEST_BYTES_MIN: usize = 24;

/// A list of datagrams. Each begins with two bytes: the length, and in the upper two bits of the
/// second one whether the datagram has no frame, and whether filler follows.
struct Datagrams<'d> {
    rest: &'d [u8],
}

/// One datagram.
struct Datagram {
    /// The request, or all of it if it has no frame.
    bytes: Vec<u8>,
    is_framed: bool,
}

impl Datagram {
    /// The bytes on the wire. `number` is the request ID.
    fn sent(&self, number: u16) -> Vec<u8> {
        let frame = Frame { request_id: number, sequence: 0, total: 1 };
        match self.is_framed {
            true => [&frame.bytes(), &self.bytes[..]].concat(),
            false => self.bytes.clone(),
        }
    }
}

impl Iterator for Datagrams<'_> {
    type Item = Datagram;

    fn next(&mut self) -> Option<Datagram> {
        let (&[low, high], rest) = self.rest.split_first_chunk::<2>()?;
        let bytes = usize::from(low) | usize::from(high & 0x3f) << 8;
        let (bytes, rest) = rest.split_at(bytes.min(rest.len()));
        self.rest = rest;
        let mut bytes = bytes.to_vec();
        if high & 0x40 != 0 {
            bytes.resize(bytes.len() + FILLER_BYTES, b'f');
        }
        Some(Datagram { bytes, is_framed: high & 0x80 == 0 })
    }
}

/// Checks the replies to a list of datagrams. The first byte chooses how many datagrams a reply may
/// have, and the number of shards.
pub fn udp(data: &[u8]) {
    let Some((&pick, rest)) = data.split_first() else { return };
    let datagrams_max = [1, 2, 16, 5][usize::from(pick % 4)];
    let shards = if pick & 0x10 == 0 { 1 } else { 3 };
    let options = WorldOptions {
        memory_bytes: MEMORY_BYTES,
        start_unix_s: START_UNIX_S,
        shards,
        udp: Some(datagrams_max),
        ..WorldOptions::default()
    };
    let mut world = World::new(options);
    let watcher = watch(&mut world);
    let mut other = World::new(WorldOptions { shards: 1, udp: None, ..options });
    // Tokens are those of the shards, so only a server of one shard is compared.
    let mut is_compared = shards == 1;
    for (number, datagram) in (1_u16..).zip(Datagrams { rest }).take(DATAGRAMS_MAX) {
        let shard = usize::from(number % shards);
        let before = refused(&world);
        let reply = ask(&mut world, shard, number, &datagram, datagrams_max);
        if refused(&world) != before || holds_a_refusal(&reply) {
            is_compared = false;
        }
        let is_request = datagram.is_framed && Frame::request_id(&datagram.sent(number)).is_some();
        if is_request && is_compared {
            let wanted = over_tcp(&mut other, &datagram.bytes);
            let most = usize::from(datagrams_max) * (DATAGRAM_REPLY_BYTES_MAX - FRAME_BYTES);
            if wanted.len() > most {
                assert!(is_too_long(&reply), "I2: {}", reply.escape_ascii());
            } else if is_too_long(&reply) {
                // A refusal, which is longer than the reply over TCP, may be in what was not sent.
                let longest = wanted.len() + requests_max(&datagram.bytes) * REFUSAL_BYTES_MAX;
                assert!(longest > most, "I2: {}", wanted.escape_ascii());
                is_compared = false;
            } else {
                let (got, wanted) = (reply.escape_ascii(), wanted.escape_ascii());
                assert_eq!(got.to_string(), wanted.to_string(), "I2");
            }
        }
    }
    leave(&mut world, &watcher);
}

/// How many requests were refused because they were not whole.
fn refused(world: &World) -> u64 {
    world.sum(|counters| &counters.udp_incomplete)
}

/// More than the number of requests in a datagram: lines, and requests of the binary protocol.
fn requests_max(datagram: &[u8]) -> usize {
    1 + memchr::memchr_iter(b'\n', datagram).count() + datagram.len() / BINARY_REQUEST_BYTES_MIN
}

/// Whether a reply says that a request is not answered over UDP.
fn holds_a_refusal(reply: &[u8]) -> bool {
    let texts = [Reply::NotOverUdp.bytes(), BinaryStatus::NotOverUdp.text()];
    texts.iter().any(|text| memchr::memmem::find(reply, text).is_some())
}

/// Whether a reply says that the reply is too long.
fn is_too_long(reply: &[u8]) -> bool {
    reply == Reply::TooLongForUdp.bytes() || reply.ends_with(BinaryStatus::TooLongForUdp.text())
}

/// The reply to a datagram; empty if there is none (I1).
fn ask(
    world: &mut World,
    shard: usize,
    number: u16,
    datagram: &Datagram,
    datagrams_max: u16,
) -> Vec<u8> {
    let from = SocketAddr::from(([10, 0, 0, 7], 30_000 + number));
    let sent = datagram.sent(number);
    world.send_datagram(shard, from, &sent);
    world.rest();
    let mut reply = Vec::new();
    let datagrams = world.take_datagrams(shard);
    assert!(datagrams.len() <= usize::from(datagrams_max), "I1: {} datagrams", datagrams.len());
    if Frame::request_id(&sent).is_none() {
        assert!(datagrams.is_empty(), "I1: {}", sent.escape_ascii());
    }
    let total = u16::try_from(datagrams.len()).expect("a few");
    for (sequence, (to, datagram)) in (0..).zip(&datagrams) {
        assert!(*to == from && datagram.len() <= DATAGRAM_REPLY_BYTES_MAX, "I1");
        let (frame, body) = Frame::read(datagram).expect("I1: a frame");
        let request_id = Frame::request_id(&sent).expect("I1: the ID of a request");
        assert_eq!(frame, Frame { request_id, sequence, total }, "I1");
        assert!(!body.is_empty(), "I1: a reply has bytes");
        reply.extend_from_slice(body);
    }
    reply
}

/// What the server answers to a client that sends these bytes and then ends.
fn over_tcp(world: &mut World, request: &[u8]) -> Vec<u8> {
    let client = world.connect();
    client.write(request);
    client.finish();
    world.rest();
    assert!(client.is_closed(), "the client has ended");
    client.read()
}

/// Checks that the server serves others and holds nothing (I3).
fn leave(world: &mut World, watcher: &FarEnd) {
    let datagram = Datagram { bytes: b"mn\r\n".to_vec(), is_framed: true };
    assert_eq!(ask(world, 0, 9999, &datagram, 1), b"MN\r\n", "I3");
    world.rest();
    watcher.reset();
    world.rest();
    holds_nothing(world);
}
