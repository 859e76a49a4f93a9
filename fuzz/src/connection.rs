//! One client and a whole server in memory: what it is answered depends on what it sends, and on
//! nothing else.
//!
//! Upstream:   the connection target gives a script.
//! Downstream: `testkit`, for a whole server in memory, played until it is at rest.
//!
//! The script is played once, and one in `COMPARED` twice, each time on a new server:
//!
//! | | shards | sent | read | beside other clients |
//! |---|---|---|---|---|
//! | cut | 1 or 3 | in the script's pieces | as the script says | if there are 3 shards |
//! | plain | 1 | whole | at once | no |
//!
//! Nearly all that a comparison finds the model finds as well, in a part of the time. Which scripts
//! are compared, and which of those that ask for shards get them, their bytes decide.
//!
//! Invariants:
//! - I1  `cut` over one shard is answered as `plain` is, byte for byte.
//! - I2  Over three it is, but for the CAS tokens, which come from the shard.
//! - I3  What a server answers, a client reads; it ends with a whole reply.
//! - I4  What is answered is right, request by request (`sequence`).
//! - I5  When the client is gone the server has closed its connection, and serves others.
//!
//! Some requests are answered by what the server has counted or by whether a reply is still on its
//! way. A script with one of those words in it is played, but not compared.

use kachel_io::FarEnd;
use kachel_testkit::{World, WorldOptions};
use kachel_wire::client::{ClientReply, ReplyParsed, parse_reply};

use crate::client::lot;
use crate::script::Script;
use crate::sequence::{Answered, judge};

/// Unix time at which a server begins.
pub(crate) const START_UNIX_S: i64 = 1_800_000_000;
/// Memory of a server: far more than a script can fill, and little to set up.
const MEMORY_BYTES: u64 = 8 << 20;
/// Bytes of replies that a client takes: what comes behind them is not looked at.
const REPLY_BYTES_MAX: usize = 192 * 1024;
/// Pieces between which a server is given time to answer.
const PATIENT_PIECES_MAX: usize = 64;
/// Steps in which a slow client reads before it takes the rest.
const READING_STEPS_MAX: usize = 48;
/// Largest items, by the script's choice.
const ITEM_BYTES_MAX: [u64; 2] = [1 << 20, 20_000];
/// One script of so many is played plainly too.
const COMPARED: u64 = 8;
/// One script of so many that ask for it is played over three shards: that takes three times as
/// long.
const SPREAD: u64 = 8;
/// One script of so many has other clients that fill the rings.
const LOUD: u64 = 64;
/// Pieces of the script for each request of the other clients.
const NOISE_EVERY: usize = 16;

/// Words in whose presence the answers may differ: whether earlier replies are still on their way
/// (`watch`, `lru_crawler`) depends on the cuts.
const UNDEFINED: [&[u8]; 2] = [b"lru_crawler", b"watch"];
/// Words in whose presence only servers of as many shards answer alike: a client that knows a CAS
/// token, memory that is divided.
const UNDEFINED_OVER_SHARDS: [&[u8]; 4] = [b"cas ", b" C", b" E", b"cache_memlimit"];

/// What came of a script.
struct Played {
    reply: Vec<u8>,
    closed: bool,
}

impl Played {
    /// Whether the client took all that there was.
    fn is_whole(&self) -> bool {
        self.reply.len() < REPLY_BYTES_MAX
    }
}

/// Plays `data` as a script.
pub fn connection(data: &[u8]) {
    let mut script = Script::of(data);
    let lot = lot(data) >> 16;
    if !(lot / COMPARED).is_multiple_of(SPREAD) {
        script.home = None;
    }
    let is_loud = (lot / COMPARED / SPREAD).is_multiple_of(LOUD);
    let cut = play(&script, &Manner { spread: script.home, in_pieces: true, is_loud });
    if contains_any(&script.stream, &UNDEFINED) {
        return;
    }
    judged(&script, &cut);
    if lot.is_multiple_of(COMPARED) {
        compared(&script, &cut);
    }
}

/// Whether each request is answered rightly (I4).
fn judged(script: &Script, played: &Played) {
    let (is_whole, closed) = (played.is_whole(), played.closed);
    judge(script, item_bytes_max(script), &Answered { reply: &played.reply, is_whole, closed });
}

