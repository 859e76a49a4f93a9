//! How files are opened, and how they leave direct I/O, for both backends of the kernel.
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
        // A kernel that refuses direct I/O has already created the file. Only this process creates
        // files in this folder.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use rustix::fs::openat;

    use super::*;
    use crate::event::{Event, Wait};
    use crate::files::{AlignedBuffer, FolderHandle, Transfer};
    use crate::{Epoll, Files, Limits, Uring};

    /// Makes a file system refuse two reads in flight: the file says that it needs no alignment.
    fn both_reads_are_repeated_and_one_notice_is_given(mut io: impl Files) {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("a"), [7; 3000]).unwrap();
        let fd = std::fs::File::open(place.path()).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let Ok(file) = openat(&fd, "a", flags, Mode::empty()) else {
            return println!("skip files.unaligned the file system has no direct I/O");
        };
        let folder = FolderHandle::new(fd.into(), "a folder");
        let file = FileHandle::new(file, &folder, 1, true);
        for token in 0..2 {
            let buffer = AlignedBuffer::new(200, 1);
            let transfer = Transfer { file: file.clone(), offset: 1, buffer, start: 3, bytes: 101 };
            let mut operation = FileOperation::new(token);
            operation.work = FileWork::Read(transfer);
            io.submit(operation).unwrap();
        }
        let (mut events, mut done) = (Vec::new(), 0);
        let mut refusals = Vec::new();
        while done < 2 {
            io.poll(Wait::Forever, &mut events).unwrap();
            for event in events.drain(..) {
                match event {
                    Event::DirectIoRefused { refusal } => refusals.push(refusal.to_string()),
                    Event::FileDone { mut operation } => {
                        assert_eq!(operation.result(), Ok(101));
                        let buffer = operation.take_buffer().unwrap();
                        assert!(buffer[..3] == [0; 3] && buffer[3..104] == [7; 101]);
                        done += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        if file.is_direct() {
            return println!("skip files.unaligned the file system takes any direct read");
        }
        let wanted = "a folder: direct I/O is refused (Invalid argument (os error 22)), ";
        assert!(refusals.len() == 1 && refusals[0].starts_with(wanted), "{refusals:?}");
        assert!(folder.refuses_direct(), "the next file is opened without");
    }

    #[test]
    fn reads_that_the_file_system_refuses_are_repeated_with_the_page_cache() {
        both_reads_are_repeated_and_one_notice_is_given(Epoll::new(Limits::default()).unwrap());
        match Uring::new(Limits::default()) {
            Ok(uring) => both_reads_are_repeated_and_one_notice_is_given(uring),
            Err(error) => {
                assert!(matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)));
                println!("skip io_uring the kernel forbids it: {error}");
            }
        }
    }
}
