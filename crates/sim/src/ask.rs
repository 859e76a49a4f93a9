//! What clients ask: requests over a few hot keys and many others, worded as clients word them.
//!
//! Upstream:   the dice of a client.
//! Downstream: the client sends the text and keeps what reply it may expect.
//!
//! Keys: `h1` hot, text; `n1` hot, a number; `f1` filler, there to fill memory. Of hot keys every
//! operation is judged; of fillers only that values are genuine.
//!
//! Invariants:
//! - I1  A retrieval names no key twice, so each value answers one key.
//! - I2  A quiet request carries an opaque, by which its reply is told from its neighbor's.

use kachel_testkit::Random;
use kachel_wire::client::{self, StoreRequest};
use kachel_wire::request::StoreMode;

use crate::options::{Fault, Options};
use crate::value::token;

/// Fillers of a run; few enough that some are written again.
const FILLERS: u64 = 6_000;
/// Where half of the floods begin once memory is to be spent: fillers so few that each is written
/// over again and again, and leaves dead space behind.
const OVERWRITTEN: u64 = 64;
/// The largest value: several blocks.
pub(crate) const LARGE_BYTES_MAX: u64 = 70_000;

/// Digits of the numbers that are padded.
pub(crate) const NUMBER_DIGITS: u64 = 4;

/// What may answer a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Values of some of these keys, in this order, then `END`.
    Values(Vec<Vec<u8>>),
    /// One line.
    Line(Verb),
    /// One meta reply with this opaque; none, perhaps, if quiet (I2).
    Meta { opaque: u64, quiet: bool },
    /// `MN`.
    Noop,
    /// `VERSION`.
    Version,
    /// `STAT`s, then `END`.
    Stats,
    /// `RESET`.
    Reset,
    /// Exactly this refusal.
    Refusal(&'static [u8]),
    /// Nothing.
    Nothing,
}

/// Verbs of the classic protocol that are answered by a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Store,
    Delete,
    Touch,
    Arithmetic,
    Flush,
}

/// A request, worded.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) text: Vec<u8>,
    pub(crate) expect: Expect,
    /// Whether a hot key is in it, or all keys are.
    pub(crate) judged: bool,
    /// Bytes at its end that the server passes over: it may answer before they have come.
    pub(crate) swallowed: usize,
}

impl Ask {
    pub(crate) const fn new(text: Vec<u8>, expect: Expect, judged: bool) -> Self {
        Self { text, expect, judged, swallowed: 0 }
    }

    /// Whether it flushes everything, and if so after how many seconds.
    pub(crate) fn flush_delay_s(&self) -> Option<u32> {
        let is_flush = matches!(self.expect, Expect::Line(Verb::Flush));
        let words = is_flush.then(|| self.text.trim_ascii_end().split(|byte| *byte == b' '))?;
        let delay = words.skip(1).filter_map(|word| std::str::from_utf8(word).ok()).next();
        Some(delay.and_then(|delay| delay.parse().ok()).unwrap_or(0))
    }

    /// The key of a request on a hot key that may be answered by nothing.
    pub(crate) fn silent_key(&self) -> Option<&[u8]> {
        let silent = matches!(self.expect, Expect::Nothing | Expect::Meta { quiet: true, .. });
        let mut words = self.text.split(|byte| matches!(byte, b' ' | b'\r'));
        words.nth(1).filter(|_| silent && self.judged)
    }
}

/// A plain look at a hot key, which says what was done silently before.
pub(crate) fn get(key: &[u8]) -> Ask {
    let mut text = Vec::new();
    client::get(&mut text, [key], true);
    Ask::new(text, Expect::Values(vec![key.to_vec()]), true)
}

/// Who words requests; one for all clients, since writes are numbered through.
pub(crate) struct Asker {
    hot_keys: u64,
    flushes_left: u32,
    /// Values written, each with its number.
    pub(crate) writes: u64,
    opaques: u64,
    /// Whether there are quiet requests: not where any may be refused for want of memory, because
    /// such a refusal says nothing of whose it is.
    quiet: bool,
    /// Whether there is room for large fillers yet: until then nothing is evicted.
    pub(crate) pressing: bool,
    /// Whether enough was asked, but memory was not spent by it: then it is to be spent.
    pub(crate) short: bool,
}