/// Whether the script is answered as when it is played plainly (I1, I2).
fn compared(script: &Script, cut: &Played) {
    let plain = play(script, &Manner { spread: None, in_pieces: false, is_loud: false });
    judged(script, &plain);
    if contains_any(&script.stream, &[b"stats"]) {
        if script.home.is_none() {
            same_lines(&plain, cut);
        }
        return;
    }
    if script.home.is_none() {
        assert!(plain.reply == cut.reply, "I1: {}", difference(&plain.reply, &cut.reply));
        assert!(!plain.is_whole() || plain.closed == cut.closed, "I1: closed");
        let _read = without_tokens(cut);
        return;
    }
    if contains_any(&script.stream, &UNDEFINED_OVER_SHARDS) {
        return;
    }
    let (one, other) = (without_tokens(&plain), without_tokens(cut));
    if plain.is_whole() && cut.is_whole() {
        assert!(one == other, "I2: {}", difference(&one, &other));
        assert_eq!(plain.closed, cut.closed, "I2: closed");
    } else {
        let both = one.len().min(other.len());
        assert!(one[..both] == other[..both], "I2: {}", difference(&one, &other));
    }
}

fn item_bytes_max(script: &Script) -> u64 {
    ITEM_BYTES_MAX[usize::from(script.small_items)]
}

/// How a script is played.
struct Manner {
    /// The shard of three that the client comes to; `None`: there is one.
    spread: Option<usize>,
    in_pieces: bool,
    is_loud: bool,
}

/// Plays a script on a new server.
fn play(script: &Script, manner: &Manner) -> Played {
    let mut world = World::new(WorldOptions {
        shards: if manner.spread.is_some() { 3 } else { 1 },
        memory_bytes: MEMORY_BYTES,
        item_bytes_max: item_bytes_max(script),
        start_unix_s: START_UNIX_S,
        ..WorldOptions::default()
    });
    // Connections are dealt out in turn.
    let before: Vec<_> = (0..manner.spread.unwrap_or(0)).map(|_| world.connect()).collect();
    let client = world.connect();
    world.rest();
    let noise =
        (script.noise && manner.spread.is_some()).then(|| Noise::new(&mut world, manner.is_loud));
    client.stall();
    let reply = if manner.in_pieces {
        send_in_pieces(script, &mut world, &client, noise.as_ref())
    } else {
        client.allow(REPLY_BYTES_MAX);
        let (at, seconds) = script.pause.unwrap_or((0, 0));
        client.write(&script.stream[..at]);
        if seconds > 0 {
            world.rest();
            advance_s(&mut world, seconds);
        }
        client.write(&script.stream[at..]);
        world.rest();
        client.read()
    };
    let played = Played { reply, closed: client.is_closed() };
    assert!(played.reply.len() <= REPLY_BYTES_MAX);
    leave(script, &mut world, &client);
    let mut others = before;
    others.extend(noise.into_iter().flat_map(|noise| noise.clients));
    all_leave(&mut world, others);
    played
}

fn send_in_pieces(
    script: &Script,
    world: &mut World,
    client: &FarEnd,
    noise: Option<&Noise>,
) -> Vec<u8> {
    let mut allowed = 0;
    let mut allow = |bytes: usize| {
        let bytes = bytes.min(REPLY_BYTES_MAX - allowed);
        allowed += bytes;
        client.allow(bytes);
        allowed
    };
    if script.reading_step == 0 {
        allow(REPLY_BYTES_MAX);
    }
    let patient = script.patient && script.cuts.len() <= PATIENT_PIECES_MAX;
    let mut sent_bytes = 0;
    for (number, piece) in script.pieces().enumerate() {
        if let Some(noise) = noise
            && number % NOISE_EVERY == 0
        {
            noise.ask(number / NOISE_EVERY);
        }
        if let Some((_, seconds)) = script.pause.filter(|(at, _)| *at == sent_bytes) {
            // What came so far is to be served by now.
            allow(REPLY_BYTES_MAX);
            world.rest();
            advance_s(world, seconds);
        }
        client.write(piece);
        sent_bytes += piece.len();
        if patient {
            world.rest();
        } else {
            world.round();
        }
    }
    let mut reply = Vec::new();
    for _ in 0..READING_STEPS_MAX {
        if script.reading_step == 0 {
            break;
        }
        let allowed = allow(script.reading_step);
        let is_busy = world.round();
        reply.extend(client.read());
        if !is_busy && reply.len() < allowed {
            break; // There is no more.
        }
    }
    world.rest();
    allow(REPLY_BYTES_MAX);
    world.rest();
    reply.extend(client.read());
    reply
}

/// So many seconds pass; every shard sees it.
fn advance_s(world: &mut World, seconds: u32) {
    world.clock.advance_s(seconds.into());
    world.turn();
}

/// The client goes (I5).
fn leave(script: &Script, world: &mut World, client: &FarEnd) {
    if script.resets {
        client.reset();
    } else {
        client.allow_all();
        client.finish();
    }
    world.rest();
    assert!(script.resets || client.is_closed(), "I5: the connection is still open");
}

