//! Compares what two servers answered to the same commands, and keeps count.
//!
//! Upstream:   `run` hands over each command's share of both reply streams.
//! Downstream: `rules` says which differences are excused; the tests read the counts.
//!
//! - D1  Everything is compared byte for byte but CAS tokens, seconds, and what a rule excuses.
//! - D2  For each key there is one order-preserving renaming between the tokens of the two servers:
//!   a token never means two things, and none is lower than an earlier one unless both are.
//! - D3  Seconds differ by one at most; by two once the peer's clock was seen to jump (`clock`).
//!   Those that lead to a Unix time differ by as much as the servers' Unix seconds.

use std::collections::{BTreeMap, HashMap};

use crate::command::{Command, SeenTokens};
use crate::reply::{Line, Word, classify, lines, number};
use crate::rules::{Excuse, Mismatch, PeerAge, RULES};

/// How many differences are kept word for word; the run ends there.
pub(crate) const DIFFERENCES_MAX: usize = 10;
/// A longer time to live was a Unix time.
const RELATIVE_TTL_MAX: i64 = 60 * 60 * 24 * 30;
/// How much of a reply is shown.
const SHOWN_BYTES: usize = 400;

/// A difference that no rule excuses.
#[derive(Debug)]
pub(crate) struct Difference {
    /// Which command of the run.
    pub(crate) index: usize,
    /// The command and both replies, for a reader.
    pub(crate) shown: String,
}

/// How often a rule excused a difference, and the first time it did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hits {
    pub(crate) count: usize,
    pub(crate) example: String,
}

/// What has been compared so far.
pub(crate) struct Comparison {
    age: PeerAge,
    /// The newest tokens of each key, which commands name.
    pub(crate) seen: SeenTokens,
    /// The renaming of each key's tokens: ours to the peer's (D2).
    renaming: HashMap<Vec<u8>, BTreeMap<u64, u64>>,
    /// Beside each rule of `RULES`, its hits.
    pub(crate) hits: Vec<Hits>,
    pub(crate) differences: Vec<Difference>,
    /// What is known of the last pair of lines that was not the same.
    reason: String,
    /// How many keys were requested, and how many of them were found.
    pub(crate) keys_asked: usize,
    pub(crate) keys_found: usize,
    /// Whether a server's clock left a second out so far.
    pub(crate) our_clock_jumped: bool,
    pub(crate) peer_clock_jumped: bool,
    /// By how many seconds the servers' Unix seconds may have differed during this batch.
    pub(crate) unix_apart_max: i64,
    /// How often each first word of a reply was answered.
    pub(crate) answers: BTreeMap<String, usize>,
}

/// A command or several that were answered together, and where they stand in the run.
pub(crate) struct Share<'a> {
    /// The index of the first of them.
    pub(crate) index: usize,
    pub(crate) commands: &'a [Command],
    pub(crate) ours: &'a [u8],
    pub(crate) peer: &'a [u8],
}

/// Bytes for a reader: escaped, and cut.
pub(crate) fn show(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(SHOWN_BYTES)];
    let more = if cut.len() < bytes.len() {
        format!("... ({} bytes)", bytes.len())
    } else {
        String::new()
    };
    format!("\"{}\"{more}", cut.escape_ascii())
}

impl Comparison {
    /// Nothing compared yet, with a peer of that age.
    pub(crate) fn new(age: PeerAge) -> Self {
        Self {
            age,
            seen: HashMap::new(),
            renaming: HashMap::new(),
            hits: vec![Hits::default(); RULES.len()],
            differences: Vec::new(),
            reason: String::new(),
            keys_asked: 0,
            keys_found: 0,
            our_clock_jumped: false,
            peer_clock_jumped: false,
            unix_apart_max: 0,
            answers: BTreeMap::new(),
        }
    }

