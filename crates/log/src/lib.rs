//! The durable log of an engine with files. It knows no items: a record is a kind, a number and
//! bytes of its owner.
//!
//! Upstream:   the engine `flash`, under its lock; `io` brings completions back through the engine.
//! Downstream: `io`: the log fills operations on its file, which the engine's shard submits.
//!
//! A log is one file of segments. Records are appended to the current segment, commit by commit,
//! and read by their position. Its owner decides which closed segment is worth nothing any more,
//! and frees it. The log makes no system call, reads no clock and has no thread.
//!
//! - To make a store, the owner calls [`create_log`] in the folder of each engine, and writes the
//!   file of the [`Root`] last. A store without a root is no store, and opens no log.
//! - To start, it calls [`open_log`] with a [`Replay`], which gets every record. It drives the
//!   [`Task`], or lets it run on a backend that has no other work.
//! - To store, it calls [`DurableLog::append`], and holds the reply back until
//!   [`DurableLog::durable`] has reached [`Appended::commit`].
//! - To store what is longer than a payload, it appends the parts, then a record that names them. A
//!   record is written only after all records before it.
//! - To read, it calls [`DurableLog::read`] with a buffer of its own, and gets [`Completed::Read`].
//!   A record that is not written yet is in its memory.
//! - To collect garbage, it reads a segment of [`DurableLog::closed`] by [`DurableLog::scan`],
//!   appends again what is alive, and calls [`DurableLog::free`]. The segment is free at
//!   [`Completed::Freed`], once all that was appended before is durable.
//! - Tasks and scans may work beside the log at the same time, each with a number of its own.
//! - To keep room for deletions and for the collection of garbage, stores are appended with the
//!   most `spares`, and the collection with none.
//! - To verify a log that is not open, it calls [`verify_log`] with an [`Inspector`].
//! - To copy a log, whether it is open or not, it calls [`LogCopy::begin`].
//! - It calls [`DurableLog::tend`] once a second, and at [`DurableLog::deadline_ns`].
//!
//! After each call, the owner submits every operation of [`DurableLog::next_submission`], in any
//! order with other operations. It brings back each completed operation for which
//! [`DurableLog::owns`] is true, by [`DurableLog::complete`], on whichever core it arrives.
//! [`AppendRefused::Wait`] is the engine's `Later`: the append is repeated after a completion.
//!
//! What is promised:
//! - **Durability.** With [`SyncMode::Always`] a record is durable once its commit is reached. In
//!   each mode, a power cut leaves a prefix of the log: no hole, nothing that was not appended, and
//!   nothing of a segment that was freed. With the other modes the prefix has all that was written
//!   before the last sync.
//! - **Damage.** A record that was durable and is damaged refuses the start, by file and offset, if
//!   anything that can be read says that it was durable. Damage in the last commit, if it was made
//!   since the last start, cannot be told from a commit that a crash interrupted: the log ends
//!   there. A read of a damaged record fails for this record alone.
//! - **Failure.** After a write or a sync has failed, nothing is written, synced or acknowledged
//!   any more ([`DurableLog::failure`]). Reads go on. A lack of space heals, unless an earlier
//!   write may have been lost by it.
//! - **Memory.** Two buffers of [`Geometry::commit_bytes_max`], 56 bytes a segment, and the buffers
//!   of reads, which are the owner's. A start takes 1 MiB more.
//!
//! Reading order: `format`, `geometry`, `header`, then [`DurableLog`], `commits`, `segments`,
//! `reads`, then `recovery` and `walk`, then `scan` and `verify`. `docs/internals/durable-log.md`
//! gives the reasons.

#![forbid(unsafe_code)]

mod commits;
mod copy;
mod failure;
mod format;
mod geometry;
mod header;
mod log;
mod log_file;
mod new_file;
mod reads;
mod recovery;
mod replay;
mod root;
mod scan;
mod segments;
mod task;
mod transfer;
mod verify;
mod walk;

pub use commits::Appended;
pub use copy::{LogCopy, WatchCopy};
pub use failure::{Cause, Failure, Refusal};
pub use format::{FORMAT, LogIdentity};
pub use geometry::{
    Geometry, Position, SEGMENT_BYTES, SEGMENT_BYTES_MIN, SEGMENTS_MAX, SEGMENTS_MIN, SegmentIndex,
    UNIT_BYTES,
};
pub use log::{AppendRefused, ClosedSegment, Completed, DurableLog, SyncMode};
pub use reads::{READS_MAX, ReadDone, ReadFault, ReadRecord};
pub use recovery::{LOG_FILE, LogOptions, create_log, open_log};
pub use replay::{FoundRecord, Replay};
pub use root::{ROOT_BYTES_MAX, ROOT_FILE, Root};
pub use scan::{Scanned, SegmentScan};
pub use task::{LOG_TOKEN, Task};
pub use verify::{Inspector, verify_log};
