//! The items that an engine must have: a plain map in memory, to which the same operations are
//! applied.
//!
//! Upstream:   `oracle`.
//! Downstream: `kachel_engine::apply`, for what each verb means. So a test here finds what an
//!             engine keeps wrong, and not what a verb does wrong.

use std::rc::Rc;

use kachel_engine::{
    Block, EngineOptions, ItemView, KeptPrefix, KeptSeconds, Key, Mark, Needed, NotYet, Now,
    Primitives, Put, PutValue, Refused, Side,
};

use crate::tokens::KnownTokens;

/// Bytes of the longest value that lies in one piece.
const INLINE_BYTES_MAX: usize = kachel_engine::INLINE_VALUE_BYTES_MAX;

/// An item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) value: Rc<Vec<u8>>,
    pub(crate) client_flags: u32,
    /// 0: never.
    pub(crate) expiry_unix_s: u32,
    pub(crate) token: u64,
    pub(crate) stale: bool,
    pub(crate) win_sent: bool,
    pub(crate) remnant: bool,
    pub(crate) protocol_mark: bool,
    /// The number of flushes before it was stored, and that of flushes of prefixes.
    pub(crate) epoch: u32,
    pub(crate) prefixes: usize,
}

/// The flushes of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flushes {
    pub(crate) epoch: u32,
    /// The Unix time of a pending flush; 0: none is pending.
    pub(crate) due_unix_s: i64,
}

impl Flushes {
    /// The flushes by a second.
    pub(crate) fn by(self, unix_s: i64) -> Self {
        if self.due_unix_s != 0 && self.due_unix_s <= unix_s {
            return Self { epoch: self.epoch + 1, due_unix_s: 0 };
        }
        self
    }
}

/// The items of one engine, by the numbers of their keys.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) items: Vec<Option<Item>>,
    pub(crate) tokens: KnownTokens,
    pub(crate) options: EngineOptions,
    pub(crate) seconds: KeptSeconds,
    pub(crate) epoch: u32,
    /// The flushes of prefixes, in their order.
    pub(crate) prefixes: Rc<Vec<KeptPrefix>>,
    /// Whether a client has asked for a lease in this process.
    pub(crate) has_leased: bool,
    /// Whether the engine has room for what a delete leaves for leases. Without it a delete leaves
    /// nothing.
    pub(crate) has_room: bool,
    /// Whether the last operation has changed something.
    pub(crate) has_changed: bool,
}

/// The key with a number.
pub(crate) fn key_bytes(number: usize) -> Vec<u8> {
    let width = if number.is_multiple_of(7) { 250 } else { 1 + number % 40 };
    format!("{number:0width$}").into_bytes()
}

/// The number of a key.
pub(crate) fn key_number(key: &[u8]) -> usize {
    str::from_utf8(key).ok().and_then(|key| key.parse().ok()).expect("a key of these tests")
}

impl Model {
    /// Whether an item of a key has neither expired nor been flushed.
    pub(crate) fn is_live(&self, key: usize, item: &Item, unix_s: i64) -> bool {
        let has_time = item.expiry_unix_s == 0 || i64::from(item.expiry_unix_s) > unix_s;
        let key = key_bytes(key);
        let is_taken = |flush: &KeptPrefix| flush.prefix().takes(&key);
        has_time && item.epoch >= self.epoch && !self.prefixes[item.prefixes..].iter().any(is_taken)
    }
}

/// An item as the verbs see it.
pub(crate) struct Shown<'m> {
    model: &'m Model,
    item: &'m Item,
}

