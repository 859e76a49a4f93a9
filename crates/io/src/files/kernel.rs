//! What the two backends of the kernel share: how files are opened, and how they leave direct I/O.
//!
//! Upstream:   the threads of `epoll`, the completions of `uring`.
//! Downstream: `fcntl` and `statx`, on files that are open.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, statx};
use rustix::io::Errno;

use super::error::FileError;
use super::handle::FileHandle;
use super::operation::{FileOperation, FileWork, OpenMode};
use crate::limits::FILE_ALIGNMENT_BYTES;

/// The mode of a new file.
pub(crate) const NEW_FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// The flags by which the kernel opens a file of this mode for the operation.
pub(crate) fn open_flags(operation: &FileOperation, mode: OpenMode) -> OFlags {
    let access = match mode {
        OpenMode::Read => OFlags::RDONLY,
        OpenMode::ReadWrite => OFlags::RDWR,
        // A kernel that refuses direct I/O has created the file nevertheless. Only we create files
        // in this folder.
        OpenMode::CreateNew if operation.is_repeated() => OFlags::RDWR | OFlags::CREATE,
        OpenMode::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
    };
    let direct = if operation.is_direct() { OFlags::DIRECT } else { OFlags::empty() };
    access | direct | OFlags::CLOEXEC | OFlags::NOFOLLOW
}

/// Whether an operation that failed is to be repeated without direct I/O, because the file system
/// refuses it. The operation notes the refusal.
pub(crate) fn is_refusal(operation: &mut FileOperation, error: FileError) -> bool {
    if !operation.is_direct() || error != FileError::INVALID {
        return false;
    }
    if let Some(transfer) = operation.work.transfer() {
        if use_page_cache(&transfer.file).is_err() {
            return false;
        }
        transfer.file.leave_direct();
    }
    operation.refuse_direct(error);
    true
}

fn use_page_cache(file: &FileHandle) -> Result<(), Errno> {
    let flags = fcntl_getfl(file.fd())?;
    fcntl_setfl(file.fd(), flags - OFlags::DIRECT)
}

/// Completes an open: asks the kernel how long the file is and how its transfers are aligned.
/// Returns the length.
pub(crate) fn finish_open(operation: &mut FileOperation, fd: OwnedFd) -> Result<usize, FileError> {
    let direct = operation.is_direct();
    let wanted = StatxFlags::SIZE | StatxFlags::DIOALIGN;
    let state = statx(&fd, c"", AtFlags::EMPTY_PATH, wanted)?;
    let length = usize::try_from(state.stx_size).map_err(|_| Errno::FBIG)?;
    let is_known = state.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    let alignment = state.stx_dio_mem_align.max(state.stx_dio_offset_align) as usize;
    let refused = direct && is_known && alignment == 0;
    let alignment = if is_known && alignment > 0 { alignment } else { FILE_ALIGNMENT_BYTES };
    let alignment = alignment.next_power_of_two();
    let FileWork::Open { folder, .. } = &operation.work else { unreachable!("an open") };
    let file = FileHandle::new(fd, folder, alignment, direct && !refused);
    if refused {
        use_page_cache(&file)?;
        operation.refuse_direct(FileError::INVALID);
    }
    let FileWork::Open { opened, .. } = &mut operation.work else { unreachable!("an open") };
    *opened = Some(file);
    Ok(length)
}
