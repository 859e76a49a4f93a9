//! The differences between two servers that are known and accepted: a list, as data.
//!
//! Upstream: `compare` looks up each pair of lines that differ. A difference that no rule excuses
//! fails the test. The run prints the number of hits of each rule, and both replies of the first
//! hit.
//!
//! The server under test answers as memcached 1.6.45. Debian 12 ships 1.6.18, which answers some
//! lines differently; those rules hold only for a peer that old.

use kachel_check::{Mode, Model, Operation, Outcome, Rules, State, Window};

use crate::command::{Command, SeenTokens, Side};
use crate::reply::{Line, joined, lines, number};

/// How old the peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerAge {
    /// Before 1.6.45.
    Older,
    /// The version that the server under test is measured by, or a later one.
    Same,
}

/// The two replies from where they differ, and the command.
pub(crate) struct Mismatch<'a> {
    pub(crate) command: &'a Command,
    pub(crate) ours: &'a [Line<'a>],
    pub(crate) peer: &'a [Line<'a>],
}

/// The largest accepted difference, in seconds, of a time that lies the given seconds ahead.
pub(crate) type ApartMax<'a> = &'a dyn Fn(i64) -> i64;

/// What an excuse looks at.
#[derive(Clone, Copy)]
pub(crate) enum Excuse {
    /// Lines: how many of ours and of the peer's the excuse covers.
    Lines(fn(&Mismatch<'_>) -> Option<(usize, usize)>),
    /// One word of a line, ours and the peer's.
    Words(fn(&Command, &[u8], &[u8], ApartMax<'_>) -> bool),
}

/// One accepted difference.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    /// Why it is right that the replies differ.
    pub(crate) why: &'static str,
    /// The peers for which it holds; `None`: all.
    peer: Option<PeerAge>,
    pub(crate) excuse: Excuse,
}

impl Rule {
    /// Does the rule hold for a peer of that age?
    pub(crate) fn holds(&self, age: PeerAge) -> bool {
        self.peer.is_none_or(|peer| peer == age)
    }
}

/// A second in which a command may be executed. The replies to a command for a new key do not
/// depend on it.
const FIRST_SECOND: u32 = 1;

const BAD_LINE: &[u8] = b"CLIENT_ERROR bad command line format";

impl Mismatch<'_> {
    fn ours(&self) -> &[u8] {
        self.ours.first().map_or(b"", |line| line.head)
    }

    fn peer(&self) -> &[u8] {
        self.peer.first().map_or(b"", |line| line.head)
    }

    fn wrong(&self, kinds: &[&str]) -> bool {
        self.command.malformed.is_some_and(|kind| kinds.contains(&kind))
    }

    /// Covers our whole reply and a line of the peer's if 1.6.45 would answer as ours did. The
    /// command must name a key that no other command names (G2 of `generator`).
    fn on_new_key(&self) -> Option<(usize, usize)> {
        let operation = Operation::new(&self.command.text(Side::Ours, &SeenTokens::new()))?;
        let reply = joined(self.ours);
        let (outcome, read) = match &reply[..] {
            [] => (Outcome::Silent, 0),
            reply => Outcome::read(reply)?,
        };
        let model = Model::new(Rules::new(Mode::Store));
        let states = model.step(&State::default(), &operation, &outcome, Window::at(FIRST_SECOND));
        (read == reply.len() && !states.is_empty()).then_some((self.ours.len(), 1))
    }

    /// Covers one line of each if the condition holds.
    fn one_each(&self, condition: bool) -> Option<(usize, usize)> {
        (condition && !self.ours.is_empty() && !self.peer.is_empty()).then_some((1, 1))
    }
}

/// The number that a value spells, without the spaces that fill it up; `None` if it is no number.
fn counted<'a>(line: &Line<'a>) -> Option<&'a [u8]> {
    let number = line.data?.trim_ascii_end();
    (!number.is_empty() && number.iter().all(u8::is_ascii_digit)).then_some(number)
}

/// The line without the words that begin with one of these letters.
fn words_without<'a>(line: &Line<'a>, letters: &[u8]) -> Vec<&'a [u8]> {
    let mut words = line.words();
    words.retain(|word| !word.first().is_some_and(|letter| letters.contains(letter)));
    words
}

