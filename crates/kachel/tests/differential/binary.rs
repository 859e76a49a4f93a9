//! Random requests of the binary protocol to two servers: the replies must be the same.
//!
//! Upstream:   the tests give two servers and a seed.
//! Downstream: the first difference, in words.
//!
//! - B1  Each request has its own opaque bytes, so that a reply names its request. `NOOP` ends a
//!   batch.
//! - B2  CAS tokens are not compared, but whether there is one, and whether the token of a key has
//!   changed.
//! - B3  memcached pads a number that has become shorter only if nothing else uses the item. So a
//!   change of a number is followed by a retrieval, whose value is compared without the spaces at
//!   its end, and by a `SETQ`.
//! - B4  Kachel refuses a number of more than 1,024 bytes before it compares the token, memcached
//!   one of more than 512 KiB.

use std::collections::HashMap;

use kachel_testkit::{Client, Random, Server};

/// Requests in the largest batch.
const BATCH_REQUESTS_MAX: usize = 48;
const KEY_COUNT: usize = 24;
const HEADER_BYTES: usize = 24;
const NOOP: u8 = 0x0a;
const EXISTS: u16 = 2;
const NOT_STORED: u16 = 5;
const NON_NUMERIC: u16 = 6;
/// Opcodes: retrievals, touches, stores, joins, deletes, changes of numbers.
const OPCODES: [u8; 23] = [
    0x00, 0x09, 0x0c, 0x0d, 0x1c, 0x1d, 0x1e, 0x23, 0x24, 0x01, 0x02, 0x03, 0x11, 0x12, 0x13, 0x0e,
    0x0f, 0x19, 0x1a, 0x04, 0x14, 0x05, 0x16,
];
/// Expiry times that no run reaches, and the one with which no number is created.
const EXPIRIES: [u32; 5] = [0, 1_000, 2_592_000, 0x8000_0000, u32::MAX];

/// A reply: opcode, status, body, and the lengths of extras and key.
type Shown = (u8, u16, Vec<u8>, [usize; 2]);

#[derive(Debug)]
struct Reply {
    opaque: u32,
    cas: u64,
    shown: Shown,
}

/// One request, without its CAS token, which differs between the servers.
struct Request {
    opcode: u8,
    extras: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
    /// Whether it names the newest token of its key, or one that no item has.
    token: Option<bool>,
}

/// The newest tokens of each key, as (ours, peer's).
type Tokens = HashMap<Vec<u8>, [u64; 2]>;

impl Request {
    fn noop() -> Self {
        Self { opcode: NOOP, extras: vec![], key: vec![], value: vec![], token: None }
    }

    fn random(random: &mut Random) -> Self {
        let opcode = OPCODES[random.index(OPCODES.len())];
        let expiry = EXPIRIES[random.index(EXPIRIES.len())].to_be_bytes();
        let flags = (random.bits() as u32).to_be_bytes();
        let extras = match opcode {
            0x1c..=0x1e | 0x23 | 0x24 => expiry.to_vec(),
            0x01..=0x03 | 0x11..=0x13 => [flags, expiry].concat(),
            0x05 | 0x16 => {
                let delta = [0, 1, 7, u64::MAX][random.index(4)].to_be_bytes();
                [&delta[..], &(random.bits() % 2_000).to_be_bytes(), &expiry].concat()
            }
            _ => Vec::new(),
        };
        let value = match opcode {
            0x01..=0x03 | 0x11..=0x13 | 0x0e | 0x0f | 0x19 | 0x1a => value(random),
            _ => Vec::new(),
        };
        let token = (random.index(4) == 0).then(|| random.index(3) > 0);
        Self { opcode, extras, key: key(random), value, token }
    }

    const fn is_number(&self) -> bool {
        matches!(self.opcode, 0x05 | 0x16)
    }

    fn after_a_number(key: &[u8], random: &mut Random) -> [Self; 2] {
        let value = (random.bits() % 1_000).to_string().into_bytes();
        [(0x0c, Vec::new(), Vec::new()), (0x11, vec![0; 8], value)].map(
            |(opcode, extras, value)| Self {
                opcode,
                extras,
                key: key.to_vec(),
                value,
                token: None,
            },
        )
    }

    fn text(&self, opaque: u32, side: usize, tokens: &Tokens) -> Vec<u8> {
        let token = match self.token {
            None => 0,
            Some(true) => tokens.get(&self.key).map_or(1 << 60, |both| both[side]),
            Some(false) => 1 << 61,
        };
        let body = self.extras.len() + self.key.len() + self.value.len();
        let mut text = vec![0x80, self.opcode];
        text.extend_from_slice(&(self.key.len() as u16).to_be_bytes());
        text.extend_from_slice(&[self.extras.len() as u8, 0, 0, 0]);
        text.extend_from_slice(&(body as u32).to_be_bytes());
        text.extend_from_slice(&opaque.to_be_bytes());
        text.extend_from_slice(&token.to_be_bytes());
        [&text, &self.extras[..], &self.key, &self.value].concat()
    }
}

