//! Why an operation on a file failed: the number that the kernel gave.
//!
//! Upstream:   the kernel, or the faulty disk of `memory`.
//! Downstream: the owner of the file, which decides how to go on; messages to the operator.

use std::fmt;
use std::io;

use rustix::io::Errno;

/// The error of one operation, as the kernel numbers it. Two errors are equal if their numbers are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileError {
    errno: i32,
}

impl FileError {
    /// The device failed (`EIO`).
    pub const IO: Self = Self::from_errno(Errno::IO);
    /// The file system is full (`ENOSPC`).
    pub const NO_SPACE: Self = Self::from_errno(Errno::NOSPC);
    /// There is no file of this name (`ENOENT`).
    pub const NOT_FOUND: Self = Self::from_errno(Errno::NOENT);
    /// There is a file of this name already (`EEXIST`).
    pub const EXISTS: Self = Self::from_errno(Errno::EXIST);
    /// The file is not open for this operation, or no longer open (`EBADF`).
    pub const BAD_FILE: Self = Self::from_errno(Errno::BADF);
    /// The operation was cancelled; a part of it may have been done (`ECANCELED`).
    pub const CANCELLED: Self = Self::from_errno(Errno::CANCELED);
    /// The kernel does not accept the operation as it is (`EINVAL`).
    pub const INVALID: Self = Self::from_errno(Errno::INVAL);

    /// The error of this number. Panics: if it is not a positive number.
    #[must_use]
    pub const fn new(errno: i32) -> Self {
        assert!(errno > 0, "an error has a positive number");
        Self { errno }
    }

    pub(crate) const fn from_errno(errno: Errno) -> Self {
        Self::new(errno.raw_os_error())
    }

    /// The number.
    #[must_use]
    pub const fn raw_os_error(self) -> i32 {
        self.errno
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.errno).fmt(f)
    }
}

impl fmt::Debug for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileError({self})")
    }
}

impl std::error::Error for FileError {}

impl From<io::Error> for FileError {
    /// An error without a number becomes [`Self::IO`].
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) if errno > 0 => Self::new(errno),
            _ => Self::IO,
        }
    }
}

impl From<Errno> for FileError {
    fn from(errno: Errno) -> Self {
        Self::from_errno(errno)
    }
}
