//! The words of a line, separated by spaces.
//!
//! Upstream:   `line` passes a line without its end.
//! Downstream: the `text` and `meta` parsers take words one by one.
//!
//! Invariants:
//! - I1  A word is never empty and contains no space. It may contain every other byte.
//! - I2  Only the first `WORDS_MAX` words of a line count, as in 1.6.45, whose index has that many
//!   places. A `noreply` after them is not seen.

/// The most words of a line that are read, the verb included (I2).
pub(crate) const WORDS_MAX: usize = 23;

/// The words of a text, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words<'b> {
    /// The text after the words that were returned.
    pub(crate) rest: &'b [u8],
}

impl<'b> Words<'b> {
    pub(crate) const fn new(rest: &'b [u8]) -> Self {
        Self { rest }
    }

    /// The last of the remaining words of the line (I2). `taken` words, the verb included, were
    /// taken before.
    pub(crate) fn last_of_line(self, taken: usize) -> Option<&'b [u8]> {
        self.take(WORDS_MAX.saturating_sub(taken)).last()
    }

    /// The next word. This is faster if the word has one byte, because client flags and TTL are `0`
    /// in most lines.
    #[inline(always)]
    pub(crate) fn next_maybe_short(&mut self) -> Option<&'b [u8]> {
        if let [first, b' ', rest @ ..] = self.rest_from_next()
            && *first != b' '
        {
            let word = std::slice::from_ref(first);
            self.rest = rest;
            return Some(word);
        }
        self.next()
    }

    /// The text from the start of the next word on, spaces before it dropped.
    #[inline]
    pub(crate) fn rest_from_next(self) -> &'b [u8] {
        let mut rest = self.rest;
        while let [b' ', tail @ ..] = rest {
            rest = tail;
        }
        rest
    }
}

impl<'b> Iterator for Words<'b> {
    type Item = &'b [u8];

    #[inline]
    fn next(&mut self) -> Option<&'b [u8]> {
        let rest = self.rest_from_next();
        if rest.is_empty() {
            self.rest = rest;
            return None;
        }
        let (word, rest) = rest.split_at(find::<b' '>(rest));
        self.rest = rest;
        Some(word)
    }
}

/// The position of the first `WANTED`, or the length of the text.
///
/// Words are short, so comparing eight bytes at a time is faster than a search with a setup cost.
#[inline(always)]
pub(crate) fn find<const WANTED: u8>(text: &[u8]) -> usize {
    let (chunks, tail) = text.as_chunks::<8>();
    let mut start = 0;
    for chunk in chunks {
        if let Some(at) = first_in_word(u64::from_le_bytes(*chunk), WANTED) {
            return start + at;
        }
        start += 8;
    }
    start + find_in_tail::<WANTED>(tail)
}

/// The same as [`find`], for fewer than eight bytes.
#[inline(always)]
fn find_in_tail<const WANTED: u8>(tail: &[u8]) -> usize {
    const { assert!(WANTED != 0, "a word is filled up with zeros") };
    if let (Some(front), Some(back)) = (tail.first_chunk::<4>(), tail.last_chunk::<4>()) {
        // The two halves overlap or touch. Where they overlap, they have the same bytes.
        let front = u64::from(u32::from_le_bytes(*front));
        let back = u64::from(u32::from_le_bytes(*back));
        let word = front | back << (8 * (tail.len() as u32 - 4));
        return first_in_word(word, WANTED).unwrap_or(tail.len());
    }
    tail.iter().position(|&byte| byte == WANTED).unwrap_or(tail.len())
}

/// The position of the first byte that is a space or below, or the length of the text.
#[inline(always)]
pub(crate) fn find_blank(text: &[u8]) -> usize {
    const LIMITS: u64 = u64::from_ne_bytes([b' ' + 1; 8]);
    let (chunks, tail) = text.as_chunks::<8>();
    let mut start = 0;
    for chunk in chunks {
        let word = u64::from_le_bytes(*chunk);
        // A borrow may falsely mark bytes above the lowest blank, but never below it.
        let blanks = word.wrapping_sub(LIMITS) & !word & HIGH;
        if blanks != 0 {
            return start + blanks.trailing_zeros() as usize / 8;
        }
        start += 8;
    }
    start + tail.iter().position(|&byte| byte <= b' ').unwrap_or(tail.len())
}

/// The highest bit of each byte of a word.
const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);