fn key(random: &mut Random) -> Vec<u8> {
    let number = random.index(KEY_COUNT);
    match number {
        0 => vec![b'k'; 250],
        1 => b"with a space\r\n".to_vec(),
        2 => vec![0],
        _ => format!("key{number}").into_bytes(),
    }
}

fn value(random: &mut Random) -> Vec<u8> {
    match random.index(40) {
        0 => vec![b'x'; 1_100_000],
        1 => vec![b'a' + random.index(26) as u8; 16_000 + random.index(200_000)],
        2..=4 => Vec::new(),
        // Not white space alone: memcached looks for a number in the memory behind that.
        5..=12 => {
            let bytes = (0..random.index(300)).map(|_| random.bits() as u8);
            std::iter::once(b'v').chain(bytes).collect()
        }
        _ => (random.bits() % 1_000).to_string().into_bytes(),
    }
}

fn read(client: &mut Client) -> Reply {
    let mut header = [0; HEADER_BYTES];
    client.read_whole(&mut header);
    let number = |at: usize| u32::from_be_bytes(*header[at..].first_chunk().expect("a field"));
    let mut body = vec![0; number(8) as usize];
    client.read_whole(&mut body);
    if header[4] > 0 {
        body.truncate(body.trim_ascii_end().len()); // B3
    }
    let key_bytes = (number(0) & 0xffff) as usize;
    let status = (number(4) & 0xffff) as u16;
    Reply {
        opaque: number(12),
        cas: u64::from(number(16)) << 32 | u64::from(number(20)),
        shown: (header[1], status, body, [usize::from(header[4]), key_bytes]),
    }
}

/// Sends a batch and reads its replies, that to its `NOOP` last (B1).
fn exchange(client: &mut Client, text: &[u8], last: u32) -> Vec<Reply> {
    let mut replies = Vec::new();
    client.send(text);
    loop {
        replies.push(read(client));
        if replies.last().is_some_and(|reply| reply.opaque == last) {
            return replies;
        }
    }
}

fn show((opcode, status, body, lengths): &Shown) -> String {
    let cut = &body[..body.len().min(100)];
    format!(
        "{opcode:#x}, status {status:#x}, lengths {lengths:?}, {} bytes \"{}\"",
        body.len(),
        cut.escape_ascii()
    )
}

/// Compares the replies to `count` random requests. Returns how many there were.
///
/// Errors: the first difference.
pub(crate) fn compare(
    [ours, peer]: [&Server; 2],
    seed: u64,
    count: usize,
    plant: bool,
) -> Result<usize, String> {
    let mut random = Random::new(seed);
    let mut clients = [ours.connect(), peer.connect()];
    let mut tokens = Tokens::new();
    let (mut sent, mut answered) = (0, 0);
    while sent < count {
        let mut requests = Vec::new();
        while requests.len() < BATCH_REQUESTS_MAX && random.index(16) > 0 {
            let request = Request::random(&mut random);
            let number = request.is_number().then(|| request.key.clone());
            requests.push(request);
            if let Some(key) = number {
                requests.extend(Request::after_a_number(&key, &mut random)); // B3
            }
        }
        requests.push(Request::noop());
        let first = sent as u32;
        sent += requests.len();
        let last = sent as u32 - 1;
        let [ours, peer] = [0, 1].map(|side| {
            let texts = requests.iter().zip(first..);
            let text: Vec<u8> =
                texts.flat_map(|(request, opaque)| request.text(opaque, side, &tokens)).collect();
            exchange(&mut clients[side], &text, last)
        });
        answered += ours.len();
        if ours.len() != peer.len() {
            return Err(format!("{} replies, {} of the peer", ours.len(), peer.len()));
        }
        for (mut one, other) in ours.into_iter().zip(peer) {
            let request = &requests[(other.opaque - first) as usize];
            if plant && one.shown.1 == EXISTS && sent > count / 2 {
                one.shown.1 = NOT_STORED;
            }
            let shown = format!(
                "request {} {:#x} for \"{}\", token {:?}: {}, {} of the peer; tokens {} and {}",
                other.opaque,
                request.opcode,
                request.key.escape_ascii(),
                request.token,
                show(&one.shown),
                show(&other.shown),
                one.cas,
                other.cas
            );
            if request.is_number() && (one.shown.1, other.shown.1) == (NON_NUMERIC, EXISTS) {
                continue; // B4
            }
            let same_token = (one.cas == 0) == (other.cas == 0);
            if one.opaque != other.opaque || one.shown != other.shown || !same_token {
                return Err(shown);
            }
            if one.cas == 0 {
                continue;
            }
            let new = [one.cas, other.cas];
            let old = tokens.insert(request.key.clone(), new).unwrap_or_default();
            if (old[0] == new[0]) != (old[1] == new[1]) {
                return Err(shown); // B2
            }
        }
    }
    Ok(answered)
}
