//! The memory file (`-e`): found at the start, removed before clients are served, and written and
//! put in place at the end.
//!
//! Upstream:   `kachel`, which knows the format of the file.
//! Downstream: the file system.
//!
//! ```text
//!            start            serving              end by SIGUSR1
//! PATH       read ----------> removed (I2)         <--- renamed ---+
//! PATH.new   made, locked, empty ---------------> written, synced -+
//! ```
//!
//! Invariants:
//! - I1  `PATH` is whole: what is written lies beside it until all of it is on the disk.
//! - I2  The file is gone before a client is served, also after a loss of power. So no later server
//!   finds items that this one has changed. Until then it stays: a server that fails or is killed
//!   while it loads loses nothing.
//! - I3  Two servers do not use the same file: the lock on `PATH.new` is held until the process
//!   ends, also while it writes.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// How often a server opens the file anew because another one renamed or removed it meanwhile.
const ATTEMPTS_MAX: usize = 8;

/// The claim of this process to a memory file. Dropped, it leaves nothing beside the file.
#[derive(Debug)]
pub struct MemoryFile {
    path: PathBuf,
    beside: PathBuf,
    /// The file beside, locked and open for writing.
    next: File,
    is_placed: bool,
}

impl MemoryFile {
    /// Claims `path` for this process.
    ///
    /// Errors: `WouldBlock` if another process has claimed it (I3); the folder cannot be written or
    /// synced, or there is something beside the file that is no file.
    pub fn claim(path: &Path) -> io::Result<Self> {
        debug_assert!(path.is_absolute(), "the process may leave its folder");
        let mut beside = OsString::from(path);
        beside.push(".new");
        let beside = PathBuf::from(beside);
        for _ in 0..ATTEMPTS_MAX {
            let mut options = OpenOptions::new();
            options.write(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
            let next = options.truncate(false).open(&beside)?;
            match next.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // The server before may have put this very file in place just before it ended.
            if !is_at(&next, &beside)? {
                continue;
            }
            // A server that was ended while it wrote has left this file.
            next.set_len(0)?;
            debug_assert!(next.metadata()?.is_file(), "only a file has a length");
            let file = Self { path: path.to_path_buf(), beside, next, is_placed: false };
            // A folder that cannot be synced shows it here, while the old file is still there.
            file.sync_folder()?;
            return Ok(file);
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Opens the file of the server before. `None` if there is none.
    ///
    /// Errors: it cannot be read, or it is no file.
    pub fn open(&self) -> io::Result<Option<File>> {
        assert!(!self.is_placed, "I2: what this process writes is for the next one");
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        Ok(Some(file))
    }

    /// Removes the file (I2), if it is still there. A file that was opened before can still be
    /// read.
    ///
    /// Errors: the folder cannot be written, or not be synced.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        debug_assert!(!self.path.exists(), "I3: nobody else writes there");
        self.sync_folder()
    }

    /// The file to be written, which is empty.
    pub const fn next(&self) -> &File {
        &self.next
    }

    /// Puts what was written in place (I1). Returns why a loss of power may take its name again, if
    /// the folder could not be synced. There is no older file that it could leave (I2).
    ///
    /// Errors: the disk does not take it, or the folder cannot be written. Then there is no file.
    pub fn place(self) -> io::Result<Option<io::Error>> {
        self.place_and(Self::sync_folder)
    }

    fn place_and(
        mut self,
        sync_folder: impl FnOnce(&Self) -> io::Result<()>,
    ) -> io::Result<Option<io::Error>> {
        debug_assert!(!self.is_placed, "I1: it is placed once");
        self.next.sync_all()?;
        debug_assert!(self.path != self.beside, "I1: what is not placed lies beside the file");
        fs::rename(&self.beside, &self.path)?;
        self.is_placed = true;
        Ok(sync_folder(&self).err())
    }

    fn sync_folder(&self) -> io::Result<()> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        match File::open(folder.unwrap_or(Path::new(".")))?.sync_all() {
            // A file system that cannot sync a folder keeps its names by itself.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced,
        }
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        if !self.is_placed {
            let _the_next_server_empties_it = fs::remove_file(&self.beside);
        }
    }
}

/// Whether `file` is the one at `path`.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let opened = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(there) => Ok((opened.dev(), opened.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;
    use crate::folder::Folder;

    fn text(file: Option<File>) -> Option<String> {
        file.map(|mut file| {
            let mut text = String::new();
            file.read_to_string(&mut text).expect("text");
            text
        })
    }

    #[test]
    fn what_is_written_is_found_once_and_only_if_it_was_put_in_place() {
        let folder = Folder::new("memory-file", &[]);
        let path = folder.path().join("items");
        let names = || fs::read_dir(folder.path()).expect("a folder").count();
        let first = MemoryFile::claim(&path).expect("free");
        assert_eq!(text(first.open().expect("readable")), None);
        first.next().write_all(b"half").expect("written");
        drop(first);
        assert_eq!(names(), 0, "a server that does not save leaves nothing");

        let second = MemoryFile::claim(&path).expect("free");
        second.next().write_all(b"whole").expect("written");
        second.place().expect("placed");
        assert_eq!(names(), 1);

        let third = MemoryFile::claim(&path).expect("free");
        let file = third.open().expect("readable");
        third.remove().expect("removed");
        assert_eq!(text(file).as_deref(), Some("whole"), "it was opened before");
        assert_eq!(text(third.open().expect("readable")), None);
    }

    #[test]
    fn a_file_stays_in_place_if_its_folder_cannot_be_synced() {
        let folder = Folder::new("memory-file", &[]);
        let path = folder.path().join("items");
        let file = MemoryFile::claim(&path).expect("free");
        file.next().write_all(b"whole").expect("written");
        let fails = |_: &MemoryFile| Err(io::Error::other("the folder is not synced"));
        let warning = file.place_and(fails).expect("it is placed").expect("a warning");
        assert_eq!(warning.to_string(), "the folder is not synced");
        assert_eq!(fs::read(&path).expect("a file"), b"whole");
    }

    #[test]
    fn one_server_has_the_file_and_a_dead_one_leaves_no_part_of_it() {
        let folder = Folder::new("memory-file", &[("items.new", "written in part")]);
        let path = folder.path().join("items");
        let first = MemoryFile::claim(&path).expect("its server is dead");
        assert_eq!(first.next().metadata().expect("a file").len(), 0, "nothing is left of it");
        let refused = MemoryFile::claim(&path).expect_err("it has a server");
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        first.next().write_all(b"new").expect("written");
        let placed = first.next().try_clone().expect("the lock goes on");
        first.place().expect("placed");
        MemoryFile::claim(&path).expect("a placed file is no claim");
        assert_eq!(fs::read_to_string(&path).expect("text"), "new", "it was not emptied");
        drop(placed);
    }

    #[test]
    fn a_link_beside_the_file_is_not_followed() {
        let folder = Folder::new("memory-file", &[("other", "precious")]);
        let path = folder.path().join("items");
        std::os::unix::fs::symlink("other", folder.path().join("items.new")).expect("a link");
        MemoryFile::claim(&path).expect_err("a link is no file");
        let other = fs::read_to_string(folder.path().join("other")).expect("text");
        assert_eq!(other, "precious");
        fs::remove_file(folder.path().join("other")).expect("removed");
        MemoryFile::claim(&path).expect_err("a link to nowhere is no file either");
        assert!(!folder.path().join("other").exists(), "nothing was made there");
        let folder = MemoryFile::claim(&folder.path().join("folder")).expect("free");
        fs::create_dir(&folder.path).expect("a folder");
        folder.open().expect_err("a folder is no file");
    }
}
