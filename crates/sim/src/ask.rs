//! The requests of clients, on a few hot keys and many others, formatted as real clients do.
//!
//! Upstream:   the random numbers of a client.
//! Downstream: the client, which sends the text and keeps the expected reply.
//!
//! Keys: `h1` is a hot key with a text, `n1` is a hot key with a number, and `f1` is a filler,
//! which fills memory. Every operation on a hot key is judged. Of a filler only the values are
//! verified.
//!
//! Invariants:
//! - I1  A retrieval names no key twice, so each value belongs to one key.
//! - I2  A quiet request has an opaque, which distinguishes its reply from those of its neighbors.

use kachel_testkit::Random;
use kachel_wire::client::{self, StoreRequest};
use kachel_wire::request::StoreMode;

use crate::options::{Fault, Options};
use crate::value::token;

/// The number of fillers. It is low enough that some fillers are written again.
const FILLERS: u64 = 6_000;
/// While `Asker::short` is set, half of the floods begin at a filler below this one. These fillers
/// are few, so each is overwritten often and leaves dead space.
const OVERWRITTEN: u64 = 64;
/// The digits of a padded number.
pub(crate) const NUMBER_DIGITS: u64 = 4;

/// The reply that a request expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Values of some of these keys, in this order, then `END`.
    Values(Vec<Vec<u8>>),
    /// Values or leases of these keys, all of them in this order, then `END` unless it is one key
    /// that another client has the lease of.
    Leases(Vec<Vec<u8>>),
    /// One line.
    Line(Verb),
    /// One meta reply with this opaque; perhaps none if the request is quiet (I2).
    Meta { opaque: u64, quiet: bool },
    /// `MN`.
    Noop,
    /// `VERSION`.
    Version,
    /// `STAT`s, then `END`.
    Stats,
    /// `RESET`.
    Reset,
    /// A line for each item. Nothing else is sent before it on its connection and not answered.
    Dump,
    /// Exactly this refusal.
    Refusal(&'static [u8]),
    /// No reply.
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

/// A formatted request.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) text: Vec<u8>,
    pub(crate) expect: Expect,
    /// Whether it names a hot key, or concerns all keys.
    pub(crate) judged: bool,
    /// Bytes at its end that the server skips. The server may reply before they have arrived.
    pub(crate) swallowed: usize,
}

impl Ask {
    pub(crate) const fn new(text: Vec<u8>, expect: Expect, judged: bool) -> Self {
        Self { text, expect, judged, swallowed: 0 }
    }

    /// The delay in seconds of a flush of all keys or of a prefix; `None`: it is not a flush.
    pub(crate) fn flush_delay_s(&self) -> Option<u32> {
        let is_flush = matches!(self.expect, Expect::Line(Verb::Flush));
        let words = is_flush.then(|| self.text.trim_ascii_end().split(|byte| *byte == b' '))?;
        let delay = words.skip(1).filter_map(|word| std::str::from_utf8(word).ok()).next();
        Some(delay.and_then(|delay| delay.parse().ok()).unwrap_or(0))
    }

    /// Whether it is a `get` or `gets`, or about no key.
    pub(crate) fn only_reads(&self) -> bool {
        [&b"get"[..], b"mn", b"version", b"stats", b"lru"]
            .iter()
            .any(|verb| self.text.starts_with(verb))
    }

    /// Whether it may store a value.
    pub(crate) fn stores(&self) -> bool {
        const VERBS: [&[u8]; 8] = [
            b"set ",
            b"add ",
            b"replace ",
            b"append ",
            b"prepend ",
            b"cas ",
            b"lease-set ",
            b"ms ",
        ];
        VERBS.iter().any(|verb| self.text.starts_with(verb))
    }

    /// Whether its line has this word, or it flushes many keys.
    pub(crate) fn names(&self, key: &[u8]) -> bool {
        let line = self.text.split(|byte| *byte == b'\r').next().unwrap_or_default();
        self.text.starts_with(b"flush_") || line.split(|byte| *byte == b' ').any(|word| word == key)
    }

