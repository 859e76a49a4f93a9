//! Refusals: the reply to a line that cannot be executed, and the number of bytes to skip after it.
//!
//! Upstream:   the parsers of `text`, `meta` and `binary`.
//! Downstream: the parser returns the refusal; the connection answers it and skips the bytes.

use crate::reply::{BinaryStatus, Reply};
use crate::request::{BinaryHead, Request};

/// A line that was refused. This is a mistake of the client, never a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The reply; [`Reply::Nothing`] if the client asked for no reply.
    pub reply: Reply,
    /// Bytes to skip after the line: a data block and its CR LF, or 0. Otherwise the client's data
    /// would be executed as commands.
    pub skip_bytes: u64,
}

impl ParseError {
    /// A refusal of a line without a data block.
    pub(crate) const fn of(reply: Reply) -> Self {
        Self { reply, skip_bytes: 0 }
    }

    /// A refusal of a line that announced a data block.
    pub(crate) fn with_block(reply: Reply, value_bytes: u32) -> Self {
        Self { reply, skip_bytes: u64::from(value_bytes) + 2 }
    }
}

/// A request that was refused. This is a mistake of the client, never a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BinaryRefusal {
    /// What the reply repeats.
    pub head: BinaryHead,
    /// The status of the reply.
    pub status: BinaryStatus,
    /// Bytes to skip after the header (I2).
    pub skip_bytes: u64,
    /// Whether the connection is closed after the reply (I2).
    pub closes: bool,
}

/// The reason why a verb's parser made no request of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The line is answered and skipped.
    Refused(ParseError),
    /// The connection is closed.
    Close,
}

impl From<Reply> for Failure {
    fn from(reply: Reply) -> Self {
        Self::Refused(ParseError::of(reply))
    }
}

/// The result of a verb's parser.
pub(crate) type Outcome<'b> = Result<Request<'b>, Failure>;
