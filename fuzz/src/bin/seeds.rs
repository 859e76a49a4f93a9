//! Writes the seeds of every target, made from the measured wire cases: `seeds FOLDER`.
//!
//! Each target has one folder, and each seed one file. The connection target's seeds are the inputs
//! of the cases after the cases' set-up, played in three ways: in one piece, byte by byte, and by a
//! slow client of a server with three shards. The parser targets' seeds are the lines of the cases.
//! The client target's seeds are the replies. The udp target's seeds are the inputs as datagrams,
//! the together target's are steps with them, and the options target's are the settings of the
//! example file.

use std::collections::BTreeSet;
use std::io::Result;
use std::path::Path;

use kachel_fuzz::{META_VERBS, escaped, plan, repeated};
use kachel_options::example_file;
use serde_json::Value;

const FIXTURE: &str = include_str!("../../../crates/kachel/tests/fixtures/wire_cases.json");
// This binary does not fuzz. It is built with edge counters, which libFuzzer provides where
// AddressSanitizer does not. If the linker takes more of libFuzzer than that, libFuzzer needs a
// target.
libfuzzer_sys::fuzz_target!(|_input: &[u8]| {});

/// Longer seeds are left out, because a fuzzer that starts with small seeds is faster.
const SEED_BYTES_MAX: usize = 2048;
/// The ways in which each case is played: bytes per piece, switches, reading step.
const WAYS: [(u8, u8, u8); 3] = [(0, 0, 0), (1, 0, 0), (7, 0b10_0001, 1)];
/// The short items among the items that the cases expect.
const SET_UP: &[u8] = b"set num 0 0 2\r\n10\r\nset txt 0 0 3\r\nabc\r\nset max 0 0 20\r\n\
                        18446744073709551615\r\n";
/// A line, a unit, the number of units after the line, and the bytes after the units.
type Large = (&'static [u8], &'static [u8], usize, &'static [u8]);
/// Scripts that the cases lack: values too large for a segment, many replies, and both at once.
const LARGE: [Large; 4] = [
    (b"set l 0 0 20000\r\n", b"v", 20_000, b"\r\nget l\r\nms l 16400 T0 c\r\n"),
    (b"ms l 16384 c\r\n", b"w", 16_384, b"\r\nmg l v c\r\nget l l l l l l\r\ndelete l\r\n"),
    (b"set a 0 0 9000\r\n", b"x", 9_000, b"\r\nget a b a c a d a e a f a g a h a i a\r\nmn\r\n"),
    (b"append l 0 0 17000 noreply\r\n", b"y", 17_000, b"\r\nmd l q\r\nset l 0 0 3\r\nabc\r\n"),
];

/// The servers of the together target's seeds: one or three shards, with and without logins.
const PICKS: [u8; 4] = [0, 0b1001, 0b10, 0b111];

/// A stream of the binary target: set, get, incr, touch, an unknown opcode and a noop.
const BINARY_FIELDS: &[u8] = &[
    1, 0x01, 2, 3, 9, 0, 0x00, 0, 3, 0, 0, 0x15, 3, 3, 0, 1, 0x1c, 1, 250, 0, 0, 0xff, 0, 3, 2, 0,
    0x0a, 0, 0, 0, 0,
];

/// A script with a pause, which the cases lack too. `main` makes a seed for each place of a pause.
const TIMES: &[u8] = b"set a 0 1 1\r\na\r\nset b 0 2 1\r\nb\r\nset c 0 0 1\r\nc\r\n\
                       touch c 1\r\nms d 1 T1\r\nd\r\nmg d t v\r\nflush_all 2\r\n\
                       get a b c d\r\nmg b t v\r\ngat 0 b\r\nmg b t R30\r\nmg z N5 t v\r\n";

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).expect("seeds FOLDER");
    let folder = Path::new(&folder);
    let fixture: Value = serde_json::from_str(FIXTURE).expect("the fixture is JSON");
    let cases = fixture["cases"].as_array().expect("cases");
    let (mut text, mut meta) = (BTreeSet::new(), BTreeSet::new());
    let mut binary = BTreeSet::from([BINARY_FIELDS.to_vec()]);
    let (mut client, mut connection) = (BTreeSet::new(), BTreeSet::new());
    let (mut udp, mut together) = (BTreeSet::new(), BTreeSet::new());
    for case in cases {
        let stream = words(&case["input"]);
        if stream.first() == Some(&0x80) {
            binary.insert([&[0], &stream[..]].concat());
        }
        for line in stream.split_inclusive(|&byte| byte == b'\n') {
            let verb = META_VERBS.iter().position(|verb| line.starts_with(verb));
            let (verb, seeds, line) = match verb {
                Some(verb) => (verb, &mut meta, &line[3..]),
                None => (0, &mut text, line),
            };
            let mut seed = vec![u8::try_from(verb).expect("few verbs")];
            seed.extend_from_slice(line);
            seeds.insert(seed);
        }
        udp.insert([&[0], &datagram(SET_UP)[..], &datagram(&stream)].concat());
        for pick in PICKS {
            together.insert([&[pick], &steps(&stream)[..]].concat());
        }
        if !case["reply"].is_null() {
            client.insert(words(&case["reply"]));
        }
        for way in WAYS {
            let plan = plan(way, &[]);
            connection.insert([SET_UP, &stream, &plan].concat());
        }
    }
    for (line, unit, times, behind) in LARGE {
        let value = repeated(unit, times).expect("a short unit");
        for way in WAYS {
            let plan = plan(way, &[100, 16_000]);
            connection.insert([line, &value, behind, &plan].concat());
        }
    }
    for cut in [30, 60, 75, 90, 100, 110] {
        for way in WAYS {
            connection.insert([TIMES, &plan(way, &[cut])].concat());
        }
    }
    for (target, seeds) in [
        ("text", text),
        ("meta", meta),
        ("binary", binary),
        ("client", client),
        ("connection", connection),
        ("udp", udp),
        ("together", together),
        ("options", option_seeds()),
    ] {
        write(&folder.join(target), &seeds)?;
    }
    // The canary target needs no special seed, only a folder with a seed to start from.
    write(&folder.join("canary"), &BTreeSet::from([b"get k\r\n".to_vec()]))
}

