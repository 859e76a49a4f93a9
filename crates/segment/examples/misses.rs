//! Misses of a trace, replayed look-aside straight into one shard's segments: no server, no clock.
//!
//! Upstream:   a trace on standard input, in the format that `kachel load replay` takes, not
//!             compressed.
//! Downstream: [`Segments`], with an index that is a vector.
//!
//! ```sh
//! zstd -dc recs.csv.zst | cargo run --release -p kachel-segment --example misses -- 10 0.1,0.25
//! ```
//!
//! The first argument scales the values, the second are the fractions of the footprint.

use std::collections::HashMap;
use std::io::{BufRead, stdin};
use std::sync::Arc;

use kachel_host::Budget;
use kachel_segment::{
    Index, ItemAt, NewItem, NewValue, Pool, PoolOptions, SegmentOptions, Segments,
};

/// The second in which all happens.
const SECOND: u32 = 5;

/// Key bytes of an item that are its number, from which the index finds it.
const NUMBER_BYTES: usize = 4;
/// The longest key that the protocol allows.
const KEY_BYTES_MAX: usize = 250;

#[derive(Debug, Default)]
struct Numbers(Vec<Option<ItemAt>>);

fn number_of(key: &[u8]) -> usize {
    u32::from_le_bytes([key[0], key[1], key[2], key[3]]) as usize
}

fn hash(number: usize) -> u64 {
    let word = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word ^ word >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl Index for Numbers {
    fn hash(&self, key: &[u8]) -> u64 {
        hash(number_of(key))
    }

    fn swing(&mut self, key: &[u8], _from: ItemAt, to: ItemAt) {
        self.0[number_of(key)] = Some(to);
    }

    fn remove(&mut self, key: &[u8], _at: ItemAt) {
        self.0[number_of(key)] = None;
    }
}

/// One get: of which key, and how large its value is.
#[derive(Clone, Copy, Debug)]
struct Get {
    number: u32,
    value_bytes: u32,
}

#[derive(Debug, Default)]
struct Trace {
    gets: Vec<Get>,
    key_bytes: Vec<usize>,
    footprint_bytes: u64,
}

impl Trace {
    fn read(input: impl BufRead, scale: f64) -> Self {
        let mut trace = Self::default();
        let mut numbers = HashMap::new();
        let mut sizes = Vec::new();
        let mut left_out = 0;
        for line in input.lines() {
            let line = line.expect("text");
            let fields: Vec<&str> = line.split(',').collect();
            let [_time, key, key_bytes, value_bytes, _client, "get", _ttl] = fields[..] else {
                left_out += 1;
                continue;
            };
            let key_bytes: usize = key_bytes.parse().expect("the size of a key");
            let value_bytes = value_bytes.parse::<f64>().expect("a size") * scale;
            let next = numbers.len();
            let number = *numbers.entry(key.to_owned()).or_insert(next);
            if number == next {
                trace.key_bytes.push(key_bytes.clamp(NUMBER_BYTES, KEY_BYTES_MAX));
                sizes.push(0);
            }
            let value_bytes = value_bytes.round().min(f64::from(1 << 20)) as u32;
            sizes[number] = value_bytes;
            trace.gets.push(Get { number: number as u32, value_bytes });
        }
        if left_out > 0 {
            println!("{left_out} lines are no gets of seven fields, and left out");
        }
        let value_bytes: u64 = sizes.iter().map(|&bytes| u64::from(bytes)).sum();
        trace.footprint_bytes = value_bytes + trace.key_bytes.iter().sum::<usize>() as u64;
        trace
    }
}

struct Cache {
    segments: Segments,
    index: Numbers,
}

impl Cache {
    fn new(limit_bytes: u64, keys: usize) -> Self {
        let budget = Arc::new(Budget::new(limit_bytes));
        let options =
            PoolOptions { engines: 1, reserve_bytes: limit_bytes, ..PoolOptions::default() };
        let pool = Pool::new(budget, options).expect("address space");
        let segments = Segments::new(
            pool,
            SegmentOptions { evict: true, cas: true, shard: 0, item_overhead_bytes: 0 },
        )
        .expect("address space");
        Self { segments, index: Numbers(vec![None; keys]) }
    }

    fn get(&mut self, number: usize) -> bool {
        let found = self.index.0[number];
        if let Some(at) = found {
            self.segments.note_access(at, SECOND);
        }
        found.is_some()
    }

    fn set(&mut self, number: usize, key: &mut [u8], value: &[u8], turn: usize) {
        key[..NUMBER_BYTES].copy_from_slice(&(number as u32).to_le_bytes());
        let item = NewItem {
            key,
            hash: hash(number),
            value: NewValue::Bytes(value),
            client_flags: 0,
            expiry: 0,
            cas: Some(turn as u64),
            stale: false,
            win_sent: false,
            remnant: false,
            protocol_mark: false,
            replaces: None,
            keeps_access: false,
        };
        let at = self.segments.append(item, SECOND, &mut self.index).expect("a cache makes room");
        self.index.0[number] = Some(at);
        self.segments.maintain(SECOND, &mut self.index, 64);
    }
}

fn replay(trace: &Trace, limit_bytes: u64, value: &[u8]) {
    let mut cache = Cache::new(limit_bytes, trace.key_bytes.len());
    let (mut misses, mut bytes, mut bytes_missed) = (0, 0, 0);
    let mut key = [b'k'; 256];
    for (turn, get) in trace.gets.iter().enumerate() {
        let number = get.number as usize;
        bytes += u64::from(get.value_bytes);
        if !cache.get(number) {
            misses += 1;
            bytes_missed += u64::from(get.value_bytes);
            let key = &mut key[..trace.key_bytes[number]];
            cache.set(number, key, &value[..get.value_bytes as usize], turn);
        }
    }
    let stats = cache.segments.stats();
    println!(
        "-m {}: misses {:.4}, of bytes {:.4}; {} items",
        limit_bytes >> 20,
        f64::from(misses) / trace.gets.len() as f64,
        bytes_missed as f64 / bytes as f64,
        stats.items,
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [scale, fractions] = &arguments[..] else {
        println!("misses SCALE FRACTION,FRACTION...");
        return;
    };
    let trace = Trace::read(stdin().lock(), scale.parse().expect("a scale"));
    let value = vec![b'v'; 1 << 20];
    for fraction in fractions.split(',') {
        let share = trace.footprint_bytes as f64 * fraction.parse::<f64>().expect("a fraction");
        let mib = (share / f64::from(1 << 20)).round() as u64;
        replay(&trace, mib << 20, &value);
    }
}
