//! Reads the answer to one request: the items of a get, the end of any request.
//!
//! Upstream:   `connection` and `flow` lend received bytes; `reply` parses one reply.
//! Downstream: the outcome, which `books` records; `Source::item` checks each item.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Every byte belongs to the request that is named: a reply of another kind, or with a number
//!   that is not the next possible one, is garbled.
//! - I2  An answer may arrive in pieces. `Progress` keeps what was read, so each item is read once.

use crate::protocol::Protocol;
use crate::reply::{Line, Scanned, scan};
use crate::request::{Asked, Kind, Outcome, Pending, Source};
use crate::tally::Errors;

/// The part of the answer to the oldest request that was read (I2).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// Items received.
    hits: u32,
    /// Quiet commands that were answered or skipped.
    passed: u32,
    /// Whether a command of the request was refused.
    is_failed: bool,
    /// The opaque of the request's first command.
    opaque: u32,
}

impl Progress {
    /// No byte was read yet of the answer to the request whose first command has this opaque.
    pub(crate) fn new(opaque: u32) -> Self {
        Self { opaque, ..Self::default() }
    }

    /// Whether a reply with this opaque answers a command that is still open (I1). `is_last`: the
    /// reply ends the request.
    #[inline]
    fn accepts(&mut self, opaque: Option<u32>, commands: u32, is_last: bool) -> bool {
        let Some(opaque) = opaque else { return true };
        debug_assert!(self.passed < commands, "I1: finish() begins with the next request");
        let command = opaque.wrapping_sub(self.opaque);
        let is_due = match is_last {
            true => command == commands - 1,
            false => command >= self.passed && command < commands - 1,
        };
        if is_due && !is_last {
            self.passed = command + 1;
        }
        is_due
    }

    /// Begins with the next request.
    #[inline]
    fn finish(&mut self, commands: u32) {
        *self = Self::new(self.opaque.wrapping_add(commands));
    }
}

/// Result of an attempt to read an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Incomplete: the next attempt needs at least this many bytes.
    NeedMore {
        /// Number of bytes to wait for, counted from the first one that was not consumed.
        bytes: usize,
    },
    /// The answer is complete.
    Answered(Outcome),
    /// The bytes do not answer the request (I1); nothing after them can be read.
    Garbled,
}

/// Reads the answer to `request` at the start of `input`. Returns the number of bytes read.
#[inline]
pub(crate) fn read_answer<S: Source>(
    protocol: Protocol,
    input: &[u8],
    request: &Pending,
    progress: &mut Progress,
    source: &mut S,
    asked: &mut Asked,
    errors: &mut Errors,
) -> (usize, Step) {
    let is_get = request.kind == Kind::Get;
    let is_quiet = is_get && protocol.is_quiet(request.keys);
    let commands = if is_get { protocol.commands_of_get(request.keys) } else { 1 };
    let is_scan = request.kind == Kind::Scan;
    let has_end = is_quiet || is_scan || protocol == Protocol::Text;
    let mut place = 0;
    loop {
        let scanned = scan(protocol, &input[place..]);
        let (outcome, consumed) = match scanned {
            Scanned::NeedMore { bytes } => return (place, Step::NeedMore { bytes }),
            Scanned::Value { key, value, cas, opaque, consumed }
                if (is_get || is_scan) && progress.accepts(opaque, commands, !has_end) =>
            {
                progress.hits += 1;
                if !source.item(request, key, value, cas, asked) {
                    errors.wrong += 1;
                    errors.note(|| format!("wrong item {}", key.unwrap_or(value).escape_ascii()));
                }
                if has_end {
                    place += consumed;
                    continue;
                }
                (Outcome::Hits(1), consumed)
            }
            Scanned::Line { line: Line::Refused { status, words }, opaque, consumed } => {
                note_refusal(status, words, errors);
                let is_last = match opaque {
                    None => !is_quiet,
                    Some(opaque) => opaque.wrapping_sub(progress.opaque) == commands - 1,
                };
                if !progress.accepts(opaque, commands, is_last) {
                    return (place, Step::Garbled);
                }
                if !is_last {
                    progress.is_failed = true;
                    place += consumed;
                    continue;
                }
                (Outcome::Failed, consumed)
            }
            Scanned::Line { line, opaque, consumed }
                if progress.accepts(opaque, commands, true) =>
            {
                let outcome = match (line, request.kind) {
                    (Line::End, Kind::Get) if progress.is_failed => Outcome::Failed,
                    (Line::End, Kind::Get) if has_end => Outcome::Hits(progress.hits),
                    (Line::Miss, Kind::Get) if !has_end => Outcome::Hits(0),
                    (Line::Miss | Line::More, Kind::Scan) => Outcome::Scanned(progress.hits),
                    (Line::Done, Kind::Set | Kind::Other) => Outcome::Done,
                    (Line::NotDone, Kind::Set | Kind::Other) => Outcome::NotDone,
                    _ => return (place, Step::Garbled), // I1
                };
                (outcome, consumed)
            }
            _ => return (place, Step::Garbled), // I1
        };
        debug_assert!(consumed > 0, "I2");
        progress.finish(commands);
        return (place + consumed, Step::Answered(outcome));
    }
}

