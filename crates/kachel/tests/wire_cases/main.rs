//! Wire cases: our server answers given bytes exactly as memcached 1.6.45.
//!
//! The fixture holds inputs, whole replies and whether the connection stays open. If we differ on
//! purpose, the case gives the reason and our reply. All cases run in the order of their ids
//! against a fresh server for each pass, over TCP and a unix socket, by `io_uring` and by epoll:
//! whole, byte by byte, and cut at seeded places, which differ from way to way. A piece is sent
//! only once the server has read the one before.
//!
//! With `KACHEL_TLS=1` the clients over TCP speak TLS (`tests/tls/run`).
//!
//! `KACHEL_CASES_SERVER=PATH` runs another server instead (a memcached). Then the cases in which we
//! differ on purpose are sent but not compared, and its I/O backend is not checked.

mod cases;
mod matching;
mod subject;
mod unread;
mod wire;

use std::ops::Range;
use std::time::{Duration, Instant};

use kachel_testkit::{Random, Server, is_usable, skip, tell};

use cases::{Case, Cases};
use subject::{Transport, WithFiles};

/// Cuts of each input: all in each way with `KACHEL_FULL=1`, otherwise a share in each way. The
/// parser is the same in all ways.
const CUTS: u64 = 32;
/// Transports by backends.
const WAYS: u64 = 4;
/// From which the places of the cuts follow.
const SEED: u64 = 0x006b_6163_6865_6c21;
/// Bytes from an input's start that are sent one by one.
const BYTES_ALONE_MAX: usize = 4096;
/// Wrong cases after which a run ends: each may have cost a long wait.
const WRONG_MAX: usize = 12;
/// Whether the server is built with TLS.
const HAS_TLS: bool = cfg!(feature = "tls");
/// A case of a server that is built without TLS.
const WITHOUT_TLS_ONLY: &str = "W112";
/// A case that means its lines to arrive together: cut, its second line is another case.
const WHOLE_ONLY: &str = "W111";

/// How an input is cut into pieces.
#[derive(Clone, Copy, Debug)]
enum Pieces {
    Whole,
    Bytes,
    Cut(u64),
}

impl Pieces {
    /// The lengths of the pieces of the input of `case`.
    fn lengths(self, case: &Case) -> Vec<usize> {
        let bytes = case.input.len();
        match self {
            Self::Whole => vec![bytes],
            Self::Bytes => {
                let alone = bytes.min(BYTES_ALONE_MAX);
                let mut lengths = vec![1; alone];
                lengths.extend((bytes > alone).then_some(bytes - alone));
                lengths
            }
            Self::Cut(_) if bytes < 2 => vec![bytes],
            Self::Cut(cut) => {
                let number = case.id.bytes().fold(0, |sum: u64, b| sum * 256 + u64::from(b));
                let mixed = Random::new(number).bits();
                let place = 1 + Random::new(SEED ^ mixed ^ cut).index(bytes - 1);
                vec![place, bytes - place]
            }
        }
    }
}

/// What a run of passes did.
#[derive(Debug, Default)]
struct Counts {
    passes: usize,
    cases: usize,
    pieces: usize,
    not_compared: usize,
    /// The case that took longest, and how long. Told only: this machine may be busy.
    slowest: (Duration, String),
}

/// One pass: a fresh server, its set-up, then every case; what went wrong is appended to `wrong`.
fn pass(
    cases: &Cases,
    mut server: Server,
    io: &str,
    pieces: Pieces,
    counts: &mut Counts,
    wrong: &mut Vec<String>,
) {
    wire::set_up(&server, &cases.setup);
    if !subject::is_other() {
        let stats = server.connect().ask("stats kachel\r\n", "END\r\n");
        assert!(stats.contains(&format!("STAT kachel_io {io}\r\n")), "not {io}: {stats}");
    }
    counts.passes += 1;
    for case in cases.all() {
        let is_cut = !matches!(pieces, Pieces::Whole);
        if case.id == WHOLE_ONLY && is_cut || case.id == WITHOUT_TLS_ONLY && HAS_TLS {
            continue;
        }
        let lengths = pieces.lengths(case);
        assert_eq!(lengths.iter().sum::<usize>(), case.input.len());
        counts.cases += 1;
        counts.pieces += lengths.len();
        let began = Instant::now();
        let outcome = wire::run(&server, case, &lengths, wire::PATIENCE);
        if began.elapsed() > counts.slowest.0 {
            counts.slowest = (began.elapsed(), format!("{} {pieces:?}", case.id));
        }
        if subject::is_other() && case.differs.is_some() {
            counts.not_compared += 1;
        } else if let Err(why) = outcome {
            wrong.push(format!("{} {} ({pieces:?}): {why}", case.id, case.name));
            if wrong.len() >= WRONG_MAX {
                break;
            }
        }
    }
    server.assert_alive();
}

/// The cuts of a way to connect.
fn cuts(transport: Transport, io: &str) -> Range<u64> {
    if std::env::var_os("KACHEL_FULL").is_some() {
        return 0..CUTS;
    }
    let way = u64::from(transport == Transport::Unix) * 2 + u64::from(io == "epoll");
    let share = CUTS / WAYS;
    way * share..(way + 1) * share
}

