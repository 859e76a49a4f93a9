//! Answers: the replies that the model expects, and their comparison with what the client saw.
//!
//! Upstream:   `classic` and `meta` make answers.
//! Downstream: the next state, in which the tokens that the client saw are known.
//!
//! Invariants:
//! - I1  A token in a reply is the token of the item that the operation leaves.
//! - I2  The client does not see a reply that `q` or `noreply` withholds, and sees every other.

use super::{Branch, Span, State};
use crate::request::{Meta, MetaKey, encode, number};
use crate::{Outcome, Value, Window};

const NON_NUMERIC: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value";
const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache";

/// Whether a refusal is one that follows from the request and the item.
pub(super) fn is_foreseen(line: &[u8]) -> bool {
    line == NON_NUMERIC || line == TOO_LARGE
}

/// The reply that the model expects.
pub(super) enum Answer<'r> {
    /// A hit that shows the item that the operation leaves.
    Hit { with_cas: bool },
    /// `LVALUE` with this value: with the token of the lease if the client gets it, and else
    /// with 1.
    Leased { value: Value, client_flags: u32, is_holder: bool },
    /// Exactly this outcome.
    Plain(Outcome),
    /// The refusal of a value that is not a number. `q` does not withhold it.
    NonNumeric,
    /// The refusal of a value that is too large for an item. `q` does not withhold it.
    TooLarge,
    /// A meta reply.
    Meta(MetaAnswer<'r>),
    /// `ME`, which shows the item.
    Debug { key: MetaKey<'r>, base64: bool },
    /// `EN` without flags.
    DebugMiss,
}

/// A meta reply.
pub(super) struct MetaAnswer<'r> {
    code: &'static [u8; 2],
    is_hidden: bool,
    key: MetaKey<'r>,
    returns: Vec<(&'r [u8], Return)>,
    pub(super) value: Option<Value>,
    /// Whether the reply shows `Z`, `X` and `W`.
    pub(super) marks: [bool; 3],
}

/// What a return flag shows.
#[derive(Clone, Copy)]
pub(super) enum Return {
    /// The request's own flag.
    Echo,
    /// The key, followed by `b` if it is in base64.
    Key {
        base64: bool,
    },
    Number(u64),
    /// 0 or 1.
    Flag,
    /// The token of the item that the operation leaves (I1).
    Token,
    /// The seconds until this expiry; -1 if the item never expires.
    Life(Option<Span>),
    /// The seconds since some time in this second or later.
    Since(u32),
}

impl<'r> MetaAnswer<'r> {
    pub(super) fn new(
        code: &'static [u8; 2],
        meta: &Meta<'r>,
        returns: Vec<(&'r [u8], Return)>,
    ) -> Self {
        Self {
            code,
            is_hidden: meta.withholds(code),
            key: meta.key,
            returns,
            value: None,
            marks: [false; 3],
        }
    }
}

/// The outcome that the client saw, and when the operation was executed.
#[derive(Clone, Copy)]
pub(super) struct Seen<'o> {
    pub(super) outcome: &'o Outcome,
    pub(super) window: Window,
    pub(super) is_noreply: bool,
}

impl Seen<'_> {
    /// The next state, if this branch matches what the client saw.
    pub(super) fn accept(self, branch: Branch<'_>) -> Option<State> {
        let Branch { answer, next } = branch;
        if *self.outcome == Outcome::Unknown {
            return Some(next);
        }
        if *self.outcome == Outcome::Silent {
            let hidden = matches!(&answer, Answer::Meta(meta) if meta.is_hidden);
            return (self.is_noreply || hidden).then_some(next); // I2
        }
        match (answer, self.outcome) {
            (Answer::Plain(expected), seen) => (expected == *seen).then_some(next),
            (Answer::NonNumeric, Outcome::Refused(line)) => (line == NON_NUMERIC).then_some(next),
            (Answer::TooLarge, Outcome::Refused(line)) => (line == TOO_LARGE).then_some(next),
            (Answer::Hit { with_cas }, Outcome::Hit { value, client_flags, cas }) => {
                let item = next.item.as_ref()?;
                let same = item.value == *value && item.client_flags == *client_flags;
                match cas {
                    _ if !same || cas.is_some() != with_cas => None,
                    Some(token) => next.bound(*token),
                    None => Some(next),
                }
            }
            (
                Answer::Leased { value, client_flags, is_holder },
                Outcome::Leased { token, client_flags: seen_flags, value: seen },
            ) => match (*token, value == *seen && client_flags == *seen_flags) {
                (_, false) | (0, _) => None,
                (1, true) => (!is_holder).then_some(next),
                (token, true) => is_holder.then(|| next.leased(token)).flatten(),
            },
            (Answer::Meta(meta), Outcome::Meta { code, flags, value }) => {
                let same = meta.code == code && meta.value == *value;
                if meta.is_hidden || !same { None } else { self.meta(&meta, flags, next) }
            }
            (Answer::Debug { key, base64 }, Outcome::Debug(rest)) => {
                self.debug(&shown_key(key, base64), rest, next)
            }
            (Answer::DebugMiss, Outcome::Meta { code, flags, .. }) => {
                (code == b"EN" && flags.is_empty()).then_some(next)
            }
            _ => None,
        }
    }

    /// Compares the return flags, in the order of the request. Marks are last, in any order.
    fn meta(self, answer: &MetaAnswer<'_>, flags: &[u8], mut next: State) -> Option<State> {
        let mut words =
            flags.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).peekable();
        for (asked, shown) in &answer.returns {
            let word = words.next()?;
            let (letter, text) = word.split_first()?;
            if *letter != asked[0] {
                return None;
            }
            match shown {
                Return::Key { base64 } => {
                    let marked = words.next_if(|word| word == b"b").is_some();
                    if marked != *base64 || text != shown_key(answer.key, marked) {
                        return None;
                    }
                }
                Return::Echo if word == *asked => {}
                Return::Number(wanted) if number::<u64>(text)? == *wanted => {}
                Return::Flag if number::<u8>(text)? <= 1 => {}
                Return::Token => next = next.bound(number(text)?)?,
                Return::Life(expiry) if self.is_life_left(text, *expiry)? => {}
                Return::Since(second) if self.is_since(number(text)?, *second) => {}
                _ => return None,
            }
        }
        let mut marks = [false; 3];
        for word in words {
            let place = [b"Z", b"X", b"W"].iter().position(|mark| *mark == word)?;
            if std::mem::replace(&mut marks[place], true) {
                return None;
            }
        }
        (marks == answer.marks).then_some(next)
    }

    /// Compares the text after `ME ` in a reply to `me`.
    fn debug(self, key: &[u8], rest: &[u8], next: State) -> Option<State> {
        let item = next.item.clone()?;
        let mut words = rest.strip_prefix(key)?.split(|byte| *byte == b' ').skip(1);
        let mut field = |name: &[u8]| words.next()?.strip_prefix(name);
        let expiry = field(b"exp=")?;
        let since_s = number(field(b"la=")?)?;
        let token = number(field(b"cas=")?)?;
        let fetched = field(b"fetch=")? == b"yes";
        let is_right = self.is_life_left(expiry, item.expiry)?
            && self.is_since(since_s, item.since_s)
            && item.fetched.is_none_or(|known| known == fetched);
        if is_right { next.bound(token) } else { None }
    }

    /// Whether `text` may be the seconds until `expiry`. An item that the request itself makes
    /// expire shows a negative number of seconds, modulo 2^32.
    fn is_life_left(self, text: &[u8], expiry: Option<Span>) -> Option<bool> {
        if text == b"-1" {
            return Some(expiry.is_none());
        }
        let seconds = i64::from(number::<u32>(text)? as i32);
        let bounds = |expiry: Span| {
            let least = i64::from(expiry.first) - i64::from(self.window.latest_s);
            // An item that expires at once gets some second in the past, which is not specified.
            let dead_at_once = expiry.last == 0 && seconds <= 0;
            dead_at_once
                || (least..=i64::from(expiry.last) - i64::from(self.window.earliest_s))
                    .contains(&seconds)
        };
        Some(expiry.is_some_and(bounds))
    }

    fn is_since(self, seconds: u64, second: u32) -> bool {
        seconds <= u64::from(self.window.latest_s.saturating_sub(second))
    }
}

/// The text of a key in a reply, in base64 or plain.
fn shown_key(key: MetaKey<'_>, base64: bool) -> Vec<u8> {
    let raw = key.raw();
    if base64 { encode(&raw) } else { raw.into_owned() }
}
