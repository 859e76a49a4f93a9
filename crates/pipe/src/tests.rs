//! Tests of the table over memory without a program. They need no rights. A thread reads the slots
//! as the program does.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, fence};
use std::time::{Duration, Instant};

use kachel_engine::{CopiedItem, Copies as _, KeyHasher, Seeds};
use kachel_host::SharedWords;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::layout::{
    ANSWERING, COUNTS_WORDS, LANES_MAX, SETTINGS_WORDS, SLOT_WORDS, VALUE_BYTES_MAX, WAYS, setting,
    slot,
};
use crate::load::{Program, Trial};
use crate::places::{PipeNetwork, Place, Speaks};
use crate::read_deltas::ReadDeltas;
use crate::table::{Items, Memory, Pipe, PipeOptions, SwitchError, bucket_count};

const LANES: usize = 2;

fn words(count: usize) -> SharedWords {
    let file = memfd_create("words", MemfdFlags::CLOEXEC).expect("a file in memory");
    ftruncate(&file, count as u64 * 8).expect("memory");
    SharedWords::map(&file, count).expect("a mapping")
}

fn table(buckets: u32) -> Pipe {
    let slots = buckets as usize * WAYS;
    let memory = Memory {
        settings: words(SETTINGS_WORDS),
        buckets: words(slots),
        slots: words(slots * SLOT_WORDS),
        hits: words(slots * LANES),
        counts: words(COUNTS_WORDS * LANES_MAX),
    };
    Pipe::new(memory, buckets)
}

fn hasher() -> KeyHasher {
    KeyHasher::new(Seeds { hash_keys: [3, 5] }, 1)
}

fn publish(pipe: &Pipe, key: &[u8], value: &[u8]) {
    let key = hasher().key(key);
    let item = CopiedItem { key, value, client_flags: 1, cas: 2, expiry: 0 };
    pipe.publish(pipe.stamp().expect("no flush is under way"), &item);
}

/// Where the copy of a key is.
fn place(pipe: &Pipe, key: &[u8]) -> Option<usize> {
    let hash = hasher().key(key).secret_hash();
    pipe.memory.buckets.iter().position(|tag| tag.load(Relaxed) == hash)
}

/// Notes a read of a copy, as the program does.
fn hit(pipe: &Pipe, key: &[u8], lane: usize, second: u32) {
    let slot = place(pipe, key).expect("there is a copy");
    let word = &pipe.memory.hits[lane * pipe.slots + slot];
    let count = (word.load(Relaxed) as u32).wrapping_add(1);
    word.store(u64::from(second) << 32 | u64::from(count), Relaxed);
}

/// The copies that there are, after a check that those made are these and those that went.
fn items(pipe: &Pipe) -> u64 {
    let Items { items, items_max, promotions, demotions, invalidations } = pipe.items();
    assert_eq!(promotions, items + demotions + invalidations, "{:?}", pipe.items());
    assert!(items <= items_max);
    items
}

fn taken(pipe: &Pipe, key: &[u8]) -> Option<(u64, u32)> {
    let reads = pipe.take_reads(hasher().key(key).secret_hash());
    reads.map(|reads| (reads.count, reads.second))
}

/// The stamp of a copy tells the program whether a flush has begun since it was looked up.
#[test]
fn the_flush_of_a_prefix_makes_all_copies_older_and_keeps_a_pending_flush() {
    let pipe = table(8);
    pipe.tick(5, 0);
    pipe.flush(Some(9), &mut || ());
    let before = pipe.stamp().expect("no flush is under way");
    let mut changes = 0;
    pipe.flush_some(&mut || {
        assert_eq!(pipe.stamp(), None, "nothing is answered meanwhile");
        changes += 1;
    });
    let after = pipe.stamp().expect("no flush is under way");
    assert!(changes == 1 && after.0 == before.0 + 1, "{before:?} {after:?}");
    assert_eq!(pipe.setting(setting::FLUSH_DUE).load(Relaxed), 9);
}

#[test]
fn reads_are_taken_once_with_the_second_of_the_last() {
    let pipe = table(8);
    pipe.tick(5, 0);
    publish(&pipe, b"one", b"1");
    publish(&pipe, b"two", b"2");
    assert_eq!(taken(&pipe, b"one"), None, "it was not read");
    for (key, lane, second) in [(&b"one"[..], 0, 9), (b"one", 1, 7), (b"two", 1, 8)] {
        hit(&pipe, key, lane, second);
    }
    assert_eq!([b"one", b"two"].map(|key| taken(&pipe, key)), [Some((2, 9)), Some((1, 8))]);
    assert_eq!([b"one", b"two"].map(|key| taken(&pipe, key)), [None, None], "they were taken");
    hit(&pipe, b"one", 0, 10);
    hit(&pipe, b"one", 0, 11);
    assert_eq!(taken(&pipe, b"one"), Some((2, 11)));
    // Another copy in the same place has no reads of the one before.
    hit(&pipe, b"one", 0, 12);
    publish(&pipe, b"one", b"11");
    assert_eq!(taken(&pipe, b"one"), None);
    assert_eq!(taken(&pipe, b"absent"), None);
}