    /// The hot key of a request that may get no reply.
    pub(crate) fn silent_key(&self) -> Option<&[u8]> {
        let silent = matches!(self.expect, Expect::Nothing | Expect::Meta { quiet: true, .. });
        let mut words = self.text.split(|byte| matches!(byte, b' ' | b'\r'));
        words.nth(1).filter(|_| silent && self.judged)
    }
}

/// Reads a key. For a hot key the reply shows the effect of silent requests before it.
pub(crate) fn get(key: &[u8]) -> Ask {
    let mut text = Vec::new();
    client::get(&mut text, [key], true);
    Ask::new(text, Expect::Values(vec![key.to_vec()]), true)
}

/// Makes requests. All clients share one, because the numbers of writes are unique in a run.
pub(crate) struct Asker {
    hot_keys: u64,
    flushes_left: u32,
    /// The largest item, as memcached counts it.
    pub(crate) item_bytes_max: u64,
    /// The padding of the largest value.
    padding_max: u64,
    /// The number of values written, which is also the number of the next write.
    pub(crate) writes: u64,
    opaques: u64,
    /// Whether some requests are quiet. A store gets none: it may refuse each for lack of memory,
    /// and such a refusal does not identify its request.
    quiet: bool,
    /// Whether values may be large. Before that nothing is evicted.
    pub(crate) pressing: bool,
    /// Whether enough requests are sent. Then clients use up memory until it was used in every way.
    pub(crate) short: bool,
}

