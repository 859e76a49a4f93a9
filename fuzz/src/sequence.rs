//! Compares one client's replies, request by request, with the model of correct replies.
//!
//! Upstream:   `connection`, which has played a script and stored the replies.
//! Downstream: `kachel_check`, which defines the correct replies to a request; `kachel_wire`, which
//!             finds the end of a request.
//!
//! A withheld reply leaves no trace, so it is not always clear to which request a reply belongs.
//! Every assignment that fits the replies is kept as a belief. If no belief is left, the replies
//! are wrong.
//!
//! Invariants:
//! - I1  A data block is skipped as a whole, whether or not its request is executed.
//! - I2  Memory is never short, because a script fills little of it. So no item is evicted, and the
//!   server refuses no value for lack of memory if the value fits into an item.

use std::collections::BTreeMap;

use kachel_check::{
    LeaseRules, Mode, Model, Operation, Outcome, Rules, State, Value, Window, operations,
};
use kachel_wire::client::{ClientReply, ReplyParsed, parse_reply};
use kachel_wire::request::{Admin, Request, RetrieveForm};
use kachel_wire::{Parsed, Reply, parse_text};

use crate::script::Script;

/// The second in which a server starts.
const FIRST_SECOND: u32 = 2;
/// The most keys of one retrieval, the most beliefs, and the most states of one key. Beyond these
/// limits the rest of a sequence is not judged.
const KEYS_MAX: usize = 300;
const BELIEFS_MAX: usize = 16;
const STATES_MAX: usize = 32;
/// The most bytes of an item besides its value.
const HEAD_BYTES_MAX: u64 = 400;

/// The replies that a client received, and how the connection ended.
pub(crate) struct Answered<'r> {
    pub(crate) reply: &'r [u8],
    /// Whether the client read all replies.
    pub(crate) is_whole: bool,
    pub(crate) closed: bool,
}

/// One way in which replies may belong to the requests so far.
#[derive(Clone)]
struct Belief<'r> {
    /// The replies that belong to later requests.
    rest: &'r [u8],
    keys: BTreeMap<Vec<u8>, Vec<State>>,
    /// The states of each key that no request has named yet.
    others: Vec<State>,
}

/// Why the judgment of a sequence ends.
enum End {
    /// No complete request follows, or the server closes the connection.
    Over { closed: bool },
    /// The rest of the sequence cannot be judged.
    Unknown,
}

/// The options of a server that its replies depend on.
pub(crate) struct Served {
    /// The Unix time at which the server started.
    pub(crate) start_unix_s: i64,
    pub(crate) item_bytes_max: u64,
}

/// Judges `answered` as the replies to the stream of `script`, which is text, from a server that
/// started empty, with the options `served`.
///
/// Panics: if these replies are impossible.
pub(crate) fn judge(script: &Script, served: &Served, answered: &Answered<'_>) {
    let Served { start_unix_s, item_bytes_max } = *served;
    let rules = Rules {
        item_bytes_max,
        unix_s: Some(start_unix_s - i64::from(FIRST_SECOND)),
        leases: Some(LeaseRules::DEFAULT),
        ..Rules::new(Mode::Store) // I2
    };
    let beliefs = vec![Belief {
        rest: answered.reply,
        keys: BTreeMap::new(),
        others: vec![State::default()],
    }];
    let mut judging = Judging { model: Model::new(rules), now: Window::at(FIRST_SECOND), beliefs };
    let (pause_at, pause_s) = script.pause.unwrap_or_default();
    let mut rest = &script.stream[..];
    let mut waits = pause_s > 0;
    let closed = loop {
        let before: Vec<_> = judging.beliefs.iter().map(|belief| belief.rest).collect();
        if waits && whole_bytes(rest) > pause_at.saturating_sub(script.stream.len() - rest.len()) {
            waits = false;
            judging.now = Window::at(FIRST_SECOND + pause_s);
        }
        match judging.request(rest) {
            Ok(bytes) if judging.fits() => {
                assert!(
                    !judging.beliefs.is_empty() || cut_off(&before, answered),
                    "{}\n  cannot get the reply  {}",
                    excerpt(rest),
                    before.iter().map(|rest| excerpt(rest)).collect::<String>()
                );
                if judging.beliefs.is_empty() {
                    return;
                }
                rest = &rest[bytes.min(rest.len())..];
            }
            Ok(_) | Err(End::Unknown) => return,
            Err(End::Over { closed }) => break closed,
        }
    };
    if answered.is_whole {
        let told = judging.beliefs.iter().any(|belief| belief.rest.is_empty());
        assert!(told, "no request for the reply {}", excerpt(judging.beliefs[0].rest));
        assert_eq!(answered.closed, closed, "closed");
    }
}

