//! The report of all engines about their files, for `stats engine`.
//!
//! Upstream:   engines with files. `flash` counts once a second; `rocks` measures its databases at
//!             most once a second.
//! Downstream: `observe` describes each number as a row.

/// Sizes, counters and the first failure of the files of all engines of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileReport {
    /// Bytes of the files.
    pub disk_bytes: u64,
    /// Bytes of the files that are not out of date. An estimate.
    pub live_bytes: u64,
    /// The files.
    pub files: u64,
    /// Bytes of memory for changes that are not in those files yet.
    pub write_buffer_bytes: u64,
    /// Bytes of memory with copies of what the files have.
    pub cache_bytes: u64,
    /// Bytes that upkeep of the files must still rewrite. An estimate.
    pub debt_bytes: u64,
    /// Engines that take no changes until upkeep has made room.
    pub stopped: u64,
    /// Engines that take no changes until the next start, because the disk has failed.
    pub read_only: u64,
    /// Batches of changes that were written since the start.
    pub commits: u64,
    /// Batches that were written and synced, and other syncs, since the start.
    pub syncs: u64,
    /// The first failure of a disk since the start, in a sentence.
    pub first_error: Option<String>,
}
