//! What engines with files have in common: numbers that keep their meaning over a restart, the
//! file of the flushes, the names of their folders, and the reports about their files and their
//! starts.
//!
//! Upstream:   the engines `flash` and `rocks`.
//! Downstream: `key`, `time`, `verb` and `report`.

mod flushes;
mod folders;
mod reports;
mod seconds;
mod start_report;
mod tokens;

pub use flushes::{
    FLUSH_BYTES_MAX, FLUSH_FILE, FlushesRefused, KeptFlushes, KeptPrefix, WaitingPrefixes,
};
pub use folders::{engine_folder, is_engine_folder};
pub use reports::FileReports;
pub use seconds::KeptSeconds;
pub use start_report::{StartFound, StartReport};
pub use tokens::{RESERVED_TOKENS, Tokens};
