//! Why a log writes nothing any more, and why one is not opened: sentences for the operator.
//!
//! Upstream:   every file of the crate that meets an error.
//! Downstream: the engine's owner logs the sentence, or refuses to start with it.

use std::fmt;

use kachel_io::FileError;

/// The write or sync that failed first. Nothing is written after it until a restart, because the
/// state of what was not durable is unknown, and a later sync may succeed without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The file.
    pub file: Box<str>,
    /// What has failed.
    pub what: &'static str,
    /// Where in the file; 0 for all of it.
    pub offset: u64,
    /// The error.
    pub error: FileError,
}

impl Failure {
    pub(crate) fn new(file: &str, what: &'static str, offset: u64, error: FileError) -> Self {
        Self { file: file.into(), what, offset, error }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, what, offset, error } = self;
        write!(f, "{file}, offset {offset}: {what} failed: {error}")
    }
}

/// Why a file is not used as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The kernel failed an operation.
    Failed(FileError),
    /// A file is missing that must be there.
    Missing,
    /// There is a file that is no unused log.
    Exists,
    /// A record or a header is damaged that was durable. It has this sequence, if that is known.
    Damaged(Option<u64>),
    /// The file is shorter than it was.
    Truncated,
    /// The file belongs to another store or to another engine.
    Foreign,
    /// The format is that of a later version.
    Newer {
        /// The format.
        found: u32,
        /// The latest format that this program reads.
        known: u32,
    },
    /// The segments have another size.
    OtherSize(u32),
    /// The file has more segments than [`crate::SEGMENTS_MAX`].
    TooLarge,
    /// Direct I/O asks for a larger alignment than [`crate::UNIT_BYTES`].
    Alignment(usize),
    /// There is no space to start.
    NoSpace,
    /// There is no space for a copy, which lacks this number of bytes.
    NoSpaceForCopy(u64),
    /// The log is written faster than it is copied.
    TooBusy,
    /// The durable word says that its disk has failed.
    WordFailed,
    /// The owner does not accept a record.
    Owner(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => write!(f, "{error}"),
            Self::Missing => write!(f, "the file is missing"),
            Self::Exists => write!(f, "there is another file of this name already"),
            Self::Damaged(None) => write!(f, "what was durable here is damaged"),
            Self::Damaged(Some(sequence)) => write!(f, "record {sequence} is damaged"),
            Self::Truncated => write!(f, "the file was truncated"),
            Self::Foreign => write!(f, "it belongs to another store or another engine"),
            Self::Newer { found, known } => write!(
                f,
                "it has format {found} of a later version; this version reads format {known}"
            ),
            Self::OtherSize(bytes) => write!(f, "its segments have {bytes} bytes"),
            Self::TooLarge => write!(f, "it has too many segments"),
            Self::Alignment(bytes) => write!(f, "direct I/O needs an alignment of {bytes} bytes"),
            Self::NoSpace => write!(f, "there is no space on the disk to start"),
            Self::NoSpaceForCopy(bytes) => {
                write!(f, "there is no space on the disk for {} MiB more", bytes.div_ceil(1 << 20))
            }
            Self::TooBusy => write!(f, "it changes faster than it can be copied"),
            Self::WordFailed => write!(f, "its durable word is that of a disk that has failed"),
            Self::Owner(why) => f.write_str(why),
        }
    }
}

/// Why a store is not opened. It is as it was, unless the kernel failed an operation that changes
/// it; then the next start begins anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The file.
    pub file: Box<str>,
    /// Where in the file, if it has a place there.
    pub offset: Option<u64>,
    /// Why.
    pub cause: Cause,
}

impl Refusal {
    pub(crate) fn new(file: &str, offset: impl Into<Option<u64>>, cause: Cause) -> Self {
        Self { file: file.into(), offset: offset.into(), cause }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, offset, cause } = self;
        match offset {
            Some(offset) => write!(f, "{file}, offset {offset}: {cause}"),
            None => write!(f, "{file}: {cause}"),
        }
    }
}

impl std::error::Error for Refusal {}