impl<'m> ItemView<'m> for Shown<'m> {
    fn expiry(&self) -> u32 {
        self.model.seconds.of_unix(self.item.expiry_unix_s)
    }

    fn client_flags(&self) -> u32 {
        self.item.client_flags
    }

    fn cas(&self) -> u64 {
        self.model.tokens.known(self.item.token)
    }

    fn value_bytes(&self) -> usize {
        self.item.value.len()
    }

    fn small_value(&self) -> Option<&'m [u8]> {
        (self.item.value.len() <= INLINE_BYTES_MAX).then_some(self.item.value.as_slice())
    }

    fn is_stale(&self) -> bool {
        self.item.stale
    }

    fn is_win_sent(&self) -> bool {
        self.item.win_sent
    }

    fn is_remnant(&self) -> bool {
        self.item.remnant
    }

    fn protocol_mark(&self) -> bool {
        self.item.protocol_mark
    }

    fn is_fetched(&self) -> bool {
        false
    }

    fn last_access(&self) -> u32 {
        0
    }

    fn memory_bytes(&self) -> usize {
        0
    }
}

impl Primitives for Model {
    type At = usize;
    type Item<'e> = Shown<'e>;
    type Upload = ();
    type Pinned = Rc<Vec<u8>>;

    fn options(&self) -> &EngineOptions {
        &self.options
    }

    fn find(&mut self, key: &Key<'_>, _: Needed, now: &Now) -> Result<Option<usize>, NotYet> {
        let number = key_number(key.bytes());
        let unix_s = now.unix(now.second);
        let is_live =
            self.items[number].as_ref().is_some_and(|item| self.is_live(number, item, unix_s));
        Ok(is_live.then_some(number))
    }

    fn item(&self, at: usize) -> Shown<'_> {
        Shown { model: self, item: self.items[at].as_ref().expect("it was found") }
    }

    fn remove(&mut self, _key: &Key<'_>, at: usize) {
        self.has_changed = true;
        self.items[at] = None;
    }

    fn mark(&mut self, _key: &Key<'_>, at: usize, mark: Mark) {
        self.has_changed = true;
        let item = self.items[at].as_mut().expect("it was found");
        item.win_sent |= mark.win_sent;
        if let Some(expiry) = mark.expiry {
            item.expiry_unix_s = self.seconds.to_unix(expiry);
        }
    }

    fn put(
        &mut self,
        key: &Key<'_>,
        found: Option<usize>,
        put: &Put,
        block: &mut Block<'_, ()>,
        _now: &Now,
    ) -> Result<usize, Refused> {
        if put.remnant && put.removes_when_refused && !self.has_room {
            return Err(Refused::NoRoom);
        }
        let block: &[u8] = if let Block::Bytes(bytes) = block { bytes } else { &[] };
        let old = || found.and_then(|at| self.items[at].as_ref()).expect("it was found");
        let value = match put.value {
            PutValue::Block => Rc::new(block.to_vec()),
            PutValue::Joined(Side::Before) => Rc::new([block, &old().value].concat()),
            PutValue::Joined(Side::After) => Rc::new([&old().value, block].concat()),
            PutValue::Unchanged => Rc::clone(&old().value),
            PutValue::Empty => Rc::default(),
            PutValue::Number { number, bytes } => Rc::new(format!("{number:<bytes$}").into()),
        };
        self.has_changed = true;
        self.has_leased |= put.remnant;
        let token = put.cas.unwrap_or_else(|| self.tokens.take());
        // What a delete leaves for leases has a token also with `-C`.
        let has_token = self.options.cas || put.remnant;
        let number = key_number(key.bytes());
        self.items[number] = Some(Item {
            value,
            client_flags: put.client_flags,
            expiry_unix_s: self.seconds.to_unix(put.expiry),
            token: if has_token { token } else { 0 },
            stale: put.stale,
            win_sent: put.win_sent,
            remnant: put.remnant,
            protocol_mark: put.protocol_mark,
            epoch: self.epoch,
            prefixes: self.prefixes.len(),
        });
        Ok(number)
    }

    fn note_access(&self, _at: usize, _now: &Now) {}

    fn has_leased(&self) -> bool {
        self.has_leased
    }

    fn pin(&self, at: usize) -> Rc<Vec<u8>> {
        Rc::clone(&self.items[at].as_ref().expect("it was found").value)
    }
}
