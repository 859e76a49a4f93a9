//! A value with its hash, which is cheap to clone, to compare and to look up.
//!
//! Upstream:   requests and replies.
//! Downstream: states; a search stores many of them.
//!
//! Invariants:
//! - I1  Two values are equal if and only if their bytes are equal. The hash only makes the
//!   comparison faster.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// The bytes of a value.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Value {
    hash: u64,
    bytes: Arc<[u8]>,
}

impl Value {
    /// A copy of `bytes`.
    pub fn new(bytes: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        Self { hash: hasher.finish(), bytes: bytes.into() }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.hash); // I1
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_BYTES_MAX: usize = 64;
        let shown = &self.bytes[..self.bytes.len().min(SHOWN_BYTES_MAX)];
        write!(formatter, "\"{}\"", shown.escape_ascii())?;
        if shown.len() < self.bytes.len() {
            write!(formatter, "... ({} bytes)", self.bytes.len())?;
        }
        Ok(())
    }
}
