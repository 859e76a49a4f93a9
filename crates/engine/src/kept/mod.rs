//! What engines with files have in common: numbers that keep their meaning over a restart.
//!
//! Upstream:   the engines `flash` and `rocks`.
//! Downstream: `time` and `verb`.

mod seconds;
mod tokens;

pub use seconds::KeptSeconds;
pub use tokens::{RESERVED_TOKENS, Tokens};
