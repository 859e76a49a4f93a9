//! One client's replies, request by request, beside the model of what is right.
//!
//! Upstream:   `connection` has played a script and kept the replies.
//! Downstream: `kachel_check` says what each request may be answered, `kachel_wire` where the next
//!             one begins.
//!
//! A reply that is withheld leaves no trace, so it is not always plain which reply answers which
//! request: all beliefs that fit are kept, and none left is a finding.
//!
//! Invariants:
//! - I1  A data block is passed over whole, whatever becomes of its request.
//! - I2  Memory is never short: a script fills little of it. So no item goes before its time, and
//!   nothing is refused for want of room but what is too large for any.

use std::collections::BTreeMap;

use kachel_check::{Mode, Model, Operation, Outcome, Rules, State, Value, Window, operations};
use kachel_wire::client::{ClientReply, ReplyParsed, parse_reply};
use kachel_wire::request::{Admin, Request};
use kachel_wire::{Parsed, Reply, parse};

use crate::connection::START_UNIX_S;
use crate::script::Script;

/// The second in which a server begins.
const FIRST_SECOND: u32 = 2;
/// Keys of one request that are followed, beliefs, and states of one key: with more, nothing is
/// said.
const KEYS_MAX: usize = 300;
const BELIEFS_MAX: usize = 16;
const STATES_MAX: usize = 32;
/// Bytes that an item may have beside its value.
const HEAD_BYTES_MAX: u64 = 400;

/// What a client was answered, and how it came to an end.
pub(crate) struct Answered<'r> {
    pub(crate) reply: &'r [u8],
    /// Whether the client took all that there was.
    pub(crate) is_whole: bool,
    pub(crate) closed: bool,
}

/// One way in which requests and replies may belong together so far.
#[derive(Clone)]
struct Belief<'r> {
    /// Replies that are not told yet.
    rest: &'r [u8],
    keys: BTreeMap<Vec<u8>, Vec<State>>,
    /// The states of every key that was not named yet.
    others: Vec<State>,
}

/// Why no more is said of a sequence.
enum End {
    /// It is over.
    Over { closed: bool },
    /// What comes is not for the model.
    Unknown,
}

/// Judges `answered` as the answers to `stream`, on a server that began empty. Panics if it cannot
/// be.
pub(crate) fn judge(script: &Script, item_bytes_max: u64, answered: &Answered<'_>) {
    let rules = Rules {
        item_bytes_max,
        unix_s: Some(START_UNIX_S - i64::from(FIRST_SECOND)),
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
                    "{}\n  cannot be answered  {}",
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
        assert!(told, "nobody asked for {}", excerpt(judging.beliefs[0].rest));
        assert_eq!(answered.closed, closed, "closed");
    }
}

/// Whether a client that did not take everything may have missed the reply.
fn cut_off(rests: &[&[u8]], answered: &Answered<'_>) -> bool {
    !answered.is_whole && rests.iter().any(|rest| Outcome::read(rest).is_none())
}

/// Bytes of the request at the front of `rest` up to where it is carried out.
fn whole_bytes(rest: &[u8]) -> usize {
    let Parsed::Request { request, line_bytes } = parse(rest, 0) else { return 0 };
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

    /// Takes the request at the front of `rest`; returns its bytes.
    fn request(&mut self, rest: &[u8]) -> Result<usize, End> {
        match parse(rest, 0) {
            Parsed::NeedMore => Err(End::Over { closed: false }),
            Parsed::Close => Err(End::Over { closed: true }),
            Parsed::Refused { refusal, line_bytes } => {
                self.answered_by(refusal.reply);
                Ok(line_bytes.saturating_add(refusal.skip_bytes as usize)) // I1
            }
            Parsed::Request { request, line_bytes } => match request {
                Request::Retrieve(retrieve) if retrieve.keys.count() > KEYS_MAX => {
                    Err(End::Unknown)
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
                Request::Admin(Admin::FlushAll { .. }) => {
                    self.flush(&rest[..line_bytes]);
                    Ok(line_bytes)
                }
                Request::Admin(admin) => {
                    self.admin(admin)?;
                    Ok(line_bytes)
                }
                _ => {
                    let operation = operation(&rest[..line_bytes]);
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
            Admin::FlushAll { .. }
            | Admin::CacheMemlimit { .. }
            | Admin::Dump { .. }
            | Admin::Stats { .. } => return Err(End::Unknown),
        };
        self.answered_by(reply);
        Ok(())
    }

    /// Keeps what `next` makes of each belief.
    fn keep(&mut self, mut next: impl FnMut(Belief<'r>) -> Option<Belief<'r>>) {
        self.beliefs = self.beliefs.drain(..).filter_map(&mut next).collect();
    }

    fn answered_by(&mut self, reply: Reply) {
        self.keep(|belief| belief.take(reply.bytes()));
    }

    /// A request of one key with one reply, or none.
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
            // What fits is waited for; what does not is refused at once.
            let refused = self.beliefs.clone().into_iter();
            let refused = refused.filter_map(|belief| belief.take(too_large.bytes()));
            let refused: Vec<_> = refused.filter(|_| may_be_large).collect();
            if must_be_large {
                self.beliefs.clear();
            }
            self.beliefs.extend(refused);
            return Err(End::Over { closed: false });
        };
        let operation = operation(wire);
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

    fn flush(&mut self, line: &[u8]) {
        let operation = operation(line);
        let outcome = if operation.is_noreply() { Outcome::Silent } else { Outcome::Ok };
        let (model, now) = (self.model, self.now);
        let flushed = |states: &[State]| -> Vec<State> {
            let each = |state| model.step(state, &operation, &outcome, now);
            let mut states: Vec<State> = states.iter().flat_map(each).collect();
            states.sort_unstable();
            states.dedup();
            states
        };
        self.keep(|mut belief| {
            belief.others = flushed(&belief.others);
            for states in belief.keys.values_mut() {
                *states = flushed(states);
            }
            Some(belief)
        });
        self.answered_by(Reply::Ok.unless(operation.is_noreply()));
    }
}

impl Belief<'_> {
    /// The belief, once these bytes were told.
    fn take(mut self, text: &[u8]) -> Option<Self> {
        self.rest = self.rest.strip_prefix(text)?;
        Some(self)
    }

    /// The value of `key`, if that is what is told next, and the bytes of it.
    fn hit(&self, key: &[u8]) -> Option<(Outcome, usize)> {
        let ReplyParsed::Reply { reply, reply_bytes } = parse_reply(self.rest) else { return None };
        let ClientReply::Value { key: told, client_flags, value, cas } = reply else { return None };
        let value = (told == key).then(|| Value::new(&self.rest[value]))?;
        Some((Outcome::Hit { value, client_flags, cas }, reply_bytes))
    }

    /// What the operation's key may hold, once it came out so; nothing: it cannot have.
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

    /// Adds what the belief becomes in each way that is possible: with these states of the
    /// operation's key, so many bytes told. Nearly always there is one, and nothing is cloned.
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

    /// The belief with these states of the operation's key, so many bytes further on.
    fn with(mut self, operation: &Operation, (states, bytes): (Vec<State>, usize)) -> Self {
        self.rest = &self.rest[bytes..];
        match self.keys.get_mut(operation.key()) {
            Some(before) => *before = states,
            None => _ = self.keys.insert(operation.key().to_vec(), states),
        }
        self
    }
}

fn operation(wire: &[u8]) -> Operation {
    Operation::new(wire).expect("a whole request of one key")
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
