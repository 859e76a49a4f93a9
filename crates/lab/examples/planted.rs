//! A process whose time goes where it is told, to compare `kachel-lab breakdown` with.
//!
//! Upstream:   a test, or a person; a line on standard input starts the work.
//! Downstream: the figures on standard output, one a line: a name, a space, a number.
//!
//! `planted shares MILLISECONDS` uses that much processor time and takes care that hashing, memory
//! and sends have [`SHARES`] of it, by the clock of its own thread; and it sleeps in a futex for
//! [`FUTEX_SHARE`] of the time that passes. `planted calls` makes known numbers of system calls.
//! Both then end.

use std::io::{BufRead as _, stdin};
use std::net::UdpSocket;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use kachel_host::{PAGE_BYTES, Region};
use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::time::{ClockId, clock_gettime};

/// The shares of hashing (key-value work), mapping memory, and sends.
const SHARES: [(&str, f64); 3] = [("key_value", 0.45), ("memory", 0.30), ("network", 0.25)];
/// The share of time by the clock that it sleeps.
const FUTEX_SHARE: f64 = 0.30;
/// The calls of `planted calls`.
const CALLS: [(&str, u64); 3] = [("getppid", 1000), ("sendto", 500), ("sched_yield", 300)];

const BLOCK_BYTES: usize = 1024;
/// The most blocks that are hashed, pages that are mapped, and datagrams that are sent, at a time.
/// How many is random: a loop of constant length could run in step with the clock of the samples.
const BLOCKS_MAX: usize = 64;
const PAGES_MAX: usize = 64;
const SENDS_MAX: usize = 32;
/// One in this many pages is touched.
const TOUCH_EVERY: usize = 8;
/// The length of a sleep.
const SLEEP: Duration = Duration::from_micros(500);

/// Processor time of this thread, in seconds.
fn used_s() -> f64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

/// Hashes a block several times (FNV-1a). It calls nothing: without optimization the samples would
/// be those of functions of an iterator.
#[inline(never)]
fn planted_hash(block: &[u8], times: usize) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let (mut at, mut left) = (0, times * block.len());
    while left > 0 {
        hash = (hash ^ block[at] as u64).wrapping_mul(0x0100_0000_01b3);
        left -= 1;
        at = if at + 1 == block.len() { 0 } else { at + 1 };
    }
    hash
}

/// Maps memory, touches some of its pages, and unmaps it. Each touch is an instruction of ours, and
/// the way back to it from the page fault counts there, so there are few.
fn map_and_touch(pages: usize) {
    let region = Region::reserve(pages * PAGE_BYTES, false, "planted").expect("memory");
    for page in region.words().chunks(TOUCH_EVERY * PAGE_BYTES / 8) {
        page[0].store(1, Relaxed);
    }
}

/// Two sockets: what is sent to the second is dropped once its buffer is full.
fn sockets() -> (UdpSocket, UdpSocket) {
    let local = || UdpSocket::bind(("127.0.0.1", 0)).expect("a socket");
    let (from, to) = (local(), local());
    from.connect(to.local_addr().expect("an address")).expect("connected");
    (from, to)
}

fn shares(goal_s: f64) {
    let (from, _to) = sockets();
    let block = [7; BLOCK_BYTES];
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut used = [0.0; SHARES.len()];
    let (begin, begin_s, mut asleep) = (Instant::now(), used_s(), Duration::ZERO);
    let mut hashed = 0;
    while used_s() - begin_s < goal_s {
        // The one that is farthest behind its share.
        let total: f64 = used.iter().sum();
        let behind = |index: &usize| SHARES[*index].1 * total - used[*index];
        let next = (0..SHARES.len()).max_by(|a, b| behind(a).total_cmp(&behind(b)));
        let next = next.expect("there are shares");
        let before_s = used_s();
        match next {
            0 => hashed ^= planted_hash(&block, random.random_range(1..=BLOCKS_MAX)),
            1 => map_and_touch(random.random_range(1..=PAGES_MAX)),
            _ => (0..random.random_range(1..=SENDS_MAX)).for_each(|_| drop(from.send(&block))),
        }
        used[next] += used_s() - before_s;
        if asleep.as_secs_f64() < FUTEX_SHARE * begin.elapsed().as_secs_f64() {
            let before = Instant::now();
            std::thread::park_timeout(SLEEP);
            asleep += before.elapsed();
        }
    }
    std::hint::black_box(hashed);
    // What the clock's own calls and the loop took is in no share.
    let all_s = used_s() - begin_s;
    for (index, (name, _)) in SHARES.iter().enumerate() {
        println!("{name} {:.2}", used[index] * 100.0 / all_s);
    }
    println!("busy_s {all_s:.3}");
    println!("futex {:.2}", asleep.as_secs_f64() * 100.0 / begin.elapsed().as_secs_f64());
}

fn calls() {
    let (from, _to) = sockets();
    for (name, number) in CALLS {
        for _ in 0..number {
            match name {
                "getppid" => drop(std::os::unix::process::parent_id()),
                "sendto" => drop(from.send(b"x")),
                _ => std::thread::yield_now(),
            }
        }
        println!("{name} {number}");
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let wait = || stdin().lock().read_line(&mut String::new()).expect("a line starts the work");
    match words[..] {
        ["shares", milliseconds] => {
            let milliseconds: u32 = milliseconds.parse().expect("a number of milliseconds");
            wait();
            shares(f64::from(milliseconds) / 1e3);
        }
        ["calls"] => {
            wait();
            calls();
        }
        _ => {
            eprintln!("usage: planted shares MILLISECONDS | planted calls");
            std::process::exit(64);
        }
    }
}
