//! Messages of the handshake in pieces, and padding: what a session keeps of them, and copies.

use rustls::version::{TLS12, TLS13};

use super::Pair;
use super::forger::{DATA, Forger, HANDSHAKE};
use crate::limits::{HANDSHAKE_BYTES_MAX, LATE_MESSAGE_BYTES_MAX, RECORD_BYTES_MAX};
use crate::session::COPIES_MAX;

/// The longest message that rustls takes: a certificate of 65,531 bytes, not ended here.
const LONG_MESSAGE: [u8; 4] = [11, 0, 0xff, 0xfb];
/// Zeros behind each piece.
const PADDING: usize = 16_000;
/// Pieces that a client tries to send.
const PIECES: usize = 300;

/// The fate of a client.
struct Seen {
    /// Bytes that were given to the session.
    sent: usize,
    /// The most memory that the session had for them.
    kept_max: usize,
    is_refused: bool,
}

/// Gives pieces to a session until it refuses one.
fn give_all(pair: &mut Pair, pieces: impl Iterator<Item = Vec<u8>>, each: usize) -> Seen {
    let mut seen = Seen { sent: 0, kept_max: 0, is_refused: false };
    for piece in pieces {
        for bytes in piece.chunks(each) {
            seen.sent += bytes.len();
            if pair.give(bytes).is_err() {
                seen.is_refused = true;
                return seen;
            }
            let kept = pair.session.partial_bytes();
            seen.kept_max = seen.kept_max.max(kept);
            assert_eq!(pair.kept_bytes(), kept as u64, "they are counted");
        }
    }
    seen
}

/// The beginning of a long message, and then byte after byte of it, each with padding.
fn pieces(mut forger: Forger, padding: usize) -> impl Iterator<Item = Vec<u8>> {
    let first = forger.record(HANDSHAKE, &LONG_MESSAGE, padding);
    let rest = (0..PIECES).map(move |_| forger.record(HANDSHAKE, &[0], padding));
    std::iter::once(first).chain(rest)
}

fn check_copies(pair: &Pair) {
    let [received, copied] = pair.session.received_and_copied_bytes();
    assert!(copied <= COPIES_MAX * received, "S4: {copied} bytes copied for {received}");
}

/// Nothing is left of a client that is refused, before it is closed.
fn check_nothing_left(pair: &Pair) {
    assert_eq!((pair.session.partial_bytes(), pair.kept_bytes()), (0, 0));
}

/// With padding, the first piece is too long. Without, the message is, long before its end.
#[test]
fn a_message_after_the_handshake_that_is_longer_than_one_about_new_keys_is_refused() {
    for (padding, each) in [(PADDING, 16 * 1024), (PADDING, 1_000), (1, 24), (1, 7)] {
        let mut pair = Pair::established(&TLS13);
        let forger = pair.secrets.forger("CLIENT_TRAFFIC_SECRET_0");
        let seen = give_all(&mut pair, pieces(forger, padding), each);
        assert!(seen.is_refused && seen.kept_max <= RECORD_BYTES_MAX, "{}", seen.kept_max);
        let sent_max = if padding == 1 { 2 * LATE_MESSAGE_BYTES_MAX } else { RECORD_BYTES_MAX };
        assert!(seen.sent <= sent_max, "{} bytes", seen.sent);
        check_copies(&pair);
        check_nothing_left(&pair);
    }
}

#[test]
fn a_padded_message_during_the_handshake_keeps_a_bounded_number_of_bytes() {
    for each in [16 * 1024, 1_000, 7] {
        let mut pair = Pair::new(&TLS13);
        pair.pass_on().expect("a greeting, and its answer");
        let forger = pair.secrets.forger("CLIENT_HANDSHAKE_TRAFFIC_SECRET");
        let seen = give_all(&mut pair, pieces(forger, PADDING), each);
        assert!(seen.is_refused && seen.kept_max <= HANDSHAKE_BYTES_MAX, "{}", seen.kept_max);
        assert!(seen.sent <= HANDSHAKE_BYTES_MAX + 16 * 1024, "{} bytes", seen.sent);
        check_copies(&pair);
        check_nothing_left(&pair);
    }
}

/// A greeting of 65,531 bytes, in records without encryption of one byte each.
#[test]
fn a_greeting_in_pieces_keeps_and_copies_a_bounded_number_of_bytes() {
    for version in [&TLS13, &TLS12] {
        for each in [16 * 1024, 6, 1] {
            let mut pair = Pair::new(version);
            let bytes = [1, 0, 0xff, 0xfb].into_iter().chain(std::iter::repeat_n(0, 0xfffb));
            let records = bytes.map(|byte| vec![22, 3, 1, 0, 1, byte]);
            let joined: Vec<u8> = records.flatten().collect();
            let seen = give_all(&mut pair, std::iter::once(joined), each);
            assert!(seen.is_refused && seen.kept_max <= HANDSHAKE_BYTES_MAX, "{}", seen.kept_max);
            assert!(seen.sent <= HANDSHAKE_BYTES_MAX + 16 * 1024, "{} bytes", seen.sent);
            check_copies(&pair);
            check_nothing_left(&pair);
        }
    }
}

/// A client may pad its requests, and send messages about new keys in pieces.
#[test]
fn padded_requests_and_new_keys_in_pieces_are_taken() {
    let mut pair = Pair::established(&TLS13);
    let mut forger = pair.secrets.forger("CLIENT_TRAFFIC_SECRET_0");
    for padding in [1, 100, PADDING] {
        let records = forger.record(DATA, b"get a\r\n", padding);
        for bytes in records.chunks(5_000) {
            pair.give(bytes).expect("a request");
        }
    }
    assert_eq!(pair.plain, b"get a\r\n".repeat(3));
    assert_eq!(pair.session.partial_bytes(), 0);
    // A message about new keys: no answer is asked for.
    let message = [24, 0, 0, 1, 0];
    let records: Vec<u8> = message.iter().flat_map(|byte| forger.record(22, &[*byte], 9)).collect();
    for bytes in records.chunks(10) {
        pair.give(bytes).expect("new keys");
    }
    assert_eq!(pair.session.partial_bytes(), 0);
    check_copies(&pair);
}

/// A session that is dropped in the middle of a record takes its bytes off the count.
#[test]
fn what_a_session_keeps_is_counted_until_it_is_dropped() {
    let mut pair = Pair::established(&TLS13);
    let record = pair.encrypted(&[b'x'; 10_000]);
    pair.give(&record[..5_000]).expect("a beginning");
    assert!((5_000..=RECORD_BYTES_MAX as u64).contains(&pair.kept_bytes()));
    let Pair { session, counts, .. } = pair;
    drop(session);
    assert_eq!(counts.kept_bytes.load(std::sync::atomic::Ordering::Relaxed), 0);
}
