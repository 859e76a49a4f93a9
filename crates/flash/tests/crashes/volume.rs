//! How much an engine writes to the disk for what its clients store.

use kachel_io::{Rng as _, SeededRng};
use kachel_log::{SEGMENT_BYTES_MIN, SyncMode};

use crate::failures::set;
use crate::files::Store;
use crate::process::Process;

const SEGMENTS: u64 = 64;
const VALUE_BYTES: usize = 3_000;
/// Stores that are in one commit, at most.
const TOGETHER: usize = 5;
/// The bytes that are written for each byte stored. Measured: 2.24.
const WRITTEN_PER_STORED_MAX: f64 = 2.5;

/// Random items of a log that is two fifths full are replaced, again and again. Beside them the
/// engine writes the copies of the collection of garbage, the heads of segments, and the padding of
/// commits.
#[test]
fn a_steady_overwrite_writes_few_bytes_for_each_byte_stored() {
    let store = Store::create(1, SyncMode::Always, 1, SEGMENTS);
    let store = Store { memory_bytes: 8 << 20, ..store };
    let mut process = Process::start(&store).expect("a new store");
    let mut dice = SeededRng::new(1);
    let keys = (SEGMENTS * SEGMENT_BYTES_MIN * 2 / 5) as usize / VALUE_BYTES;
    let mut overwrite = |process: &mut Process, stores: usize| {
        for number in 0..stores {
            let key = (dice.next_u64() % keys as u64) as usize;
            let now = process.now();
            process.ask(&set(key, vec![number as u8; VALUE_BYTES]), &now);
            if number % TOGETHER == 0 {
                process.rest();
                process.maintain();
            }
            if number % 100 == 0 {
                store.clock.advance_s(1);
            }
        }
    };
    overwrite(&mut process, 5 * keys);
    let before = process.stations[0].written_bytes;
    overwrite(&mut process, 10 * keys);
    let written = process.stations[0].written_bytes - before;
    let ratio = written as f64 / (10 * keys * VALUE_BYTES) as f64;
    println!("{ratio:.2} bytes written for each byte stored");
    assert!(ratio < WRITTEN_PER_STORED_MAX, "{ratio:.2}");
}
