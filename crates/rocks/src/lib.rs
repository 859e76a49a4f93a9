//! RocksDB as an engine: items are on the disk, and durable as the operator asks for.
//!
//! Upstream:   `shard`, through the contract of `engine`; the program that opens the engines.
//! Downstream: RocksDB's library, which is loaded when the engines are opened; the directory.
//!
//! Each engine has a database of its own, so the changes of one engine have one order, and a crash
//! leaves a prefix of them. A lookup that memory answers is answered at once. For everything else a
//! thread of the I/O backend calls the library (`calls`), while the engine goes on with what it
//! knows about the changes that are not written yet (`pending`).
//!
//! Reading order: `record`, `item`, `pending`, `fetches`, `engine`; then `database` and `library`,
//! which are the only files with unsafe code.

mod accesses;
mod calls;
mod change;
mod database;
mod directory;
mod engine;
mod fetches;
mod filter;
mod item;
mod library;
mod opener;
mod options;
mod pending;
mod range;
mod record;
mod reports;
mod scans;
mod shared;
mod syncs;
mod walking;
mod walks;

pub use engine::{Rocks, TheItem};
pub use item::RocksItem;
pub use library::LIBRARY_NAMES;
pub use opener::RocksOpener;
pub use options::{RocksOptions, RocksSync};
pub use shared::RocksCommon;