/// Each setting of the example file, alone and as words of a command line, and some of memcached's.
fn option_seeds() -> BTreeSet<Vec<u8>> {
    let mut seeds = BTreeSet::new();
    let mut table = "";
    for line in example_file().lines() {
        let setting = line.trim_start_matches('#').trim();
        if line.starts_with('[') {
            table = line;
        } else if let Some((key, value)) = setting.split_once(" = ") {
            let (value, dashes) =
                (value.trim_matches('"'), if key.len() == 1 { "-" } else { "--" });
            seeds.insert(format!("{table}\n{setting}\n").into_bytes());
            seeds.insert(format!("{dashes}{key}\t{value}").into_bytes());
            seeds.insert(format!("-o\t{key}={value}").into_bytes());
        }
    }
    for words in ["-l\tnotls:127.0.0.1:1,proto[ascii]:[::1]:2;tag_a_:*", "-vv\t-m\t64\t-t\t4\t-A"] {
        seeds.insert(words.into());
    }
    seeds
}

/// The encoding of a datagram in a frame.
fn datagram(request: &[u8]) -> Vec<u8> {
    let [low, high] = (request.len() as u16 & 0x3fff).to_le_bytes();
    [&[low, high], request].concat()
}

/// Steps of the together target: a login, the request by a client and as a datagram, other users, a
/// second client that reads late, and another client that watches.
fn steps(request: &[u8]) -> Vec<u8> {
    let step = |head: u8, bytes: &[u8]| {
        let [low, high] = (bytes.len() as u16 & 0x3fff).to_le_bytes();
        [&[head, low, high], bytes].concat()
    };
    let all: [(u8, &[u8]); 9] = [
        (0x0d, b""),
        (0x00, request),
        (0x04, request),
        (0x09, b"u:other\n"),
        (0x1b, b""),
        (0x1d, b""),
        (0x10, request),
        (0x08, b""),
        (0x0f, b""),
    ];
    all.iter().flat_map(|(head, bytes)| step(*head, bytes)).collect()
}

fn write(folder: &Path, seeds: &BTreeSet<Vec<u8>>) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let short = seeds.iter().filter(|seed| seed.len() <= SEED_BYTES_MAX);
    for (number, seed) in short.clone().enumerate() {
        std::fs::write(folder.join(format!("seed-{number:04}")), seed)?;
    }
    println!("{}: {} seeds", folder.display(), short.count());
    Ok(())
}

/// The encoding of a list of pieces, each `[hex, repeat count]`.
fn words(pieces: &Value) -> Vec<u8> {
    let mut text = Vec::new();
    for piece in pieces.as_array().expect("a list of pieces") {
        let hex = piece[0].as_str().expect("hex");
        let times = piece[1].as_u64().expect("a count");
        let unit: Vec<u8> = (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex"))
            .collect();
        let times = usize::try_from(times).expect("few");
        let repeated = if times == 1 { None } else { repeated(&unit, times) };
        text.extend(repeated.unwrap_or_else(|| escaped(&unit)));
    }
    text
}
