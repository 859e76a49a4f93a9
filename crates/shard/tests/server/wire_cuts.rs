//! The measured wire cases, cut at every place, over the in-memory door, which delivers exactly the
//! pieces that are written.
//!
//! Two passes run every case whole. Each later pass cuts each case in two at one more place, and
//! leaves out the cases that have no more places. Without `KACHEL_FULL` each case is cut at one in
//! `CUTS_EACH` places, the cases at different ones. Every pass has a fresh server, and every case
//! has its own connection. No case reads what another case stored. The fixture's terms stand beside
//! it. CAS tokens are not compared. Every case applies to each engine, as it is written.

use serde_json::Value;

use kachel_cache::CacheOpener;
use kachel_engine::OpenEngines;
use kachel_io::ManualClock;
use kachel_io::memory::disk::{ChanceFault, Disk, Fault, FaultPlan};
use kachel_rocks::{RocksOpener, RocksOptions, RocksSync};
use kachel_shard::FileEngine;
use kachel_testkit::{
    DelayingOpener, FakeRocksdb, FlashFiles, PlainOpener, Random, Uncounted, World, WorldOptions,
};

const FIXTURE: &str = include_str!("../../../kachel/tests/fixtures/wire_cases.json");
/// Inputs up to this long are cut at every byte.
const EVERY_CUT_BYTES_MAX: usize = 4096;
/// Longer ones at each of their first and last bytes, and at as many seeded places besides. Their
/// lines begin with the same few words: what follows repeats a byte, or a key of one letter.
const FIRST_CUTS: usize = 96;
const LAST_CUTS: usize = 32;
const SEEDED_CUTS: usize = 48;
/// A case is cut at one place of this many without `KACHEL_FULL`. The wire cases against processes
/// send each input byte by byte as well, and fuzzing cuts inputs anywhere.
const CUTS_EACH: usize = 4;
/// The passes with cuts over each of the other engines, without `KACHEL_FULL` and with it: the
/// parser is the same over each engine. The places are spread over the input.
const OTHER_CUTS: [usize; 2] = [3, 24];
/// The segments and the space of a log. The cases store fewer bytes.
const SEGMENT_BYTES: u64 = 1 << 20;
const LOG_BYTES: u64 = 32 << 20;
/// The answers in a thousand that the delaying engine delays.
const DELAYED_PERMILLE: u64 = 500;
/// The first byte of a reply of the binary protocol, and the opcode of `VERSION`.
const BINARY_REPLY: u8 = 0x81;
const BINARY_VERSION: u8 = 0x0b;

struct Case {
    id: String,
    input: Vec<u8>,
    reply: Option<Vec<u8>>,
    closes: bool,
    cuts: Vec<usize>,
}

