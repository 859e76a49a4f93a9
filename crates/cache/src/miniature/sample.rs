//! The keys of the sample, and what each miniature knows of them.
//!
//! Upstream:   `mod.rs` looks keys up and inserts them; `queues` links them.
//! Downstream: nothing.
//!
//! All miniatures share one table of keys, so a key takes 40 bytes for all of them:
//!
//! ```text
//! key:    hash:32 | bytes:32 | expiry:32 | states:32 | chain:16 | previous, next: 16 each, of each
//!         miniature | level:8 | refill:8
//! states: six bits a miniature, low bits first: resident:1 | other:1 | reads:2 | turns:2
//!         resident alone: probation; both: main; other alone: a ghost; neither: absent
//! ```
//!
//! Invariants:
//! - K1  The table has at most [`KEYS_MAX`] keys, and takes at most [`TABLE_BYTES_MAX`].
//! - K2  A chain has at most [`CHAIN_MAX`] keys, whatever hashes they have. A key that would make
//!   it longer is left out.
//! - K3  A key of the table is in a queue of at least one miniature, or was just inserted.

use kachel_engine::MODEL_SIZES;

/// The most keys of the sample.
pub(super) const KEYS_MAX: usize = 24_000;
/// Heads of chains. A chain has fewer than one key in the mean.
const HEADS: usize = 1 << 15;
/// The most keys in a chain (K2).
pub(super) const CHAIN_MAX: usize = 16;
/// The most bytes of the table (K1).
pub(super) const TABLE_BYTES_MAX: usize = 1 << 20;

/// The number of a key in the table.
pub(super) type KeyId = u16;
/// No key.
pub(super) const NO_KEY: KeyId = KeyId::MAX;

const STATE_BITS: usize = 6;
const RESIDENT: u32 = 1;
const OTHER: u32 = 2;
const READS_SHIFT: u32 = 2;
const TURNS_SHIFT: u32 = 4;
const STATE_MASK: u32 = (1 << STATE_BITS) - 1;

/// A bit of each miniature's state.
const fn each(bit: u32) -> u32 {
    let (mut all, mut which) = (0, 0);
    while which < MODEL_SIZES {
        all |= bit << (which * STATE_BITS);
        which += 1;
    }
    all
}

const ALL_RESIDENT: u32 = each(RESIDENT);
const ALL_READ: u32 = each(3 << READS_SHIFT);

const _: () = {
    assert!(MODEL_SIZES * STATE_BITS <= u32::BITS as usize);
    assert!(KEYS_MAX < NO_KEY as usize, "K1: a number of a key has 16 bits");
    assert!(size_of::<SampledKey>() == 40);
    let bytes = KEYS_MAX * size_of::<SampledKey>() + HEADS * size_of::<KeyId>();
    assert!(bytes <= TABLE_BYTES_MAX, "K1");
};

/// Where a key is in a miniature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Nowhere.
    Absent,
    /// Evicted from probation.
    Ghost,
    /// In the probation queue.
    Probation,
    /// In the main queue.
    Main,
}

/// The state of a key in one miniature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) place: Place,
    /// Reads since eviction last examined the item.
    pub(super) reads: u32,
    /// Turns that eviction owes the item.
    pub(super) turns: u32,
}

impl State {
    const fn from_bits(bits: u32) -> Self {
        let place = match bits & (RESIDENT | OTHER) {
            0 => Place::Absent,
            OTHER => Place::Ghost,
            RESIDENT => Place::Probation,
            _ => Place::Main,
        };
        Self { place, reads: bits >> READS_SHIFT & 3, turns: bits >> TURNS_SHIFT & 3 }
    }

    const fn to_bits(self) -> u32 {
        debug_assert!(self.reads <= 3 && self.turns <= 3);
        let place = match self.place {
            Place::Absent => 0,
            Place::Ghost => OTHER,
            Place::Probation => RESIDENT,
            Place::Main => RESIDENT | OTHER,
        };
        place | self.reads << READS_SHIFT | self.turns << TURNS_SHIFT
    }
}

/// One key.
#[derive(Clone, Copy, Debug)]
struct SampledKey {
    hash: u32,
    bytes: u32,
    expiry: u32,
    states: u32,
    /// The next key of the chain, or of the free list.
    chain: KeyId,
    /// The neighbors in the queue of each miniature: the older one and the younger one.
    links: [[KeyId; 2]; MODEL_SIZES],
    /// How rare the hash is.
    level: u8,
    /// Whether the last read missed, so that the next store is caused by that.
    refill: bool,
}

const EMPTY: SampledKey = SampledKey {
    hash: 0,
    bytes: 0,
    expiry: 0,
    states: 0,
    chain: NO_KEY,
    links: [[NO_KEY; 2]; MODEL_SIZES],
    level: 0,
    refill: false,
};

/// The keys of the sample.
#[derive(Debug)]
pub(super) struct Sample {
    keys: Box<[SampledKey]>,
    heads: Box<[KeyId]>,
    free: KeyId,
    count: usize,
}

impl Sample {
    /// An empty table. Cost: an allocation of [`TABLE_BYTES_MAX`].
    pub(super) fn new() -> Self {
        let mut keys = vec![EMPTY; KEYS_MAX].into_boxed_slice();
        for (at, key) in keys.iter_mut().enumerate() {
            key.chain = if at + 1 < KEYS_MAX { at as KeyId + 1 } else { NO_KEY };
        }
        let heads = vec![NO_KEY; HEADS].into_boxed_slice();
        Self { keys, heads, free: 0, count: 0 }
    }

    /// How many keys there are.
    pub(super) const fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no place for another key.
    pub(super) const fn is_full(&self) -> bool {
        self.free == NO_KEY
    }

