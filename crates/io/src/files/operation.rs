//! One operation on a file: the work, the memory for it, and the result.
//!
//! Upstream:   the owner of a file fills the operation and hands it to `Io::submit`.
//! Downstream: a backend carries it out, completes it, and reports it by `Event::FileDone`.
//!
//! ```text
//!             work = ..               submit             FileDone
//!   new: Idle ----------> filled ---------------> in flight -----> completed --+
//!                           ^                                                  |
//!                           +------------------------ work = .. ---------------+
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A transfer lies within its buffer, has 1 to `FILE_OPERATION_BYTES_MAX` bytes, and lies
//!   within the offsets that the kernel has.
//! - I2  With direct I/O, the offset, the bytes and the memory of a transfer are aligned.
//! - I3  An operation completes once each time it is submitted.

use std::any::Any;
use std::convert::Infallible;
use std::fmt::Debug;

use super::buffer::AlignedBuffer;
use super::error::FileError;
use super::handle::{DirectIoRefusal, FileHandle, FolderHandle};
use super::name::FileName;
use crate::limits::FILE_OPERATION_BYTES_MAX;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// An existing file, for reading only.
    Read,
    /// An existing file, for reading and writing.
    ReadWrite,
    /// A new, empty file, for reading and writing. Only its owner may open it (mode 0600). Fails
    /// with [`FileError::EXISTS`] if there is one.
    CreateNew,
}

/// Bytes between a file and memory.
#[derive(Debug)]
pub struct Transfer {
    /// The file.
    pub file: FileHandle,
    /// Where the bytes are in the file.
    pub offset: u64,
    /// The memory. It belongs to the operation until that has completed.
    pub buffer: AlignedBuffer,
    /// Where the bytes are in the buffer.
    pub start: usize,
    /// How many bytes; 1 to [`crate::FILE_OPERATION_BYTES_MAX`].
    pub bytes: usize,
}

impl Transfer {
    /// The bytes in the buffer.
    #[must_use]
    pub fn memory(&self) -> &[u8] {
        &self.buffer[self.start..][..self.bytes]
    }

    pub(crate) fn memory_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..][..self.bytes]
    }

    fn check(&self, is_direct: bool) {
        assert!((1..=FILE_OPERATION_BYTES_MAX).contains(&self.bytes), "I1: a bounded transfer");
        let end = self.start.checked_add(self.bytes);
        assert!(end.is_some_and(|end| end <= self.buffer.len()), "I1: within the buffer");
        let last = self.offset.checked_add(self.bytes as u64);
        assert!(last.is_some_and(|last| i64::try_from(last).is_ok()), "I1: within the offsets");
        if is_direct {
            let alignment = self.file.alignment();
            assert!(self.offset.is_multiple_of(alignment as u64), "I2: the offset");
            assert!(self.bytes.is_multiple_of(alignment), "I2: the bytes");
            let is_aligned = self.start.is_multiple_of(alignment);
            assert!(is_aligned && self.buffer.is_aligned_to(alignment), "I2: the memory");
        }
    }
}

/// Work of the owner's own that waits, such as a call of a library that has files of its own.
///
/// It comes back in its operation with what it has found. Its owner gets it back as what it was by
/// `Box<dyn Any>`.
pub trait WaitingCall: Any + Debug + Send {
    /// Does the work, on a thread that may wait. The result is that of the operation.
    fn call(&mut self) -> Result<usize, FileError>;
}