/// Another client is served; when all are gone, nothing is kept for any (I5).
fn all_leave(world: &mut World, mut others: Vec<FarEnd>) {
    let next = world.connect();
    next.write(b"mn\r\n");
    world.rest();
    assert_eq!(next.read(), b"MN\r\n", "I5");
    others.push(next);
    others.iter().for_each(FarEnd::reset);
    world.rest();
    for held in world.holdings() {
        let kept = [
            held.connections,
            held.reply_slots,
            held.uploads,
            held.stalled,
            held.input_bytes,
            held.owed_bytes,
        ];
        assert_eq!(kept, [0; 6], "I5: {held:?}");
    }
    world.audit();
}

/// Clients that keep the rings busy while the script is played. They have keys of their own.
struct Noise {
    clients: Vec<FarEnd>,
    value_bytes: usize,
    keys: usize,
}

impl Noise {
    /// Those of a loud one ask for more than a ring holds.
    fn new(world: &mut World, is_loud: bool) -> Self {
        let clients: Vec<_> = (0..3).map(|_| world.connect()).collect();
        world.rest();
        let (value_bytes, keys) = if is_loud { (9_000, 40) } else { (60, 9) };
        let noise = Self { clients, value_bytes, keys };
        for (number, client) in noise.clients.iter().enumerate() {
            client.write(&noise.set(number));
        }
        world.rest();
        noise
    }

    fn set(&self, number: usize) -> Vec<u8> {
        let head = format!("set noise{number} 0 0 {} noreply\r\n", self.value_bytes);
        let mut set = head.into_bytes();
        set.resize(set.len() + self.value_bytes, b'n');
        set.extend_from_slice(b"\r\n");
        set
    }

    fn ask(&self, turn: usize) {
        for (number, client) in self.clients.iter().enumerate() {
            client.write(&self.set((number + turn) % 8));
            let mut line = b"get".to_vec();
            for key in 0..self.keys {
                line.extend_from_slice(format!(" noise{}", (number + key) % 8).as_bytes());
            }
            line.extend_from_slice(b"\r\n");
            client.write(&line);
            let _taken = client.read();
        }
    }
}

/// The replies with the CAS tokens out of them (I2), each read as a client reads it (I3).
fn without_tokens(played: &Played) -> Vec<u8> {
    let mut text = Vec::with_capacity(played.reply.len());
    let mut rest = &played.reply[..];
    while !rest.is_empty() {
        let (reply, reply_bytes) = match parse_reply(rest) {
            ReplyParsed::Reply { reply, reply_bytes } => (reply, reply_bytes),
            ReplyParsed::NeedMore { .. } if !played.is_whole() => return text,
            other => panic!("I3: {other:?} of {}", excerpt(rest)),
        };
        match reply {
            ClientReply::Value { key, client_flags, value, cas: Some(_) } => {
                text.extend_from_slice(key);
                text.extend_from_slice(&client_flags.to_le_bytes());
                text.extend_from_slice(&rest[value]);
            }
            ClientReply::Meta { code, flags, value } => {
                text.extend_from_slice(&code);
                for flag in flags.split(|&byte| byte == b' ') {
                    let is_token = flag.first() == Some(&b'c');
                    text.extend_from_slice(if is_token { b"c" } else { flag });
                    text.push(b' ');
                }
                text.extend_from_slice(&rest[value.unwrap_or(0..0)]);
            }
            // Its token, and the size, which counts the token's bytes.
            ClientReply::Debug(_) => text.extend_from_slice(b"ME"),
            _ => text.extend_from_slice(&rest[..reply_bytes]),
        }
        rest = &rest[reply_bytes..];
    }
    text
}

/// Of servers that were asked for statistics: the same lines but for those.
fn same_lines(one: &Played, other: &Played) {
    fn lines(played: &Played) -> impl Iterator<Item = &[u8]> {
        let lines = played.reply.split_inclusive(|&byte| byte == b'\n');
        lines.filter(|line| !line.starts_with(b"STAT "))
    }
    if one.is_whole() && other.is_whole() {
        assert!(lines(one).eq(lines(other)), "I1: {}", difference(&one.reply, &other.reply));
    }
}

fn contains_any(text: &[u8], words: &[&[u8]]) -> bool {
    words.iter().any(|word| memchr::memmem::find(text, word).is_some())
}

/// Where two texts part, and what stands there.
fn difference(one: &[u8], other: &[u8]) -> String {
    let at = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let start = at.saturating_sub(40);
    format!("at byte {at}:\n  {}\n  {}", excerpt(&one[start..]), excerpt(&other[start..]))
}

fn excerpt(text: &[u8]) -> String {
    format!("({} bytes) {}", text.len(), text[..text.len().min(160)].escape_ascii())
}
