//! Canonical batches, for callgrind to count the instructions of.
//!
//! Upstream:   `tests/instructions/run` runs it under callgrind, one batch at a time.
//! Downstream: `wire`, and by way of `testkit` `cache`; whole ticks stand in `ticks`.
//!
//! Callgrind is told to begin or to stop counting at each entry into and exit from
//! [`toggles_counting`]; so the setup is not counted.
//! With `KACHEL_PLANT` in the environment each batch runs 5 % more often: the check must see that.

use std::hint::black_box;

use kachel_engine::{Common as _, Engine as _};
use kachel_io::SendBlock;
use kachel_shard::BATCH_REQUESTS_MAX as BATCH;
use kachel_stdx::{BytePrefix, FLUSHED_PREFIXES_MAX};
use kachel_testkit::{FilledCache, VALUE_BYTES, random_keys};
use kachel_wire::{Parsed, Sink, format, parse};

/// How often each batch is run.
const ROUNDS: usize = 200;
/// Items in the index that is searched.
const ITEMS: u64 = 100_000;

/// Runs `work`, counted.
#[inline(never)]
fn toggles_counting<R>(work: impl FnOnce() -> R) -> R {
    // Not the last call, or the function would be left before the work is done.
    black_box(work())
}

fn rounds() -> usize {
    let planted = std::env::var_os("KACHEL_PLANT").is_some();
    if planted { ROUNDS + ROUNDS / 20 } else { ROUNDS }
}

/// A batch of requests, worded by `request` for each of 32 keys.
fn requests(request: impl Fn(&str) -> String) -> String {
    let keys = random_keys(ITEMS, BATCH, 5);
    keys.iter().map(|key| request(std::str::from_utf8(key).expect("ASCII"))).collect()
}

/// Parses requests one behind the other; a data block is `block_bytes` long.
fn parse_all(input: &str, block_bytes: usize) {
    let mut rest = black_box(input).as_bytes();
    while !rest.is_empty() {
        let Parsed::Request { request, line_bytes } = parse(rest, 0) else {
            unreachable!("each line is a request");
        };
        black_box(&request);
        rest = &rest[line_bytes + block_bytes..];
    }
}

fn parsing(input: &str, block_bytes: usize) {
    for _ in 0..rounds() {
        toggles_counting(|| parse_all(input, block_bytes));
    }
}

/// Finds items while upkeep has not followed the flushes of this number of prefixes. Each prefix
/// differs from the keys in the ninth byte only.
fn finding(prefixes: usize) {
    let mut cache = FilledCache::new(ITEMS);
    for number in 0..prefixes {
        let name = format!("key-0000x{number}");
        let prefix = BytePrefix::of_bytes(name.as_bytes()).expect("a prefix");
        cache.cache.common().flush_prefix(&prefix).expect("room in the list");
    }
    let keys = random_keys(ITEMS, rounds() * BATCH, 7);
    for batch in keys.chunks(BATCH) {
        toggles_counting(|| cache.read_batch(batch, true));
    }
}

/// Replies to 32 GETs, into a block as they go to the kernel.
struct Reply(SendBlock);

impl Sink for Reply {
    fn put(&mut self, bytes: &[u8]) {
        self.0.put(bytes);
    }
}

fn formatting() {
    let keys = random_keys(ITEMS, BATCH, 9);
    let mut reply = Reply(SendBlock::new());
    for _ in 0..rounds() {
        reply.0.clear();
        toggles_counting(|| {
            for key in black_box(&keys) {
                format::value_head(&mut reply, key, 0, VALUE_BYTES, None);
                reply.put(&[b'v'; VALUE_BYTES]);
                reply.put(b"\r\nEND\r\n");
            }
        });
        black_box(reply.0.bytes());
    }
}

fn main() {
    let batch = std::env::args().nth(1).unwrap_or_default();
    let get = requests(|key| format!("get {key}\r\n"));
    let set = requests(|key| format!("set {key} 0 0 {VALUE_BYTES}\r\n{:100}\r\n", ""));
    let meta_get = requests(|key| format!("mg {key} s v t O123\r\n"));
    match batch.as_str() {
        "parse_gets" => parsing(&get, 0),
        "parse_sets" => parsing(&set, VALUE_BYTES + 2),
        "parse_meta_gets" => parsing(&meta_get, 0),
        "find" => finding(0),
        "find_beside_one_prefix" => finding(1),
        "find_beside_most_prefixes" => finding(FLUSHED_PREFIXES_MAX),
        "format" => formatting(),
        "vectors" => {
            #[cfg(target_arch = "x86_64")]
            println!("{}", if is_x86_feature_detected!("avx2") { "avx2" } else { "sse2" });
            #[cfg(not(target_arch = "x86_64"))]
            println!("{}", std::env::consts::ARCH);
        }
        other => panic!("no batch is called {other:?}"),
    }
}