#[cold]
fn note_refusal(status: Option<u16>, words: &[u8], errors: &mut Errors) {
    errors.refused += 1;
    errors.note(|| match status {
        None => words.escape_ascii().to_string(),
        Some(status) => format!("status {status:#04x}: {}", words.escape_ascii()),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Next, Outbox};

    /// A source that accepts the value "v" of any key.
    struct Accepting;

    impl Source for Accepting {
        fn next(&mut self, _: u64, _: &mut Outbox) -> Next {
            Next::Finished
        }
        fn item(
            &mut self,
            _: &Pending,
            _: Option<&[u8]>,
            value: &[u8],
            _: Option<u64>,
            _: &mut Asked,
        ) -> bool {
            value == b"v"
        }
        fn answered(&mut self, _: &Pending, _: Outcome, _: u64, _: &mut Outbox) -> Option<Pending> {
            None
        }
        fn until_ns(&self) -> Option<u64> {
            None
        }
    }

    const HIT: u16 = 0;
    const MISS: u16 = 1;
    const MEMORY: u16 = 0x82;
    const GET: u8 = 0x00;
    const SET: u8 = 0x01;
    const NOOP: u8 = 0x0a;
    const GETKQ: u8 = 0x0d;

    /// A reply of the binary protocol; a hit has the value "v".
    fn reply(opcode: u8, status: u16, opaque: u32) -> Vec<u8> {
        let body: &[u8] = match (opcode, status) {
            (GET, HIT) => b"\0\0\0\0v",
            (GETKQ, HIT) => b"\0\0\0\0kv",
            (_, HIT) => b"",
            _ => b"no",
        };
        let mut bytes = vec![0; 24];
        (bytes[0], bytes[1], bytes[11]) = (0x81, opcode, body.len() as u8);
        bytes[3] = u8::from(opcode == GETKQ && status == HIT);
        bytes[4] = if body.len() > 2 { 4 } else { 0 };
        bytes[6..8].copy_from_slice(&status.to_be_bytes());
        bytes[12..16].copy_from_slice(&opaque.to_be_bytes());
        bytes.extend(body);
        bytes
    }

    fn pending(kind: Kind, keys: u32) -> Pending {
        Pending::due(kind, keys, 0, 0, 0)
    }

    /// Reads an answer whole, and in two pieces at every place, with the same result (I2).
    #[track_caller]
    fn read(protocol: Protocol, request: Pending, first: u32, input: &[u8]) -> (Step, Errors) {
        let mut errors = Errors::default();
        let mut asked = Asked::default();
        let mut step = |input: &[u8], progress: &mut Progress, errors: &mut Errors| {
            let source = &mut Accepting;
            read_answer(protocol, input, &request, progress, source, &mut asked, errors)
        };
        let whole = step(input, &mut Progress::new(first), &mut errors).1;
        for cut in 0..input.len() {
            let (mut progress, mut again) = (Progress::new(first), Errors::default());
            let (consumed, begun) = step(&input[..cut], &mut progress, &mut again);
            if begun == Step::Garbled {
                assert_eq!(whole, Step::Garbled, "I2: {cut}");
                continue;
            }
            let Step::NeedMore { bytes } = begun else { panic!("I2: {cut} {begun:?}") };
            assert!(consumed + bytes > cut, "I2");
            let (_, then) = step(&input[consumed..], &mut progress, &mut again);
            assert_eq!((then, &again), (whole, &errors), "I2: {cut}");
        }
        (whole, errors)
    }

    #[test]
    fn a_get_of_one_key_is_answered_by_one_reply_with_its_number() {
        let get = pending(Kind::Get, 1);
        let hits = |count| Step::Answered(Outcome::Hits(count));
        for (input, step) in [
            (reply(GET, HIT, 7), hits(1)),
            (reply(GET, MISS, 7), hits(0)),
            (reply(GET, MEMORY, 7), Step::Answered(Outcome::Failed)),
            (reply(GET, HIT, 8), Step::Garbled),
            (reply(GET, MISS, 6), Step::Garbled),
            (reply(NOOP, HIT, 7), Step::Garbled),
            (reply(SET, HIT, 7), Step::Garbled),
            (b"VALUE k 0 1\r\nv\r\nEND\r\n".to_vec(), Step::Garbled),
        ] {
            assert_eq!(read(Protocol::Binary, get, 7, &input).0, step, "I1: {input:?}");
        }
        for (input, step) in [
            (&b"VA 1 kk\r\nv\r\n"[..], hits(1)),
            (b"EN\r\n", hits(0)),
            (b"MN\r\n", Step::Garbled),
            (b"HD\r\n", Step::Garbled),
            (b"END\r\n", Step::Garbled),
        ] {
            assert_eq!(read(Protocol::Meta, get, 0, input).0, step, "I1");
        }
    }

    #[test]
    fn a_quiet_get_is_answered_by_its_hits_in_order_and_a_noop() {
        let get = pending(Kind::Get, 3);
        let of = |opcodes: &[(u8, u16, u32)]| {
            let replies =
                opcodes.iter().flat_map(|&(opcode, status, opaque)| reply(opcode, status, opaque));
            read(Protocol::Binary, get, u32::MAX, &replies.collect::<Vec<_>>()).0
        };
        let hits = |count| Step::Answered(Outcome::Hits(count));
        // The opaques wrap: those of the three keys are MAX, 0 and 1, that of the noop is 2.
        assert_eq!(of(&[(GETKQ, HIT, u32::MAX), (GETKQ, HIT, 1), (NOOP, HIT, 2)]), hits(2));
        assert_eq!(of(&[(NOOP, HIT, 2)]), hits(0));
        assert_eq!(of(&[(GETKQ, HIT, 1), (GETKQ, HIT, 0)]), Step::Garbled, "not in order");
        assert_eq!(of(&[(GETKQ, HIT, 0), (GETKQ, HIT, 0)]), Step::Garbled, "twice");
        assert_eq!(of(&[(GETKQ, HIT, 2)]), Step::Garbled, "the noop's number");
        assert_eq!(of(&[(NOOP, HIT, 1)]), Step::Garbled, "a key's number");
        let refused = [(GETKQ, MEMORY, 0), (NOOP, HIT, 2)];
        assert_eq!(of(&refused), Step::Answered(Outcome::Failed));
        let meta = |input: &[u8]| read(Protocol::Meta, get, 0, input).0;
        assert_eq!(meta(b"VA 1 ka\r\nv\r\nVA 1 kb\r\nv\r\nMN\r\n"), hits(2));
        assert_eq!(meta(b"SERVER_ERROR x\r\nMN\r\n"), Step::Answered(Outcome::Failed));
        assert_eq!(meta(b"EN\r\n"), Step::Garbled, "I1: a quiet miss has no answer");
    }

    #[test]
    fn a_wrong_or_short_value_is_an_error_and_a_refusal_is_quoted() {
        let get = pending(Kind::Get, 1);
        let mut short = reply(GET, HIT, 7);
        short.pop();
        short[11] -= 1;
        for (protocol, input) in [
            (Protocol::Binary, &short[..]),
            (Protocol::Meta, b"VA 1 kk\r\nw\r\n"),
            (Protocol::Text, b"VALUE k 0 0\r\n\r\nEND\r\n"),
        ] {
            let (step, errors) = read(protocol, get, 7, input);
            assert_eq!((step, errors.wrong), (Step::Answered(Outcome::Hits(1)), 1));
        }
        let (_, errors) = read(Protocol::Binary, get, 7, &reply(GET, MEMORY, 7));
        assert_eq!((errors.refused, errors.first.as_deref()), (1, Some("status 0x82: no")));
    }

    #[test]
    fn a_scan_is_answered_by_its_items_and_an_end() {
        let scan = pending(Kind::Scan, 9);
        let step = |input: &[u8]| read(Protocol::Meta, scan, 0, input).0;
        let scanned = |count| Step::Answered(Outcome::Scanned(count));
        assert_eq!(step(b"VA 1 ka\r\nv\r\nVA 1 kb\r\nv\r\nMO kb\r\n"), scanned(2));
        assert_eq!(step(b"VA 1 ka\r\nv\r\nEN\r\n"), scanned(1));
        assert_eq!(step(b"EN\r\n"), scanned(0));
        assert_eq!(step(b"CLIENT_ERROR mscan not allowed\r\n"), Step::Answered(Outcome::Failed));
        assert_eq!(step(b"MN\r\n"), Step::Garbled, "I1");
        assert_eq!(read(Protocol::Meta, pending(Kind::Get, 1), 0, b"MO ka\r\n").0, Step::Garbled);
    }

    #[test]
    fn sets_are_answered_by_their_own_kind() {
        let set = pending(Kind::Set, 1);
        let done = Step::Answered(Outcome::Done);
        assert_eq!(read(Protocol::Binary, set, 3, &reply(SET, HIT, 3)).0, done);
        assert_eq!(read(Protocol::Binary, set, 3, &reply(SET, HIT, 4)).0, Step::Garbled);
        assert_eq!(read(Protocol::Binary, set, 3, &reply(GET, MISS, 3)).0, Step::Garbled);
        assert_eq!(read(Protocol::Meta, set, 0, b"HD\r\n").0, done);
        assert_eq!(read(Protocol::Meta, set, 0, b"EN\r\n").0, Step::Garbled);
        assert_eq!(read(Protocol::Text, set, 0, b"STORED\r\n").0, done);
        let not_stored = read(Protocol::Meta, set, 0, b"NS\r\n").0;
        assert_eq!(not_stored, Step::Answered(Outcome::NotDone));
    }
}
