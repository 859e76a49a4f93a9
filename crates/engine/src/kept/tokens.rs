//! CAS tokens, none of which is given out twice, also after a crash.
//!
//! Upstream:   an engine takes a token for each item that it stores.
//! Downstream: a note that the engine keeps on its disk says up to which number tokens may have
//!             been given out.
//!
//! ```text
//!   given out        may be given out        the note that is being written
//!  |----------------|-----------------------|-----------------------|
//!               count                   reserved            reserved + 2^20
//! ```
//!
//! A new process continues after the note, so a crash skips reserved tokens that were not used.
//! As in `HeapMap`, the tokens of engine n are congruent to n, so all tokens of the process differ.
//!
//! Invariants:
//! - T1  A token is given out only if a durable note covers it.

use crate::verb::NO_TOKEN_MAX;

/// The tokens that one note reserves. The next note is written when half of them are left. So an
/// engine that takes less than a half while a note is being written never waits for a note.
pub const RESERVED_TOKENS: u64 = 1 << 20;

/// The tokens of one engine.
#[derive(Debug)]
pub struct Tokens {
    count: u64,
    reserved: u64,
    /// The number in the note that is being written.
    noted: Option<u64>,
    engine: u64,
    engines: u64,
}

impl Tokens {
    /// Tokens after those that the previous process has reserved. The first note
    /// ([`Self::first_note`]) must be durable before a token is taken.
    #[must_use]
    pub fn behind(reserved: u64, engine: u16, engines: u16) -> Self {
        let (engine, engines) = (engine.into(), engines.into());
        Self { count: reserved, reserved, noted: None, engine, engines }
    }

    /// The note to be written at the start.
    pub fn first_note(&mut self) -> u64 {
        self.reserved += RESERVED_TOKENS;
        self.reserved
    }

    /// Whether a token may be taken. If not, a note is being written.
    #[must_use]
    pub const fn are_left(&self) -> bool {
        self.count < self.reserved
    }

    /// The next token.
    ///
    /// Panics: if none is left (T1).
    pub fn take(&mut self) -> u64 {
        self.count += 1;
        assert!(self.count <= self.reserved, "T1");
        (NO_TOKEN_MAX + self.count) * self.engines + self.engine
    }

    /// Whether the next batch must have a note ([`Self::to_note`]). If so, marks the note as being
    /// written.
    pub fn wants_note(&mut self) -> bool {
        let wants = self.noted.is_none() && self.reserved - self.count <= RESERVED_TOKENS / 2;
        if wants {
            self.noted = Some(self.reserved + RESERVED_TOKENS);
        }
        wants
    }

    /// The number for a note that is written now.
    #[must_use]
    pub const fn to_note(&self) -> u64 {
        match self.noted {
            Some(noted) => noted,
            None => self.reserved,
        }
    }

    /// Whether a note of more tokens is being written.
    #[must_use]
    pub const fn is_noting(&self) -> bool {
        self.noted.is_some()
    }

    /// A note with this number is durable.
    pub fn note_durable(&mut self, tokens: u64) {
        if self.noted == Some(tokens) {
            (self.reserved, self.noted) = (tokens, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_between_engines_and_over_a_restart() {
        let mut given = std::collections::BTreeSet::new();
        let mut reserved = [0, 0];
        for start in 0..3 {
            for (engine, reserved) in (0..2).zip(&mut reserved) {
                let mut tokens = Tokens::behind(*reserved, engine, 2);
                *reserved = tokens.first_note();
                for _ in 0..RESERVED_TOKENS / 2 + 10 {
                    assert!(given.insert(tokens.take()), "start {start} of engine {engine}");
                    if tokens.wants_note() {
                        tokens.note_durable(*reserved); // An earlier one.
                        *reserved = tokens.to_note();
                        assert!(tokens.is_noting() && !tokens.wants_note());
                        tokens.note_durable(*reserved);
                    }
                }
                assert_eq!(*reserved % RESERVED_TOKENS, 0);
            }
        }
        assert!(reserved.iter().all(|reserved| *reserved == 6 * RESERVED_TOKENS), "{reserved:?}");
        assert!(given.first() > Some(&(NO_TOKEN_MAX * 2)));
    }

    #[test]
    #[should_panic(expected = "T1")]
    fn no_token_is_given_out_before_its_note_is_durable() {
        let mut tokens = Tokens::behind(0, 0, 1);
        tokens.first_note();
        for _ in 0..=RESERVED_TOKENS {
            tokens.take();
        }
    }
}
