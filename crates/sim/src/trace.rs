//! The trace: a digest of all that happened in a run.
//!
//! Upstream:   `run`, which adds each event and the bytes that arrive at the server; `client`,
//!             which adds the bytes that it receives.
//! Downstream: the report; two runs with equal options must end with the same digest.

/// A digest of what has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trace(u64);

impl Trace {
    /// Adds a number.
    pub(crate) fn add(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = (mixed ^ (mixed >> 29)).rotate_left(23);
    }

    /// Adds bytes and their number.
    pub(crate) fn add_bytes(&mut self, bytes: &[u8]) {
        self.add(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.add(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut whole = [0; 8];
            whole[..rest.len()].copy_from_slice(rest);
            self.add(u64::from_le_bytes(whole));
        }
    }

    /// The digest.
    pub(crate) fn digest(self) -> u64 {
        self.0
    }
}