fn bytes(pieces: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces.as_array().expect("a list of pieces") {
        let hex = piece[0].as_str().expect("hex");
        let repeat = piece[1].as_u64().expect("a count");
        let piece: Vec<u8> = (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex"))
            .collect();
        for _ in 0..repeat {
            bytes.extend_from_slice(&piece);
        }
    }
    bytes
}

/// The places at which an input of `count` bytes is cut.
fn cuts(count: usize, seed: usize) -> Vec<usize> {
    if count <= EVERY_CUT_BYTES_MAX {
        return (1..count).collect();
    }
    let mut random = Random::new(seed as u64);
    let seeded: Vec<usize> = (0..SEEDED_CUTS).map(|_| 1 + random.index(count - 1)).collect();
    (1..=FIRST_CUTS).chain(count - LAST_CUTS..count).chain(seeded).collect()
}

fn cases(fixture: &Value) -> Vec<Case> {
    let cases = fixture["cases"].as_array().expect("cases").iter().enumerate();
    cases
        .map(|(seed, case)| {
            let input = bytes(&case["input"]);
            let reply = &case["reply"];
            let id = case["id"].as_str().expect("an id").to_owned();
            Case {
                // W111 asks whether something is pipelined: only its whole is defined.
                cuts: if id == "W111" { Vec::new() } else { cuts(input.len(), seed) },
                id,
                reply: (!reply.is_null()).then(|| bytes(reply)),
                closes: case["then"] == "closed",
                input,
            }
        })
        .collect()
}

/// The headers of binary replies and their bodies, without the name of the server and without CAS
/// tokens, which count what a server has stored since its start.
fn without_tokens(mut reply: &[u8]) -> Vec<u8> {
    let mut kept = Vec::new();
    while let Some((header, rest)) = reply.split_first_chunk::<24>() {
        let is_version = header[1] == BINARY_VERSION;
        let body_bytes = usize::from(header[10]) * 256 + usize::from(header[11]);
        let (body, rest) = rest.split_at(body_bytes.min(rest.len()));
        kept.extend_from_slice(&header[..8]);
        kept.extend_from_slice(if is_version { b"" } else { &header[8..16] });
        kept.extend_from_slice(if is_version { b"" } else { body });
        reply = rest;
    }
    [&kept, reply].concat()
}

/// Cuts what follows `VERSION ` off: it names the server.
fn without_version(reply: &[u8]) -> Vec<u8> {
    let mut kept = Vec::new();
    if reply.first() == Some(&BINARY_REPLY) {
        return without_tokens(reply);
    }
    for line in reply.split_inclusive(|&byte| byte == b'\n') {
        kept.extend_from_slice(if line.starts_with(b"VERSION ") { b"VERSION\r\n" } else { line });
    }
    kept
}

/// Where a pass cuts a case, which has this number. `None`: the pass leaves the case out.
type CutOf<'a> = &'a dyn Fn(usize, &Case) -> Option<usize>;

/// Every case is whole.
fn whole(_number: usize, case: &Case) -> Option<usize> {
    Some(case.input.len())
}

fn is_full() -> bool {
    std::env::var_os("KACHEL_FULL").is_some()
}

/// Calls `check` with the number of each pass over another engine than the cache, and its cuts.
fn each_other_pass(mut check: impl FnMut(usize, CutOf<'_>)) {
    let passes = OTHER_CUTS[usize::from(is_full())];
    check(passes, &whole);
    for pass in 0..passes {
        check(pass, &|number, case| {
            let places = case.cuts.len();
            (places > 0).then(|| case.cuts[(pass * places / passes + number) % places])
        });
    }
}

/// Runs each case over the engines of `opener`. Returns how many were cut.
fn pass<O: OpenEngines<Engine: FileEngine>>(
    opener: &O,
    options: WorldOptions,
    all: (&[u8], &[Case]),
    cut_of: CutOf<'_>,
) -> usize {
    answer_all(World::over(options, |_| Uncounted, opener), all, cut_of)
}

/// Runs each case over the engines of an opener, whose files are on the disk that `opener` gets.
/// Returns how many reads and writes the disk has done only in part.
fn pass_with_files<O: OpenEngines<Engine: FileEngine>>(
    opener: impl FnOnce(&Disk) -> O,
    options: WorldOptions,
    all: (&[u8], &[Case]),
    (seed, cut_of): (usize, CutOf<'_>),
) -> u64 {
    let disk = Disk::new(seed as u64, &ManualClock::new(0));
    let chances = vec![ChanceFault { kind: None, permille: 300, fault: Fault::Short }];
    disk.set_plan(FaultPlan { chances, ..FaultPlan::default() });
    let mut world = World::over(options, |_| Uncounted, &opener(&disk));
    world.use_disk(&disk);
    answer_all(world, all, cut_of);
    disk.counts().short
}

fn answer_all<E: FileEngine>(
    mut world: World<Uncounted, E>,
    (setup, cases): (&[u8], &[Case]),
    cut_of: CutOf<'_>,
) -> usize {
    let shards = world.shards.len();
    let client = world.connect();
    world.ask(&client, setup);
    client.finish();
    let mut cut_cases = 0;
    for (number, case) in cases.iter().enumerate() {
        let Some(cut) = cut_of(number, case) else { continue };
        let client = world.connect();
        cut_cases += usize::from(cut < case.input.len());
        client.write(&case.input[..cut]);
        world.settle();
        client.write(&case.input[cut..]);
        world.settle();
        let reply = client.read();
        if let Some(expected) = &case.reply {
            assert!(
                without_version(&reply) == without_version(expected),
                "{} cut at {cut}, {shards} shards: answered {}, expected {}",
                case.id,
                excerpt(&reply),
                excerpt(expected)
            );
        }
        assert_eq!(client.is_closed(), case.closes, "{} cut at {cut}: closed?", case.id);
        client.reset();
    }
    cut_cases
}

/// What is stored before the cases, and the cases.
fn fixture() -> (Vec<u8>, Vec<Case>) {
    let fixture: Value = serde_json::from_str(FIXTURE).expect("the fixture is JSON");
    let setup = fixture["setup_text"].as_str().expect("the set-up");
    let setup = setup.replace("<100000 bytes of x>", &"x".repeat(100_000));
    (setup.into_bytes(), cases(&fixture))
}

fn excerpt(bytes: &[u8]) -> String {
    format!("({} bytes) {}", bytes.len(), bytes[..bytes.len().min(200)].escape_ascii())
}

#[test]
fn every_case_is_answered_as_written_wherever_it_is_cut() {
    let (setup, cases) = fixture();
    let all = (&setup[..], &cases[..]);
    let passes = cases.iter().map(|case| case.cuts.len()).max().expect("cases");
    let options = |(shards, engines)| WorldOptions { shards, engines, ..WorldOptions::default() };
    let caches = CacheOpener::default();
    let mut cut = 0;
    pass(&caches, options((1, None)), all, &whole);
    pass(&caches, options((3, None)), all, &whole);
    let each = if is_full() { 1 } else { CUTS_EACH };
    for first in (0..passes).step_by(each) {
        let server = match first % 32 {
            4 => (1, Some(3)),
            12 => (3, None),
            20 => (3, Some(8)),
            28 => (3, Some(2)),
            _ => (1, None),
        };
        cut += pass(&caches, options(server), all, &|number, case| {
            case.cuts.get(first + number % each).copied()
        });
    }
    println!(
        "{} cases whole and at {cut} cuts, in {} passes",
        cases.len(),
        passes.div_ceil(each) + 2
    );
    assert!(cases.len() == 140 && cut * each > 17_000);
}

/// The options of the servers over other engines than caches: their shards are the homes of one
/// engine each, of several, or of none.
fn others(evict: bool) -> impl Iterator<Item = WorldOptions> {
    let servers = [(1, None, false), (3, None, true), (3, Some(8), false), (3, Some(2), true)];
    servers.into_iter().map(move |(shards, engines, crew)| WorldOptions {
        shards,
        engines,
        crew,
        evict,
        ..WorldOptions::default()
    })
}

#[test]
fn every_case_is_answered_so_by_the_plain_engine() {
    let (setup, cases) = fixture();
    let all = (&setup[..], &cases[..]);
    let mut short = 0;
    for options in others(false) {
        each_other_pass(|seed, cut_of| {
            pass(&PlainOpener::default(), options, all, cut_of);
            let plain = |disk: &Disk| PlainOpener(Some(disk.folder("data")));
            short += pass_with_files(plain, options, all, (seed, cut_of));
        });
    }
    assert!(short > 0, "the disk has faults");
}

/// Over the library that stands in for RocksDB, in which half of the keys are not in memory. The
/// disk makes each call of the library when it is due.
#[test]
fn every_case_is_answered_so_by_the_engine_over_rocksdb() {
    let (setup, cases) = fixture();
    let all = (&setup[..], &cases[..]);
    let library = FakeRocksdb::build(None);
    for options in others(false) {
        each_other_pass(|seed, cut_of| {
            let place = tempfile::tempdir().expect("a folder");
            let data = place.path().join("data");
            let (sync, library) = (RocksSync::Always, Some(library.path().to_owned()));
            let rocks = RocksOptions { data, sync, library, text: String::new() };
            pass_with_files(|_| RocksOpener(rocks), options, all, (seed, cut_of));
        });
    }
}

#[test]
fn every_case_is_answered_so_by_the_engine_over_a_log() {
    let (setup, cases) = fixture();
    let all = (&setup[..], &cases[..]);
    let mut short = 0;
    for options in others(false) {
        each_other_pass(|seed, cut_of| {
            let flash = |disk: &Disk| FlashFiles::of_space(disk, SEGMENT_BYTES, LOG_BYTES).opener();
            short += pass_with_files(flash, options, all, (seed, cut_of));
        });
    }
    assert!(short > 0, "the disk has faults");
}

#[test]
fn every_case_is_answered_so_by_the_delaying_engine() {
    let (setup, cases) = fixture();
    let all = (&setup[..], &cases[..]);
    let mut short = 0;
    for options in others(true) {
        each_other_pass(|seed, cut_of| {
            let delaying = |disk: &Disk| DelayingOpener {
                inner: CacheOpener::default(),
                folder: disk.folder("data"),
                permille: DELAYED_PERMILLE,
                seed: seed as u64,
            };
            short += pass_with_files(delaying, options, all, (seed, cut_of));
        });
    }
    assert!(short > 0, "the disk has faults");
}
