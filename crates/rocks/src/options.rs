//! How the engines are opened, and when what they write is durable.
//!
//! Upstream:   the program that starts the engines.
//! Downstream: `opener`.

use std::path::PathBuf;

/// When a change is durable, and so when its reply is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RocksSync {
    /// On the disk, before its reply.
    Always,
    /// With the system before its reply, and on the disk within this number of nanoseconds and the
    /// time of a sync.
    Interval(u64),
    /// With the system before its reply. The system writes it to the disk when it likes to.
    System,
}

/// How the engines are opened.
#[derive(Clone, Debug)]
pub struct RocksOptions {
    /// The data directory.
    pub data: PathBuf,
    /// When a change is durable.
    pub sync: RocksSync,
    /// The file of RocksDB's library. `None` for the installed one.
    pub library: Option<PathBuf>,
    /// Options for RocksDB, as it writes them: `name=value;name=value`.
    pub text: String,
}
