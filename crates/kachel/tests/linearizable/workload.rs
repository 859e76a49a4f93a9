//! The requests of a client: all verbs, few keys, values that identify their writer.
//!
//! Upstream:   a seeded stream of numbers.
//! Downstream: request bytes, one request at a time.
//!
//! - P1  Each value that is stored whole is new, so that a read identifies the store that wrote it.
//! - P2  The first quarter of the keys holds numbers.

use std::collections::HashMap;
use std::io::Write as _;

use kachel_check::{Operation, Outcome};

use kachel_testkit::Random;

/// Which verbs are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavor {
    /// The classic ones.
    Classic,
    /// Those and the meta ones, leases among them.
    Meta,
}

/// One request in this number is `flush_all`: about ten requests for each key are between two of
/// them.
const FLUSH_EVERY: u64 = 500;
/// One request in this number is `flush_prefix`, which takes one key or about a quarter of them.
const FLUSH_PREFIX_EVERY: u64 = 150;
/// Bytes of the values that the server takes in pieces: above 16 KiB.
const LARGE_BYTES: usize = 20_000;

/// Tokens of the clients' own begin here, far above those of a server.
const OWN_TOKENS: u64 = 1 << 40;
/// What `mg` asks: values, facts, leases.
const GET_FLAGS: [&str; 12] = [
    "v",
    "v c",
    "v c t f s",
    "v h l",
    "v u h",
    "v c N100",
    "N0 t c",
    "t R5000 v",
    "R100 v t",
    "v T1000 t",
    "t T0 v",
    "k O7 v",
];
/// What `ma` asks.
const COUNT_FLAGS: [&str; 5] = ["v", "v c t", "MD D3 v", "N100 J50 v", "N0 J7 T1000 t"];

/// A refusal that requests of ours may meet: a number was asked of something else, since a client
/// appended to it or emptied it; or many prefixes were flushed since upkeep has run.
pub(crate) fn may_be_refused(line: &[u8]) -> bool {
    line == b"CLIENT_ERROR cannot increment or decrement non-numeric value"
        || line == b"SERVER_ERROR too many prefixes are being flushed"
}

/// A client's memory: which tokens it saw, and how many values it has made.
pub(crate) struct Workload {
    client: u32,
    values: u64,
    tokens: HashMap<Vec<u8>, u64>,
}

impl Workload {
    pub(crate) fn new(client: u32) -> Self {
        Self { client, values: 0, tokens: HashMap::new() }
    }

    /// Remembers a token that was shown.
    pub(crate) fn learn(&mut self, operation: &Operation, outcome: &Outcome) {
        let token = match outcome {
            Outcome::Hit { cas: Some(token), .. } => Some(*token),
            Outcome::Meta { flags, .. } => flags
                .split(|byte| *byte == b' ')
                .find_map(|flag| std::str::from_utf8(flag.strip_prefix(b"c")?).ok()?.parse().ok()),
            _ => None,
        };
        if let Some(token) = token {
            self.tokens.insert(operation.key().to_vec(), token);
        }
    }

    fn value(&mut self, random: &mut Random, is_number: bool) -> Vec<u8> {
        self.values += 1;
        if is_number {
            return (self.values * 1_000 + u64::from(self.client) * 100).to_string().into_bytes();
        }
        let mut value = format!("{}.{}", self.client, self.values).into_bytes();
        if random.below(100) == 0 {
            value.resize(LARGE_BYTES, b'.');
        }
        value
    }

    /// Seconds of life: mostly for ever, or longer than the test; now and then one.
    fn ttl(random: &mut Random) -> i32 {
        random.pick(&[0, 0, 0, 0, 0, 0, 0, 0, 1_000, 1])
    }

    /// Words one request of one of `keys`, or of several. Of a connection that is to be reset it
    /// is no flush: what may come late must not meet the next history.
    pub(crate) fn ask(
        &mut self,
        random: &mut Random,
        keys: &[Vec<u8>],
        (flavor, resets): (Flavor, bool),
        sink: &mut Vec<u8>,
    ) {
        let index = random.below(keys.len() as u64) as usize;
        let key = String::from_utf8_lossy(&keys[index]).into_owned();
        let is_number = index < keys.len() / 4;
        if !resets && random.below(FLUSH_EVERY) == 0 {
            sink.extend_from_slice(b"flush_all\r\n");
        } else if !resets && random.below(FLUSH_PREFIX_EVERY) == 0 {
            // `bytes` takes the keys whose number begins with the same digit.
            let cut = key.find(':').map_or(key.len(), |at| at + 2);
            let (prefix, bytes) =
                if random.percent(50) { (&key[..], "") } else { (&key[..cut], " bytes") };
            write!(sink, "flush_prefix {prefix}{bytes}\r\n").expect("a vector takes everything");
        } else if flavor == Flavor::Meta && random.percent(50) {
            self.meta(random, &key, is_number, sink);
        } else if is_number && random.percent(40) {
            let (verb, delta) = (random.pick(&["incr", "incr", "decr"]), random.below(9) + 1);
            write!(sink, "{verb} {key} {delta}\r\n").expect("a vector takes everything");
        } else {
            self.classic(random, keys, (&key, is_number), sink);
        }
    }

