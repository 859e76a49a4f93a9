//! Files: each operation is one op of the ring that also serves the sockets. Threads do the work
//! that is no operation of the kernel ([`FileWork::Call`]).
//!
//! Upstream:   `Files::submit` takes an operation; its op goes to the kernel with the next poll.
//! Downstream: the completion becomes `FileDone`, in the poll that takes it; that of a call when
//!             the bell of the threads rings.
//!
//! Neither files nor buffers are registered with the ring. A handle is used with every ring of the
//! process, so each ring would have to register each file, and look it up to find its number.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  An operation is in its slot from `submit` until its last completion, and the slot is free
//!   otherwise. The token of its op is the number of the slot.
//! - I2  Operations in slots and calls together are at most `FILE_OPERATIONS_MAX`.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};

use super::{Completion, Operation, Token, Uring};
use crate::Files;
use crate::event::Event;
use crate::files::kernel::{NEW_FILE_MODE, finish_open, is_refusal, open_flags};
use crate::files::{FileError, FileHandle, FileOperation, FileWork};
use crate::limits::FILE_OPERATIONS_MAX;

/// The operations that are in flight.
pub(super) struct FileSlots {
    slots: Vec<Option<Box<FileOperation>>>,
    free: Vec<usize>,
}

impl Default for FileSlots {
    fn default() -> Self {
        let mut slots = Vec::new();
        slots.resize_with(FILE_OPERATIONS_MAX, || None);
        Self { slots, free: (0..FILE_OPERATIONS_MAX).rev().collect() }
    }
}

impl FileSlots {
    fn put(&mut self, operation: Box<FileOperation>) -> usize {
        let index = self.free.pop().expect("the caller has looked for room");
        assert!(self.slots[index].is_none(), "I1");
        self.slots[index] = Some(operation);
        index
    }

    fn take(&mut self, index: usize) -> Box<FileOperation> {
        let operation = self.slots[index].take().expect("I1: an op has an operation");
        self.free.push(index);
        operation
    }
}

impl Files for Uring {
    fn file_room(&self) -> usize {
        let room = self.files.free.len().checked_sub(self.calls.in_flight());
        room.expect("I2: each was submitted while there was room")
    }

    fn submit(&mut self, mut operation: Box<FileOperation>) -> Result<(), Box<FileOperation>> {
        if self.file_room() == 0 {
            return Err(operation);
        }
        operation.begin();
        if matches!(operation.work, FileWork::Call(_)) {
            let ring = &mut self.ring;
            self.calls.submit(operation, |bell| {
                ring.watch_doorbell(bell, CALLS);
                Ok(())
            });
        } else {
            self.begin_file(operation);
        }
        Ok(())
    }
}

/// The token of the op that watches the bell of the threads.
const CALLS: Token = Token { operation: Operation::Calls, index: 0 };

impl Uring {
    /// Queues the op of an operation.
    fn begin_file(&mut self, operation: Box<FileOperation>) {
        let index = self.files.put(operation);
        let operation = self.files.slots[index].as_deref_mut().expect("I1: just put");
        let kind = match &mut operation.work {
            FileWork::Open { .. } => Operation::OpenFile,
            FileWork::Close { file } => {
                if let Some(last) = file.take().and_then(FileHandle::into_last_fd) {
                    let token = Token::new(Operation::CloseFile, index);
                    return self.ring.close_file(last, token);
                }
                Operation::File
            }
            _ => Operation::File,
        };
        let op = op_of(operation);
        // SAFETY:
        // - names and buffers stay in place: names are in the operation, which is boxed, and the
        //   memory of a buffer never moves (buffer, I1).
        // - until the completion nothing else touches them: the operation stays in its slot (I1),
        //   where nothing reads or changes it.
        // - `Uring` ends the op before it is dropped, or never frees the memory (ring, I1).
        unsafe { self.ring.push(op, Token::new(kind, index)) };
    }

    /// Handles an edge of the bell of the threads.
    pub(super) fn calls_done(&mut self, completion: Completion, events: &mut Vec<Event>) {
        if !completion.more {
            let bell = self.calls.bell().expect("what is watched is there");
            self.ring.watch_doorbell(bell, CALLS);
        }
        self.calls.report_done(events);
    }

