//! Operations on files: what a backend does with a disk, beside its sockets.
//!
//! Upstream:   the owner of files fills a [`FileOperation`] and hands it to
//! [`crate::Files::submit`].
//! Downstream: a backend carries it out and returns it in [`crate::Event::FileDone`].
//!
//! The owner makes its operations when it starts, each in a box. A box goes to the backend and
//! comes back with its result, so nothing is allocated for an operation later, and the memory that
//! the kernel uses never moves. A handle may be used with every `Io` of the process, so an
//! operation may be queued by one thread and submitted by another. So an engine queues its
//! operations under its lock, whichever core holds it; that core submits them after the release,
//! and a completion finds by its token what waits for it.
//!
//! Operations that are in flight together may be carried out, and complete, in any order. An owner
//! that needs an order submits the second operation after the first one has completed.
//!
//! Nothing is hidden: an operation is one request to the kernel. A short read or write completes
//! with the bytes that were done, and `EINTR` or any other error with its number. There is one
//! exception, direct I/O that a file system refuses: see [`DirectIoRefusal`].

mod buffer;
mod error;
mod handle;
pub(crate) mod kernel;
mod name;
mod operation;

pub use buffer::AlignedBuffer;
pub use error::FileError;
pub(crate) use handle::MemoryPlace;
pub use handle::{DirectIoRefusal, FileHandle, FolderHandle};
pub use name::FileName;
pub use operation::{FileOperation, FileWork, FileWorkKind, OpenMode, Transfer};
