//! A server that is killed in the middle of traffic, and started again, many times.
//!
//! Upstream:   `cargo test --features pipe`. `KACHEL_PIPE_RESTARTS` says how many times.
//! Downstream: the server's binary; the kernel's lists of programs, maps and links.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aya::maps::loaded_maps;
use aya::programs::{loaded_links, loaded_programs};
use kachel_testkit::setting;

use crate::network::{Network, Tcp, Udp};
use crate::{KEY, make_hot, number_in};

/// A reply that has not come by then does not come: the server is dead.
const SILENCE: Duration = Duration::from_millis(20);
/// How long each server serves traffic.
const TRAFFIC: Duration = Duration::from_millis(10);
/// Reads of a dead server, with two readers; each has sent at least one whole one then.
const READS: u64 = 4;
/// The kernel frees a program and its maps after a grace period.
const PATIENCE: Duration = Duration::from_secs(20);

/// The program of one server's pipe and its maps, by their numbers in the kernel.
#[derive(Debug)]
struct Held {
    program: u32,
    maps: BTreeSet<u32>,
}

impl Held {
    /// That of the program which the pipe of this server has, among all of the machine.
    fn of(network: &Network) -> Self {
        let program = network.server_program().expect("the pipe is attached");
        let info = loaded_programs()
            .filter_map(Result::ok)
            .find(|info| info.id() == program)
            .expect("an attached program is loaded");
        let maps = info.map_ids().expect("the kernel lists maps").unwrap_or_default();
        let maps: BTreeSet<u32> = maps.into_iter().collect();
        assert!(maps.len() >= 5, "settings, buckets, slots, hits, counts: {maps:?}");
        Self { program, maps }
    }

    /// The program, maps and links that the kernel still has.
    fn left(&self) -> Vec<String> {
        let programs = loaded_programs().filter_map(Result::ok).map(|info| info.id());
        let programs = programs.filter(|id| *id == self.program).map(|id| format!("program {id}"));
        let maps = loaded_maps().filter_map(Result::ok).map(|info| info.id());
        let maps = maps.filter(|id| self.maps.contains(id)).map(|id| format!("map {id}"));
        let links = loaded_links().filter_map(Result::ok);
        let links = links.filter(|info| info.program_id() == self.program);
        let links = links.map(|info| format!("link {}", info.id()));
        programs.chain(maps).chain(links).collect()
    }
}

/// The state that the readers share.
#[derive(Debug, Default)]
struct Shared {
    /// The least value that a read may show which is sent now.
    least: AtomicU64,
    /// Reads that were sent.
    reads: AtomicU64,
    is_over: AtomicBool,
}

/// Ends the readers, also if the test fails.
struct Ending<'s>(&'s Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// Reads over UDP until it is over. Returns a value that is older than it may be, with the least
/// that it may be.
fn read(Shared { least, reads, is_over }: &Shared) -> Option<(u64, u64)> {
    let mut udp = Udp::new();
    while !is_over.load(Ordering::Relaxed) {
        reads.fetch_add(1, Ordering::SeqCst);
        let may_be = least.load(Ordering::SeqCst);
        match udp.ask_within(format!("get {KEY}\r\n").as_bytes(), SILENCE) {
            Some(reply) if reply != b"END\r\n" => {
                let number = number_in(&reply);
                if number < may_be {
                    return Some((number, may_be));
                }
            }
            _ => {}
        }
    }
    None
}

#[test]
fn a_kill_in_the_middle_of_traffic_leaves_no_stale_answer_and_nothing_in_the_kernel() {
    let Some(network) = Network::new() else { return };
    let rounds = setting("KACHEL_PIPE_RESTARTS", 10);
    // A value from before a kill is never seen after it.
    let shared = Shared::default();
    let Shared { least, reads, .. } = &shared;
    let (mut gone, mut answered) = (Vec::new(), 0);
    let stale = std::thread::scope(|scope| {
        let ending = Ending(&shared);
        let readers = [0, 1].map(|_| scope.spawn(|| read(&shared)));
        for round in 1..=rounds {
            let mut server = network.serve(&["-t", "2"]);
            gone.push(Held::of(&network));
            let (mut tcp, mut udp) = (Tcp::new(), Udp::new());
            let mut number = round << 32;
            let end = Instant::now() + TRAFFIC;
            while Instant::now() < end {
                number += 1;
                let text = number.to_string();
                let set = format!("set {KEY} 0 0 {}\r\n{text}\r\n", text.len());
                assert_eq!(tcp.ask(&set), "STORED\r\n");
                least.store(number, Ordering::SeqCst);
                make_hot(&mut udp, KEY);
            }
            answered += tcp.stat("kachel_pipe_answered");
            server.kill();
            // Whatever is answered from now on is of the next server.
            least.store((round + 1) << 32, Ordering::SeqCst);
            let enough = reads.load(Ordering::SeqCst) + READS;
            let is_stale = || readers.iter().any(|reader| reader.is_finished());
            while reads.load(Ordering::SeqCst) < enough && !is_stale() {
                std::thread::sleep(Duration::from_millis(1));
            }
            if is_stale() {
                break;
            }
        }
        drop(ending);
        readers.map(|reader| reader.join().expect("a reader ends"))
    });
    assert_eq!(stale, [None, None], "a value, and the least that it may be");
    assert!(answered > rounds, "the pipe took part: {answered}");
    let end = Instant::now() + PATIENCE;
    for held in &gone {
        while !held.left().is_empty() {
            assert!(Instant::now() < end, "left in the kernel: {:?}", held.left());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert_eq!(network.server_program(), None, "nothing is attached");
    let spaces = network.spaces();
    drop(network);
    for space in spaces {
        assert!(!std::path::Path::new("/run/netns").join(&space).exists(), "{space} is left");
    }
    println!("{rounds} servers were killed, after {answered} answers of the pipe");
}
