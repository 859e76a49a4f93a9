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
//! - P1  Every parked request is answered once, even if its client has left. It is executed once
//!   before; only a read whose client has left may be forgotten instead (`waiters`, W3).
//! - P2  The answer fits the space that was reserved for it, because a value in an answer has at
//!   most `value_bytes_max` bytes. A longer value is pinned, and the record brings a handle to it.
//! - P3  The core that executes a request neither parses nor hashes its key.
//! - P4  A request that the engine delays has no memory for its answer, only its record and its
//!   text; and a text of at most `TEXT_BYTES_OWN` bytes is in the record. The memory is attached at
//!   the latest when the request is executed.

use std::num::NonZeroU8;

use arrayvec::ArrayVec;
use kachel_engine::{
    Block, Cursor, Engine, EngineIndex, INLINE_VALUE_BYTES_MAX, Key, KeyHashes, Lookup, Ticket,
};
use kachel_net::{AnswerRoom, CoreIndex, SlotIndex};
use kachel_wire::request::LINE_BYTES_MAX;
use kachel_wire::{Parsed, parse};

use crate::context::Context;
use crate::cores::buffers::TEXT_BYTES_MAX;
use crate::request::apply::{Applier, ReadTerms};
use crate::request::form::{Ended, Form};
use crate::request::reply::{AnswerText, LargeValue, ReplySink as _};

/// Bytes of the longest answer: a reply line and an inline value, or a piece of a listing.
pub(crate) const ANSWER_BYTES_MAX: usize = LINE_BYTES_MAX + INLINE_VALUE_BYTES_MAX + 2;
/// Bytes of the longest line of a listing: a key with each byte as `%XX`, and the item's facts.
const LISTED_LINE_BYTES_MAX: usize = 1024;
/// Bytes of one piece of a listing, so that it fits an answer, and one more line does.
pub(crate) const PIECE_BYTES_MAX: usize = ANSWER_BYTES_MAX - LISTED_LINE_BYTES_MAX;

/// The most bytes of a text that is in the record itself: a key of usual length, or a short line.
pub(crate) const TEXT_BYTES_OWN: usize = 56;

const _: () = assert!(ANSWER_BYTES_MAX <= TEXT_BYTES_MAX, "a buffer has room for each of them");
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
    /// A piece of a listing, from the cursor on. The answer brings how the piece has ended. The
    /// text is the first prefix that is wanted, if prefixes are listed.
    Piece { form: Form, cursor: Cursor },
    /// To pass a completed operation on a file to its engine (`files`). No client waits for it.
    Completion,
    /// To forget the read of the key with this hash whose answer the same slot awaits, because its
    /// client has left.
    Forget { key_hash: u64 },
}

/// A value or a result that a record carries besides its texts.
pub(crate) enum Brought<E: Engine> {
    Nothing,
    /// The large value of a store.
    Upload(E::Upload),
    /// The operation on a file that was carried out.
    Completion(E::Completion),
    /// The large value that follows the text of the answer.
    Value(LargeValue<E::Pinned>),
    /// How a piece of a listing has ended.
    Ended(Ended),
    /// That the engine had nothing to evict for an upload.
    NoRoom,
}

impl<E: Engine> Brought<E> {
    /// Takes what the record brings, so that it brings nothing any more.
    pub(crate) const fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Nothing)
    }
}

/// The text of a parked request.
#[derive(Debug)]
pub(crate) enum Text {
    /// In the record itself.
    Own(ArrayVec<u8, TEXT_BYTES_OWN>),
    /// In a buffer.
    Long(Vec<u8>),
}

impl Text {
    const EMPTY: Self = Self::Own(ArrayVec::new_const());

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(text) => text,
            Self::Long(text) => text,
        }
    }

    fn clear(&mut self) {
        match self {
            Self::Own(text) => text.clear(),
            Self::Long(text) => text.clear(),
        }
    }

    /// Adds bytes, for which there is room.
    fn extend(&mut self, bytes: &[u8]) {
        match self {
            Self::Own(text) => {
                text.try_extend_from_slice(bytes).expect("a longer text gets a buffer");
            }
            Self::Long(text) => {
                assert!(bytes.len() <= text.capacity() - text.len(), "buffers, B2");
                text.extend_from_slice(bytes);
            }
        }
    }
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
    secret_hash: u64,
    partition: u16,
    start: u16,
    bytes: NonZeroU8,
}

