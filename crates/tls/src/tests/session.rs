//! Records at any cut, and records that are wrong.

use kachel_io::{Rng as _, SeededRng};
use rustls::version::{TLS12, TLS13};

use super::Pair;
use crate::limits::RECORD_PLAIN_BYTES_MAX;

/// Wrong inputs for each version.
const WRONG_INPUTS: u64 = 400;

#[test]
fn bytes_come_through_at_any_cut_and_leave_no_memory() {
    for version in [&TLS13, &TLS12] {
        let mut pair = Pair::established(version);
        assert_eq!(pair.session.partial_bytes(), 0, "nothing is kept of a handshake");
        let sent = [b"short".to_vec(), vec![b'x'; 20_000], b"end".to_vec()];
        for piece in [1, 2, 3, 5, 1000, 16 * 1024] {
            let records: Vec<u8> = sent.iter().flat_map(|plain| pair.encrypted(plain)).collect();
            for piece in records.chunks(piece) {
                pair.give(piece).expect("good records");
            }
            assert!(pair.plain == sent.concat(), "pieces of {piece}");
            assert_eq!(pair.session.partial_bytes(), 0, "an idle connection keeps nothing");
            pair.plain.clear();
        }
    }
}

#[test]
fn a_record_of_the_longest_plain_bytes_fits_a_block() {
    for version in [&TLS13, &TLS12] {
        let mut pair = Pair::established(version);
        let plain = vec![b'x'; RECORD_PLAIN_BYTES_MAX];
        let mut room = [0; kachel_io::SEND_BLOCK_BYTES];
        // An answer to new keys of the client may come before it.
        if version.version == TLS13.version {
            pair.client.refresh_traffic_keys().expect("TLS 1.3");
            pair.pass_on().expect("new keys");
        }
        let bytes = pair.session.encrypt(&plain, &mut room).expect("room");
        assert!(pair.take(&room[..bytes]) == plain);
    }
}

#[test]
fn a_close_notify_is_the_end_and_what_follows_is_ignored() {
    let mut pair = Pair::established(&TLS13);
    let mut records = pair.encrypted(b"last");
    pair.client.send_close_notify();
    records.extend(pair.records());
    records.extend_from_slice(b"get a\r\n");
    pair.give(&records).expect("an end");
    assert!(pair.session.is_ended());
    pair.give(b"more").expect("ignored");
    assert_eq!(pair.plain, b"last");
    // Our side may still send, and end.
    let mut room = [0; 1024];
    let bytes = pair.session.encrypt(b"reply", &mut room).expect("room");
    assert_eq!(pair.take(&room[..bytes]), b"reply");
    assert!(pair.session.end(&mut room).expect("room") > 0);
}

/// Each wrong input ends in an error or is kept as the beginning of a record. Nothing panics, and
/// after an error nothing more goes in or out.
#[test]
fn wrong_bytes_end_in_an_alert() {
    for version in [&TLS13, &TLS12] {
        for seed in 0..WRONG_INPUTS {
            let mut random = SeededRng::new(seed);
            let is_late = seed % 4 != 0;
            let mut pair = if is_late { Pair::established(version) } else { Pair::new(version) };
            let mut records = if is_late { pair.encrypted(b"get a\r\n") } else { pair.records() };
            let index = (random.next_u64() % records.len() as u64) as usize;
            match seed % 3 {
                0 => records[index] ^= 1 << (random.next_u64() % 8),
                1 => records.truncate(index),
                _ => {
                    records.iter_mut().skip(index).for_each(|byte| *byte = random.next_u64() as u8)
                }
            }
            let result = pair.session.receive(&records, &mut pair.plain, &mut pair.work);
            assert!(pair.plain.is_empty() || !is_late || result.is_ok(), "seed {seed}");
            let more = pair.session.receive(&[0; 80_000], &mut pair.plain, &mut pair.work);
            assert!(more.is_err(), "seed {seed}: zeros are no record");
            assert!(pair.session.encrypt(b"x", &mut [0; 1024]).is_err(), "S3, seed {seed}");
            assert!(pair.give(b"more").is_err(), "S3, seed {seed}");
        }
    }
}

#[test]
fn an_alert_is_there_to_be_sent() {
    let mut pair = Pair::new(&TLS13);
    assert!(pair.give(b"get a\r\n").is_err());
    assert_eq!(pair.work.to_send, [21, 3, 3, 0, 2, 2, 50], "a fatal decode_error, in the clear");
    let mut pair = Pair::established(&TLS13);
    assert!(pair.give(b"get a\r\n").is_err());
    assert!(pair.work.to_send.len() > 7, "encrypted");
}
