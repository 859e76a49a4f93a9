//! `set`, `add`, `replace`, `append`, `prepend`, `cas`; and the part that `ms` shares with them.
//!
//! Upstream:   `execute`, once the data block is whole.
//! Downstream: `engine::put`.

use kachel_segment::{Added, JoinPlace, NewValue, Upload};
use kachel_table::KeyHash;
use kachel_wire::Reply;
use kachel_wire::request::{Store, StoreMode};

use crate::engine::{Draft, Engine, Found};

/// The value that came with a storage request.
#[derive(Debug)]
pub(crate) enum Block<'b> {
    /// Small: lent, to be copied.
    Bytes(&'b [u8]),
    /// Large: already where it will stay.
    Upload(Upload),
}

impl Block<'_> {
    /// Bytes of the value.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Upload(upload) => upload.total_bytes(),
        }
    }
}

impl<'b> From<Block<'b>> for NewValue<'b> {
    fn from(block: Block<'b>) -> Self {
        match block {
            Block::Bytes(bytes) => Self::Bytes(bytes),
            Block::Upload(upload) => Self::Upload(upload),
        }
    }
}

impl<'b> From<Block<'b>> for Added<'b> {
    fn from(block: Block<'b>) -> Self {
        match block {
            Block::Bytes(bytes) => Self::Bytes(bytes),
            Block::Upload(upload) => Self::Upload(upload),
        }
    }
}

/// A storage request, classic or meta.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreTerms {
    pub(crate) mode: StoreMode,
    pub(crate) client_flags: u32,
    pub(crate) expiry: u32,
    /// The token that must match; 0 asks for no match, as in memcached.
    pub(crate) compare_cas: Option<u64>,
    /// Whether a comparison was asked for at all (then a missing item is `NotFound`).
    pub(crate) needs_item: bool,
    pub(crate) new_cas: Option<u64>,
    /// `I`: a token older than the item's stores the value as stale.
    pub(crate) stale_allowed: bool,
    /// Whether the request words the key in base64: so do replies then.
    pub(crate) base64_key: bool,
    /// `N` with append or prepend: the expiry of an item made on a miss.
    pub(crate) vivify_expiry: Option<u32>,
}

impl StoreTerms {
    /// A draft on these terms, its value still to be filled in.
    const fn draft(&self, replaces: Option<Found>, expiry: u32) -> Draft<'static> {
        Draft {
            value: NewValue::Bytes(b""),
            client_flags: self.client_flags,
            expiry,
            cas: self.new_cas,
            stale: false,
            win_sent: false,
            base64_key: self.base64_key,
            keeps_access: false,
            replaces,
        }
    }
}

/// What became of a storage request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// Stored, with this many bytes of value in all.
    Yes { at: Found, value_bytes: usize },
    /// The mode's condition did not hold, or there is no room for what was to be added.
    No,
    /// The token did not match.
    Exists,
    /// A token was to match, and nothing is there.
    NotFound,
    /// No room could be made.
    NoMemory,
}

/// How the request's token stands to the item's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compared {
    NotAsked,
    Matches,
    Older,
    Differs,
}

