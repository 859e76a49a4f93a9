//! Open folders and files, as every backend of the process knows them.
//!
//! Upstream:   `host` opens a folder and gives the descriptor; an operation opens a file in it.
//! Downstream: operations name what they work on by a handle, which keeps it open.
//!
//! ```text
//!   FileHandle --Arc--> file: descriptor | number on a disk in memory
//!                        |
//!                        +-- FolderHandle --Arc--> folder: descriptor | number
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A file is closed only after the last operation on it: each operation has a handle.
//! - I2  A file leaves direct I/O at most once and never returns to it.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::FileError;

/// The file or folder behind a handle: a descriptor of the kernel, or a place on a disk in memory.
#[derive(Debug)]
enum Place {
    Kernel(OwnedFd),
    Memory(MemoryPlace),
}

/// A folder or a file of a disk in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryPlace {
    /// The disk, which has another number after each crash.
    pub(crate) disk: u64,
    /// The folder or the file of that disk.
    pub(crate) number: usize,
    /// Whether a file was opened for writing.
    pub(crate) writable: bool,
}

impl Place {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Kernel(fd) => fd.as_fd(),
            Self::Memory(_) => panic!("a file in memory belongs to the backend `Memory`"),
        }
    }

    fn in_memory(&self) -> MemoryPlace {
        match self {
            Self::Memory(place) => *place,
            Self::Kernel(_) => panic!("a file of the kernel belongs to another backend"),
        }
    }
}

/// An open folder. Clones are the same folder; it is closed when the last one is dropped.
#[derive(Clone, Debug)]
pub struct FolderHandle {
    folder: Arc<Folder>,
}

#[derive(Debug)]
struct Folder {
    place: Place,
    /// For messages.
    path: Box<str>,
    /// Whether the file system has refused direct I/O here.
    refuses_direct: AtomicBool,
}

impl FolderHandle {
    /// The folder behind a descriptor. `path` is its name in messages.
    #[must_use]
    pub fn new(folder: OwnedFd, path: &str) -> Self {
        Self::at(Place::Kernel(folder), path)
    }

    /// A folder of a disk in memory.
    pub(crate) fn new_in_memory(place: MemoryPlace, path: &str) -> Self {
        Self::at(Place::Memory(place), path)
    }

    fn at(place: Place, path: &str) -> Self {
        let refuses_direct = AtomicBool::new(false);
        Self { folder: Arc::new(Folder { place, path: path.into(), refuses_direct }) }
    }

    /// The name of the folder in messages.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.folder.path
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.folder.place.fd()
    }

    pub(crate) fn in_memory(&self) -> MemoryPlace {
        self.folder.place.in_memory()
    }

    pub(crate) fn refuses_direct(&self) -> bool {
        self.folder.refuses_direct.load(Ordering::Relaxed)
    }

    /// Notes that direct I/O was refused here. Returns the notice the first time.
    pub(crate) fn note_refusal(&self, error: FileError) -> Option<DirectIoRefusal> {
        let is_first = !self.folder.refuses_direct.swap(true, Ordering::Relaxed);
        is_first.then(|| DirectIoRefusal { folder: self.clone(), error })
    }
}

/// The notice that a file system has refused direct I/O, so that the files of a folder use the page
/// cache. A backend reports it once for a handle and its clones. Its text is one line for the
/// operator.
///
/// File systems refuse direct I/O with `EINVAL` when a file is opened, or at the first read or
/// write. The backend then repeats the operation with the page cache.
#[derive(Clone, Debug)]
pub struct DirectIoRefusal {
    /// The folder.
    pub folder: FolderHandle,
    /// The error with which the kernel refused direct I/O.
    pub error: FileError,
}

impl fmt::Display for DirectIoRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, error } = self;
        write!(f, "{}: direct I/O is refused ({error}), so the page cache is used", folder.path())
    }
}

/// An open file. Clones are the same file.
///
/// It is closed when the last clone is dropped. The kernel may then have to wait for the disk, so
/// the owner gives the last clone to [`super::FileWork::Close`] instead.
#[derive(Clone, Debug)]
pub struct FileHandle {
    file: Arc<File>,
}

#[derive(Debug)]
struct File {
    place: Place,
    folder: FolderHandle,
    alignment: usize,
    is_direct: AtomicBool,
}

impl FileHandle {
    /// A file that the kernel has opened in `folder`.
    pub(crate) fn new(fd: OwnedFd, folder: &FolderHandle, alignment: usize, direct: bool) -> Self {
        Self::at(Place::Kernel(fd), folder, alignment, direct)
    }

    /// A file of a disk in memory.
    pub(crate) fn new_in_memory(
        place: MemoryPlace,
        folder: &FolderHandle,
        alignment: usize,
        direct: bool,
    ) -> Self {
        Self::at(Place::Memory(place), folder, alignment, direct)
    }

    fn at(place: Place, folder: &FolderHandle, alignment: usize, direct: bool) -> Self {
        assert!(alignment.is_power_of_two(), "the kernel aligns to powers of two");
        let is_direct = AtomicBool::new(direct);
        Self { file: Arc::new(File { place, folder: folder.clone(), alignment, is_direct }) }
    }

    /// While [`Self::is_direct`], offsets, byte counts and the memory of reads and writes are
    /// multiples of this number of bytes.
    #[must_use]
    pub fn alignment(&self) -> usize {
        self.file.alignment
    }

    /// Whether reads and writes go past the page cache. It may become false while the file is open,
    /// and then stays false.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.file.is_direct.load(Ordering::Acquire)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.place.fd()
    }

    pub(crate) fn in_memory(&self) -> MemoryPlace {
        self.file.place.in_memory()
    }

    pub(crate) fn folder(&self) -> &FolderHandle {
        &self.file.folder
    }

    /// Notes that the file uses the page cache from now on (I2). The caller must have told the
    /// kernel before, so that a thread that sees this flag need not align transfers.
    pub(crate) fn leave_direct(&self) {
        self.file.is_direct.store(false, Ordering::Release);
        debug_assert!(!self.is_direct(), "I2");
    }

    /// Whether there is no other handle of the file.
    pub(crate) fn is_last(&self) -> bool {
        Arc::strong_count(&self.file) == 1
    }

    /// The descriptor, if this is the last handle of the file (I1).
    pub(crate) fn into_last_fd(self) -> Option<OwnedFd> {
        match Arc::into_inner(self.file)?.place {
            Place::Kernel(fd) => Some(fd),
            Place::Memory(_) => None,
        }
    }
}
