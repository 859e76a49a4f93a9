//! The file of a log: what its parts must know of it.
//!
//! Upstream:   `recovery`, which opens the file.
//! Downstream: the parts of the log, each with a copy.

use std::sync::Arc;

use kachel_io::{AlignedBuffer, FileHandle, FileWork, Transfer};

use crate::format::{LogIdentity, Stamp};
use crate::geometry::Geometry;

/// The file of a log.
#[derive(Clone, Debug)]
pub(crate) struct LogFile {
    pub(crate) identity: LogIdentity,
    pub(crate) geometry: Geometry,
    pub(crate) handle: FileHandle,
    /// Its path, for messages.
    pub(crate) path: Arc<str>,
}

impl LogFile {
    /// What the checksums of a use of a segment cover.
    pub(crate) const fn stamp(&self, generation: u64) -> Stamp {
        Stamp { identity: self.identity, generation }
    }

    /// A read of `bytes` bytes into the front of a buffer.
    pub(crate) fn read(&self, offset: u64, buffer: AlignedBuffer, bytes: usize) -> FileWork {
        FileWork::Read(Transfer { file: self.handle.clone(), offset, buffer, start: 0, bytes })
    }

    /// A write of the first `bytes` bytes of a buffer.
    pub(crate) fn write(
        &self,
        offset: u64,
        buffer: AlignedBuffer,
        bytes: usize,
        durable: bool,
    ) -> FileWork {
        let file = self.handle.clone();
        FileWork::Write { transfer: Transfer { file, offset, buffer, start: 0, bytes }, durable }
    }
}