impl Asker {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            hot_keys: options.hot_keys.into(),
            flushes_left: if options.faults.has(Fault::Flush) { 3 } else { 0 },
            writes: 0,
            opaques: 0,
            quiet: options.evict,
            pressing: false,
            short: false,
        }
    }

    /// The next request of a client that last saw `cas` as token of some hot key.
    pub(crate) fn ask(&mut self, dice: &mut Random, cas: Option<&(Vec<u8>, u64)>) -> Ask {
        match dice.below(1000) {
            0..240 => self.retrieve(dice, 1),
            240..330 => {
                let keys = dice.skewed(2, 24);
                self.retrieve(dice, keys)
            }
            330..345 => self.retrieve_many(dice),
            345..500 => self.store_hot(dice, cas),
            500..540 => self.delete(dice),
            540..570 => self.touch(dice),
            570..630 => self.arithmetic(dice),
            630..740 => self.meta(dice, cas),
            740..970 => self.filler(dice),
            970..990 => self.amiss(dice, cas),
            990..997 => match dice.below(7) {
                0..2 => plain(b"mn\r\n", Expect::Noop),
                2..4 => plain(b"version\r\n", Expect::Version),
                4 => reset_stats(),
                _ => plain(b"stats\r\n", Expect::Stats),
            },
            _ => self.flush(dice),
        }
    }

    pub(crate) fn hot_text(&self, dice: &mut Random) -> Vec<u8> {
        format!("h{}", dice.below(self.hot_keys - self.hot_keys / 4)).into_bytes()
    }

    fn hot_number(&self, dice: &mut Random) -> Vec<u8> {
        format!("n{}", dice.below(self.hot_keys / 4)).into_bytes()
    }

    fn hot(&self, dice: &mut Random) -> Vec<u8> {
        if dice.chance(250) { self.hot_number(dice) } else { self.hot_text(dice) }
    }

    /// A value for `key`: a number, or a token.
    fn value(&mut self, dice: &mut Random, key: &[u8], padding: u64) -> Vec<u8> {
        if key.first() == Some(&b'n') {
            return dice.skewed(0, u64::MAX - 1).to_string().into_bytes();
        }
        let write = self.writes;
        self.writes += 1;
        token(key, write, padding as usize)
    }

    fn padding(&self, dice: &mut Random) -> u64 {
        match dice.below(100) {
            0..70 => dice.below(40),
            70..95 => dice.below(1_000),
            _ if !self.pressing => dice.below(1_000),
            95..98 => dice.below(16_384),
            _ => dice.between(16_000, LARGE_BYTES_MAX),
        }
    }

    fn retrieve(&mut self, dice: &mut Random, count: u64) -> Ask {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        for _ in 0..count {
            let key = if dice.chance(700) || count == 1 { self.hot(dice) } else { filler(dice) };
            if !keys.contains(&key) {
                keys.push(key); // I1
            }
        }
        let mut text = Vec::new();
        let judged = keys.iter().any(|key| key[0] != b'f');
        match dice.below(8) {
            0 => {
                let verb = if dice.chance(500) { "gat" } else { "gats" };
                text.extend_from_slice(format!("{verb} {}", ttl(dice)).as_bytes());
                for key in &keys {
                    text.push(b' ');
                    text.extend_from_slice(key);
                }
                text.extend_from_slice(b"\r\n");
            }
            way => client::get(&mut text, keys.iter().map(Vec::as_slice), way < 4),
        }
        Ask::new(text, Expect::Values(keys), judged)
    }

    /// A line of hundreds of keys, more than a mailbox or an outbox holds.
    fn retrieve_many(&mut self, dice: &mut Random) -> Ask {
        let (first, count) = (dice.below(FILLERS), dice.skewed(100, 1_500));
        let keys = (first..first + count).map(|key| format!("f{}", key % FILLERS).into_bytes());
        let keys: Vec<Vec<u8>> = keys.collect();
        let mut text = Vec::new();
        client::get(&mut text, keys.iter().map(Vec::as_slice), false);
        Ask::new(text, Expect::Values(keys), false)
    }

    fn store_hot(&mut self, dice: &mut Random, cas: Option<&(Vec<u8>, u64)>) -> Ask {
        let mut key = self.hot(dice);
        let (mut mode, mut compare_cas) = (StoreMode::Set, None);
        match (dice.below(20), cas) {
            (0..9, _) => {}
            (9..11, _) => mode = StoreMode::Add,
            (11..13, _) => mode = StoreMode::Replace,
            (13..15, _) => mode = StoreMode::Append,
            (15..17, _) => mode = StoreMode::Prepend,
            (_, Some((seen, token))) => {
                key.clone_from(seen);
                compare_cas = Some(*token);
            }
            (_, None) => compare_cas = Some(dice.below(1_000)),
        }
        if matches!(mode, StoreMode::Append | StoreMode::Prepend) {
            key = self.hot_text(dice);
        }
        let padding = self.padding(dice);
        let value = self.value(dice, &key, padding);
        let request = StoreRequest {
            mode,
            key: &key,
            client_flags: dice.below(3) as u32,
            ttl: ttl(dice),
            compare_cas,
            noreply: dice.chance(150),
        };
        let mut text = Vec::new();
        client::store(&mut text, &request, &value);
        line(text, Verb::Store, request.noreply)
    }

    fn delete(&mut self, dice: &mut Random) -> Ask {
        let (key, noreply) = (self.hot(dice), dice.chance(150));
        let mut text = Vec::new();
        client::delete(&mut text, &key, noreply);
        line(text, Verb::Delete, noreply)
    }

    fn touch(&mut self, dice: &mut Random) -> Ask {
        let (key, noreply) = (self.hot(dice), dice.chance(150));
        let mut text = Vec::new();
        client::touch(&mut text, &key, ttl(dice), noreply);
        line(text, Verb::Touch, noreply)
    }

    fn arithmetic(&mut self, dice: &mut Random) -> Ask {
        let (key, noreply) = (self.hot_number(dice), dice.chance(100));
        let (delta, up) = (dice.below(1_000), dice.chance(600));
        let mut text = Vec::new();
        if up {
            client::incr(&mut text, &key, delta, noreply);
        } else {
            client::decr(&mut text, &key, delta, noreply);
        }
        line(text, Verb::Arithmetic, noreply)
    }

    fn meta(&mut self, dice: &mut Random, cas: Option<&(Vec<u8>, u64)>) -> Ask {
        self.opaques += 1;
        let opaque = self.opaques;
        let quiet = dice.chance(300) && self.quiet;
        let mut flags = format!("O{opaque}");
        if quiet {
            flags += " q";
        }
        let mut text = Vec::new();
        match dice.below(10) {
            0..5 => {
                for (flag, permille) in
                    [("v", 800), ("t", 300), ("f", 300), ("c", 400), ("s", 300), ("k", 300)]
                {
                    if dice.chance(permille) {
                        flags += " ";
                        flags += flag;
                    }
                }
                if dice.chance(150) {
                    flags += &format!(" T{}", ttl(dice));
                }
                if dice.chance(100) {
                    flags += &format!(" N{}", dice.below(5));
                }
                if dice.chance(100) {
                    flags += &format!(" R{}", dice.below(5));
                }
                client::meta_get(&mut text, &self.hot_text(dice), flags.as_bytes());
            }
            5..7 => {
                let mut key = self.hot_text(dice);
                match (dice.below(8), cas) {
                    (0..4, _) => {}
                    (4, _) => flags += " ME",
                    (5, _) => flags += " MA",
                    (6, _) => flags += " MR",
                    (_, Some((seen, token))) if seen[0] == b'h' => {
                        key.clone_from(seen);
                        flags += &format!(" C{token}");
                        if dice.chance(300) {
                            flags += " I";
                        }
                    }
                    _ => flags += " MP",
                }
                if dice.chance(300) {
                    flags += &format!(" T{}", ttl(dice));
                }
                let padding = self.padding(dice);
                let value = self.value(dice, &key, padding);
                client::meta_set(&mut text, &key, flags.as_bytes(), &value);
            }
            7 => {
                if dice.chance(500) {
                    flags += &format!(" I T{}", dice.below(5));
                }
                client::meta_delete(&mut text, &self.hot(dice), flags.as_bytes());
            }
            _ => {
                flags += if dice.chance(500) { " v" } else { " v MD" };
                flags += &format!(" D{}", dice.below(100));
                if dice.chance(400) {
                    flags += &format!(" N{} J{}", dice.below(5), dice.below(1_000));
                }
                client::meta_arithmetic(&mut text, &self.hot_number(dice), flags.as_bytes());
            }
        }
        Ask::new(text, Expect::Meta { opaque, quiet }, true)
    }

    fn filler(&mut self, dice: &mut Random) -> Ask {
        let key = filler(dice);
        let mut text = Vec::new();
        match dice.below(10) {
            0 => {
                client::delete(&mut text, &key, false);
                plain(&text, Expect::Line(Verb::Delete))
            }
            1 => {
                client::get(&mut text, [key.as_slice()], false);
                plain(&text, Expect::Values(vec![key]))
            }
            way => {
                let padding = match dice.below(100) {
                    _ if !self.pressing => dice.below(300),
                    0..50 => dice.below(300),
                    50..92 => dice.between(500, 12_000),
                    _ => dice.between(12_000, LARGE_BYTES_MAX),
                };
                let value = self.value(dice, &key, padding);
                let noreply = way < 4;
                let request = StoreRequest {
                    ttl: if dice.chance(300) { dice.between(1, 9) as i32 } else { 0 },
                    noreply,
                    ..StoreRequest::set(&key)
                };
                client::store(&mut text, &request, &value);
                Ask { judged: false, ..line(text, Verb::Store, noreply) }
            }
        }
    }

    /// Small fillers, which let the index grow.
    pub(crate) fn burst(&mut self, dice: &mut Random, count: u64) -> Vec<Ask> {
        let first = dice.below(FILLERS);
        self.fillers(dice, first, count, 20)
    }

    /// Fillers of up to `padding` bytes, one behind the other and without replies.
    fn fillers(&mut self, dice: &mut Random, first: u64, count: u64, padding: u64) -> Vec<Ask> {
        let mut asks = Vec::new();
        for key in first..first + count {
            let key = format!("f{}", key % FILLERS).into_bytes();
            let padding = dice.below(padding);
            let value = self.value(dice, &key, padding);
            let ttl = if self.short && dice.chance(200) { dice.between(1, 5) as i32 } else { 0 };
            let request = StoreRequest { ttl, noreply: true, ..StoreRequest::set(&key) };
            let mut text = Vec::new();
            client::store(&mut text, &request, &value);
            asks.push(Ask::new(text, Expect::Nothing, false));
        }
        asks.push(plain(b"mn\r\n", Expect::Noop));
        asks
    }

    /// Fillers so large that mailboxes are full of them; and among them, until memory is to be
    /// spent, stores of hot keys that want no reply, each with a look at what came of it.
    pub(crate) fn flood(&mut self, dice: &mut Random, count: u64) -> Vec<Ask> {
        let mut asks = Vec::new();
        let again = self.short && dice.chance(500);
        let first = dice.below(if again { OVERWRITTEN } else { FILLERS });
        let (mut looks, mut fillers) = (Vec::new(), self.fillers(dice, first, count, 16_300));
        let end = fillers.pop();
        for filler in fillers {
            asks.push(filler);
            // Many more of them would overlap so much that they could not be judged.
            if !self.short && dice.chance(250) {
                let key = self.hot_text(dice);
                let value = self.value(dice, &key, 0);
                let request = StoreRequest { noreply: true, ..StoreRequest::set(&key) };
                let mut text = Vec::new();
                client::store(&mut text, &request, &value);
                asks.push(line(text, Verb::Store, true));
                looks.push(get(&key));
            }
        }
        asks.append(&mut looks);
        asks.extend(end);
        asks
    }

    /// Stores a value of `padding` bytes for `ttl` seconds under a key of its own, and asks for it.
    pub(crate) fn own(&mut self, padding: u64, ttl: i32) -> [Ask; 2] {
        let key = format!("f{}", FILLERS + self.writes).into_bytes();
        let value = token(&key, self.writes, padding as usize);
        self.writes += 1;
        let mut text = Vec::new();
        client::store(&mut text, &StoreRequest { ttl, ..StoreRequest::set(&key) }, &value);
        let set = Ask { judged: false, ..line(text, Verb::Store, false) };
        [set, Ask { judged: false, ..get(&key) }]
    }

    /// Stores a number that is padded to `bytes`, under a key of its own.
    pub(crate) fn own_number(&mut self, bytes: usize) -> (Vec<u8>, Ask) {
        let key = format!("n{}", FILLERS + self.writes).into_bytes();
        self.writes += 1;
        let mut text = Vec::new();
        client::store(&mut text, &StoreRequest::set(&key), &padded_number(bytes));
        (key, Ask { judged: false, ..line(text, Verb::Store, false) })
    }

    /// Replaces the item of such a key by one no larger. It stays a number.
    pub(crate) fn replacement(&mut self, dice: &mut Random, key: &[u8], bytes: usize) -> Ask {
        self.opaques += 1;
        let opaque = self.opaques;
        let flags = format!("O{opaque}");
        let mut text = Vec::new();
        // What is longer is taken for no number.
        let ways = if bytes <= 1_024 { 0..6 } else { 3..6 };
        match dice.between(ways.start, ways.end - 1) {
            0 => client::incr(&mut text, key, 1, false),
            1 => client::decr(&mut text, key, 1, false),
            2 => client::meta_arithmetic(&mut text, key, flags.as_bytes()),
            3 => client::meta_delete(&mut text, key, format!("{flags} I T0").as_bytes()),
            4 => client::meta_set(&mut text, key, flags.as_bytes(), &padded_number(bytes)),
            _ => client::store(&mut text, &StoreRequest::set(key), &padded_number(bytes)),
        }
        let verb = if text.starts_with(b"set") { Verb::Store } else { Verb::Arithmetic };
        let expect = match text.starts_with(b"m") {
            true => Expect::Meta { opaque, quiet: false },
            false => Expect::Line(verb),
        };
        Ask::new(text, expect, false)
    }

    fn flush(&mut self, dice: &mut Random) -> Ask {
        if self.flushes_left == 0 || !dice.chance(500) {
            return self.retrieve(dice, 3);
        }
        self.flushes_left -= 1;
        let text = match dice.below(3) {
            0 => format!("flush_all {}\r\n", dice.between(1, 4)).into_bytes(),
            _ => b"flush_all\r\n".to_vec(),
        };
        line(text, Verb::Flush, false)
    }

    /// Reads every hot key, a line of them at a time.
    pub(crate) fn all_hot(&self) -> Vec<Ask> {
        let numbers = (0..self.hot_keys / 4).map(|key| format!("n{key}").into_bytes());
        let texts = 0..self.hot_keys - self.hot_keys / 4;
        let keys: Vec<Vec<u8>> =
            numbers.chain(texts.map(|key| format!("h{key}").into_bytes())).collect();
        let lines = keys.chunks(32).map(|keys| {
            let mut text = Vec::new();
            client::get(&mut text, keys.iter().map(Vec::as_slice), true);
            Ask::new(text, Expect::Values(keys.to_vec()), true)
        });
        lines.collect()
    }
}

/// A number that keeps its digits however often one is added in a run, and spaces behind it.
fn padded_number(bytes: usize) -> Vec<u8> {
    let mut value = b"5000".to_vec();
    debug_assert!(bytes >= value.len());
    value.resize(bytes, b' ');
    value
}

fn filler(dice: &mut Random) -> Vec<u8> {
    format!("f{}", dice.below(FILLERS)).into_bytes()
}

fn ttl(dice: &mut Random) -> i32 {
    match dice.below(20) {
        0..14 => 0,
        14..19 => dice.between(1, 5) as i32,
        _ => -1,
    }
}

fn plain(text: &[u8], expect: Expect) -> Ask {
    Ask::new(text.to_vec(), expect, false)
}

fn line(text: Vec<u8>, verb: Verb, noreply: bool) -> Ask {
    let expect = if noreply { Expect::Nothing } else { Expect::Line(verb) };
    Ask::new(text, expect, true)
}

/// Has every shard count from 0 again.
pub(crate) fn reset_stats() -> Ask {
    plain(b"stats reset\r\n", Expect::Reset)
}

/// A whole flush, for the end of a run.
pub(crate) fn flush_all() -> Ask {
    line(b"flush_all\r\n".to_vec(), Verb::Flush, false)
}
