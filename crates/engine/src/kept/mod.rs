//! What engines with files have in common: numbers that keep their meaning over a restart, and the
//! reports about their files.
//!
//! Upstream:   the engines `flash` and `rocks`.
//! Downstream: `time`, `verb` and `report`.

mod reports;
mod seconds;
mod tokens;

pub use reports::FileReports;
pub use seconds::KeptSeconds;
pub use tokens::{RESERVED_TOKENS, Tokens};
