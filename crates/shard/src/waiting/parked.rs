//! A parked request: all data that a core needs to execute it later, and its answer.
//!
//! Upstream:   `records` fills a record for a request that this core does not execute now.
//! Downstream: `backlog` executes it under the lock of the engine; `listing` answers what only a
//!             core has; `records` delivers its answer.
//!
//! The text of a line is the line that the client sent and its data block. The core that received
//! them has checked that they are well-formed. The core that executes the request parses the terms
//! of the line again, because a second encoding of requests would cost more to maintain. It does
//! not parse or hash the key again: the record contains the hashes of the key and its place in the
//! text. A key that was decoded from base64 is appended after the text.
//!
//! Invariants:
//! - P1  Every parked request is executed once and answered once, even if its client has left.
//! - P2  The answer fits the space that was reserved for it, because a value in an answer has at
//!   most `value_bytes_max` bytes. A longer value is pinned, and the record brings a handle to it.
//! - P3  The core that executes a request neither parses nor hashes its key.

use kachel_engine::{
    Block, Cursor, Engine, EngineIndex, INLINE_VALUE_BYTES_MAX, Key, KeyHashes, Lookup, Ticket,
};
use kachel_net::{CoreIndex, SlotIndex};
use kachel_wire::request::{KEY_BYTES_MAX, LINE_BYTES_MAX};
use kachel_wire::{Parsed, parse};

use crate::context::Context;
use crate::request::apply::{Applier, ReadTerms};
use crate::request::form::{Ended, Form};
use crate::request::reply::{AnswerText, LargeValue, ReplySink as _};

/// Bytes of the longest text: a line, an inline value, and a decoded key.
pub(crate) const TEXT_BYTES_MAX: usize =
    LINE_BYTES_MAX + INLINE_VALUE_BYTES_MAX + 2 + KEY_BYTES_MAX;

/// Bytes of the longest answer: a reply line and an inline value, or a piece of a listing.
pub(crate) const ANSWER_BYTES_MAX: usize = LINE_BYTES_MAX + INLINE_VALUE_BYTES_MAX + 2;
/// Bytes of the longest line of a listing: a key with each byte as `%XX`, and the item's facts.
const LISTED_LINE_BYTES_MAX: usize = 1024;
/// Bytes of one piece of a listing, so that it fits an answer, and one more line does.
pub(crate) const PIECE_BYTES_MAX: usize = ANSWER_BYTES_MAX - LISTED_LINE_BYTES_MAX;

// A record gives the key's place in 16 bits.
const _: () = assert!(TEXT_BYTES_MAX <= u16::MAX as usize);

/// What a parked request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// A whole request. The text is its line, and its data block if it brings no upload.
    Line,
    /// One key of a retrieval. The text is the key.
    Key(ReadTerms),
    /// To remove the item of a storage request, a meta command or not, whose value was refused. The
    /// text is the key.
    Removal { is_meta: bool },
    /// To free memory for a large value. There is no text.
    MakeRoom { bytes: usize },
    /// A piece of a listing, from the cursor on. The answer says how the piece has ended. The text
    /// is the first prefix that is wanted, if prefixes are listed.
    Piece { form: Form, cursor: Cursor, ended: Ended },
    /// To pass a completed operation on a file to its engine (`files`). No client waits for it.
    Completion,
}

/// Which part of the process executes a parked request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executor {
    /// An engine, with the core that holds it.
    Engine(EngineIndex),
    /// A core, because only that core has what is asked for: its connections or its counts.
    Core(CoreIndex),
}

/// Where the key of a parked request is in its text, and the hashes of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeyAt {
    hashes: KeyHashes,
    start: u16,
    bytes: u8,
}

/// The request, and its answer once it is executed.
pub(crate) struct Parked<E: Engine> {
    pub(crate) ask: Ask,
    /// The core whose client waits.
    pub(crate) origin: CoreIndex,
    /// The slot of that core that waits for the answer.
    pub(crate) slot: SlotIndex,
    pub(crate) executor: Executor,
    /// Which stock of records it belongs to.
    pub(crate) is_large: bool,
    key: Option<KeyAt>,
    /// Whether the value is read for the reply.
    reads_value: bool,
    text: Vec<u8>,
    pub(crate) upload: Option<E::Upload>,
    /// The operation on a file that was carried out.
    pub(crate) completion: Option<E::Completion>,
    /// The ticket of the engine, if it has delayed the request.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) answer: AnswerText,
    /// The large value that follows the text of the answer.
    pub(crate) value: Option<LargeValue<E::Pinned>>,
}

impl<E: Engine> Parked<E> {
    /// The engine that executes it.
    ///
    /// Panics: if a core does, without an engine.
    #[inline]
    pub(crate) fn engine(&self) -> EngineIndex {
        let Executor::Engine(engine) = self.executor else { unreachable!("an engine executes it") };
        engine
    }

