//! A file that has its name only once its content is durable.
//!
//! Upstream:   `recovery`, for a new log.
//! Downstream: `io`, one operation at a time.
//!
//! ```text
//! NAME.new:  unlink (of an interrupted call) --> create --> its owner writes and syncs it
//!                --> rename to NAME --> sync of the folder
//! ```

use kachel_io::{FileError, FileHandle, FileName, FileWork, FolderHandle, OpenMode};

use crate::task::Port;

/// What is added to the name of a file while it is written.
const NEW: &str = ".new";

fn file_name(name: &str) -> FileName {
    FileName::new(name).expect("a short name")
}

/// Makes an empty file that will have this name, in the place of one that an interrupted call has
/// left.
pub(crate) async fn create_unnamed(
    port: &Port,
    folder: &FolderHandle,
    name: &str,
) -> Result<FileHandle, FileError> {
    let new = format!("{name}{NEW}");
    let unlink = FileWork::Unlink { folder: folder.clone(), name: file_name(&new) };
    match port.finish(unlink).await {
        Err(FileError::NOT_FOUND) => {}
        unlinked => unlinked?,
    }
    port.open(folder, &new, OpenMode::CreateNew, true).await.map(|(file, _)| file)
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