    /// Compares one share of the two streams.
    pub(crate) fn share(&mut self, share: &Share<'_>) {
        let (ours, peer) = (lines(share.ours), lines(share.peer));
        self.count(share, &ours);
        let command = &share.commands[0];
        let (mut left, mut right) = (&ours[..], &peer[..]);
        self.reason.clear();
        'lines: while !left.is_empty() || !right.is_empty() {
            if let (Some(our_line), Some(peer_line)) = (left.first(), right.first())
                && self.same_line(share, our_line, peer_line)
            {
                (left, right) = (&left[1..], &right[1..]);
                continue;
            }
            let mismatch = Mismatch { command, ours: left, peer: right };
            for (index, rule) in RULES.iter().enumerate().filter(|(_, rule)| rule.holds(self.age)) {
                let Excuse::Lines(excuse) = rule.excuse else { continue };
                if let Some((ours_taken, peer_taken)) = excuse(&mismatch) {
                    assert!(ours_taken + peer_taken > 0, "{}: an excuse takes lines", rule.name);
                    (left, right) = (&left[ours_taken..], &right[peer_taken..]);
                    self.hit(index, share);
                    continue 'lines;
                }
            }
            let shown = self.shown(share) + &self.reason;
            self.differences.push(Difference { index: share.index, shown });
            return;
        }
    }

    fn shown(&self, share: &Share<'_>) -> String {
        let mut sent = String::new();
        for command in share.commands {
            sent.push_str(&show(&command.text(crate::command::Side::Ours, &self.seen)));
            sent.push(' ');
        }
        format!("sent {sent}\n      ours {}\n      peer {}", show(share.ours), show(share.peer))
    }

    fn hit(&mut self, rule: usize, share: &Share<'_>) {
        if self.hits[rule].count == 0 {
            self.hits[rule].example = self.shown(share);
        }
        self.hits[rule].count += 1;
    }

    fn count(&mut self, share: &Share<'_>, ours: &[Line<'_>]) {
        let asked: usize = share.commands.iter().map(|command| command.keys_asked).sum();
        self.keys_asked += asked;
        for line in ours {
            let words = line.words();
            let first = match words[0] {
                [b'0'..=b'9', ..] => b"(number)",
                b"CLIENT_ERROR" | b"SERVER_ERROR" => line.head,
                word => word,
            };
            *self.answers.entry(String::from_utf8_lossy(first).into_owned()).or_default() += 1;
            if asked > 0 && matches!(words[0], b"VALUE" | b"VA" | b"HD") {
                self.keys_found += 1;
            }
        }
    }

    /// Are the two lines the same, up to D1?
    fn same_line(&mut self, share: &Share<'_>, ours: &Line<'_>, peer: &Line<'_>) -> bool {
        let (our_words, peer_words) = (ours.words(), peer.words());
        if our_words.len() != peer_words.len() || ours.data != peer.data {
            return false;
        }
        if our_words[0] == b"VERSION" {
            return peer_words[0] == b"VERSION";
        }
        for index in 0..our_words.len() {
            let pair = (classify(&our_words, index), classify(&peer_words, index));
            let same = match pair {
                (Word::Token(our_token), Word::Token(peer_token)) => {
                    let of_value = (our_words[0] == b"VALUE").then(|| our_words[1]);
                    // Without a key of its own the line speaks of the command's, if there is one.
                    let of_command =
                        (share.commands.len() == 1).then(|| &share.commands[0].key[..]);
                    match of_value.or(of_command) {
                        Some(key) => self.same_token(key, our_token, peer_token),
                        None => (our_token == 0) == (peer_token == 0),
                    }
                }
                (Word::Seconds(name, our_seconds), Word::Seconds(other, peer_seconds)) => {
                    let apart_max = self.apart_max(our_seconds);
                    name == other && (our_seconds - peer_seconds).abs() <= apart_max
                }
                (our_word, peer_word) => our_word == peer_word,
            };
            if !same && !self.word_excused(share, our_words[index], peer_words[index]) {
                return false;
            }
        }
        true
    }

    /// The largest accepted difference, in seconds, of a time that lies `seconds` ahead (D3).
    fn apart_max(&self, seconds: i64) -> i64 {
        match seconds > RELATIVE_TTL_MAX {
            true => self.unix_apart_max,
            false => 1 + i64::from(self.peer_clock_jumped),
        }
    }

    fn word_excused(&mut self, share: &Share<'_>, ours: &[u8], peer: &[u8]) -> bool {
        for (index, rule) in RULES.iter().enumerate().filter(|(_, rule)| rule.holds(self.age)) {
            let Excuse::Words(excuse) = rule.excuse else { continue };
            if excuse(&share.commands[0], ours, peer, &|seconds| self.apart_max(seconds)) {
                self.hit(index, share);
                return true;
            }
        }
        false
    }

    /// Can both tokens stand for the same state of the key (D2)? Notes them if so.
    fn same_token(&mut self, key: &[u8], ours: u64, peer: u64) -> bool {
        if ours == 0 || peer == 0 {
            return ours == peer;
        }
        let renaming = self.renaming.entry(key.to_vec()).or_default();
        let known = renaming.get(&ours).is_some_and(|known| *known == peer);
        let below = renaming.range(..=ours).next_back();
        let above = renaming.range(ours..).next();
        let fits =
            below.is_none_or(|pair| *pair.1 < peer) && above.is_none_or(|pair| *pair.1 > peer);
        if !known && !fits {
            self.reason =
                format!("; token {ours} = {peer} of it, but seen were {below:?}, {above:?}");
            return false;
        }
        renaming.insert(ours, peer);
        let seen = self.seen.entry(key.to_vec()).or_default();
        if seen.last() != Some(&(ours, peer)) {
            seen.push((ours, peer));
        }
        true
    }
}

/// The version in a reply to `version`, as three numbers.
pub(crate) fn version(reply: &[u8]) -> (u32, u32, u32) {
    let text = reply.strip_prefix(b"VERSION ").unwrap_or(reply);
    let mut parts = text.trim_ascii().split(|byte| !byte.is_ascii_digit()).map(number::<u32>);
    let mut next = || parts.next().flatten().unwrap_or(0);
    (next(), next(), next())
}
