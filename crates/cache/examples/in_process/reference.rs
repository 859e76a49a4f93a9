//! The reference: what the memory of this machine allows. A bare loop reads a line of an index, and
//! then the item that it names, in batches.
//!
//! Upstream:   `main`, with the same probes as the engine gets.
//! Downstream: two regions, of the lengths that the engine's index and items have.
//!
//! ```text
//! index: lines of 8 words, filled as the engine's; a probe names its word; the word names the item
//! item:  two words of header | key | value, as far apart as the engine's items
//! ```
//!
//! The loop hashes nothing, compares no tags, and knows neither expiry nor eviction. A probe brings
//! the place of its word along.

use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use kachel_engine::BATCH_MAX;
use kachel_host::Region;
use kachel_table::prefetch;
use kachel_testkit::key;

use crate::probes::{Probe, place_of};

const WORD_BYTES: usize = 8;
/// Words of an item before its key; also the words before the first item, as in a segment.
const HEADER_WORDS: usize = 2;

/// The memory of the loop.
pub(crate) struct Reference<const KEY_BYTES: usize, const VALUE_BYTES: usize> {
    index: Region,
    items: Region,
    /// Words of the index for a place, times 2^32.
    words_per_place: u64,
}

impl<const KEY_BYTES: usize, const VALUE_BYTES: usize> Reference<KEY_BYTES, VALUE_BYTES> {
    const KEY_WORDS: usize = KEY_BYTES / WORD_BYTES;
    const VALUE_WORDS: usize = VALUE_BYTES / WORD_BYTES;
    const ITEM_WORDS: usize = HEADER_WORDS + Self::KEY_WORDS + Self::VALUE_WORDS;

    /// The memory for `count` items, and as much for the index as the engine has.
    pub(crate) fn new(count: u64, index_bytes: u64, huge: bool) -> Self {
        assert!(KEY_BYTES.is_multiple_of(WORD_BYTES) && VALUE_BYTES.is_multiple_of(WORD_BYTES));
        assert!(index_bytes >= count * WORD_BYTES as u64, "a word for each item");
        assert!(count < 1 << 30, "a place times the words of a place fits 64 bits");
        let bytes = (count as usize * Self::ITEM_WORDS + HEADER_WORDS) * WORD_BYTES;
        // The engine's index has huge pages in any case.
        let index = Region::reserve(index_bytes as usize, true, "an index").expect("memory");
        let items = Region::reserve(bytes, huge, "items").expect("memory");
        let words_per_place = ((index.words().len() as u64) << 32) / count;
        let reference = Self { index, items, words_per_place };
        for number in 0..count {
            let item = number as usize * Self::ITEM_WORDS + HEADER_WORDS;
            let words = reference.items.words()[item..][..Self::ITEM_WORDS].iter();
            let key = key(number);
            let key = key_words::<KEY_BYTES>(&key);
            let value = std::iter::repeat_n(u64::from_ne_bytes([b'v'; 8]), Self::VALUE_WORDS);
            for (word, content) in words.skip(HEADER_WORDS).zip(key.chain(value)) {
                word.store(content, Relaxed);
            }
            reference.word(place_of(number, count)).store(item as u64, Relaxed);
        }
        reference
    }

    /// The word of the index at `place`. The places are spread over all lines, and no two have the
    /// same word.
    #[inline]
    fn word(&self, place: u64) -> &AtomicU64 {
        &self.index.words()[((place * self.words_per_place) >> 32) as usize]
    }

    /// Reads, or stores, the items of at most [`BATCH_MAX`] probes.
    #[inline]
    pub(crate) fn run(&self, probes: &[Probe<KEY_BYTES>]) {
        let mut words = [None; BATCH_MAX];
        for (word, probe) in words.iter_mut().zip(probes) {
            let of_probe = self.word(probe.place);
            prefetch(of_probe);
            *word = Some(of_probe);
        }
        let mut items = [&self.items.words()[..0]; BATCH_MAX];
        for (item, word) in items.iter_mut().zip(words.into_iter().flatten()) {
            *item = &self.items.words()[word.load(Relaxed) as usize..][..Self::ITEM_WORDS];
            prefetch(&item[0]);
            prefetch(&item[Self::ITEM_WORDS - 1]);
        }
        for (probe, item) in probes.iter().zip(items) {
            let (key, value) = item[HEADER_WORDS..].split_at(Self::KEY_WORDS);
            assert!(key_words(&probe.key).eq(key.iter().map(|word| word.load(Relaxed))), "the key");
            if probe.stores {
                value.iter().for_each(|word| word.store(u64::from_ne_bytes([b'v'; 8]), Relaxed));
            } else {
                let mut target = [[0; WORD_BYTES]; 16];
                for (bytes, word) in target.iter_mut().zip(value) {
                    *bytes = word.load(Relaxed).to_ne_bytes();
                }
                black_box(&target[..Self::VALUE_WORDS]);
            }
        }
    }
}

fn key_words<const BYTES: usize>(key: &[u8; BYTES]) -> impl Iterator<Item = u64> {
    key.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word))
}