/// All accepted differences: first those that hold for any peer.
pub(crate) const RULES: &[Rule] = &[
    Rule {
        name: "me_shows_the_allocator",
        why: "cls and size of `me` are facts of the server's own memory layout",
        peer: None,
        excuse: Excuse::Words(|command, ours, peer, _| {
            let both = |name: &[u8]| ours.starts_with(name) && peer.starts_with(name);
            command.verb == "me" && (both(b"cls=") || both(b"size="))
        }),
    },
    Rule {
        name: "time_of_the_expired",
        why: "an item that dies of the request itself shows its rest modulo 2^32, counted from \
              the server's start",
        peer: None,
        excuse: Excuse::Words(|command, ours, peer, _| {
            let negative = |word: &[u8]| {
                let seconds = word.strip_prefix(b"t").and_then(number::<u32>);
                seconds.is_some_and(|seconds| seconds > u32::MAX / 2)
            };
            command.has(b't') && negative(ours) && negative(peer)
        }),
    },
    Rule {
        name: "decr_fills_with_spaces",
        why: "memcached fills a shorter number up to its old length, but not while one of its \
              other threads holds the item; ours always does",
        peer: None,
        excuse: Excuse::Lines(|mismatch| {
            let (ours, peer) = (mismatch.ours.first()?, mismatch.peer.first()?);
            let (our_number, peer_number) = (counted(ours)?, counted(peer)?);
            let (our_words, peer_words) = (ours.words(), peer.words());
            let same_key = ours.head.starts_with(b"VA ") || our_words[..3] == peer_words[..3];
            let filled = ours.data?.len() > peer.data?.len();
            let same = filled && our_number == peer_number && our_words.len() == peer_words.len();
            mismatch.one_each(same && same_key)
        }),
    },
    Rule {
        name: "stray_line_end",
        why: "1.6.45 ends its refusal of a retrieval of too long a key with two line ends",
        peer: Some(PeerAge::Same),
        excuse: Excuse::Lines(|mismatch| {
            let stray = mismatch.peer.first().is_some_and(|line| line.head.is_empty());
            (stray && mismatch.wrong(&["long_key"])).then_some((0, 1))
        }),
    },
    Rule {
        name: "older_short_or_incomplete_line",
        why: "1.6.18 calls a line of less than 4 bytes, or one that lacks words, an unknown \
              command",
        peer: Some(PeerAge::Older),
        excuse: Excuse::Lines(|mismatch| {
            let kinds =
                ["short_line", "missing_words", "data_longer", "data_shorter", "bad_number"];
            let same = mismatch.ours() == BAD_LINE && mismatch.peer() == b"ERROR";
            mismatch.one_each(same && mismatch.wrong(&kinds))
        }),
    },
    Rule {
        name: "older_gat_without_key",
        why: "1.6.18 answers END to a gat that names no key",
        peer: Some(PeerAge::Older),
        excuse: Excuse::Lines(|mismatch| {
            let same = mismatch.ours() == BAD_LINE && mismatch.peer() == b"END";
            let gat = mismatch.command.verb == "gat" && mismatch.wrong(&["missing_words"]);
            mismatch.one_each(same && gat)
        }),
    },
    Rule {
        name: "older_lacks_flags_e_and_x",
        why: "1.6.18 does not know the meta flags E and x",
        peer: Some(PeerAge::Older),
        excuse: Excuse::Lines(|mismatch| {
            let newer = mismatch.command.has(b'E') || mismatch.command.has(b'x');
            let refusals =
                [&b"CLIENT_ERROR invalid flag"[..], b"CLIENT_ERROR invalid or duplicate flag"];
            (newer && refusals.contains(&mismatch.peer())).then(|| mismatch.on_new_key())?
        }),
    },
    Rule {
        name: "older_ms_returns_no_size",
        why: "1.6.18 accepts flag s in ms but returns nothing for it",
        peer: Some(PeerAge::Older),
        excuse: Excuse::Lines(|mismatch| {
            let (ours, peer) = (mismatch.ours.first()?, mismatch.peer.first()?);
            let sized = mismatch.command.verb == "ms" && mismatch.command.has(b's');
            mismatch.one_each(sized && words_without(ours, b"cs") == words_without(peer, b"cs"))
        }),
    },
    Rule {
        name: "older_mg_compares_nothing",
        why: "1.6.18 ignores flag C in mg and shows a value that the client said it has",
        peer: Some(PeerAge::Older),
        excuse: Excuse::Lines(|mismatch| {
            let (ours, peer) = (mismatch.ours.first()?, mismatch.peer.first()?);
            let compared = mismatch.command.verb == "mg" && mismatch.command.has(b'C');
            let shown = ours.head.starts_with(b"HD") && peer.head.starts_with(b"VA");
            let same = words_without(ours, b"Hctlkb")[..] == words_without(peer, b"Vctlkb")[1..];
            mismatch.one_each(compared && shown && same)
        }),
    },
    Rule {
        name: "older_ma_creates_aloud",
        why: "1.6.18 ignores flag q in an ma that creates the item",
        peer: Some(PeerAge::Older),
        excuse: Excuse::Lines(|mismatch| {
            let command = mismatch.command;
            let quiet = command.verb == "ma" && command.has(b'q') && command.has(b'N');
            (quiet && mismatch.ours.is_empty() && mismatch.peer.len() == 1).then_some((0, 1))
        }),
    },
    Rule {
        name: "older_append_creates_nothing",
        why: "1.6.18 ignores flag N in ms: appending to what is not there is not stored",
        peer: Some(PeerAge::Older),
        excuse: Excuse::Lines(|mismatch| {
            let creates = mismatch.command.verb == "ms" && mismatch.command.has(b'N');
            (creates && mismatch.peer().starts_with(b"NS")).then(|| mismatch.on_new_key())?
        }),
    },
    Rule {
        name: "older_strange_flag",
        why: "1.6.18 calls a flag that is no letter invalid, or repeated",
        peer: Some(PeerAge::Older),
        excuse: Excuse::Lines(|mismatch| {
            let same = mismatch.ours() == BAD_LINE && mismatch.peer().ends_with(b" flag");
            mismatch.one_each(same && mismatch.wrong(&["strange_flag"]))
        }),
    },
    Rule {
        name: "older_mode_of_two_letters",
        why: "1.6.18 refuses a mode that is not one letter; 1.6.45 reads its first letter",
        peer: Some(PeerAge::Older),
        excuse: Excuse::Lines(|mismatch| {
            let refused = mismatch.peer() == b"CLIENT_ERROR incorrect length for M token";
            mismatch.one_each(refused && mismatch.wrong(&["bad_mode"]))
        }),
    },
    Rule {
        name: "older_me_counts_down",
        why: "1.6.18 shows the time to live in `me` with the wrong sign",
        peer: Some(PeerAge::Older),
        excuse: Excuse::Words(|command, ours, peer, apart_max| {
            let seconds = |word: &[u8]| number::<i64>(word.strip_prefix(b"exp=")?);
            let (Some(ours), Some(peer)) = (seconds(ours), seconds(peer)) else { return false };
            command.verb == "me" && (ours + peer).abs() <= apart_max(ours)
        }),
    },
    Rule {
        name: "older_words_of_refused_flags",
        why: "1.6.18 words the refusal of too many flags, of bad numbers and keys in md and of \
              long keys in ma differently",
        peer: Some(PeerAge::Older),
        excuse: Excuse::Lines(|mismatch| {
            let (ours, peer) = (mismatch.ours(), mismatch.peer());
            let either: &[u8] = b"CLIENT_ERROR invalid or duplicate flag";
            mismatch.one_each(match mismatch.command.malformed {
                Some("many_flags") => peer == b"CLIENT_ERROR options flags too long",
                Some("bad_flag_number" | "bad_base64") => {
                    mismatch.command.verb == "md" && peer == either
                }
                Some("long_key") => mismatch.command.verb == "ma" && ours == either,
                _ => false,
            })
        }),
    },
    Rule {
        name: "older_repeated_flag",
        why: "1.6.18 has one reply for unknown and repeated flags of md",
        peer: Some(PeerAge::Older),
        excuse: Excuse::Lines(|mismatch| {
            let refusals = [&b"CLIENT_ERROR duplicate flag"[..], b"CLIENT_ERROR invalid flag"];
            let same = refusals.contains(&mismatch.ours())
                && mismatch.peer() == b"CLIENT_ERROR invalid or duplicate flag";
            mismatch.one_each(same && mismatch.wrong(&["repeated_flag", "unknown_flag"]))
        }),
    },
    Rule {
        name: "older_delete_usage",
        why: "1.6.18 refuses a delete with a number other than 0, and says how it is used",
        peer: Some(PeerAge::Older),
        excuse: Excuse::Lines(|mismatch| {
            let usage: &[u8] = b"CLIENT_ERROR bad command line format.  Usage: delete";
            let same = mismatch.ours() == b"NOT_FOUND" && mismatch.peer().starts_with(usage);
            mismatch.one_each(same && mismatch.wrong(&["surplus_words"]))
        }),
    },
    Rule {
        name: "older_storage_with_surplus_words",
        why: "1.6.18 takes a storage line with surplus words for an unknown command, and its \
              data too",
        peer: Some(PeerAge::Older),
        excuse: Excuse::Lines(|mismatch| {
            let twice = mismatch.peer.iter().filter(|line| line.head == b"ERROR").count() == 2;
            let same = mismatch.ours() == b"STORED" && twice;
            (same && mismatch.wrong(&["surplus_words"])).then_some((1, 2))
        }),
    },
    Rule {
        name: "older_reads_refused_data_as_commands",
        why: "1.6.18 does not swallow the data block of a storage line that it refuses",
        peer: Some(PeerAge::Older),
        excuse: Excuse::Lines(|mismatch| {
            let over = mismatch.ours.is_empty() && mismatch.peer() == b"ERROR";
            (over && mismatch.wrong(&["bad_number", "long_key", "bad_base64"])).then_some((0, 1))
        }),
    },
    Rule {
        name: "older_shutdown",
        why: "1.6.18 words the refusal of shutdown as ERROR, not as SERVER_ERROR",
        peer: Some(PeerAge::Older),
        excuse: Excuse::Lines(|mismatch| {
            let same = mismatch.ours() == b"SERVER_ERROR: shutdown not enabled"
                && mismatch.peer() == b"ERROR: shutdown not enabled";
            mismatch.one_each(same)
        }),
    },
];

