//! How a read or a write goes on after the kernel has done a part of it.
//!
//! Upstream:   completed operations of commits, headers and reads.
//! Downstream: the same operation, which is submitted again for the rest.
//!
//! Invariants, cited by number where they are asserted:
//! - T1  An operation without progress is repeated at most [`ATTEMPTS_MAX`] times in a row.
//! - T2  A lack of space heals if it can only be that of the operation: of a write that is not
//!   durable, or that goes past the page cache. A durable write through the page cache may return
//!   the error of earlier writes, which the kernel has given up and reports once. So it is a
//!   failure, as it is in a sync.

use kachel_io::{FileError, FileOperation, FileWork};

/// How often an operation is repeated that made no progress. A guess.
const ATTEMPTS_MAX: u8 = 8;
/// The disk quota of the user is used up (`EDQUOT`).
const QUOTA: FileError = FileError::new(122);
/// A signal came first (`EINTR`), or the kernel had no memory for the moment (`EAGAIN`).
const PASSING: [FileError; 2] = [FileError::new(4), FileError::new(11)];

/// The state of a transfer after a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// All bytes are there.
    Whole,
    /// The operation is for the rest now, and is to be submitted again.
    Part,
    /// A read has reached the end of the file.
    AtEnd,
    /// There is no space for a write. It may be submitted again later (T2).
    NoSpace,
    /// The operation failed.
    Failed(FileError),
}

/// Looks at a completed read or write, and prepares it for the rest. `attempts` is 0 at first.
pub(crate) fn advance(operation: &mut FileOperation, attempts: &mut u8) -> Progress {
    let result = operation.result();
    let is_read = matches!(operation.work, FileWork::Read(_));
    let heals = match &operation.work {
        FileWork::Write { transfer, durable } => !durable || transfer.file.is_direct(), // T2
        _ => false,
    };
    let (FileWork::Read(transfer) | FileWork::Write { transfer, .. }) = &mut operation.work else {
        unreachable!("only transfers are done in part");
    };
    let (is_direct, alignment) = (transfer.file.is_direct(), transfer.file.alignment());
    let done = match result {
        Ok(done) if done == transfer.bytes => {
            *attempts = 0;
            return Progress::Whole;
        }
        // The rest must begin at a multiple of the alignment.
        Ok(done) if is_direct => done / alignment * alignment,
        Ok(done) => done,
        Err(error) if PASSING.contains(&error) => 0,
        Err(FileError::NO_SPACE | QUOTA) if heals => return Progress::NoSpace,
        Err(error) => return Progress::Failed(error),
    };
    *attempts = if done == 0 { *attempts + 1 } else { 0 };
    transfer.start += done;
    transfer.offset += done as u64;
    transfer.bytes -= done;
    match result {
        Ok(0) if is_read => Progress::AtEnd,
        _ if *attempts < ATTEMPTS_MAX => Progress::Part, // T1
        Err(error) => Progress::Failed(error),
        Ok(_) => Progress::Failed(FileError::IO),
    }
}
