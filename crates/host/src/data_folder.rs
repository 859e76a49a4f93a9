//! A folder of data that one process at a time has open. Its small files are replaced as a whole.
//!
//! Upstream:   engines with files, at their start and for what they keep beside their logs.
//! Downstream: the file system.
//!
//! Invariants:
//! - I1  One process at a time has the folder open.
//! - I2  A file is durable under another name before it gets its own, and its name is durable
//!   before [`DataFolder::replace`] returns. So a crash leaves the old content or the new one.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::regular_file::read_regular_file;

/// The file whose lock the process holds.
const LOCK_FILE: &str = "kachel.lock";
/// What a file system has in its own folder.
const OF_FILE_SYSTEM: &str = "lost+found";
/// What is added to the name of a file while it is written.
pub const NEW_SUFFIX: &str = ".new";

/// How long a start waits for a lock that is held, as for an address in use: the kernel gives both
/// back some time after the end of the process that had them.
const RELEASE_MAX: Duration = Duration::from_millis(500);
/// The pause between two tries.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// A folder that this process has open.
#[derive(Debug)]
pub struct DataFolder {
    path: PathBuf,
    /// I1.
    _lock: File,
}

impl DataFolder {
    /// Opens a folder. If there is none, it is made, and nobody else may enter it.
    ///
    /// Errors: another process has it open (`ResourceBusy`), or the kernel says so.
    pub fn open(path: &Path) -> io::Result<Self> {
        make_folder(path)?;
        let lock = path.join(LOCK_FILE);
        let lock = File::options().write(true).create(true).truncate(false).open(lock)?;
        match hold(&lock) {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                let why = "another server has the directory open";
                Err(io::Error::new(io::ErrorKind::ResourceBusy, why))
            }
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// The path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces a file, or makes it (I2). Waits for the disk.
    ///
    /// Errors: the old content or the new one is there.
    pub fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        self.write_new(name, content)?;
        self.give_name(name)
    }

    /// Writes the next content of a file under the name with [`NEW_SUFFIX`]. The content is durable
    /// then; that name is not. Waits for the disk.
    ///
    /// Errors: the file is as it was.
    pub fn write_new(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut file = File::create(self.new_path(name))?;
        file.write_all(content)?;
        file.sync_all()
    }

    /// Gives the content of [`Self::write_new`] its name (I2). All names in the folder are durable
    /// then. Waits for the disk.
    ///
    /// Errors: the old content or the new one is there.
    pub fn give_name(&self, name: &str) -> io::Result<()> {
        fs::rename(self.new_path(name), self.path.join(name))?;
        File::open(&self.path)?.sync_all()
    }

    fn new_path(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}{NEW_SUFFIX}"))
    }

    /// The content of a file. `None` if there is none.
    ///
    /// Errors: it cannot be read, or is longer than `bytes_max`.
    pub fn read(&self, name: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        read_if_there(&self.path.join(name), bytes_max)
    }

    /// Opens a folder in this one. It is made if `makes` says so and it is not there.
    ///
    /// Errors: there is none, or it cannot be opened.
    pub fn subfolder(&self, name: &str, makes: bool) -> io::Result<OwnedFd> {
        let path = self.path.join(name);
        if makes {
            make_folder(&path)?;
        }
        let folder = File::open(&path)?;
        if folder.metadata()?.is_dir() {
            Ok(folder.into())
        } else {
            Err(io::ErrorKind::NotADirectory.into())
        }
    }
}

/// The lock of a folder that stays as it is.
#[derive(Debug)]
pub struct HeldFolder {
    /// `None`: the folder has no lock, so no process has opened it yet.
    _lock: Option<File>,
}