#[test]
fn what_an_older_peer_refuses_is_answered_as_1_6_45_answers_it() {
    let meta = |verb, flags: &[(u8, &str)]| {
        let length = if verb == "ms" { " k 1" } else { " k" };
        let command = Command::new(verb, b"k").bytes(length.as_bytes());
        let command = flags.iter().fold(command, |command, flag| command.flag(flag.0, flag.1));
        if verb == "ms" { command.data(b"x") } else { command.end() }
    };
    let flag: &[u8] = b"CLIENT_ERROR invalid flag";
    for (command, peer, right, wrong) in [
        (meta("mg", &[(b'E', "9"), (b'k', "")]), flag, "EN kk\r\n", "EN\r\n"),
        (meta("ms", &[(b'E', "9"), (b'c', "")]), flag, "HD c9\r\n", "HD c8\r\n"),
        (meta("ms", &[(b'E', "9"), (b'q', "")]), flag, "", "HD\r\n"),
        (meta("md", &[(b'x', ""), (b'q', "")]), flag, "NF\r\n", ""),
        (meta("ma", &[(b'E', "9"), (b'N', "0"), (b'v', "")]), flag, "VA 1\r\n0\r\n", "NF\r\n"),
        (meta("ms", &[(b'M', "A"), (b'N', "0"), (b's', "")]), b"NS", "HD s1\r\n", "NS s1\r\n"),
    ] {
        let is_excused = |reply: &str| {
            let (ours, peer) = (lines(reply.as_bytes()), [Line { head: peer, data: None }]);
            let mismatch = Mismatch { command: &command, ours: &ours, peer: &peer };
            let names = ["older_lacks_flags_e_and_x", "older_append_creates_nothing"];
            RULES.iter().filter(|rule| names.contains(&rule.name)).any(|rule| match rule.excuse {
                Excuse::Lines(excuse) => excuse(&mismatch) == Some((ours.len(), 1)),
                Excuse::Words(_) => false,
            })
        };
        assert!(is_excused(right) && !is_excused(wrong), "{command:?}: {right:?}, not {wrong:?}");
    }
}
