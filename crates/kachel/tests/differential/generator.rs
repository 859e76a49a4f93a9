//! Random commands from a seed: the verbs, keys, values and times of a run.
//!
//! Upstream:   `run` asks for one command after another.
//! Downstream: `meta` makes meta commands, `malformed` makes refused ones.
//!
//! - G1  No command gives an item a time that passes during the run: times are 0, an hour or more,
//!   or already past. So the two servers' clocks need not agree, and expiry has its own test.
//! - G2  No command uses an item on which 1.6.18 and 1.6.45 disagree. Commands that 1.6.18 does not
//!   support use separate keys (`apart_key`).
//! - G3  Items are clearly below or clearly above the largest size, because servers may differ in
//!   the overhead of an item.
//! - G4  A delayed flush is followed at once by an immediate one, because a later flush of
//!   memcached replaces the earlier one, and old items return.
//! - G5  After a flush, the items that it may have left are deleted (`Generator::pool`), because
//!   memcached sometimes keeps an item stored in the second of the flush.
//! - G6  Numbers that are decremented have keys of their own. memcached pads a shorter number with
//!   spaces unless another of its threads holds the item; a rule excuses this difference. Such an
//!   item is not appended to and gets no token or time, which it would lose. Some of these keys are
//!   never read.
//! - G7  Beside memcached 1.6.18, no item holds a number of 2^63 or more: that version may treat it
//!   as no number, depending on the memory behind the item.

use crate::command::Command;
use kachel_testkit::Random;

/// Times to live that outlast any run, relative and absolute (G1).
const LONG_TIMES: [i64; 4] = [3_600, 30_000, 2_592_000, 4_000_000_000 / 2];
/// Times that have passed when they are set: negative, and the first that counts as a date.
const PAST_TIMES: [i64; 3] = [-1, -1_000, 2_592_001];
/// How many keys most commands choose from: few, so that they meet.
const KEY_COUNT: u64 = 144;
/// Numbers beside an old peer are below this, so that no sum of a run reaches 2^63 (G7).
const OLD_NUMBER_LIMIT: u64 = 1 << 40;
/// How many keys mostly hold numbers.
const NUMBER_KEY_COUNT: u64 = 24;

/// Makes commands.
pub(crate) struct Generator {
    pub(crate) random: Random,
    /// Is the peer older than the server that ours is measured by?
    pub(crate) old_peer: bool,
    /// Commands to be handed out before any new one (G4).
    waiting: Vec<Command>,
    fresh_keys: u64,
}

impl Generator {
    /// The commands of `seed`, such that a peer of that age can be compared.
    pub(crate) fn new(seed: u64, old_peer: bool) -> Self {
        Self { random: Random::new(seed), old_peer, waiting: Vec::new(), fresh_keys: 0 }
    }

    /// The next command.
    pub(crate) fn command(&mut self) -> Command {
        if let Some(command) = self.waiting.pop() {
            return command;
        }
        match self.random.below(2_000) {
            0..160 => self.malformed(),
            160..880 => self.meta(),
            880..1_280 => self.retrieval(),
            1_280..1_760 => self.storage(),
            1_760..1_820 => self.touch(),
            1_820..1_870 => self.delete(),
            1_870..1_973 => self.arithmetic(),
            1_973..1_976 => self.flush(),
            1_976..1_984 => self.plain("verbosity", &[" 0", " 1", " 1 noreply", " 0 noreply"]),
            1_984..1_992 => self.plain("version", &["", " "]),
            _ => self.plain("mn", &[""]),
        }
    }

    /// Takes a command back, to be handed out next.
    pub(crate) fn put_back(&mut self, command: Command) {
        self.waiting.push(command);
    }

    /// Every key that commands name more than once (G5).
    pub(crate) fn pool() -> Vec<Vec<u8>> {
        let numbers = (0..NUMBER_KEY_COUNT).map(|number| format!("number{number}").into_bytes());
        let tallies = (0..NUMBER_KEY_COUNT).map(|number| format!("tally{number}").into_bytes());
        let others = ["key1", "number1", "double", "spent"].map(|key| key.as_bytes().to_vec());
        (0..KEY_COUNT).map(Self::numbered_key).chain(numbers).chain(tallies).chain(others).collect()
    }