    /// Handles the completion of an operation.
    pub(super) fn file_done(&mut self, completion: Completion, events: &mut Vec<Event>) {
        let mut operation = self.files.take(completion.token.index as usize);
        let result = match usize::try_from(completion.result) {
            Err(_) => Err(FileError::new(-completion.result)),
            Ok(_) if matches!(operation.work, FileWork::Open { .. }) => {
                // SAFETY:
                // - the kernel has just opened this descriptor for us, and nobody else knows it.
                let fd = unsafe { OwnedFd::from_raw_fd(completion.result) };
                finish_open(&mut operation, fd)
            }
            Ok(bytes) => Ok(bytes),
        };
        if let Err(error) = result
            && is_refusal(&mut operation, error)
        {
            return self.begin_file(operation);
        }
        operation.complete(result);
        Event::report_file(operation, events);
    }
}

fn fd(fd: BorrowedFd<'_>) -> Fd {
    Fd(fd.as_raw_fd())
}

/// The op that carries an operation out.
fn op_of(operation: &mut FileOperation) -> squeue::Entry {
    if let FileWork::Open { folder, name, mode, .. } = &operation.work {
        let flags = open_flags(operation, *mode).bits() as i32;
        let op = opcode::OpenAt::new(fd(folder.fd()), name.as_c_str().as_ptr());
        return op.flags(flags).mode(NEW_FILE_MODE.bits()).build();
    }
    match &mut operation.work {
        FileWork::Idle | FileWork::Open { .. } => unreachable!("opens are above, no other begins"),
        FileWork::Call(_) => unreachable!("a thread does it"),
        FileWork::Read(transfer) => {
            let file = fd(transfer.file.fd());
            let (offset, memory) = (transfer.offset, transfer.memory_mut());
            let op = opcode::Read::new(file, memory.as_mut_ptr(), memory.len() as u32);
            op.offset(offset).build()
        }
        FileWork::Write { transfer, durable } => {
            let (file, memory) = (fd(transfer.file.fd()), transfer.memory());
            let flags = if *durable { libc::RWF_DSYNC } else { 0 };
            let op = opcode::Write::new(file, memory.as_ptr(), memory.len() as u32);
            op.offset(transfer.offset).rw_flags(flags).build()
        }
        FileWork::Sync { file } => {
            opcode::Fsync::new(fd(file.fd())).flags(FsyncFlags::DATASYNC).build()
        }
        FileWork::Allocate { file, offset, bytes } => {
            opcode::Fallocate::new(fd(file.fd()), *bytes).offset(*offset).build()
        }
        FileWork::Rename { folder, from, to } => {
            let (from, to) = (from.as_c_str().as_ptr(), to.as_c_str().as_ptr());
            opcode::RenameAt::new(fd(folder.fd()), from, fd(folder.fd()), to).build()
        }
        FileWork::Unlink { folder, name } => {
            opcode::UnlinkAt::new(fd(folder.fd()), name.as_c_str().as_ptr()).build()
        }
        FileWork::SyncFolder { folder } => opcode::Fsync::new(fd(folder.fd())).build(),
        // Another handle is left, so that nothing is closed.
        FileWork::Close { .. } => opcode::Nop::new().build(),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::files::{AlignedBuffer, FolderHandle, Transfer};

    /// The word of an op with its flags: `rw_flags` and `fsync_flags` in `struct io_uring_sqe`.
    fn flags(work: FileWork) -> u32 {
        let mut operation = FileOperation::new(1);
        operation.work = work;
        let op = op_of(&mut operation);
        // SAFETY:
        // - an entry is 16 words, of which any value is valid (asserted in `ring`).
        let words = unsafe { &*(&raw const op).cast::<[u32; 16]>() };
        words[7]
    }

    #[test]
    fn durable_writes_and_syncs_say_so_to_the_kernel() {
        let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let folder = FolderHandle::new(null(), "null");
        let file = FileHandle::new(null(), &folder, 1, false);
        let transfer = || {
            let buffer = AlignedBuffer::new(1, 1);
            Transfer { file: file.clone(), offset: 0, buffer, start: 0, bytes: 1 }
        };
        let write = |durable| FileWork::Write { transfer: transfer(), durable };
        assert_eq!((flags(write(true)), flags(write(false))), (libc::RWF_DSYNC as u32, 0));
        let data_only = 1; // IORING_FSYNC_DATASYNC
        assert_eq!(flags(FileWork::Sync { file: file.clone() }), data_only);
        assert_eq!(flags(FileWork::SyncFolder { folder: folder.clone() }), 0, "names, too");
    }
}
