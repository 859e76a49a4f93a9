//! Where the words of the shared memory are. `bpf/layout.h` has the same layout.
//!
//! Upstream:   `table` and `load` read and write the words.
//! Downstream: the program.
//!
//! ```text
//! settings  0 on | 1 beat | 2 second | 3 flushes begun | 4 flushes done | 5 flush due | 6 start
//!           7, 8 keys of the hash | 9 mask of buckets | 10 mask of lanes | 11 times of a reply
//!           12 address of Ethernet | 16.. places, 4 words each | 80.. a bit for each closed port
//!           1104.. a bit for each place of a closed address
//! bucket    0..8 tags
//! slot      0 version | 1 hash | 2 flushes | 3 expiry, client flags
//!           4 bytes of key (16), value (16), flags text (8), head (8), token text (8)
//!           5, 6 head | 7 CAS token | 8..56 key, value | 56..59 token text
//! hits      second of the last read (32), reads since they were taken (32)
//! ```
//!
//! All words are little-endian, as the processor has them.

/// The positions of the settings.
pub(crate) mod setting {
    pub(crate) const ON: usize = 0;
    pub(crate) const BEAT_NS: usize = 1;
    pub(crate) const SECOND: usize = 2;
    pub(crate) const FLUSHES_BEGUN: usize = 3;
    pub(crate) const FLUSHES_DONE: usize = 4;
    pub(crate) const FLUSH_DUE: usize = 5;
    pub(crate) const START_NS: usize = 6;
    pub(crate) const HASH_KEYS: usize = 7;
    pub(crate) const BUCKET_MASK: usize = 9;
    pub(crate) const LANE_MASK: usize = 10;
    pub(crate) const REPLY_TIMES: usize = 11;
    pub(crate) const MAC: usize = 12;
    pub(crate) const PLACES: usize = 16;
    pub(crate) const CLOSED_PORTS: usize = 80;
    pub(crate) const CLOSED_ADDRESSES: usize = CLOSED_PORTS + 1024;
}

/// The positions in a slot.
pub(crate) mod slot {
    pub(crate) const VERSION: usize = 0;
    pub(crate) const HASH: usize = 1;
    pub(crate) const FLUSHES: usize = 2;
    pub(crate) const EXPIRY_AND_FLAGS: usize = 3;
    pub(crate) const LENGTHS: usize = 4;
    pub(crate) const HEAD: usize = 5;
    pub(crate) const CAS: usize = 7;
    pub(crate) const TEXT: usize = 8;
    pub(crate) const CAS_TEXT: usize = 56;
    pub(crate) const RESERVED: usize = 59;
}

/// Words of the settings.
pub(crate) const SETTINGS_WORDS: usize = setting::CLOSED_ADDRESSES + 1024;
/// Words of a bucket: a cache line.
pub(crate) const WAYS: usize = 8;
/// Words of a slot.
pub(crate) const SLOT_WORDS: usize = 64;
/// Words of the counts of a core.
pub(crate) const COUNTS_WORDS: usize = 16;
/// The word of a core's counts that has the items in answers.
pub(crate) const ITEMS: usize = 14;
/// The word of a core's counts that has the runs of the program which are about to answer.
pub(crate) const ANSWERING: usize = 15;
/// The most lanes: sets of counters of hits, which the cores share.
pub(crate) const LANES_MAX: usize = 8;
/// The most places.
pub(crate) const PLACES_MAX: usize = 16;
/// Words of a place.
pub(crate) const PLACE_WORDS: usize = 4;
/// Bytes of the longest key of a copy.
pub(crate) const KEY_BYTES_MAX: usize = 120;
/// Bytes of the longest value of a copy.
pub const VALUE_BYTES_MAX: usize = 256;

/// The tag of a slot that is being written. No key has it.
pub(crate) const BUSY: u64 = 1;

const _: () = assert!(setting::PLACES + PLACES_MAX * PLACE_WORDS == setting::CLOSED_PORTS);
const _: () = assert!((slot::CAS_TEXT - slot::TEXT) * 8 >= KEY_BYTES_MAX + VALUE_BYTES_MAX);
