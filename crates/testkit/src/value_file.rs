//! A file that only grows, by operations of an I/O backend. Plain and delaying engines have one.
//!
//! Upstream:   `plain` appends what it stores, and reads values that are not in memory; `delaying`
//!             appends and reads to let time pass.
//! Downstream: `io`, by operations that the shard submits and whose completions it brings back.

use std::collections::VecDeque;
use std::sync::Arc;

use kachel_engine::{DurableWord, Sequence};
use kachel_io::{
    AlignedBuffer, FILE_OPERATION_BYTES_MAX, FileHandle, FileName, FileOperation, FileWork,
    FolderHandle, OpenMode, Transfer,
};

/// Where an item is in the file.
#[derive(Debug, Default)]
pub(crate) struct InFile {
    /// Where its value begins.
    pub(crate) offset: u64,
    /// The sequence of its last change.
    pub(crate) sequence: Sequence,
    /// The tickets that wait for its value.
    pub(crate) tickets: usize,
}

/// A file that only grows.
///
/// Appends that are made while a write is in flight form the next commit. The number of the commit
/// is their sequence.
#[derive(Debug)]
pub(crate) struct ValueFile {
    /// `None` until it is open.
    file: Option<FileHandle>,
    queue: VecDeque<Box<FileOperation>>,
    /// Reads that have no operation and no buffer yet, because the backend may have no room.
    wanted: VecDeque<Wanted>,
    /// The bytes that are written and durable.
    written: u64,
    /// The bytes behind them.
    tail: Vec<u8>,
    /// The number of the next commit, and where the one before ends.
    next_commit: u64,
    commit_end: u64,
    /// Whether a write is in flight, or the name of the file is not durable yet.
    is_writing: bool,
    /// The last commit that is durable.
    durable: Arc<DurableWord>,
}

/// Bytes to be read.
#[derive(Debug)]
struct Wanted {
    token: u64,
    offset: u64,
    bytes: usize,
}

fn operation(token: u64, work: FileWork) -> Box<FileOperation> {
    let mut operation = FileOperation::new(token);
    operation.work = work;
    operation
}

impl ValueFile {
    pub(crate) fn create(folder: &FolderHandle, number: u64, durable: Arc<DurableWord>) -> Self {
        let name = FileName::new(&format!("values-{number}")).expect("a short name");
        let (folder, mode) = (folder.clone(), OpenMode::CreateNew);
        let work = FileWork::Open { folder, name, mode, direct: false, opened: None };
        Self {
            file: None,
            queue: VecDeque::from([operation(0, work)]),
            wanted: VecDeque::new(),
            written: 0,
            tail: Vec::new(),
            next_commit: 1,
            commit_end: 0,
            is_writing: true,
            durable,
        }
    }

    /// Where the next bytes go.
    pub(crate) fn end(&self) -> u64 {
        self.written + self.tail.len() as u64
    }

    /// The bytes that can be read.
    pub(crate) fn durable_bytes(&self) -> u64 {
        self.written
    }

    /// Whether the disk has failed. Then nothing is written any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.durable.has_failed()
    }

    /// Appends bytes. Returns their sequence. The disk has not failed.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> u64 {
        debug_assert!(!self.has_failed(), "nothing is written after a failure");
        self.tail.extend_from_slice(bytes);
        self.next_commit
    }

    /// Reads durable bytes. The completion has this token.
    pub(crate) fn read(&mut self, token: u64, offset: u64, bytes: usize) {
        debug_assert!(
            offset + bytes as u64 <= self.written,
            "only what is durable is not in memory"
        );
        self.wanted.push_back(Wanted { token, offset, bytes });
    }

    /// The next operation.
    pub(crate) fn next(&mut self) -> Option<Box<FileOperation>> {
        if let Some(queued) = self.queue.pop_front() {
            return Some(queued);
        }
        if let Some(Wanted { token, offset, bytes }) = self.wanted.pop_front() {
            let file = self.file.clone().expect("a file with durable bytes is open");
            let buffer = AlignedBuffer::new(bytes, 1);
            let bytes = bytes.min(FILE_OPERATION_BYTES_MAX);
            let transfer = Transfer { file, offset, buffer, start: 0, bytes };
            return Some(operation(token, FileWork::Read(transfer)));
        }
        let may_write = !self.is_writing && !self.tail.is_empty();
        let file = self.file.clone().filter(|_| may_write)?;
        if self.written == self.commit_end {
            self.commit_end = self.end();
            self.next_commit += 1;
        }
        self.is_writing = true;
        let bytes = ((self.commit_end - self.written) as usize).min(FILE_OPERATION_BYTES_MAX);
        let mut buffer = AlignedBuffer::new(bytes, 1);
        buffer.copy_from_slice(&self.tail[..bytes]);
        let transfer = Transfer { file, offset: self.written, buffer, start: 0, bytes };
        Some(operation(0, FileWork::Write { transfer, durable: true }))
    }

    /// Takes note of a completion. Returns the token and the bytes of a read that is whole; no
    /// bytes if the disk cannot read them.
    pub(crate) fn complete(
        &mut self,
        mut done: Box<FileOperation>,
    ) -> Option<(u64, Option<AlignedBuffer>)> {
        let (bytes, has_failed) = (done.result().unwrap_or(0), done.result().is_err());
        match &mut done.work {
            // Nothing is read at the end of a file that is too short.
            FileWork::Read(_) if bytes == 0 => return Some((done.token, None)),
            FileWork::Write { .. } if bytes == 0 => self.fail(),
            _ if has_failed => self.fail(),
            FileWork::Open { folder, opened, .. } => {
                self.file = opened.take();
                let folder = folder.clone();
                self.queue.push_back(operation(0, FileWork::SyncFolder { folder }));
            }
            FileWork::SyncFolder { .. } => self.is_writing = false,
            FileWork::Write { .. } => {
                self.is_writing = false;
                self.written += bytes as u64;
                self.tail.drain(..bytes);
                if self.written == self.commit_end {
                    self.durable.advance(Sequence(self.next_commit - 1));
                }
            }
            FileWork::Read(read) => {
                (read.start, read.offset) = (read.start + bytes, read.offset + bytes as u64);
                let left = read.buffer.len() - read.start;
                if left == 0 {
                    return Some((done.token, done.take_buffer()));
                }
                read.bytes = left.min(FILE_OPERATION_BYTES_MAX);
                self.queue.push_back(done);
            }
            _ => unreachable!("it submits nothing else"),
        }
        None
    }

    /// What is not durable never will be: after a write has failed, a later one may succeed without
    /// what came before it.
    fn fail(&mut self) {
        debug_assert!(self.is_writing, "no other operation follows");
        self.durable.fail();
        self.tail = Vec::new();
    }
}