impl HeldFolder {
    /// Takes the lock of a folder, if it has one, and changes nothing in it. So no process opens
    /// the folder until this is dropped.
    ///
    /// Errors: another process has it open (`ResourceBusy`), or the kernel says so.
    pub fn of(path: &Path) -> io::Result<Self> {
        let lock = match File::open(path.join(LOCK_FILE)) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { _lock: None });
            }
            Err(error) => return Err(error),
        };
        match hold(&lock) {
            Ok(()) => Ok(Self { _lock: Some(lock) }),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::ResourceBusy.into()),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// The content of a file. `None` if there is none.
///
/// Errors: it cannot be read, or is longer than `bytes_max`.
pub fn read_if_there(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    match read_regular_file(path, bytes_max) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A name in a folder that is not the lock, not the file system's own, and not one for which
/// `is_ours` is true. `None` also if there is no folder.
///
/// Errors: the folder cannot be read.
pub fn first_foreign(path: &Path, is_ours: impl Fn(&str) -> bool) -> io::Result<Option<String>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if ![LOCK_FILE, OF_FILE_SYSTEM].contains(&&*name) && !is_ours(&name) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// The bytes of the file system that a path is on, or will be on.
///
/// Errors: the kernel says so.
pub fn file_system_bytes(path: &Path) -> io::Result<u64> {
    let there = path.ancestors().find(|path| path.exists()).unwrap_or_else(|| Path::new("."));
    let there = if there.as_os_str().is_empty() { Path::new(".") } else { there };
    let found = rustix::fs::statvfs(there)?;
    Ok(found.f_blocks.saturating_mul(found.f_frsize))
}

/// Makes a folder, and those above it, which nobody else may enter. Their names are durable then.
fn make_folder(path: &Path) -> io::Result<()> {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    let above = above.unwrap_or_else(|| Path::new("."));
    let make = || DirBuilder::new().mode(0o700).create(path);
    let made = match make() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_folder(above)?;
            make()
        }
        made => made,
    };
    match made {
        Ok(()) => File::open(above)?.sync_all(),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Takes a lock. While it is held, tries again for at most [`RELEASE_MAX`].
fn hold(lock: &File) -> Result<(), TryLockError> {
    let began = Instant::now();
    loop {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) if began.elapsed() < RELEASE_MAX => {
                std::thread::sleep(RETRY_PAUSE);
            }
            ended => return ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;

    #[test]
    fn a_folder_is_made_locked_and_its_files_are_replaced() {
        let place = Folder::new("data-folder", &[]);
        let path = place.path().join("deep/data");
        let folder = DataFolder::open(&path).expect("it is made");
        assert_eq!(folder.read("file", 9).expect("none"), None);
        for content in [&b"first"[..], b"second"] {
            folder.replace("file", content).expect("written");
            assert_eq!(folder.read("file", 9).expect("read").as_deref(), Some(content), "I2");
        }
        assert!(folder.read("file", 5).is_err(), "it is longer");
        let refused = DataFolder::open(&path).expect_err("I1");
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
        let refused = HeldFolder::of(&path).expect_err("I1");
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
        assert!(folder.subfolder("engine", false).is_err(), "there is none");
        folder.subfolder("engine", true).expect("it is made");
        folder.subfolder("engine", false).expect("it is there");
        fs::create_dir(path.join(OF_FILE_SYSTEM)).expect("a folder");
        let foreign =
            |ours: &[&str]| first_foreign(&path, |name| ours.contains(&name)).expect("read");
        assert_eq!(foreign(&["file", "engine"]), None);
        assert_eq!(foreign(&["file"]).as_deref(), Some("engine"));
        assert_eq!(first_foreign(&path.join("none"), |_| false).expect("no folder"), None);
        assert!(folder.subfolder("file", true).is_err(), "a file");
        drop(folder);
        let held = HeldFolder::of(&path).expect("the lock is free");
        assert!(DataFolder::open(&path).is_err(), "I1");
        drop(held);
        DataFolder::open(&path).expect("the lock is free");
        HeldFolder::of(place.path()).expect("it has no lock, and gets none");
        assert!(!place.path().join(LOCK_FILE).exists());
        assert!(file_system_bytes(&path.join("not/there")).expect("a size") > 0);
    }
}