/// Whether a client that did not read all replies may have missed the next one.
fn cut_off(rests: &[&[u8]], answered: &Answered<'_>) -> bool {
    !answered.is_whole && rests.iter().any(|rest| Outcome::read(rest).is_none())
}

/// The number of bytes that the server needs to execute the request at the front of `rest`.
fn whole_bytes(rest: &[u8]) -> usize {
    let Parsed::Request { request, line_bytes } = parse_text(rest, 0) else { return 0 };
    let value_bytes = match request {
        Request::Store(store) => store.value_bytes,
        Request::MetaSet { value_bytes, .. } => value_bytes,
        _ => return line_bytes,
    };
    line_bytes + value_bytes as usize + 2
}

struct Judging<'r> {
    model: Model,
    now: Window,
    beliefs: Vec<Belief<'r>>,
}

impl<'r> Judging<'r> {
    fn fits(&self) -> bool {
        let few = |belief: &Belief<'_>| belief.keys.values().all(|s| s.len() <= STATES_MAX);
        self.beliefs.len() <= BELIEFS_MAX && self.beliefs.iter().all(few)
    }

    /// Judges the request at the front of `rest` and returns its length in bytes.
    fn request(&mut self, rest: &[u8]) -> Result<usize, End> {
        match parse_text(rest, 0) {
            Parsed::NeedMore => Err(End::Over { closed: false }),
            Parsed::Close => Err(End::Over { closed: true }),
            Parsed::RefusedBinary { .. } => unreachable!("a stream of text"),
            Parsed::Refused { refusal, line_bytes } => {
                self.answered_by(refusal.reply);
                Ok(line_bytes.saturating_add(refusal.skip_bytes as usize)) // I1
            }
            Parsed::Request { request, line_bytes } => match request {
                Request::Retrieve(retrieve) if retrieve.keys.count() > KEYS_MAX => {
                    Err(End::Unknown)
                }
                Request::Retrieve(retrieve) if retrieve.form == RetrieveForm::LeaseOfOne => {
                    self.operation(&operation(&rest[..line_bytes])?, false);
                    Ok(line_bytes)
                }
                Request::Retrieve(_) => Ok(self.retrieval(rest)),
                Request::Store(store) => {
                    self.storage(rest, line_bytes, store.value_bytes, store.noreply)
                }
                Request::MetaSet { value_bytes, .. } => {
                    self.storage(rest, line_bytes, value_bytes, false)
                }
                Request::MetaNoop => {
                    self.answered_by(Reply::Mn);
                    Ok(line_bytes)
                }
                Request::Admin(Admin::FlushAll { .. } | Admin::FlushPrefix { .. }) => {
                    self.flush(&rest[..line_bytes])?;
                    Ok(line_bytes)
                }
                Request::Admin(admin) => {
                    self.admin(admin)?;
                    Ok(line_bytes)
                }
                _ => {
                    let operation = operation(&rest[..line_bytes])?;
                    self.operation(&operation, false);
                    Ok(line_bytes)
                }
            },
        }
    }

    fn admin(&mut self, admin: Admin<'_>) -> Result<(), End> {
        let reply = match admin {
            Admin::Version => {
                self.keep(|belief| belief.take(b"VERSION 1.6.45\r\n"));
                return Ok(());
            }
            Admin::Verbosity { noreply, .. } => Reply::Ok.unless(noreply),
            Admin::Quit => return Err(End::Over { closed: true }),
            Admin::Shutdown { .. } | Admin::Settled { reply: Reply::InvalidShutdownMode, .. } => {
                Reply::ShutdownNotEnabled
            }
            Admin::Settled { reply, noreply } => reply.unless(noreply),
            // The server under test has no TLS.
            Admin::RefreshCertificates { noreply } => Reply::Error.unless(noreply),
            Admin::SwitchPipe { noreply, .. } => Reply::PipeNotEnabled.unless(noreply),
            Admin::Observe { noreply, .. } => Reply::Ok.unless(noreply),
            Admin::Scan(_) => Reply::ScanNotAllowed,
            Admin::FlushAll { .. }
            | Admin::FlushPrefix { .. }
            | Admin::CacheMemlimit { .. }
            | Admin::Crawl { .. }
            | Admin::MoveTime { .. }
            | Admin::SwitchCrawler { .. }
            | Admin::Dump { .. }
            | Admin::Stats { .. }
            | Admin::ShowHash { .. }
            | Admin::Watch { .. } => return Err(End::Unknown),
        };
        self.answered_by(reply);
        Ok(())
    }

