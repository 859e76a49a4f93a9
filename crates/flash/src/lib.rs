//! The engine over a durable log: each item is on the disk, and the items that are read are in
//! memory, too.
//!
//! Upstream:   `shard`, under the lock of an engine.
//! Downstream: `log` keeps the records, `cache` the items that are in memory; `host` has the folder
//!             of the data and the log of the process.
//!
//! ```text
//!   a change --> the cache --> a record on the log, whose place the index notes --> the reply,
//!                              once the record is durable
//!   a read ----> the cache --> the index --> the log --> the cache
//! ```
//!
//! The value log is the write-ahead log: a value is written once, until garbage is collected. What
//! is in the cache is a copy, which may be evicted at any time.
//!
//! Architecture invariants:
//! - The engine makes no system call and reads no clock. Its files are operations that the shard
//!   submits. Only a start waits for the disk, by its [`StoreFiles`], and a flush, by its
//!   [`KeepFlushes`]. A verification and a backup wait as well, in a process of their own.
//! - After a crash each engine has a prefix of the changes that it has made.
//!
//! Reading order: `record`, `index`, then `store` (what each verb does), `engine` (the contract),
//! `fetches`, `collection`, `prefixes`, and `replay` for a start.

#![forbid(unsafe_code)]

mod acknowledgement;
mod backup;
mod browse;
mod collecting;
mod collection;
mod directory;
mod engine;
mod fetches;
mod index;
mod landing;
mod notes;
mod opening;
mod prefixes;
mod reader;
mod recent;
mod record;
mod replay;
mod room;
mod shared;
mod store;
mod verification;
mod writing;

pub use backup::{BackedUp, WatchBackup, back_up};
pub use directory::{DIRECTORY_FILES_MAX, FlashDirectory, StoreRefused, engines_of};
pub use engine::{Flash, FlashCounts};
pub use opening::{FlashOpener, FlashOptions, StartNews, StoreFiles, WatchStart};
pub use reader::FlashReader;
pub use shared::{FlashCommon, KeepFlushes};
pub use verification::{Verified, WatchVerification, verify_store};