    /// A key that most commands may meet. The lower numbers are met more often.
    pub(crate) fn key(&mut self) -> Vec<u8> {
        Self::numbered_key(self.random.below(KEY_COUNT).min(self.random.below(KEY_COUNT)))
    }

    /// Key `number` of the pool: short ones, binary ones, the longest.
    fn numbered_key(number: u64) -> Vec<u8> {
        match number % 12 {
            0 => format!("\u{fc}\u{7f}{number}\t").into_bytes(),
            1 => format!("{number:0>250}").into_bytes(),
            2 => format!("noreply{number}").into_bytes(),
            3 => vec![b'!' + (number / 12) as u8; 3],
            _ => format!("key{number}").into_bytes(),
        }
    }

    /// A key that mostly holds a number.
    pub(crate) fn number_key(&mut self) -> Vec<u8> {
        format!("number{}", self.random.below(NUMBER_KEY_COUNT)).into_bytes()
    }

    /// A key that no other command has named or will name.
    pub(crate) fn fresh_key(&mut self) -> Vec<u8> {
        self.fresh_keys += 1;
        format!("fresh{}", self.fresh_keys).into_bytes()
    }

    /// A key for what an old peer does otherwise (G2); with a peer of our age, one as any other.
    pub(crate) fn apart_key(&mut self) -> Vec<u8> {
        if self.old_peer { self.fresh_key() } else { self.key() }
    }

    /// A key of a number that nothing reads but arithmetic (G6).
    pub(crate) fn tally_key(&mut self) -> Vec<u8> {
        format!("tally{}", self.random.below(NUMBER_KEY_COUNT)).into_bytes()
    }

    /// As `apart_key`, but of such a number.
    pub(crate) fn apart_number_key(&mut self) -> Vec<u8> {
        if self.old_peer { self.fresh_key() } else { self.tally_key() }
    }

    /// A time to live (G1): mostly long or none, one in thirty past.
    pub(crate) fn time(&mut self) -> String {
        match self.random.below(30) {
            0 => self.random.pick(&PAST_TIMES).to_string(),
            1..12 => self.random.pick(&LONG_TIMES).to_string(),
            _ => "0".to_owned(),
        }
    }

    /// A value that is no number: mostly small, some with what looks like replies in it, a few
    /// large (G3).
    pub(crate) fn value(&mut self) -> Vec<u8> {
        let length = match self.random.below(1_000) {
            0..2 => self.random.below(600_000),
            2..30 => self.random.below(30_000),
            30..130 => self.random.below(2_000),
            130..170 => 0,
            _ => self.random.below(40),
        };
        match self.random.below(10) {
            0 => b"END\r\nSTORED\r\nVALUE key1 0 3\r\nabc\r\n".to_vec(),
            1..4 => {
                let mut value: Vec<u8> = (0..length).map(|_| self.random.bits() as u8).collect();
                if let Some(first) = value.first_mut() {
                    *first |= 0x80; // G6: it is no number
                }
                value
            }
            _ => {
                let first = self.random.below(26);
                (0..length).map(|index| b'a' + ((first + index * 7) % 26) as u8).collect()
            }
        }
    }

    /// A value that counts: of any size, or small enough for an old peer (G7).
    pub(crate) fn number(&mut self) -> Vec<u8> {
        let any = self.random.bits();
        match self.random.below(8) {
            0..3 if self.old_peer => (any % OLD_NUMBER_LIMIT).to_string(),
            0 => u64::MAX.to_string(),
            1 => (u64::MAX - self.random.below(3)).to_string(),
            2 => any.to_string(),
            3 => "99".to_owned(),
            _ => (any % 1_000).to_string(),
        }
        .into_bytes()
    }

    /// A delta for arithmetic.
    pub(crate) fn delta(&mut self) -> String {
        let any = self.random.bits();
        match self.random.below(10) {
            0..2 if self.old_peer => (any % OLD_NUMBER_LIMIT).to_string(),
            0 => u64::MAX.to_string(),
            1 => any.to_string(),
            2 => "0".to_owned(),
            _ => (any % 1_000).to_string(),
        }
    }