/// The keys and the numbers of reads that a poll tells, in their order.
fn polled(deltas: &mut ReadDeltas<'_>) -> Vec<(Vec<u8>, u32)> {
    let mut told = Vec::new();
    deltas.poll(|reads| {
        assert_eq!(reads.secret_hash, hasher().key(reads.key).secret_hash());
        told.push((reads.key.to_vec(), reads.count));
    });
    told.sort_unstable();
    told
}

#[test]
fn a_poll_tells_each_read_once_also_of_copies_that_were_taken_from_or_dropped() {
    let pipe = table(8);
    let hits = |key: &[u8], count: u32| (0..count).for_each(|n| hit(&pipe, key, n as usize % 2, 9));
    publish(&pipe, b"one", b"1");
    publish(&pipe, b"two", b"22");
    hits(b"one", 5);
    let mut deltas = ReadDeltas::begin(&pipe);
    assert_eq!(polled(&mut deltas), [], "reads of before are not told");
    hits(b"one", 3);
    hits(b"two", 2);
    assert_eq!(polled(&mut deltas), [(b"one".to_vec(), 3), (b"two".to_vec(), 2)]);
    assert_eq!(polled(&mut deltas), []);
    // The engine takes them.
    hits(b"one", 4);
    assert_eq!(taken(&pipe, b"one"), Some((12, 9)));
    hits(b"one", 1);
    assert_eq!(polled(&mut deltas), [(b"one".to_vec(), 5)]);
    // The item changes, twice between two polls, and another key may get the place.
    hits(b"one", 6);
    publish(&pipe, b"one", b"11");
    hits(b"one", 7);
    pipe.drop_copy(hasher().key(b"one").secret_hash());
    publish(&pipe, b"three", b"3");
    hits(b"three", 8);
    let told = polled(&mut deltas);
    let of = |key: &[u8]| told.iter().filter(|one| one.0 == key).map(|one| one.1).sum::<u32>();
    assert_eq!((of(b"one"), of(b"three"), told.len()), (13, 8, 3), "{told:?}");
    // Nobody polls any more.
    drop(deltas);
    hits(b"two", 1);
    pipe.drop_copy(hasher().key(b"two").secret_hash());
    assert_eq!(polled(&mut ReadDeltas::begin(&pipe)), []);
}

#[test]
fn copies_that_are_read_stay_and_the_others_give_way() {
    let pipe = table(1);
    let key = |number: u32| format!("key-{number}").into_bytes();
    (0..WAYS as u32).for_each(|number| publish(&pipe, &key(number), b"v"));
    assert_eq!(items(&pipe), WAYS as u64);
    publish(&pipe, b"too early", b"v");
    assert!(place(&pipe, b"too early").is_none(), "each copy was made in this second");
    for round in 0..40 {
        let second = 10 + 2 * round;
        pipe.tick(second, 0);
        hit(&pipe, &key(0), 0, second);
        hit(&pipe, &key(1), 1, second - 1);
        publish(&pipe, &key(100 + round), b"v");
        assert!(place(&pipe, &key(0)).is_some() && place(&pipe, &key(1)).is_some(), "{round}");
        assert!(place(&pipe, &key(100 + round)).is_some(), "a new copy finds a place");
        assert_eq!(items(&pipe), WAYS as u64, "one copy gives way to one");
    }
    assert_eq!(pipe.items().demotions, 40, "each of them");
}

#[test]
fn a_key_has_one_copy_and_large_items_have_none() {
    let pipe = table(1);
    for value in [&b"a"[..], b"bb", b""] {
        publish(&pipe, b"key", value);
        assert_eq!(items(&pipe), 1);
    }
    pipe.drop_copy(hasher().key(b"another").secret_hash());
    assert_eq!(items(&pipe), 1);
    pipe.drop_copy(hasher().key(b"key").secret_hash());
    assert_eq!(items(&pipe), 0);
    publish(&pipe, b"key", &[0; VALUE_BYTES_MAX + 1]);
    publish(&pipe, &[b'k'; 121], b"");
    assert_eq!(items(&pipe), 0);
    publish(&pipe, &[b'k'; 120], &[0; VALUE_BYTES_MAX]);
    assert_eq!(items(&pipe), 1);
}

#[test]
fn a_pipe_is_switched_only_while_the_server_serves() {
    let pipe = table(1);
    assert_eq!(pipe.switch(true), Err(SwitchError::NotServing), "the server has not begun");
    let options = PipeOptions {
        hash_keys: [3, 5],
        start_ns: 0,
        now_ns: 0,
        reply_times: 3,
        places: Vec::new(),
        network: PipeNetwork { mac: None, addresses: Vec::new(), closed: Vec::new() },
    };
    pipe.begin(&options, |_| false);
    assert!(pipe.answers() && pipe.is_serving());
    assert_eq!(pipe.switch(false), Ok(()));
    assert!(!pipe.answers() && pipe.is_serving());
    assert_eq!(pipe.switch(true), Ok(()));
    // A run that does not end.
    pipe.memory.counts[COUNTS_WORDS + ANSWERING].store(1, Relaxed);
    assert_eq!(pipe.switch(false), Err(SwitchError::StillAnswering));
    assert!(!pipe.answers());
    pipe.end();
    assert_eq!(pipe.switch(true), Err(SwitchError::NotServing));
    assert!(!pipe.answers() && !pipe.is_serving());
}

