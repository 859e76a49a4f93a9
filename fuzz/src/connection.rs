//! One client and a whole server in memory. The replies depend only on the bytes that the client
//! sends.
//!
//! Upstream:   the connection target, which provides a script.
//! Downstream: `testkit`, which runs a whole server in memory until the server is at rest.
//!
//! Each script is played once as `cut`. One script in `COMPARED` is played as `plain` too. Each
//! time the server is new:
//!
//! | | shards | sent | read | other clients |
//! |---|---|---|---|---|
//! | cut | 1 or 3 | in the script's pieces | as the script says | only with 3 shards |
//! | plain | 1 | whole | at once | none |
//!
//! In some scripts, a client watches the log while `cut` is played. That changes no reply.
//!
//! The model finds nearly everything that a comparison finds, in a fraction of the time. The bytes
//! of a script decide whether it is compared, and whether a script that requests three shards gets
//! them.
//!
//! Invariants:
//! - I1  `cut` with one shard gets the same reply bytes as `plain`.
//! - I2  `cut` with three shards gets the same replies as `plain`, except for the CAS tokens, which
//!   the shards choose.
//! - I3  A client can parse everything that the server sends, and the last reply is complete.
//! - I4  Each request gets a correct reply (`sequence`).
//! - I5  When the client is gone, the server has closed its connection and serves others.
//!
//! Some replies depend on the server's counters or on whether an earlier reply is still being sent.
//! A script with such a request is played, but it is not compared, or only in part.

use kachel_io::FarEnd;
use kachel_testkit::{World, WorldOptions};
use kachel_wire::client::{ClientReply, ReplyParsed, parse_reply};
use kachel_wire::request::{Admin, Request};
use kachel_wire::{Parsed, begins_binary, parse_binary};

use crate::client::lot;
use crate::script::Script;
use crate::sequence::{Answered, Served, judge};

/// The Unix time at which a server starts.
pub(crate) const START_UNIX_S: i64 = 1_800_000_000;
/// The memory of a server: far more than a script can fill, and quick to set up.
const MEMORY_BYTES: u64 = 8 << 20;
/// The most reply bytes that a client reads. Later bytes are not checked.
const REPLY_BYTES_MAX: usize = 192 * 1024;
/// A script with more cuts than this leaves the server no time to answer between two pieces.
const PATIENT_PIECES_MAX: usize = 64;
/// The most steps in which a slow client reads before it reads the rest at once.
const READING_STEPS_MAX: usize = 48;
/// The sizes of the largest item. A script chooses one of them.
const ITEM_BYTES_MAX: [u64; 2] = [1 << 20, 20_000];
/// One script in `COMPARED` is played as `plain` too.
const COMPARED: u64 = 8;
/// One script in `SPREAD` gets three shards if it requests them, because that takes three times as
/// long.
const SPREAD: u64 = 8;
/// In one script in `LOUD`, the other clients fill the rings.
const LOUD: u64 = 64;
/// In one script in `WATCHED`, a client watches the log, and requests are counted by prefix.
const WATCHED: u64 = 4;
/// The number of pieces of the script for each request of the other clients.
const NOISE_EVERY: usize = 16;

/// With these words, the replies may depend on the cuts: the server checks whether earlier replies
/// are still being sent.
const UNDEFINED: [&[u8]; 2] = [b"lru_crawler", b"watch"];
/// With these words, the replies may depend on the number of shards: a request names a CAS token or
/// the token of a lease, or it uses or changes memory that the shards divide.
const UNDEFINED_OVER_SHARDS: [&[u8]; 5] = [b"cas ", b" C", b" E", b"cache_memlimit", b"lease-"];

/// The result of playing a script.
struct Played {
    reply: Vec<u8>,
    closed: bool,
}

impl Played {
    /// Whether the client read all replies.
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
    // Statistics show the client that watches.
    let is_watched = lot.is_multiple_of(WATCHED) && !contains_any(&script.stream, &[b"stats"]);
    let manner = Manner { spread: script.home, in_pieces: true, is_loud, is_watched };
    let cut = play(&script, &manner);
    if contains_any(&script.stream, &UNDEFINED) {
        return;
    }
    judged(&script, &cut);
    if lot.is_multiple_of(COMPARED) {
        compared(&script, &cut);
    }
}

/// Checks that each request gets a correct reply (I4). The model does not know the binary protocol.
fn judged(script: &Script, played: &Played) {
    if is_binary(script) {
        return;
    }
    let (is_whole, closed) = (played.is_whole(), played.closed);
    let served = Served { start_unix_s: START_UNIX_S, item_bytes_max: item_bytes_max(script) };
    judge(script, &served, &Answered { reply: &played.reply, is_whole, closed });
}

