//! Small files that are replaced as a whole: the old content is there, or the new one.
//!
//! Upstream:   `root`; an engine, for what it must remember beside its log.
//! Downstream: `io`, one operation at a time.
//!
//! ```text
//! NAME.new:  unlink (of an interrupted replacement) --> create --> durable write
//!                --> rename to NAME --> sync of the folder
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - M1  A file has 1 to [`SMALL_FILE_BYTES_MAX`] bytes.

use kachel_io::{
    AlignedBuffer, FileError, FileHandle, FileName, FileWork, FolderHandle, OpenMode, Transfer,
};

use crate::failure::{Cause, Refusal};
use crate::task::{Port, Task};

/// The most bytes of a small file.
pub const SMALL_FILE_BYTES_MAX: usize = 64 * 1024;
/// What is added to the name of a file while it is written.
const NEW: &str = ".new";

/// Reads a small file. `None` if there is none. What is read is durable.
#[must_use]
pub fn read_file(
    folder: FolderHandle,
    name: &'static str,
) -> Task<Result<Option<Vec<u8>>, Refusal>> {
    Task::new(move |port| async move {
        let path = format!("{}/{name}", folder.path());
        let refused = |cause| Refusal::new(&path, None, cause);
        match read(&port, &folder, name).await {
            Ok(Some(content)) if content.is_empty() => Err(refused(Cause::Damaged(None))),
            Ok(Some(content)) if content.len() > SMALL_FILE_BYTES_MAX => {
                Err(refused(Cause::TooLarge))
            }
            Ok(content) => Ok(content),
            Err(error) => Err(refused(Cause::Failed(error))),
        }
    })
}

/// Replaces a small file, or makes it. It is durable when the task has ended; after an error, the
/// old content or the new one is there.
///
/// Panics: if the content is empty or too long (M1), or the name is.
#[must_use]
pub fn replace_file(
    folder: FolderHandle,
    name: &'static str,
    content: &[u8],
) -> Task<Result<(), Refusal>> {
    assert!((1..=SMALL_FILE_BYTES_MAX).contains(&content.len()), "M1");
    let mut buffer = AlignedBuffer::new(content.len(), 1);
    buffer.copy_from_slice(content);
    Task::new(move |port| async move {
        let path = format!("{}/{name}", folder.path());
        let replaced = replace(&port, folder, name, buffer).await;
        replaced.map_err(|error| Refusal::new(&path, None, Cause::Failed(error)))
    })
}

fn file_name(name: &str) -> FileName {
    FileName::new(name).expect("a short name")
}

async fn read(
    port: &Port,
    folder: &FolderHandle,
    name: &str,
) -> Result<Option<Vec<u8>>, FileError> {
    let (file, bytes) = match port.open(folder, name, OpenMode::Read, false).await {
        Err(FileError::NOT_FOUND) => return Ok(None),
        opened => opened?,
    };
    // One byte more shows a file that is too long.
    let bytes = bytes.min(SMALL_FILE_BYTES_MAX + 1);
    let mut content = Vec::new();
    if bytes > 0 {
        let buffer = AlignedBuffer::new(bytes, 1);
        let whole = Transfer { file: file.clone(), offset: 0, buffer, start: 0, bytes };
        content = port.transfer(FileWork::Read(whole), bytes).await?.to_vec();
    }
    port.finish(FileWork::Sync { file: file.clone() }).await?;
    port.finish(FileWork::Close { file: Some(file) }).await?;
    port.finish(FileWork::SyncFolder { folder: folder.clone() }).await?;
    Ok(Some(content))
}

/// Makes an empty file that will have this name, in the place of one that an interrupted call has
/// left.
pub(crate) async fn create_unnamed(
    port: &Port,
    folder: &FolderHandle,
    name: &str,
    direct: bool,
) -> Result<FileHandle, FileError> {
    let new = format!("{name}{NEW}");
    let unlink = FileWork::Unlink { folder: folder.clone(), name: file_name(&new) };
    match port.finish(unlink).await {
        Err(FileError::NOT_FOUND) => {}
        unlinked => unlinked?,
    }
    port.open(folder, &new, OpenMode::CreateNew, direct).await.map(|(file, _)| file)
}

/// Closes the file, which is durable, and gives it its name, durably.
pub(crate) async fn give_name(
    port: &Port,
    folder: FolderHandle,
    name: &str,
    file: FileHandle,
) -> Result<(), FileError> {
    let (from, to) = (file_name(&format!("{name}{NEW}")), file_name(name));
    port.finish(FileWork::Close { file: Some(file) }).await?;
    port.finish(FileWork::Rename { folder: folder.clone(), from, to }).await?;
    port.finish(FileWork::SyncFolder { folder }).await
}

async fn replace(
    port: &Port,
    folder: FolderHandle,
    name: &str,
    buffer: AlignedBuffer,
) -> Result<(), FileError> {
    let file = create_unnamed(port, &folder, name, false).await?;
    let bytes = buffer.len();
    let whole = Transfer { file: file.clone(), offset: 0, buffer, start: 0, bytes };
    port.transfer(FileWork::Write { transfer: whole, durable: true }, bytes).await?;
    give_name(port, folder, name, file).await
}