impl Asker {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            hot_keys: options.hot_keys.into(),
            flushes_left: if options.faults.has(Fault::Flush) { 5 } else { 0 },
            item_bytes_max: options.item_bytes_max,
            padding_max: options.padding_max(),
            writes: 0,
            opaques: 0,
            quiet: options.evict,
            pressing: false,
            short: false,
        }
    }

    /// The next request of a client. `cas` is the CAS token that it saw last, with its key, and
    /// `lease` the token of the lease that it got last.
    pub(crate) fn ask(
        &mut self,
        dice: &mut Random,
        cas: Option<&(Vec<u8>, u64)>,
        lease: Option<&(Vec<u8>, u64)>,
    ) -> Ask {
        match dice.below(1000) {
            0..190 => self.retrieve(dice, 1),
            190..215 => self.lease_get(dice),
            215..240 => self.lease_set(dice, lease),
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
                0..2 => noop(),
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
            _ => dice.between(16_000, self.padding_max),
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

    fn lease_get(&self, dice: &mut Random) -> Ask {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let count = if dice.chance(700) { 1 } else { 4 };
        for _ in 0..count {
            let key = self.hot_text(dice);
            if !keys.contains(&key) {
                keys.push(key); // I1
            }
        }
        let mut text = Vec::new();
        client::lease_get(&mut text, keys.iter().map(Vec::as_slice));
        Ask::new(text, Expect::Leases(keys), true)
    }

    /// Stores a value with the token of a lease, or sometimes with another one.
    fn lease_set(&mut self, dice: &mut Random, lease: Option<&(Vec<u8>, u64)>) -> Ask {
        let (mut key, mut token) = (self.hot_text(dice), dice.below(1_000));
        if let Some((leased, given)) = lease.filter(|_| dice.chance(900)) {
            key.clone_from(leased);
            token = *given;
        }
        let padding = self.padding(dice);
        let value = self.value(dice, &key, padding);
        let request = StoreRequest {
            mode: StoreMode::Lease,
            key: &key,
            client_flags: dice.below(3) as u32,
            ttl: ttl(dice),
            compare_cas: Some(token),
            noreply: dice.chance(100),
        };
        let mut text = Vec::new();
        client::store(&mut text, &request, &value);
        line(text, Verb::Store, request.noreply)
    }

    /// A line of hundreds of keys, more than an outbox holds.
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
                    _ => dice.between(12_000, self.padding_max),
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

    /// Stores small fillers, which make the index grow.
    pub(crate) fn burst(&mut self, dice: &mut Random, count: u64) -> Vec<Ask> {
        let first = dice.below(FILLERS);
        self.fillers(dice, first, count, 20)
    }

    /// Stores `count` fillers from `first` on without replies, each padded by less than `padding`
    /// bytes. An `mn` follows them.
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
        asks.push(noop());
        asks
    }

    /// Stores fillers that are large enough to need large records. Unless `short` is set, stores of
    /// hot keys without replies are mixed in, and a read of each of these keys follows at the end.
    pub(crate) fn flood(&mut self, dice: &mut Random, count: u64) -> Vec<Ask> {
        let mut asks = Vec::new();
        let again = self.short && dice.chance(500);
        let first = dice.below(if again { OVERWRITTEN } else { FILLERS });
        let (mut looks, mut fillers) =
            (Vec::new(), self.fillers(dice, first, count, self.padding_max / 5));
        let end = fillers.pop();
        for filler in fillers {
            asks.push(filler);
            // With many more of them, too many operations would overlap for the judge.
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

    /// Two requests: a store of a value with `padding` bytes and this TTL under a new key, and a
    /// read of it.
    pub(crate) fn own(&mut self, padding: u64, ttl: i32) -> [Ask; 2] {
        let key = format!("f{}", FILLERS + self.writes).into_bytes();
        let value = token(&key, self.writes, padding as usize);
        self.writes += 1;
        let mut text = Vec::new();
        client::store(&mut text, &StoreRequest { ttl, ..StoreRequest::set(&key) }, &value);
        let set = Ask { judged: false, ..line(text, Verb::Store, false) };
        [set, Ask { judged: false, ..get(&key) }]
    }

    /// Stores a number, padded to `bytes`, under a new key. Returns the key and the request.
    pub(crate) fn own_number(&mut self, bytes: usize) -> (Vec<u8>, Ask) {
        let key = format!("n{}", FILLERS + self.writes).into_bytes();
        self.writes += 1;
        let mut text = Vec::new();
        client::store(&mut text, &StoreRequest::set(&key), &padded_number(bytes));
        (key, Ask { judged: false, ..line(text, Verb::Store, false) })
    }

    /// Replaces the item of a key of `own_number` by one that is not larger, and also a number.
    pub(crate) fn replacement(&mut self, dice: &mut Random, key: &[u8], bytes: usize) -> Ask {
        self.opaques += 1;
        let opaque = self.opaques;
        let flags = format!("O{opaque}");
        let mut text = Vec::new();
        // The server does not accept a longer value as a number.
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
        let text = match dice.below(6) {
            0 | 1 => format!("flush_all {}\r\n", dice.between(1, 4)).into_bytes(),
            2 | 3 => b"flush_all\r\n".to_vec(),
            // Each prefix takes a part of the hot keys: one of them, a tenth, or all numbers.
            4 => [b"flush_prefix ", &self.hot_text(dice)[..], b"\r\n"].concat(),
            _ => {
                let prefix = dice.pick(&["h1", "h2", "n"]);
                format!("flush_prefix {prefix} bytes\r\n").into_bytes()
            }
        };
        line(text, Verb::Flush, false)
    }

    /// Requests that together read every hot key.
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

/// A number, padded with spaces. It is far enough from 999 and 9999 that a run, which adds or
/// subtracts 1 at a time, does not change its number of digits.
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

/// Resets the counters of every shard.
pub(crate) fn reset_stats() -> Ask {
    plain(b"stats reset\r\n", Expect::Reset)
}

/// Asks for no more than that no request is under way.
pub(crate) fn noop() -> Ask {
    plain(b"mn\r\n", Expect::Noop)
}

/// Lists all items, in one of two forms.
pub(crate) fn dump(in_short: bool) -> Ask {
    let form: &[u8] = if in_short { b"mgdump" } else { b"metadump" };
    plain(&[b"lru_crawler ", form, b" all\r\n"].concat(), Expect::Dump)
}

/// Ends the server. The connection ends without a reply.
pub(crate) fn shutdown() -> Ask {
    plain(b"shutdown\r\n", Expect::Nothing)
}

/// Flushes everything, for the end of a run.
pub(crate) fn flush_all() -> Ask {
    line(b"flush_all\r\n".to_vec(), Verb::Flush, false)
}