/// Checks that the script gets the same replies as when it is played as `plain` (I1, I2).
fn compared(script: &Script, cut: &Played) {
    let manner = Manner { spread: None, in_pieces: false, is_loud: false, is_watched: false };
    let plain = play(script, &manner);
    judged(script, &plain);
    if is_binary(script) {
        return compared_binary(script, &plain, cut);
    }
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

/// Whether the first byte of a script selects the binary protocol.
fn is_binary(script: &Script) -> bool {
    script.stream.first().is_some_and(|&first| begins_binary(first))
}

/// Checks that a binary script gets the same replies as when it is played as `plain` (I1, I2), and
/// that these are whole (I3).
fn compared_binary(script: &Script, plain: &Played, cut: &Played) {
    if depends_on_state(&script.stream, script.home.is_some()) {
        return;
    }
    let (one, other) = (binary_without_tokens(plain), binary_without_tokens(cut));
    if plain.is_whole() && cut.is_whole() {
        assert!(one == other, "I1, I2: {}", difference(&one, &other));
        assert_eq!(plain.closed, cut.closed, "closed");
    } else {
        let both = one.len().min(other.len());
        assert!(one[..both] == other[..both], "I1, I2: {}", difference(&one, &other));
    }
}

/// Whether a reply depends on the counters of the server, or on the tokens that its shards choose,
/// if there are several.
fn depends_on_state(stream: &[u8], is_spread: bool) -> bool {
    let mut rest = stream;
    loop {
        let (line_bytes, more) = match parse_binary(rest) {
            Parsed::Request { request, line_bytes } => {
                match request {
                    Request::BinaryAdmin { admin: Admin::Stats { .. }, .. } => return true,
                    Request::Binary(binary) if binary.compare_cas.is_some() && is_spread => {
                        return true;
                    }
                    _ => {}
                }
                (line_bytes, u64::from(request.announced_bytes().unwrap_or(0)))
            }
            Parsed::RefusedBinary { refusal, line_bytes } if !refusal.closes => {
                (line_bytes, refusal.skip_bytes)
            }
            _ => return false,
        };
        let more = usize::try_from(more).expect("64 bits");
        let Some(behind) = rest.get(line_bytes + more..) else { return false };
        rest = behind;
    }
}

/// The replies without their CAS tokens; all of them are whole (I3).
fn binary_without_tokens(played: &Played) -> Vec<u8> {
    const HEADER_BYTES: usize = 24;
    let mut text = Vec::with_capacity(played.reply.len());
    let mut rest = &played.reply[..];
    while !rest.is_empty() {
        let whole = rest.first_chunk::<HEADER_BYTES>().and_then(|header| {
            let body = u32::from_be_bytes(*header[8..].first_chunk()?) as usize;
            rest.split_at_checked(HEADER_BYTES + body)
        });
        let Some((reply, behind)) = whole else {
            assert!(!played.is_whole(), "I3: {}", excerpt(rest));
            return text;
        };
        assert_eq!(reply[0], 0x81, "I3: {}", excerpt(rest));
        text.extend_from_slice(&reply[..16]);
        text.extend_from_slice(&reply[HEADER_BYTES..]);
        rest = behind;
    }
    text
}

fn item_bytes_max(script: &Script) -> u64 {
    ITEM_BYTES_MAX[usize::from(script.small_items)]
}

/// How a script is played.
struct Manner {
    /// The shard, of three, that gets the client's connection. `None`: there is one shard.
    spread: Option<usize>,
    in_pieces: bool,
    is_loud: bool,
    is_watched: bool,
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
    // The server assigns connections to its shards in turn.
    let before: Vec<_> = (0..manner.spread.unwrap_or(0)).map(|_| world.connect()).collect();
    let client = world.connect();
    world.rest();
    let noise =
        (script.noise && manner.spread.is_some()).then(|| Noise::new(&mut world, manner.is_loud));
    let watcher = manner.is_watched.then(|| watch(&mut world));
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
    others.extend(watcher);
    all_leave(&mut world, others);
    played
}

/// A client that watches all streams. Requests are counted by prefix from now on.
pub(crate) fn watch(world: &mut World) -> FarEnd {
    let watcher = world.connect();
    watcher.write(b"stats detail on\r\n");
    world.rest();
    watcher.write(b"watch fetchers mutations evictions connevents sysevents deletions\r\n");
    world.rest();
    assert_eq!(watcher.read(), b"OK\r\nOK\r\n");
    watcher
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
            // The server must serve everything sent so far before the time changes.
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
            break; // There are no more replies.
        }
    }
    world.rest();
    allow(REPLY_BYTES_MAX);
    world.rest();
    reply.extend(client.read());
    reply
}

/// Advances the clock by `seconds`, and lets every shard read it.
fn advance_s(world: &mut World, seconds: u32) {
    world.clock.advance_s(seconds.into());
    world.turn();
}

/// The client leaves (I5).
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

/// Checks that the server serves another client, and that it holds nothing for any client when all
/// are gone (I5).
fn all_leave(world: &mut World, mut others: Vec<FarEnd>) {
    let next = world.connect();
    next.write(b"mn\r\n");
    world.rest();
    assert_eq!(next.read(), b"MN\r\n", "I5");
    others.push(next);
    others.iter().for_each(FarEnd::reset);
    world.rest();
    holds_nothing(world);
}

/// Checks that the server holds nothing for any client (I5).
pub(crate) fn holds_nothing(world: &World) {
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

/// Clients that keep the rings busy while the script is played. They use keys of their own.
struct Noise {
    clients: Vec<FarEnd>,
    value_bytes: usize,
    keys: usize,
}

impl Noise {
    /// If `is_loud`, the clients request more than a ring can hold.
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

/// The replies without their CAS tokens (I2), each parsed as a client parses it (I3).
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
            // The rest contains the token, and a size that includes the token's bytes.
            ClientReply::Debug(_) => text.extend_from_slice(b"ME"),
            _ => text.extend_from_slice(&rest[..reply_bytes]),
        }
        rest = &rest[reply_bytes..];
    }
    text
}

/// Checks that two servers sent the same lines, except the lines of statistics.
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

/// The first byte at which two texts differ, with an excerpt of both.
fn difference(one: &[u8], other: &[u8]) -> String {
    let at = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let start = at.saturating_sub(40);
    format!("at byte {at}:\n  {}\n  {}", excerpt(&one[start..]), excerpt(&other[start..]))
}

fn excerpt(text: &[u8]) -> String {
    format!("({} bytes) {}", text.len(), text[..text.len().min(160)].escape_ascii())
}