    fn classic(
        &mut self,
        random: &mut Random,
        keys: &[Vec<u8>],
        (key, is_number): (&str, bool),
        sink: &mut Vec<u8>,
    ) {
        let noreply = if random.percent(20) { " noreply" } else { "" };
        let written = match random.below(100) {
            0..30 => write!(sink, "get {key}\r\n"),
            30..42 => write!(sink, "gets {key}\r\n"),
            42..50 => {
                let from = random.below(keys.len() as u64 - 4) as usize;
                sink.extend_from_slice(random.pick(&[b"get ", b"gets"]));
                for key in &keys[from..from + 2 + random.below(3) as usize] {
                    sink.push(b' ');
                    sink.extend_from_slice(key);
                }
                write!(sink, "\r\n")
            }
            50..80 => {
                let verb = match random.below(30) {
                    0..16 => "set",
                    16..21 => "add",
                    21..24 => "replace",
                    24..26 if !is_number => "append",
                    26..28 if !is_number => "prepend",
                    _ => "cas",
                };
                let value = self.value(random, is_number);
                let (flags, ttl) = (random.below(3), Self::ttl(random));
                write!(sink, "{verb} {key} {flags} {ttl} {}", value.len()).expect("a vector");
                if verb == "cas" {
                    let token = self.tokens.get(key.as_bytes()).copied().unwrap_or(1);
                    write!(sink, " {token}").expect("a vector");
                }
                sink.extend_from_slice(noreply.as_bytes());
                sink.extend_from_slice(b"\r\n");
                sink.extend_from_slice(&value);
                write!(sink, "\r\n")
            }
            80..90 => write!(sink, "delete {key}{noreply}\r\n"),
            90..95 => write!(sink, "touch {key} {}{noreply}\r\n", Self::ttl(random)),
            _ => {
                let verb = random.pick(&["gat", "gats"]);
                write!(sink, "{verb} {} {key}\r\n", Self::ttl(random))
            }
        };
        written.expect("a vector takes everything");
    }

    fn meta(&mut self, random: &mut Random, key: &str, is_number: bool, sink: &mut Vec<u8>) {
        let token = self.tokens.get(key.as_bytes()).copied().unwrap_or(1);
        let quiet = if random.percent(15) { " q" } else { "" };
        let written = match random.below(100) {
            0..40 => {
                let flags = match random.below(13) {
                    12 => format!("v C{token} c"),
                    at => GET_FLAGS[at as usize].to_owned(),
                };
                if random.percent(10) {
                    sink.extend_from_slice(b"mg ");
                    kachel_wire::format::put_base64(sink, key.as_bytes());
                    write!(sink, " b k {flags}\r\n", flags = flags.replace('k', "P1"))
                } else {
                    write!(sink, "mg {key} {flags}{quiet}\r\n")
                }
            }
            40..70 => {
                let value = self.value(random, is_number);
                let flags = match random.below(9) {
                    0..3 => "c".to_owned(),
                    3 => "c T1000 F7".to_owned(),
                    4 => format!("c C{token}"),
                    5 => format!("I C{token}"),
                    6 => "ME c".to_owned(),
                    7 if random.percent(50) => format!("c E{}", OWN_TOKENS + self.values),
                    7 => format!("C{token} c s k"),
                    _ if is_number => "MR".to_owned(),
                    _ => random.pick(&["MA c s", "MP", "MA N100"]).to_owned(),
                };
                if random.percent(20) {
                    sink.extend_from_slice(b"ms ");
                    kachel_wire::format::put_base64(sink, key.as_bytes());
                    write!(sink, " {} {flags} b{quiet}\r\n", value.len()).expect("a vector");
                } else {
                    write!(sink, "ms {key} {} {flags}{quiet}\r\n", value.len()).expect("a vector");
                }
                sink.extend_from_slice(&value);
                write!(sink, "\r\n")
            }
            70..85 => {
                let flags = match random.below(7) {
                    0..2 => "k".to_owned(),
                    2 => format!("C{token}"),
                    3 => "I T100".to_owned(),
                    4 => "x F9".to_owned(),
                    5 => format!("C{token} I"),
                    _ => "I x".to_owned(),
                };
                write!(sink, "md {key} {flags}{quiet}\r\n")
            }
            85..97 if is_number => {
                let flags = match random.below(6) {
                    5 => format!("C{token} v c"),
                    at => COUNT_FLAGS[at as usize].to_owned(),
                };
                write!(sink, "ma {key} {flags}{quiet}\r\n")
            }
            _ => write!(sink, "me {key}\r\n"),
        };
        written.expect("a vector takes everything");
    }
}