    /// Makes a record without a request, with memory for a text and an answer of these lengths.
    pub(crate) fn new(text_bytes: usize, answer_bytes: usize) -> Self {
        debug_assert!(text_bytes <= TEXT_BYTES_MAX && answer_bytes <= ANSWER_BYTES_MAX);
        Self {
            ask: Ask::Line,
            origin: CoreIndex(0),
            slot: SlotIndex(0),
            executor: Executor::Core(CoreIndex(0)),
            is_large: false,
            key: None,
            reads_value: false,
            text: Vec::with_capacity(text_bytes),
            upload: None,
            completion: None,
            ticket: None,
            answer: AnswerText::with_capacity(answer_bytes),
            value: None,
        }
    }

    /// Fills in a request, whose value in the answer may have `value_bytes_max` bytes.
    pub(crate) fn fill(
        &mut self,
        ask: Ask,
        text: &[u8],
        key: Option<Key<'_>>,
        reads_value: bool,
        value_bytes_max: u16,
    ) {
        debug_assert!(self.upload.is_none() && self.value.is_none(), "P1: it was answered");
        self.ask = ask;
        self.reads_value = reads_value;
        self.ticket = None;
        self.answer.begin(value_bytes_max);
        self.text.clear();
        self.text.extend_from_slice(text);
        self.key = key.map(|key| {
            let bytes = key.bytes();
            let offset = bytes.as_ptr().addr().wrapping_sub(text.as_ptr().addr());
            debug_assert!(!bytes.is_empty(), "a key has bytes");
            let is_inside = offset.checked_add(bytes.len()).is_some_and(|end| end <= text.len());
            if !is_inside {
                self.text.extend_from_slice(bytes);
            }
            let start = if is_inside { offset } else { text.len() };
            KeyAt {
                hashes: key.hashes(),
                start: u16::try_from(start).expect("a record is short"),
                bytes: u8::try_from(bytes.len()).expect("a key is short"),
            }
        });
    }

    /// The text of the request.
    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    /// The key of the request, if it is about one (P3).
    pub(crate) fn key(&self) -> Option<Key<'_>> {
        let KeyAt { hashes, start, bytes } = self.key?;
        let (start, bytes) = (usize::from(start), usize::from(bytes));
        debug_assert!(start + bytes <= self.text.len(), "the key is a part of the text");
        Some(Key::hashed(&self.text[start..start + bytes], hashes))
    }

    /// The hash that tells whether two requests may be about one key.
    #[inline]
    pub(crate) fn key_hash(&self) -> Option<u64> {
        self.key.map(|key| key.hashes.secret)
    }

    /// What the request will look up, if it is about a key.
    #[inline]
    pub(crate) fn lookup(&self) -> Option<Lookup> {
        let value = self.reads_value;
        self.key.map(|key| Lookup { secret_hash: key.hashes.secret, value })
    }

    /// Executes the request, which is about a key, and formats its answer. Returns `false` if the
    /// engine delays it: then it has a ticket, and its upload if it brought one.
    pub(crate) fn execute(&mut self, context: &Context, engine: &mut E) -> bool {
        let ticket = self.ticket.take();
        debug_assert!(self.value.is_none(), "P1: it was not executed yet");
        debug_assert!(self.answer.text.is_empty(), "P1: it was not answered yet");
        let mut answer = std::mem::take(&mut self.answer);
        let upload = self.upload.take();
        let applier = Applier { engine, index: self.engine(), context };
        let key = self.key().expect("it is about a key");
        let (applied, upload) = if let Ask::Key(terms) = self.ask {
            (applier.key(key, terms, ticket, &mut answer), None)
        } else if let Ask::Removal { is_meta } = self.ask {
            let removed = applier.removal(key, is_meta, ticket, answer.descriptor);
            (
                removed
                    .map(|durability| answer.depends_on(self.engine(), durability))
                    .map(|()| None),
                None,
            )
        } else {
            let Parsed::Request { request, line_bytes } = parse(&self.text, 0) else {
                unreachable!("a request that is parked was found well-formed");
            };
            let mut block = match upload {
                Some(received) => Block::Upload(received),
                None => {
                    let value_bytes = request.announced_bytes().unwrap_or(0) as usize;
                    Block::Bytes(&self.text[line_bytes..line_bytes + value_bytes])
                }
            };
            let applied = applier.request(&request, key, &mut block, ticket, &mut answer);
            (applied, if let Block::Upload(refused) = block { Some(refused) } else { None })
        };
        self.answer = answer;
        match applied {
            Ok(value) => {
                self.value = value;
                true
            }
            Err(ticket) => {
                (self.upload, self.ticket) = (upload, Some(ticket));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kachel_cache::Cache;
    use kachel_engine::{KeyHasher, Seeds};

    use super::*;

    #[test]
    fn a_record_keeps_its_key_wherever_it_was() {
        let hasher = KeyHasher::new(Seeds { hash_keys: [1, 2] }, 3);
        let text = b"touch a-key 7\r\n";
        let (inside, outside) = (hasher.key(&text[6..11]), hasher.key(b"decoded"));
        let mut record = Parked::<Cache>::new(0, 0);
        for key in [None, Some(inside), Some(outside)] {
            record.fill(Ask::Line, text, key, true, 700);
            assert_eq!(record.key(), key);
            assert_eq!(record.lookup().is_some(), key.is_some());
            assert!(record.text.starts_with(text));
        }
    }
}