/// Carries out a storage request. `block` is the whole value.
pub(crate) fn store(
    engine: &mut Engine,
    (key, hash): (&[u8], KeyHash),
    terms: StoreTerms,
    block: Block<'_>,
) -> Stored {
    engine.counters.cmd_set.add(1);
    let Some(old) = engine.find(key, hash) else {
        return store_on_miss(engine, (key, hash), terms, block);
    };
    let item = engine.item(old);
    let compared = match terms.compare_cas {
        None | Some(0) => Compared::NotAsked,
        Some(token) if token == item.cas() => Compared::Matches,
        Some(token) if terms.stale_allowed && token < item.cas() => Compared::Older,
        Some(_) => Compared::Differs,
    };
    let mut draft = terms.draft(Some(old), terms.expiry);
    match terms.mode {
        StoreMode::Add => return Stored::No,
        StoreMode::Set | StoreMode::Replace if terms.needs_item => match compared {
            Compared::Matches => engine.counters.cas_hits.add(1),
            Compared::Older => {
                engine.counters.cas_hits.add(1);
                draft.expiry = item.expiry();
                draft.stale = true;
                draft.win_sent = item.win_sent();
            }
            Compared::Differs | Compared::NotAsked => {
                engine.counters.cas_badval.add(1);
                return Stored::Exists;
            }
        },
        StoreMode::Set | StoreMode::Replace => {}
        StoreMode::Append | StoreMode::Prepend => {
            if !matches!(compared, Compared::NotAsked | Compared::Matches) {
                return Stored::Exists;
            }
            draft.expiry = item.expiry();
            draft.client_flags = item.client_flags();
            draft.base64_key = false; // As memcached, which makes this item by itself.
            let value_bytes = item.value().bytes() + block.bytes();
            if !engine.fits(key.len(), value_bytes, draft.client_flags) {
                return Stored::No;
            }
            let append = terms.mode == StoreMode::Append;
            let place = if append { JoinPlace::After } else { JoinPlace::Before };
            let value = NewValue::Extended { old, added: block.into(), place };
            // As memcached: a longer value that finds no room leaves the old one as it is.
            return match put(engine, (key, hash), Draft { value, ..draft }, value_bytes) {
                Stored::NoMemory => Stored::No,
                stored => stored,
            };
        }
    }
    let value_bytes = block.bytes();
    put(engine, (key, hash), Draft { value: block.into(), ..draft }, value_bytes)
}

fn store_on_miss(
    engine: &mut Engine,
    target: (&[u8], KeyHash),
    terms: StoreTerms,
    block: Block<'_>,
) -> Stored {
    let expiry = match (terms.mode, terms.vivify_expiry) {
        (StoreMode::Set | StoreMode::Replace, _) if terms.needs_item => {
            engine.counters.cas_misses.add(1);
            return Stored::NotFound;
        }
        (StoreMode::Set | StoreMode::Add, _) => terms.expiry,
        (StoreMode::Append | StoreMode::Prepend, Some(expiry)) => expiry,
        (StoreMode::Replace | StoreMode::Append | StoreMode::Prepend, _) => return Stored::No,
    };
    let value_bytes = block.bytes();
    let draft = Draft { value: block.into(), ..terms.draft(None, expiry) };
    put(engine, target, draft, value_bytes)
}

fn put(
    engine: &mut Engine,
    (key, hash): (&[u8], KeyHash),
    draft: Draft<'_>,
    value_bytes: usize,
) -> Stored {
    match engine.put(key, hash, draft) {
        Ok(at) => {
            engine.counters.total_items.add(1);
            Stored::Yes { at, value_bytes }
        }
        Err(_) => {
            engine.counters.store_no_memory.add(1);
            Stored::NoMemory
        }
    }
}

/// Whether a request that finds no memory takes away what it would have replaced.
pub(crate) fn leaves_nothing(mode: StoreMode, compare_cas: Option<u64>) -> bool {
    mode == StoreMode::Set && compare_cas.is_none()
}

/// As memcached: a plain set that fails for want of memory leaves no stale value behind.
pub(crate) fn remove_stale(
    engine: &mut Engine,
    (key, hash): (&[u8], KeyHash),
    mode: StoreMode,
    compare_cas: Option<u64>,
) {
    if leaves_nothing(mode, compare_cas)
        && let Some(old) = engine.find(key, hash)
    {
        engine.remove(hash, old);
    }
}

/// A storage request of the classic protocol.
pub(crate) fn classic_store(
    engine: &mut Engine,
    hash: KeyHash,
    request: &Store<'_>,
    expiry: u32,
    block: Block<'_>,
) -> Reply {
    let terms = StoreTerms {
        mode: request.mode,
        client_flags: request.client_flags,
        expiry,
        compare_cas: request.compare_cas,
        needs_item: request.compare_cas.is_some(),
        new_cas: None,
        stale_allowed: false,
        base64_key: false,
        vivify_expiry: None,
    };
    match store(engine, (request.key, hash), terms, block) {
        Stored::Yes { .. } => Reply::Stored,
        Stored::No => Reply::NotStored,
        Stored::Exists => Reply::Exists,
        Stored::NotFound => Reply::NotFound,
        Stored::NoMemory => {
            remove_stale(engine, (request.key, hash), request.mode, request.compare_cas);
            Reply::OutOfMemoryStoring
        }
    }
}