/// The work of an operation. It stays here after the operation has completed.
#[derive(Debug, Default)]
pub enum FileWork {
    /// Nothing; not to be submitted.
    #[default]
    Idle,
    /// Opens or creates a file. The result is its length in bytes.
    Open {
        /// Where it is.
        folder: FolderHandle,
        /// Its name.
        name: FileName,
        /// What for.
        mode: OpenMode,
        /// Whether reads and writes go past the page cache, if the file system allows it.
        direct: bool,
        /// The file, after the operation has succeeded; `None` before.
        opened: Option<FileHandle>,
    },
    /// Reads bytes. The result is their number: less than wanted at the end of the file, and
    /// perhaps elsewhere.
    Read(Transfer),
    /// Writes bytes. The result is their number, which may be less than wanted.
    Write {
        /// The bytes.
        transfer: Transfer,
        /// Whether the operation completes only when the bytes, and a length of the file that
        /// covers them, are durable.
        durable: bool,
    },
    /// Makes the changes of completed writes and allocations to a file durable, including its
    /// length, but not its name. After an error the state of these changes is unknown: they may be
    /// lost although later reads return them and later syncs succeed.
    Sync {
        /// The file.
        file: FileHandle,
    },
    /// Allocates space for a part of a file, which reads as zeros where nothing was written. If the
    /// file ends before the end of the part, it becomes longer.
    Allocate {
        /// The file.
        file: FileHandle,
        /// Where the part begins.
        offset: u64,
        /// Its length, at least 1.
        bytes: u64,
    },
    /// Gives a file another name in its folder, and takes this name away from any other file. The
    /// change is durable after `SyncFolder`. A crash before that leaves the old or the new state,
    /// never a mixture.
    Rename {
        /// The folder.
        folder: FolderHandle,
        /// The name until now.
        from: FileName,
        /// The new name.
        to: FileName,
    },
    /// Removes a name. The space is free once no handle of the file is left.
    Unlink {
        /// The folder.
        folder: FolderHandle,
        /// The name.
        name: FileName,
    },
    /// Makes the changes of a folder's names durable: created, renamed and removed ones.
    SyncFolder {
        /// The folder.
        folder: FolderHandle,
    },
    /// Closes a file if this is its last handle. Otherwise only drops the handle.
    Close {
        /// The file; `None` after the operation.
        file: Option<FileHandle>,
    },
    /// Does work that is no operation on a file of ours. Each backend has threads for it, and a
    /// disk in memory does it when it is due.
    Call(Box<dyn WaitingCall>),
}

/// The kinds of [`FileWork`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileWorkKind {
    /// See [`FileWork::Idle`].
    Idle,
    /// See [`FileWork::Open`].
    Open,
    /// See [`FileWork::Read`].
    Read,
    /// See [`FileWork::Write`].
    Write,
    /// See [`FileWork::Sync`].
    Sync,
    /// See [`FileWork::Allocate`].
    Allocate,
    /// See [`FileWork::Rename`].
    Rename,
    /// See [`FileWork::Unlink`].
    Unlink,
    /// See [`FileWork::SyncFolder`].
    SyncFolder,
    /// See [`FileWork::Close`].
    Close,
    /// See [`FileWork::Call`].
    Call,
}

impl FileWork {
    /// The kind.
    #[must_use]
    pub fn kind(&self) -> FileWorkKind {
        match self {
            Self::Idle => FileWorkKind::Idle,
            Self::Open { .. } => FileWorkKind::Open,
            Self::Read(_) => FileWorkKind::Read,
            Self::Write { .. } => FileWorkKind::Write,
            Self::Sync { .. } => FileWorkKind::Sync,
            Self::Allocate { .. } => FileWorkKind::Allocate,
            Self::Rename { .. } => FileWorkKind::Rename,
            Self::Unlink { .. } => FileWorkKind::Unlink,
            Self::SyncFolder { .. } => FileWorkKind::SyncFolder,
            Self::Close { .. } => FileWorkKind::Close,
            Self::Call(_) => FileWorkKind::Call,
        }
    }

    /// The transfer of a read or a write.
    pub(crate) fn transfer(&self) -> Option<&Transfer> {
        match self {
            Self::Read(transfer) | Self::Write { transfer, .. } => Some(transfer),
            _ => None,
        }
    }
}

/// An operation on a file, and its result. It is allocated once and used many times.
#[derive(Debug)]
pub struct FileOperation {
    /// The number by which the owner recognizes the operation. No backend looks at it.
    pub token: u64,
    /// The kind of the operation, with its files and its buffer. The owner sets it before each
    /// submission.
    pub work: FileWork,
    result: Option<Result<usize, FileError>>,
    /// Whether it is executed with direct I/O.
    is_direct: bool,
    /// The error by which direct I/O was refused to it.
    refused: Option<FileError>,
}

