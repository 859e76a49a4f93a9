//! Operations on files, which a backend executes besides serving its sockets.
//!
//! Upstream:   the owner of files fills a [`FileOperation`] and hands it to
//! [`crate::Files::submit`].
//! Downstream: a backend carries it out and returns it in [`crate::Event::FileDone`].
//!
//! The owner makes its operations when it starts, each in a box. A box goes to the backend and
//! comes back with its result, so nothing is allocated for an operation later, and the memory that
//! the kernel uses never moves. A handle may be used with every `Io` of the process, so one thread
//! may queue an operation and another one may submit it. This allows an engine to queue operations
//! under its lock on any core: the core that holds the lock submits them after it has released the
//! lock, and the token of a completion identifies the request that waits for it.
//!
//! Operations that are in flight together may be carried out, and complete, in any order. An owner
//! that needs an order submits the second operation after the first one has completed.
//!
//! An operation is one request to the kernel, and its result is that of the kernel: a short read or
//! write completes with the number of bytes that were transferred, and an error such as `EINTR`
//! completes with its number. There is one exception, direct I/O that a file system refuses: see
//! [`DirectIoRefusal`].

mod buffer;
mod error;
mod execute;
mod handle;
pub(crate) mod kernel;
mod name;
mod operation;
mod threads;

pub use buffer::AlignedBuffer;
pub use error::FileError;
pub(crate) use handle::MemoryPlace;
pub use handle::{DirectIoRefusal, FileHandle, FolderHandle};
pub use name::FileName;
pub use operation::{FileOperation, FileWork, FileWorkKind, OpenMode, Transfer, WaitingCall};
pub(crate) use threads::FileThreads;