impl KeyAt {
    /// The key, which is a part of the text.
    fn of<'t>(&self, text: &'t [u8]) -> Key<'t> {
        let (start, bytes) = (usize::from(self.start), usize::from(self.bytes.get()));
        let hashes = KeyHashes { secret: self.secret_hash, partition: self.partition };
        debug_assert!(start + bytes <= text.len(), "the key is a part of the text");
        Key::hashed(&text[start..start + bytes], hashes)
    }
}

const _: () = assert!(size_of::<Option<KeyAt>>() == 16, "each request that waits has one");

/// The request, and its answer once it is executed.
pub(crate) struct Parked<E: Engine> {
    pub(crate) ask: Ask,
    /// The core whose client waits.
    pub(crate) origin: CoreIndex,
    /// The slot of that core that waits for the answer.
    pub(crate) slot: SlotIndex,
    /// The tick of that core in which the request was parked ([`Context::tick_in_wait_units`]).
    pub(crate) asked: u32,
    pub(crate) executor: Executor,
    key: Option<KeyAt>,
    /// Whether the value is read for the reply.
    reads_value: bool,
    /// Whether it is a read whose client has left (`waiters`, W3).
    pub(crate) is_gone: bool,
    text: Text,
    pub(crate) brought: Brought<E>,
    /// The ticket of the engine, if it has delayed the request.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) answer: AnswerText,
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

    /// Makes a record without a request.
    pub(crate) const fn new() -> Self {
        Self {
            ask: Ask::Completion,
            origin: CoreIndex(0),
            slot: SlotIndex(0),
            asked: 0,
            executor: Executor::Core(CoreIndex(0)),
            key: None,
            reads_value: false,
            is_gone: false,
            text: Text::EMPTY,
            brought: Brought::Nothing,
            ticket: None,
            answer: AnswerText::new(AnswerRoom { line_bytes: 0, value_bytes: 0 }),
        }
    }

    /// Fills in a request, for whose answer the client keeps `room`. `place` is that of the key in
    /// the text, or `None` if it is elsewhere ([`place_in`]). The record has a buffer for its text
    /// if the text, with a key that is elsewhere, is longer than [`TEXT_BYTES_OWN`]
    /// ([`Self::use_buffer`]).
    pub(crate) fn fill(
        &mut self,
        ask: Ask,
        text: &[u8],
        key: Option<Key<'_>>,
        place: Option<usize>,
        reads_value: bool,
        room: AnswerRoom,
    ) {
        debug_assert!(matches!(self.brought, Brought::Nothing), "P1: it was answered");
        self.ask = ask;
        self.reads_value = reads_value;
        self.is_gone = false;
        self.ticket = None;
        self.answer.begin(room);
        self.text.clear();
        self.text.extend(text);
        self.key = key.map(|key| {
            let bytes = key.bytes();
            let start = place.unwrap_or_else(|| {
                self.text.extend(bytes);
                text.len()
            });
            KeyAt {
                secret_hash: key.secret_hash(),
                partition: key.hashes().partition,
                start: u16::try_from(start).expect("a record is short"),
                bytes: u8::try_from(bytes.len()).ok().and_then(NonZeroU8::new).expect("a key"),
            }
        });
    }

    /// Has the record carry something for which no client waits, instead of a request.
    pub(crate) fn begin_carrying(&mut self) {
        debug_assert!(matches!(self.brought, Brought::Nothing), "files, S3: it was applied");
        (self.key, self.ticket, self.reads_value, self.is_gone) = (None, None, false, false);
    }

    /// Whether it waits for the same core, in the same slot.
    pub(crate) fn waits_as(&self, other: &Self) -> bool {
        (self.origin, self.slot) == (other.origin, other.slot)
    }

    /// Gives the memory of its answer back: it has to wait (P4).
    pub(crate) fn give_buffer(&mut self, context: &Context) {
        debug_assert!(self.answer.text.is_empty(), "P1: it was not executed yet");
        context.give_buffer(std::mem::take(&mut self.answer.text));
    }

    /// Has the next text in this buffer.
    pub(crate) fn use_buffer(&mut self, buffer: Vec<u8>) {
        self.text = Text::Long(buffer);
    }

    /// Takes the buffer of the text, if it has one.
    pub(crate) fn take_buffer(&mut self) -> Option<Vec<u8>> {
        let Text::Long(buffer) = &mut self.text else { return None };
        let buffer = std::mem::take(buffer);
        self.text = Text::EMPTY;
        Some(buffer)
    }

    /// The text of the request.
    pub(crate) fn text(&self) -> &[u8] {
        self.text.bytes()
    }