    /// The key with this hash.
    #[inline]
    pub(super) fn find(&self, hash: u32) -> Option<KeyId> {
        let mut at = self.heads[hash as usize % HEADS];
        for _ in 0..CHAIN_MAX {
            let key = self.keys.get(usize::from(at))?;
            if key.hash == hash {
                return Some(at);
            }
            at = key.chain;
        }
        None
    }

    /// Inserts a key that is not there. `None`: the table or the chain is full (K1, K2).
    pub(super) fn insert(&mut self, hash: u32, level: u8, bytes: u32) -> Option<KeyId> {
        debug_assert!(self.find(hash).is_none(), "a key is there once");
        let head = hash as usize % HEADS;
        let id = self.free;
        if id == NO_KEY || self.chain_length(head) == CHAIN_MAX {
            return None;
        }
        let key = &mut self.keys[usize::from(id)];
        self.free = key.chain;
        *key = SampledKey { hash, level, bytes, chain: self.heads[head], ..EMPTY };
        self.heads[head] = id;
        self.count += 1;
        debug_assert!(self.count <= KEYS_MAX, "K1");
        Some(id)
    }

    fn chain_length(&self, head: usize) -> usize {
        let first = self.keys.get(usize::from(self.heads[head]));
        let next = |key: &&SampledKey| self.keys.get(usize::from(key.chain));
        std::iter::successors(first, next).take(CHAIN_MAX).count()
    }

    /// Removes a key that is in no queue.
    pub(super) fn remove(&mut self, id: KeyId) {
        let SampledKey { hash, states, chain, .. } = self.keys[usize::from(id)];
        debug_assert!(states & each(RESIDENT | OTHER) == 0, "K3: it is in no queue");
        let head = hash as usize % HEADS;
        if self.heads[head] == id {
            self.heads[head] = chain;
        } else {
            let mut at = self.heads[head];
            for _ in 0..CHAIN_MAX {
                let key = &mut self.keys[usize::from(at)];
                if key.chain == id {
                    key.chain = chain;
                    break;
                }
                at = key.chain;
            }
        }
        self.keys[usize::from(id)] = SampledKey { chain: self.free, ..EMPTY };
        self.free = id;
        self.count -= 1;
        debug_assert!(self.count < KEYS_MAX, "K1");
    }

    /// Notes a read for each miniature in which the key is resident. Returns whether all hold it.
    #[inline]
    pub(super) fn note_read(&mut self, id: KeyId) -> bool {
        let states = &mut self.keys[usize::from(id)].states;
        let resident = *states & ALL_RESIDENT;
        if resident == ALL_RESIDENT && *states & ALL_READ == ALL_READ {
            return true;
        }
        // One is added to the reads of each miniature that holds the key and has counted fewer
        // than three.
        let low = *states >> READS_SHIFT;
        let unsaturated = resident & !(low & low >> 1);
        *states += unsaturated << READS_SHIFT;
        resident == ALL_RESIDENT
    }

    /// The state of a key in one miniature.
    #[inline]
    pub(super) fn state(&self, id: KeyId, which: usize) -> State {
        State::from_bits(self.keys[usize::from(id)].states >> (which * STATE_BITS) & STATE_MASK)
    }

    /// Changes what a miniature knows of a key.
    #[inline]
    pub(super) fn set_state(&mut self, id: KeyId, which: usize, state: State) {
        let states = &mut self.keys[usize::from(id)].states;
        let shift = which * STATE_BITS;
        *states = *states & !(STATE_MASK << shift) | state.to_bits() << shift;
    }

    /// Whether a key is in no queue.
    #[inline]
    pub(super) fn is_nowhere(&self, id: KeyId) -> bool {
        self.keys[usize::from(id)].states & each(RESIDENT | OTHER) == 0
    }

    /// Whether the key with this number is used.
    #[inline]
    pub(super) fn is_used(&self, id: KeyId) -> bool {
        !self.is_nowhere(id)
    }

    /// The neighbors of a key in its queue of a miniature: the older and the younger one.
    #[inline]
    pub(super) fn links(&self, id: KeyId, which: usize) -> [KeyId; 2] {
        self.keys[usize::from(id)].links[which]
    }

    /// The same, to be changed.
    #[inline]
    pub(super) fn links_mut(&mut self, id: KeyId, which: usize) -> &mut [KeyId; 2] {
        &mut self.keys[usize::from(id)].links[which]
    }

    /// The bytes that the item takes.
    #[inline]
    pub(super) fn bytes(&self, id: KeyId) -> usize {
        self.keys[usize::from(id)].bytes as usize
    }

    /// Changes the bytes that the item takes, which no queue counts.
    pub(super) fn set_bytes(&mut self, id: KeyId, bytes: u32) {
        self.keys[usize::from(id)].bytes = bytes;
    }

    /// Changes the second in which the item expires.
    pub(super) fn set_expiry(&mut self, id: KeyId, expiry: u32) {
        self.keys[usize::from(id)].expiry = expiry;
    }

    /// Whether the item has expired in second `now`.
    #[inline]
    pub(super) fn is_expired(&self, id: KeyId, now: u32) -> bool {
        let expiry = self.keys[usize::from(id)].expiry;
        expiry != 0 && expiry <= now
    }

    /// How rare the hash of the key is.
    pub(super) fn level(&self, id: KeyId) -> u8 {
        self.keys[usize::from(id)].level
    }

    /// Notes that a read missed, or takes that note.
    pub(super) fn replace_refill(&mut self, id: KeyId, refill: bool) -> bool {
        std::mem::replace(&mut self.keys[usize::from(id)].refill, refill)
    }
}