fn run(transport: Transport, io: &str) {
    if !subject::is_other() && !is_usable(io) {
        return;
    }
    let cases = Cases::read();
    let mut counts = Counts::default();
    let mut wrong = Vec::new();
    let cuts = cuts(transport, io).map(Pieces::Cut);
    for pieces in [Pieces::Whole, Pieces::Bytes].into_iter().chain(cuts) {
        let server = subject::start(transport, io);
        pass(&cases, server, io, pieces, &mut counts, &mut wrong);
        if wrong.len() >= WRONG_MAX {
            break;
        }
    }
    tell(&format!("wire cases: {transport:?} {io}: {counts:?}, {} wrong", wrong.len()));
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_text_case_is_answered_over_tcp_by_uring() {
    run(Transport::Tcp, "uring");
}

#[test]
fn every_text_case_is_answered_over_tcp_by_epoll() {
    run(Transport::Tcp, "epoll");
}

#[test]
fn every_text_case_is_answered_over_a_unix_socket_by_uring() {
    run(Transport::Unix, "uring");
}

#[test]
fn every_text_case_is_answered_over_a_unix_socket_by_epoll() {
    run(Transport::Unix, "epoll");
}

fn run_over(engine: WithFiles) {
    if subject::is_other() {
        return;
    }
    let cases = Cases::read();
    let (mut counts, mut wrong) = (Counts::default(), Vec::new());
    for (transport, io, pieces) in [
        (Transport::Tcp, "uring", Pieces::Whole),
        (Transport::Unix, "epoll", Pieces::Whole),
        (Transport::Unix, "uring", Pieces::Bytes),
    ] {
        if !is_usable(io) {
            continue;
        }
        let place = tempfile::tempdir().expect("a folder");
        let server = subject::start_over(engine, transport, io, &place.path().join("data"));
        pass(&cases, server, io, pieces, &mut counts, &mut wrong);
    }
    tell(&format!("wire cases over {engine:?}: {counts:?}, {} wrong", wrong.len()));
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_text_case_is_answered_over_rocksdb() {
    run_over(WithFiles::Rocksdb);
}

#[test]
fn every_text_case_is_answered_over_flash() {
    run_over(WithFiles::Flash);
}

/// Debian 12 has the older one of the two releases that the fixture was measured with.
#[test]
fn debians_memcached_answers_as_the_fixture_says() {
    let server = subject::start_debians();
    let version = server.connect().ask("version\r\n", "\r\n");
    if version != "VERSION 1.6.18\r\n" {
        return skip("memcached.1.6.18", &format!("{} is another release", version.trim()));
    }
    let cases = Cases::read();
    wire::set_up(&server, &cases.setup);
    let (mut compared, mut wrong) = (0, Vec::new());
    for case in cases.all().filter_map(Case::at_1_6_18) {
        compared += 1;
        if let Err(why) = wire::run(&server, &case, &[case.input.len()], wire::PATIENCE) {
            wrong.push(format!("{} {}: {why}", case.id, case.name));
        }
    }
    tell(&format!("wire cases: {compared} of 1.6.18, {} wrong", wrong.len()));
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}

/// The suite itself: each way in which a reply can be wrong is seen.
#[test]
fn a_wrong_reply_is_seen() {
    let server = subject::start(Transport::Unix, "epoll");
    let judge = |input: &str, reply: &str, stays_open: bool| {
        let case = Case { stays_open, ..Case::new(input, reply) };
        wire::run(&server, &case, &[case.input.len()], Duration::from_secs(2))
    };
    judge("get nothing\r\n", "END\r\n", true).unwrap();
    judge("get nothing\r", "", true).unwrap();
    judge("quit\r\n", "", false).unwrap();
    for (what, input, reply, stays_open) in [
        ("another reply", "get nothing\r\n", "ENd\r\n", true),
        ("a reply too short", "get nothing\r\n", "END\r\nEND\r\n", true),
        ("a reply too long", "get nothing\r\nget nothing\r\n", "END\r\n", true),
        ("a reply where none belongs", "get nothing\r\n", "", true),
        ("closed and not open", "quit\r\n", "", true),
        ("open and not closed", "get nothing\r\n", "END\r\n", false),
        ("no name", "version\r\n", "VERSION UNKNOWN\r\nEND\r\n", true),
    ] {
        assert!(judge(input, reply, stays_open).is_err(), "not seen: {what}");
    }
}

#[test]
fn the_fixture_is_the_one_that_was_measured() {
    let cases = Cases::read();
    let (all, binary) = (cases.all().count(), cases.binary().count());
    let departures = cases.all().filter(|case| case.differs.is_some()).count();
    assert_eq!((all, binary, departures), (140, 28, 5));
    assert!(cases.all().map(|case| &case.id).is_sorted());
    tell(&format!(
        "wire cases: {all} cases, {binary} of them binary; {departures} depart on purpose\n"
    ));
}