    /// The key of the request, if it is about one (P3).
    pub(crate) fn key(&self) -> Option<Key<'_>> {
        self.key.as_ref().map(|key| key.of(self.text()))
    }

    /// The hash that tells whether two requests may be about one key.
    #[inline]
    pub(crate) fn key_hash(&self) -> Option<u64> {
        self.key.map(|key| key.secret_hash)
    }

    /// What the request will look up, if it is about a key.
    #[inline]
    pub(crate) fn lookup(&self) -> Option<Lookup> {
        let value = self.reads_value;
        self.key.map(|key| Lookup { secret_hash: key.secret_hash, value })
    }

    /// Executes the request, which is about a key, and formats its answer. Returns `false` if the
    /// engine delays it: then it has a ticket, and its upload if it brought one.
    pub(crate) fn execute(&mut self, context: &Context, engine: &mut E) -> bool {
        let ticket = self.ticket.take();
        let index = self.engine();
        let Self { ask, text, answer, brought, key, .. } = self;
        debug_assert!(answer.text.is_empty(), "P1: it was not executed yet");
        if answer.text.capacity() == 0 {
            answer.text = context.answer_buffer(answer.room.bytes()); // P4
        }
        let applier = Applier { engine, index, context };
        let key = key.as_ref().expect("it is about a key").of(text.bytes());
        let applied = if let Ask::Key(terms) = *ask {
            applier.key(key, terms, ticket, answer)
        } else if let Ask::Removal { is_meta } = *ask {
            let removed = applier.removal(key, is_meta, ticket, answer.descriptor);
            removed.map(|durability| answer.depends_on(index, durability)).map(|()| None)
        } else {
            let Parsed::Request { request, line_bytes } = parse(text.bytes(), 0) else {
                unreachable!("a request that is parked was found well-formed");
            };
            let mut block = match brought.take() {
                Brought::Upload(received) => Block::Upload(received),
                _nothing => {
                    let value_bytes = request.announced_bytes().unwrap_or(0) as usize;
                    Block::Bytes(&text.bytes()[line_bytes..line_bytes + value_bytes])
                }
            };
            let applied = applier.request(&request, key, &mut block, ticket, answer);
            if let Block::Upload(refused) = block {
                *brought = Brought::Upload(refused);
            }
            applied
        };
        match applied {
            Ok(None) => true,
            Ok(Some(value)) => {
                *brought = Brought::Value(value);
                true
            }
            Err(ticket) => {
                self.ticket = Some(ticket);
                false
            }
        }
    }
}

/// Where a key is in a text. `None` if it is elsewhere.
pub(crate) fn place_in(text: &[u8], key: &[u8]) -> Option<usize> {
    let offset = key.as_ptr().addr().wrapping_sub(text.as_ptr().addr());
    offset.checked_add(key.len()).is_some_and(|end| end <= text.len()).then_some(offset)
}

#[cfg(test)]
pub(crate) mod tests {
    use kachel_cache::Cache;
    use kachel_engine::{KeyHasher, Seeds};

    use super::*;

    /// A record with this text and this key.
    pub(crate) fn parked(text: &[u8], key: Option<Key<'_>>) -> Parked<Cache> {
        let mut record = Parked::new();
        let place = key.and_then(|key| place_in(text, key.bytes()));
        record.fill(Ask::Line, text, key, place, true, AnswerRoom::default());
        record
    }

    #[test]
    fn a_record_keeps_its_key_wherever_it_was() {
        let hasher = KeyHasher::new(Seeds { hash_keys: [1, 2] }, 3);
        let text = b"touch a-key 7\r\n";
        let (inside, outside) = (hasher.key(&text[6..11]), hasher.key(b"decoded"));
        for key in [None, Some(inside), Some(outside)] {
            let record = parked(text, key);
            assert_eq!(record.key(), key);
            assert_eq!(record.lookup().is_some(), key.is_some());
            assert!(record.text().starts_with(text));
        }
    }

    #[test]
    fn a_long_text_is_in_its_buffer() {
        let hasher = KeyHasher::new(Seeds { hash_keys: [1, 2] }, 3);
        let (text, key) = ([b'x'; TEXT_BYTES_OWN], hasher.key(b"decoded"));
        let mut record = Parked::<Cache>::new();
        record.use_buffer(Vec::with_capacity(320));
        record.fill(Ask::Line, &text, Some(key), None, false, AnswerRoom::default());
        assert_eq!((record.key(), record.text().len()), (Some(key), TEXT_BYTES_OWN + 7));
        assert_eq!(record.take_buffer().expect("its buffer").capacity(), 320);
        assert!(record.text().is_empty() && record.take_buffer().is_none());
    }
}