    /// Replaces each belief with the result of `next`, if there is one.
    fn keep(&mut self, mut next: impl FnMut(Belief<'r>) -> Option<Belief<'r>>) {
        self.beliefs = self.beliefs.drain(..).filter_map(&mut next).collect();
    }

    fn answered_by(&mut self, reply: Reply) {
        self.keep(|belief| belief.take(reply.bytes()));
    }

    /// Judges a request for one key with one reply, or with a withheld reply.
    fn operation(&mut self, operation: &Operation, may_be_large: bool) {
        let mut next = Vec::with_capacity(self.beliefs.len());
        for belief in self.beliefs.drain(..) {
            let silent = belief.states_after((&self.model, self.now), operation, &Outcome::Silent);
            let read = Outcome::read(belief.rest).filter(|(outcome, _)| match outcome {
                Outcome::Refused(line) => {
                    may_be_large && is_too_large(line) || is_non_numeric(line) // I2
                }
                _ => true,
            });
            let told = read.map(|(outcome, bytes)| {
                (belief.states_after((&self.model, self.now), operation, &outcome), bytes)
            });
            belief.become_each(operation, [(silent, 0), told.unwrap_or_default()], &mut next);
        }
        self.beliefs = next;
    }

    fn retrieval(&mut self, rest: &[u8]) -> usize {
        let (operations, bytes) = operations(rest).expect("a whole line");
        for operation in operations {
            let mut next = Vec::with_capacity(self.beliefs.len());
            for belief in self.beliefs.drain(..) {
                let missed =
                    belief.states_after((&self.model, self.now), &operation, &Outcome::Miss);
                let told = belief.hit(operation.key()).map(|(outcome, bytes)| {
                    (belief.states_after((&self.model, self.now), &operation, &outcome), bytes)
                });
                belief.become_each(&operation, [(missed, 0), told.unwrap_or_default()], &mut next);
            }
            self.beliefs = next;
        }
        self.answered_by(Reply::End);
        bytes
    }

    fn storage(
        &mut self,
        rest: &[u8],
        line_bytes: usize,
        value_bytes: u32,
        noreply: bool,
    ) -> Result<usize, End> {
        let max = self.model.rules.item_bytes_max;
        let may_be_large = u64::from(value_bytes) + HEAD_BYTES_MAX > max;
        let must_be_large = u64::from(value_bytes) > max;
        let too_large = Reply::TooLarge.unless(noreply);
        let request_bytes = line_bytes + value_bytes as usize + 2;
        let Some(wire) = rest.get(..request_bytes) else {
            // The server waits for the rest of a value that fits, and refuses other values at once.
            let refused = self.beliefs.clone().into_iter();
            let refused = refused.filter_map(|belief| belief.take(too_large.bytes()));
            let refused: Vec<_> = refused.filter(|_| may_be_large).collect();
            if must_be_large {
                self.beliefs.clear();
            }
            self.beliefs.extend(refused);
            return Err(End::Over { closed: false });
        };
        let operation = operation(wire)?;
        let before = if may_be_large { self.beliefs.clone() } else { Vec::new() };
        if must_be_large {
            self.beliefs.clear();
        } else if wire.ends_with(b"\r\n") {
            self.operation(&operation, false);
        } else {
            self.answered_by(Reply::BadDataChunk.unless(noreply));
        }
        if may_be_large {
            let line = Reply::TooLarge.bytes().trim_ascii_end().to_vec();
            let refused = before.into_iter().filter_map(|belief| belief.take(too_large.bytes()));
            let outcome = Outcome::Refused(line);
            let refused =
                refused.map(|b| (b.states_after((&self.model, self.now), &operation, &outcome), b));
            for (states, belief) in refused.collect::<Vec<_>>() {
                belief.become_each(&operation, [(states, 0)], &mut self.beliefs);
            }
        }
        Ok(request_bytes)
    }

    fn flush(&mut self, line: &[u8]) -> Result<(), End> {
        let operation = operation(line)?;
        let outcome = if operation.is_noreply() { Outcome::Silent } else { Outcome::Ok };
        let (model, now) = (self.model, self.now);
        let flushed = |states: &[State]| -> Vec<State> {
            let each = |state| model.step(state, &operation, &outcome, now);
            let mut states: Vec<State> = states.iter().flat_map(each).collect();
            states.sort_unstable();
            states.dedup();
            states
        };
        // A prefix takes some keys, and is refused while many others are being flushed.
        let is_prefix = !operation.flushes(b"");
        let refusal = Reply::TooManyPrefixes.unless(operation.is_noreply()).bytes();
        let refused = self.beliefs.iter().filter(|_| is_prefix).cloned();
        let refused: Vec<Belief<'r>> = refused.filter_map(|belief| belief.take(refusal)).collect();
        self.keep(|mut belief| {
            let others = flushed(&belief.others);
            if is_prefix {
                belief.others.extend(others);
                belief.others.sort_unstable();
                belief.others.dedup();
            } else {
                belief.others = others;
            }
            for (key, states) in &mut belief.keys {
                if operation.flushes(key) {
                    *states = flushed(states);
                }
            }
            Some(belief)
        });
        self.answered_by(Reply::Ok.unless(operation.is_noreply()));
        self.beliefs.extend(refused);
        Ok(())
    }
}

impl Belief<'_> {
    /// The belief after the bytes `text`. `None`: the next replies are other bytes.
    fn take(mut self, text: &[u8]) -> Option<Self> {
        self.rest = self.rest.strip_prefix(text)?;
        Some(self)
    }

