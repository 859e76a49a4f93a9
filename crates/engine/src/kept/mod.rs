//! Numbers of engines with files that keep their meaning over a restart: times and CAS tokens.
//!
//! Upstream:   the engines `flash` and `rocks`.
//! Downstream: `time` and `verb`.

mod seconds;
mod tokens;

pub use seconds::KeptSeconds;
pub use tokens::{RESERVED_TOKENS, Tokens};