const _: () = {
    const fn may_be_submitted_by_another_thread<T: Send>() {}
    may_be_submitted_by_another_thread::<FileOperation>();
};

/// For owners without files, which submit nothing.
impl From<Infallible> for Box<FileOperation> {
    fn from(nothing: Infallible) -> Self {
        match nothing {}
    }
}

/// For owners without files, to which nothing comes back.
impl From<Box<FileOperation>> for Infallible {
    /// Panics: always.
    fn from(operation: Box<FileOperation>) -> Self {
        panic!("an owner without files gets back {operation:?}")
    }
}

impl FileOperation {
    /// An idle operation. Cost: an allocation.
    #[must_use]
    pub fn new(token: u64) -> Box<Self> {
        Box::new(Self {
            token,
            work: FileWork::Idle,
            result: None,
            is_direct: false,
            refused: None,
        })
    }

    /// The result of a completed operation: bytes, or 0 where there are none to count.
    ///
    /// Errors: as the kernel gave it.
    ///
    /// Panics: before the operation has completed.
    pub fn result(&self) -> Result<usize, FileError> {
        self.result.expect("I3: the result of a completed operation")
    }

    /// Takes the buffer out of a read or a write, which is idle afterwards. `None` for other work.
    pub fn take_buffer(&mut self) -> Option<AlignedBuffer> {
        self.work.transfer()?;
        match std::mem::take(&mut self.work) {
            FileWork::Read(transfer) | FileWork::Write { transfer, .. } => Some(transfer.buffer),
            _ => unreachable!("only reads and writes have a transfer"),
        }
    }

    /// Prepares the operation to be carried out.
    ///
    /// Panics: if the owner has filled the operation wrongly.
    pub(crate) fn begin(&mut self) {
        self.result = None;
        (self.is_direct, self.refused) = (false, None);
        match &self.work {
            FileWork::Idle => panic!("an idle operation is submitted"),
            FileWork::Open { folder, direct, opened, .. } => {
                assert!(opened.is_none(), "the file is opened once");
                self.is_direct = *direct && !folder.refuses_direct();
            }
            FileWork::Allocate { offset, bytes, .. } => {
                let end = offset.checked_add(*bytes).and_then(|end| i64::try_from(end).ok());
                assert!(*bytes > 0 && end.is_some(), "I1: within the offsets");
            }
            FileWork::Close { file } => assert!(file.is_some(), "a file is closed once"),
            FileWork::Read(transfer) | FileWork::Write { transfer, .. } => {
                self.is_direct = transfer.file.is_direct();
                transfer.check(self.is_direct);
            }
            _ => {}
        }
    }

    /// Whether the operation is to be carried out with direct I/O.
    pub(crate) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Whether the operation is carried out a second time, because direct I/O was refused.
    pub(crate) fn is_repeated(&self) -> bool {
        self.refused.is_some()
    }

    /// Notes that direct I/O was refused. The operation is repeated without it.
    pub(crate) fn refuse_direct(&mut self, error: FileError) {
        debug_assert!(self.is_direct, "what was refused was tried");
        (self.is_direct, self.refused) = (false, Some(error));
    }

    /// Ends the operation (I3).
    pub(crate) fn complete(&mut self, result: Result<usize, FileError>) {
        assert!(self.result.is_none(), "I3: an operation completes once");
        self.result = Some(result);
    }

    /// The notice about the folder, if this completed operation was the first to learn that direct
    /// I/O is refused there. An open that fails with the same error without direct I/O has not
    /// learned that.
    pub(crate) fn take_refusal(&mut self) -> Option<DirectIoRefusal> {
        let error = self.refused.take()?;
        let folder = match &self.work {
            FileWork::Open { .. } if self.result == Some(Err(error)) => return None,
            FileWork::Open { folder, .. } => folder,
            work => work.transfer().expect("only transfers and opens are direct").file.folder(),
        };
        folder.note_refusal(error)
    }
}