    /// What the next reply shows of `key`, and the length of the reply, if it may show `key`.
    fn hit(&self, key: &[u8]) -> Option<(Outcome, usize)> {
        let ReplyParsed::Reply { reply, reply_bytes } = parse_reply(self.rest) else { return None };
        let value = |range| Value::new(&self.rest[range]);
        let outcome = match reply {
            ClientReply::Value { key: told, client_flags, value: range, cas } if told == key => {
                Outcome::Hit { value: value(range), client_flags, cas }
            }
            ClientReply::Leased { key: told, token, client_flags, value: range } if told == key => {
                Outcome::Leased { token, client_flags, value: value(range) }
            }
            ClientReply::NotFoundHot => Outcome::NotFoundHot,
            _ => return None,
        };
        Some((outcome, reply_bytes))
    }

    /// The states of the operation's key after `outcome`. No state: the outcome is impossible.
    fn states_after(
        &self,
        (model, now): (&Model, Window),
        operation: &Operation,
        outcome: &Outcome,
    ) -> Vec<State> {
        let states = self.keys.get(operation.key()).unwrap_or(&self.others);
        let each = |state| model.step(state, operation, outcome, now);
        let mut next: Vec<State> = states.iter().flat_map(each).collect();
        next.sort_unstable();
        next.dedup();
        next
    }

    /// Adds the belief that results from each possible way. A way is the states of the operation's
    /// key and the number of reply bytes; it is impossible if it has no states. Nearly always one
    /// way is possible, and nothing is cloned.
    fn become_each<const WAYS: usize>(
        self,
        operation: &Operation,
        ways: [(Vec<State>, usize); WAYS],
        into: &mut Vec<Self>,
    ) {
        let mut possible = ways.into_iter().filter(|(states, _)| !states.is_empty());
        let Some(last) = possible.next_back() else { return };
        for way in possible {
            into.push(self.clone().with(operation, way));
        }
        into.push(self.with(operation, last));
    }

    /// The belief with these states of the operation's key, after this number of reply bytes.
    fn with(mut self, operation: &Operation, (states, bytes): (Vec<State>, usize)) -> Self {
        self.rest = &self.rest[bytes..];
        match self.keys.get_mut(operation.key()) {
            Some(before) => *before = states,
            None => _ = self.keys.insert(operation.key().to_vec(), states),
        }
        self
    }
}

/// A whole request of one key. The model's parser does not read spellings that no client of a
/// history uses, such as a zero byte behind a number; what follows such a request is not judged.
fn operation(wire: &[u8]) -> Result<Operation, End> {
    Operation::new(wire).ok_or(End::Unknown)
}

fn is_too_large(line: &[u8]) -> bool {
    line == Reply::TooLarge.bytes().trim_ascii_end()
}

fn is_non_numeric(line: &[u8]) -> bool {
    line == Reply::NonNumeric.bytes().trim_ascii_end()
}

fn excerpt(text: &[u8]) -> String {
    format!("({} bytes) {}", text.len(), text[..text.len().min(200)].escape_ascii())
}