    /// Client flags, the largest among them.
    pub(crate) fn client_flags(&mut self) -> String {
        self.random.pick(&[0, 0, 0, 1, 5, 65_536, u32::MAX]).to_string()
    }

    /// Ends a line, one time in eight with `noreply`.
    fn reply_or_not(&mut self, command: Command) -> Command {
        if self.random.below(8) == 0 { command.word("noreply") } else { command }
    }

    fn plain(&mut self, verb: &'static str, endings: &[&str]) -> Command {
        Command::new(verb, b"").bytes(self.random.pick(endings).as_bytes()).end()
    }

    fn retrieval(&mut self) -> Command {
        let verb = self.random.pick(&["get", "get", "get", "gets", "gets", "gat", "gats"]);
        let mut command = Command::new(verb, b"");
        if verb.starts_with("gat") {
            command = command.word(self.time());
        }
        let asked = if self.random.percent(60) { 1 } else { 1 + self.random.below(8) };
        for _ in 0..asked {
            let key = if self.random.percent(85) { self.key() } else { self.number_key() };
            command = command.word(key);
        }
        command.keys_asked = asked as usize;
        command.end()
    }

    fn storage(&mut self) -> Command {
        let verb = self.random.pick(&[
            "set", "set", "set", "set", "set", "add", "add", "replace", "append", "prepend", "cas",
            "cas",
        ]);
        let counts = self.random.percent(20) && !verb.ends_with("pend");
        let (key, value) =
            if counts { (self.number_key(), self.number()) } else { (self.key(), self.value()) };
        let (client_flags, time) = (self.client_flags(), self.time());
        let mut command = Command::new(verb, &key).word(&key).word(client_flags).word(time);
        command = command.word(value.len().to_string());
        if verb == "cas" {
            let age = if self.random.percent(75) { 0 } else { 1 };
            command = command.bytes(b" ").token(age);
        }
        self.reply_or_not(command).data(&value)
    }

    fn touch(&mut self) -> Command {
        let (key, time) = (self.key(), self.time());
        let command = Command::new("touch", &key).word(&key).word(time);
        self.reply_or_not(command).end()
    }

    fn delete(&mut self) -> Command {
        let key = self.key();
        let mut command = Command::new("delete", &key).word(&key);
        if self.random.percent(10) {
            command = command.word("0");
        }
        self.reply_or_not(command).end()
    }

    fn arithmetic(&mut self) -> Command {
        let verb = self.random.pick(&["incr", "decr"]);
        if self.old_peer && self.random.percent(20) {
            return self.wrap_around();
        }
        let grows = verb == "incr" && self.random.percent(20);
        let key = if grows { self.key() } else { self.number_key() }; // G6
        let delta = self.delta();
        let command = Command::new(verb, &key).word(&key).word(delta);
        self.reply_or_not(command).end()
    }

    /// A number that wraps around in the next command to one that is small again (G7).
    fn wrap_around(&mut self) -> Command {
        let (key, delta) = (self.fresh_key(), u64::MAX - self.random.below(100));
        let incr = Command::new("incr", &key).word(&key).word(delta.to_string()).end();
        self.waiting.push(incr);
        Command::new("set", &key).word(&key).word("0 0 3").data(b"100")
    }

    fn flush(&mut self) -> Command {
        if self.random.percent(30) {
            self.waiting.push(Command::new("flush_all", b"").end()); // G4
            let delay = self.random.pick(&["10000", "20000", "30000 noreply"]);
            let mut command = Command::new("flush_all", b"").word(delay).end();
            command.delayed = true;
            return command;
        }
        if self.random.percent(10) {
            // A Unix time from before the start flushes nothing.
            let time = self.random.pick(&["2592001", "3000000", "1000000000 noreply"]);
            let mut command = Command::new("flush_all", b"").word(time).end();
            command.delayed = true;
            return command;
        }
        self.plain("flush_all", &["", " 0", " noreply", " 0 noreply", " -1"])
    }
}
