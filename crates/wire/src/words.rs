//! Words of a line: what stands between spaces.
//!
//! Upstream:   `line` hands over a line without its end.
//! Downstream: the `text` and `meta` parsers take words one by one.
//!
//! Invariants:
//! - I1  A word is never empty and holds no space; every other byte may be in it.
//! - I2  Only the first `WORDS_MAX` words of a line count, as in 1.6.45, whose index has that many places:
//!   a `noreply` behind them is not seen.

/// Words of a line that are looked at, the verb included (I2).
pub(crate) const WORDS_MAX: usize = 23;

/// The words of a text, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words<'b> {
    /// What has not been given yet.
    pub(crate) rest: &'b [u8],
}

impl<'b> Words<'b> {
    pub(crate) const fn new(rest: &'b [u8]) -> Self {
        Self { rest }
    }

    /// The last word of those that are left when `taken` words of the line are gone, the verb included.
    pub(crate) fn last_of_line(self, taken: usize) -> Option<&'b [u8]> {
        self.take(WORDS_MAX.saturating_sub(taken)).last()
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
        // Words are short: a loop beats a call that has to set itself up.
        let end = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
        let (word, rest) = rest.split_at(end);
        self.rest = rest;
        Some(word)
    }
}

/// The words of a whole line, counted and by place, for verbs that are rare.
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

    /// The word at `place`, 0 being the verb; empty where there is none.
    pub(crate) fn at(&self, place: usize) -> &'b [u8] {
        self.words.get(place).copied().unwrap_or_default()
    }

    /// The last word, or an empty one.
    pub(crate) fn last(&self) -> &'b [u8] {
        self.count.checked_sub(1).map_or(b"", |place| self.at(place))
    }
}

/// Whether `word` is `full` or the beginning of it, which is how 1.6.45 compares subcommands: `lru m f`
/// is `lru mode flat`.
pub(crate) fn abbreviates(word: &[u8], full: &[u8]) -> bool {
    full.starts_with(word)
}

#[cfg(test)]
mod tests {
    use super::{Counted, WORDS_MAX, Words, abbreviates};

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