#[test]
fn the_table_stays_within_its_memory() {
    for megabytes in [1, 3, 8, 64] {
        let pipe = table(bucket_count(megabytes << 20));
        assert!(pipe.bytes() <= megabytes << 20, "{megabytes}");
        assert!(pipe.bytes() > (megabytes << 20) / 3, "{megabytes}");
    }
    assert_eq!(bucket_count(0), 1);
}

#[test]
fn a_slot_with_one_even_version_has_one_value() {
    let pipe = table(1);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut read, mut torn) = (0_u64, 0_u64);
            while !is_over.load(Relaxed) {
                let words = &pipe.memory.slots[..SLOT_WORDS];
                let version = words[slot::VERSION].load(Acquire);
                if !version.is_multiple_of(2) {
                    continue;
                }
                let value: Vec<u64> = words[slot::TEXT + 1..slot::CAS_TEXT - 15]
                    .iter()
                    .map(|w| w.load(Relaxed))
                    .collect();
                fence(Acquire);
                if words[slot::VERSION].load(Relaxed) == version {
                    read += 1;
                    torn += u64::from(value.iter().any(|word| *word != value[0]));
                }
            }
            (read, torn)
        });
        // The first way, again and again.
        for round in 0..60_000_u32 {
            publish(&pipe, b"key", &[round as u8; VALUE_BYTES_MAX]);
            pipe.drop_copy(hasher().key(b"key").secret_hash());
            if round % 64 == 0 {
                std::thread::yield_now();
            }
        }
        is_over.store(true, Relaxed);
        let (read, torn) = reader.join().expect("it ends");
        assert!(torn == 0 && read > 0, "{torn} of {read}");
    });
}

/// The address of the server's interface in its network of Ethernet.
const SERVER_MAC: [u8; 6] = [2; 6];

/// A request for `key` over UDP without a checksum, from 10.9.0.1 to 10.9.0.2.
fn request(key: &[u8]) -> Vec<u8> {
    let payload = [&[0, 7, 0, 0, 0, 1, 0, 0], &b"get "[..], key, b"\r\n"].concat();
    let udp_bytes = 8 + payload.len() as u16;
    let mut ip = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2];
    ip[2..4].copy_from_slice(&(20 + udp_bytes).to_be_bytes());
    let sum: u32 = ip.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let [from, to] = [40_000_u16, 11_311].map(u16::to_be_bytes);
    let udp = [from, to, udp_bytes.to_be_bytes(), [0, 0]].concat();
    [&SERVER_MAC[..], &[4; 6], &[8, 0], &ip, &udp, &payload].concat()
}

#[test]
fn the_program_notices_a_version_that_changes_while_it_copies() {
    let (mut program, pipe) = match Program::load(1 << 20) {
        Ok(loaded) => loaded,
        Err(error) => return kachel_testkit::skip("pipe.program", &error.to_string()),
    };
    let address: SocketAddr = "10.9.0.2:11311".parse().expect("an address");
    let network =
        PipeNetwork { mac: Some(SERVER_MAC), addresses: vec![address.ip()], closed: Vec::new() };
    let options = PipeOptions {
        hash_keys: [3, 5],
        // The clock does not matter here, nor does the server's last word.
        start_ns: u64::MAX,
        now_ns: 0,
        reply_times: 3,
        places: vec![Place { address, speaks: Speaks::Text }],
        network,
    };
    pipe.begin(&options, |_| false);
    pipe.tick(2, u64::MAX / 2);
    let key = [b'k'; 100];
    publish(&pipe, &key, &[b'v'; 150]);
    let slot = place(&pipe, &key).expect("there is a copy");
    let version = &pipe.memory.slots[slot * SLOT_WORDS + slot::VERSION];
    let (packet, is_over) = (request(&key), AtomicBool::new(false));
    let answered = |trial: Trial| matches!(trial, Trial::Answered(_));
    assert!(answered(program.try_packet(&packet).expect("it runs")), "{:?}", pipe.counts());
    let noticed = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                version.fetch_add(2, Relaxed);
            }
        });
        // On a busy machine the two may take turns on one core for seconds.
        let hangs_at = Instant::now() + Duration::from_secs(120);
        let noticed = std::iter::repeat_with(|| program.try_packet(&packet))
            .take_while(|_| Instant::now() < hangs_at)
            .any(|trial| {
                trial.is_ok_and(|trial| !answered(trial)) && pipe.counts().passed("changing") > 0
            });
        is_over.store(true, Relaxed);
        noticed
    });
    assert!(noticed, "{:?}", pipe.counts());
    assert!(answered(program.try_packet(&packet).expect("it runs")), "the version is even");
}