/// The place of the lowest byte of `word` that is `wanted`.
#[inline(always)]
fn first_in_word(word: u64, wanted: u8) -> Option<usize> {
    const LOW: u64 = u64::from_ne_bytes([0x01; 8]);
    // A byte of `differences` is 0 at a match. Borrows may falsely mark bytes above the lowest
    // match, but never below it.
    let differences = word ^ u64::from_ne_bytes([wanted; 8]);
    let zeros = differences.wrapping_sub(LOW) & !differences & HIGH;
    (zeros != 0).then(|| zeros.trailing_zeros() as usize / 8)
}

/// The words of a whole line, counted and numbered by place, for rare verbs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted<'b> {
    words: [&'b [u8]; WORDS_MAX],
    count: usize,
}

impl<'b> Counted<'b> {
    pub(crate) fn new(line: &'b [u8]) -> Self {
        let mut counted = Self { words: [b""; WORDS_MAX], count: 0 };
        for (place, word) in counted.words.iter_mut().zip(Words::new(line)) {
            *place = word;
            counted.count += 1;
        }
        counted
    }

    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// The word at `place`, where 0 is the verb. Empty if there is none.
    pub(crate) fn at(&self, place: usize) -> &'b [u8] {
        self.words.get(place).copied().unwrap_or_default()
    }

    /// The last word, or an empty one.
    pub(crate) fn last(&self) -> &'b [u8] {
        self.count.checked_sub(1).map_or(b"", |place| self.at(place))
    }
}

/// Whether `word` is `full` or a beginning of it. 1.6.45 compares subcommands in this way: `lru m
/// f` is `lru mode flat`.
pub(crate) fn abbreviates(word: &[u8], full: &[u8]) -> bool {
    full.starts_with(word)
}

#[cfg(test)]
mod tests {
    use super::{Counted, WORDS_MAX, Words, abbreviates, find, find_blank};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_space_is_found(
            text in proptest::collection::vec(0x1e_u8..0x23, 0..40),
            at in 0..40_usize,
        ) {
            let expected = text.iter().position(|&byte| byte == b' ').unwrap_or(text.len());
            prop_assert_eq!(find::<b' '>(&text), expected);
            let mut full: Vec<u8> = text.iter().map(|byte| byte | 0x80).collect();
            prop_assert_eq!(find::<b' '>(&full), full.len());
            if let Some(place) = full.get_mut(at) {
                *place = b' ';
                prop_assert_eq!(find::<b' '>(&full), at);
            }
        }
    }

    proptest! {
        #[test]
        fn the_first_blank_is_found(
            text in proptest::collection::vec(0x1e_u8..0x24, 0..40),
            at in 0..40_usize,
            blank in 0..=b' ',
        ) {
            let expected = text.iter().position(|&byte| byte <= b' ').unwrap_or(text.len());
            prop_assert_eq!(find_blank(&text), expected);
            let mut full: Vec<u8> = text.iter().map(|byte| byte | 0x80).collect();
            prop_assert_eq!(find_blank(&full), full.len());
            if let Some(place) = full.get_mut(at) {
                *place = blank;
                prop_assert_eq!(find_blank(&full), at);
            }
        }
    }

    proptest! {
        #[test]
        fn short_words_are_the_same_words(text in "[ a\t]{0,12}") {
            let mut words = Words::new(text.as_bytes());
            let mut maybe_short = words;
            loop {
                let word = words.next();
                prop_assert_eq!(maybe_short.next_maybe_short(), word);
                if word.is_none() {
                    break;
                }
            }
        }
    }

    #[test]
    fn words_are_split_at_spaces_only() {
        let words: Vec<&[u8]> = Words::new(b"  a\tb  c\r ").collect();
        assert_eq!(words, [&b"a\tb"[..], b"c\r"]);
        assert_eq!(Words::new(b"   ").next(), None);
        assert_eq!(Words::new(b"").next(), None);
    }

    #[test]
    fn words_beyond_the_index_do_not_count() {
        let line = [&b"v"[..], &b" x".repeat(WORDS_MAX), b" noreply"].concat();
        let counted = Counted::new(&line);
        assert_eq!((counted.count(), counted.last()), (WORDS_MAX, &b"x"[..]));
        assert_eq!(Words::new(b" x noreply").last_of_line(WORDS_MAX - 1), Some(&b"x"[..]));
        assert_eq!(Words::new(b" x noreply").last_of_line(1), Some(&b"noreply"[..]));
        assert_eq!(Counted::new(b"   ").last(), b"");
    }

    #[test]
    fn a_beginning_abbreviates() {
        assert!(abbreviates(b"f", b"flat") && abbreviates(b"flat", b"flat"));
        assert!(!abbreviates(b"flats", b"flat") && !abbreviates(b"x", b"flat"));
    }
}
