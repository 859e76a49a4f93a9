//! Carrying out an operation on a file by system calls that wait.
//!
//! Upstream:   a thread of `threads`.
//! Downstream: the kernel.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  An operation is tried at most twice: once with direct I/O and, if that is refused, once
//!   without.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FallocateFlags};
use rustix::fs::{fallocate, fdatasync, fsync, openat, renameat, unlinkat};
use rustix::io::{ReadWriteFlags, pread, pwrite, pwritev2};

use super::error::FileError;
use super::kernel::{NEW_FILE_MODE, finish_open, is_refusal, open_flags};
use super::operation::{FileOperation, FileWork, Transfer};

/// Carries the operation out and completes it.
pub(crate) fn execute(operation: &mut FileOperation) {
    let mut result = attempt(operation);
    if let Err(error) = result
        && is_refusal(operation, error)
    {
        debug_assert!(!operation.is_direct(), "I1");
        result = attempt(operation);
    }
    operation.complete(result);
}

fn attempt(operation: &mut FileOperation) -> Result<usize, FileError> {
    match &mut operation.work {
        FileWork::Idle => unreachable!("an idle operation is not begun"),
        FileWork::Open { .. } => {
            let fd = open(operation)?;
            return finish_open(operation, fd);
        }
        FileWork::Read(transfer) => {
            let (file, offset) = (transfer.file.clone(), transfer.offset);
            return Ok(pread(file.fd(), transfer.memory_mut(), offset)?);
        }
        FileWork::Write { transfer, durable } => return write(transfer, *durable),
        FileWork::Sync { file } => fdatasync(file.fd())?,
        FileWork::Allocate { file, offset, bytes } => {
            fallocate(file.fd(), FallocateFlags::empty(), *offset, *bytes)?;
        }
        FileWork::Rename { folder, from, to } => {
            renameat(folder.fd(), from.as_c_str(), folder.fd(), to.as_c_str())?;
        }
        FileWork::Unlink { folder, name } => {
            unlinkat(folder.fd(), name.as_c_str(), AtFlags::empty())?;
        }
        FileWork::SyncFolder { folder } => fsync(folder.fd())?,
        // The kernel closes a descriptor in any case.
        FileWork::Close { file } => drop(file.take().and_then(|file| file.into_last_fd())),
        FileWork::Call(call) => return call.call(),
    }
    Ok(0)
}

fn open(operation: &FileOperation) -> Result<OwnedFd, FileError> {
    let FileWork::Open { folder, name, mode, .. } = &operation.work else {
        unreachable!("the caller has looked")
    };
    let flags = open_flags(operation, *mode);
    Ok(openat(folder.fd(), name.as_c_str(), flags, NEW_FILE_MODE)?)
}

fn write(transfer: &Transfer, durable: bool) -> Result<usize, FileError> {
    let (fd, memory, offset) = (transfer.file.fd(), transfer.memory(), transfer.offset);
    debug_assert!(!memory.is_empty(), "a write of nothing");
    if durable {
        return Ok(pwritev2(fd, &[IoSlice::new(memory)], offset, ReadWriteFlags::DSYNC)?);
    }
    Ok(pwrite(fd, memory, offset)?)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rustix::io::Errno;

    use super::*;
    use crate::files::{AlignedBuffer, FileName, FolderHandle, OpenMode};

    /// A file of the kernel that takes plain writes only gets the value that it has.
    #[test]
    fn a_durable_write_says_so_to_the_kernel() {
        let folder = std::fs::File::open("/proc/self").unwrap();
        let (folder, name) =
            (FolderHandle::new(folder.into(), "self"), FileName::new("oom_score_adj"));
        let mut operation = FileOperation::new(1);
        let (name, mode) = (name.unwrap(), OpenMode::ReadWrite);
        operation.work = FileWork::Open { folder, name, mode, direct: false, opened: None };
        operation.begin();
        execute(&mut operation);
        operation.result().expect("a process may write the file");
        let value = std::fs::read("/proc/self/oom_score_adj").unwrap();
        let FileWork::Open { opened: Some(file), .. } = &operation.work else { panic!("opened") };
        let file = file.clone();
        let bytes = value.len();
        for (durable, wanted) in [(false, Ok(bytes)), (true, Err(Errno::OPNOTSUPP.into()))] {
            let mut buffer = AlignedBuffer::new(bytes, 1);
            buffer.copy_from_slice(&value);
            let transfer = Transfer { file: file.clone(), offset: 0, buffer, start: 0, bytes };
            operation.work = FileWork::Write { transfer, durable };
            operation.begin();
            execute(&mut operation);
            assert_eq!(operation.result(), wanted, "durable: {durable}");
        }
    }
}
