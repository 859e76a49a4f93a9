//! The data directory: the root file that says what is in it, the lock that one process holds, and
//! the file of the flushes.
//!
//! Upstream:   `opener` opens the directory; `shared` writes each flush.
//! Downstream: the file system.
//!
//! ```text
//! DIR/kachel.root    the format, the kind of the engines, and their number
//! DIR/kachel.lock    empty; the process that serves from the directory holds its lock
//! DIR/kachel.flush   the number of flushes, and the Unix time of a pending one
//! DIR/engine-0000/   the database of the first engine
//! ```
//!
//! Invariants:
//! - Y1  A directory that cannot be opened stays as it is.
//! - Y2  Each of the files is replaced as a whole: it is durable under another name before it gets
//!   its own, and its name is durable before the call returns.
//! - Y3  One process at a time has the directory open.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ROOT: &str = "kachel.root";
const LOCK: &str = "kachel.lock";
const FLUSH: &str = "kachel.flush";
/// The end of the name of a file that does not have its own name yet.
const NEW: &str = "new";
/// The first line of the root file.
const FORMAT: &str = "kachel data, format 1";
/// What the root file says about the engines.
const ENGINE: &str = "engine rocksdb";
/// No root file is longer.
const ROOT_BYTES_MAX: u64 = 4096;

/// How long a start waits for a lock that is held, as for an address in use: the kernel gives both
/// back some time after the end of the process that had them.
const RELEASE_MAX: Duration = Duration::from_millis(500);
/// The pause between two tries.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// The most files of the directory itself that are open: its lock, and one that is replaced.
pub(crate) const DIRECTORY_FILES_MAX: u64 = 3;

/// A data directory that this process has open.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// Y3.
    _lock: File,
}

/// The flushes of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeptFlushes {
    /// The number of flushes.
    pub(crate) epoch: u32,
    /// The Unix time of a pending flush; 0: none is pending.
    pub(crate) due_unix_s: u32,
}

/// Why a directory is refused, with its path.
fn refused(path: &Path, why: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("--data {}: {why}", path.display()))
}

/// The number of engines that a directory was made for. `None` if there is no directory yet, or
/// nothing in it.
///
/// Errors: it is another program's, or another engine's, or another version's.
pub(crate) fn engines_of(path: &Path) -> io::Result<Option<u16>> {
    let text = match fs::symlink_metadata(path.join(ROOT)) {
        Ok(found) if found.len() <= ROOT_BYTES_MAX => fs::read_to_string(path.join(ROOT)),
        Ok(_) => return Err(refused(path, "the root file is damaged")),
        Err(error) => Err(error),
    };
    match text {
        Ok(text) => engines_in(&text).map(Some).map_err(|why| refused(path, why)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match first_foreign(path)? {
            None => Ok(None),
            Some(name) => Err(refused(path, format_args!("has {name} and no {ROOT}"))),
        },
        Err(error) => Err(refused(path, error)),
    }
}

/// The number of engines that a root file names.
fn engines_in(text: &str) -> Result<u16, String> {
    let lines: Vec<&str> = text.lines().collect();
    let [format, engine, engines] = lines[..] else {
        return Err("the root file is damaged".to_owned());
    };
    if format != FORMAT {
        return Err(format!("is of another version ({format:?}; this one has {FORMAT:?})"));
    }
    if engine != ENGINE {
        return Err(format!("is of another engine ({engine:?}; asked for is {ENGINE:?})"));
    }
    let number = engines.strip_prefix("engines ").and_then(|number| number.parse().ok());
    number.filter(|&number| number > 0).ok_or_else(|| "the root file is damaged".to_owned())
}

/// A name in a directory that no start of ours leaves there before there is a root file.
fn first_foreign(path: &Path) -> io::Result<Option<String>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refused(path, error)),
    };
    for entry in entries {
        let name = entry.map_err(|error| refused(path, error))?.file_name();
        let name = name.to_string_lossy().into_owned();
        if name != LOCK && !name.ends_with(NEW) {
            return Ok(Some(name));
        }
    }
    Ok(None)
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

impl Directory {
    /// Opens the directory for `engines` engines. If there is none, it is made for them.
    ///
    /// Errors: another process has it open, or it is not for these engines (Y1).
    pub(crate) fn open(path: &Path, engines: u16) -> io::Result<Self> {
        let found = engines_of(path)?;
        if let Some(found) = found.filter(|&found| found != engines) {
            let why = format!("was made for {found} engines, and is opened for {engines}");
            return Err(refused(path, why));
        }
        // Nobody else may read the items.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(|error| refused(path, error))?;
        let lock = File::options().write(true).create(true).truncate(false).open(path.join(LOCK));
        let lock = lock.map_err(|error| refused(path, error))?;
        match hold(&lock) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(refused(path, "another server has the directory open"));
            }
            Err(TryLockError::Error(error)) => return Err(refused(path, error)),
        }
        let directory = Self { path: path.to_owned(), _lock: lock };
        if found.is_none() {
            let root = format!("{FORMAT}\n{ENGINE}\nengines {engines}\n");
            directory.replace(ROOT, &root).map_err(|error| refused(path, error))?;
        }
        Ok(directory)
    }

    /// The folder of an engine's database.
    pub(crate) fn folder(&self, engine: u16) -> PathBuf {
        self.path.join(format!("engine-{engine:04}"))
    }

    /// The flushes of the process before.
    ///
    /// Errors: the file cannot be read, or is damaged.
    pub(crate) fn flushes(&self) -> io::Result<KeptFlushes> {
        match fs::read_to_string(self.path.join(FLUSH)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(KeptFlushes::default()),
            Err(error) => Err(refused(&self.path, format_args!("{FLUSH}: {error}"))),
            Ok(text) => {
                let flushes = flushes_in(&text);
                flushes.ok_or_else(|| refused(&self.path, format_args!("{FLUSH} is damaged")))
            }
        }
    }

    /// Makes flushes durable (Y2). Waits for the disk.
    pub(crate) fn keep(&self, flushes: KeptFlushes) -> io::Result<()> {
        let KeptFlushes { epoch, due_unix_s } = flushes;
        self.replace(FLUSH, &format!("flushes {epoch}\npending {due_unix_s}\n"))
    }

    /// Replaces a file (Y2).
    fn replace(&self, name: &str, text: &str) -> io::Result<()> {
        let (new, path) = (self.path.join(name).with_extension(NEW), self.path.join(name));
        let mut file = File::create(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(&self.path)?.sync_all()
    }
}

/// The flushes that a file of them says.
fn flushes_in(text: &str) -> Option<KeptFlushes> {
    let (first, rest) = text.split_once('\n')?;
    let epoch = first.strip_prefix("flushes ")?.parse().ok()?;
    let due_unix_s = rest.strip_prefix("pending ")?.strip_suffix('\n')?.parse().ok()?;
    Some(KeptFlushes { epoch, due_unix_s })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(result: io::Result<impl std::fmt::Debug>) -> String {
        result.expect_err("refused").to_string()
    }

    #[test]
    fn a_directory_keeps_the_number_of_its_engines_and_its_flushes() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("deep/data");
        assert_eq!(engines_of(&path).expect("nothing is there"), None);
        let directory = Directory::open(&path, 3).expect("it is made");
        assert_eq!(directory.flushes().expect("none"), KeptFlushes::default());
        let flushes = KeptFlushes { epoch: 7, due_unix_s: 1_800_000_000 };
        directory.keep(flushes).expect("written");
        assert!(sentence(Directory::open(&path, 3)).ends_with("has the directory open"), "Y3");
        drop(directory);
        assert!(
            sentence(Directory::open(&path, 4)).ends_with("for 3 engines, and is opened for 4")
        );
        assert_eq!(engines_of(&path).expect("it is ours"), Some(3));
        let directory = Directory::open(&path, 3).expect("it is opened again");
        assert_eq!(directory.flushes().expect("read"), flushes);
    }

    #[test]
    fn a_directory_that_is_not_ours_is_named_and_stays_as_it_is() {
        let place = tempfile::tempdir().expect("a folder");
        let cases = [
            (ROOT, "kachel data, format 2\nengine rocksdb\nengines 3\n", "another version"),
            (ROOT, "kachel data, format 1\nengine flash\nengines 3\n", "another engine"),
            (ROOT, "kachel data, format 1\nengine rocksdb\nengines 0\n", "damaged"),
            (ROOT, "kachel data, format 1\nengine rocksdb\n", "damaged"),
            (ROOT, "", "damaged"),
            ("precious", "", "has precious and no kachel.root"),
        ];
        for (number, (name, text, wanted)) in cases.into_iter().enumerate() {
            let path = place.path().join(number.to_string());
            fs::create_dir(&path).expect("a folder");
            fs::write(path.join(name), text).expect("written");
            let said = sentence(Directory::open(&path, 3));
            assert!(said.starts_with("--data ") && said.contains(wanted), "{said}");
            let names: Vec<_> = fs::read_dir(&path).expect("a folder").collect();
            assert_eq!(names.len(), 1, "Y1: {names:?}");
        }
        let path = place.path().join("left");
        fs::create_dir(&path).expect("a folder");
        fs::write(path.join("kachel.new"), "of a start that was killed").expect("written");
        drop(Directory::open(&path, 1).expect("nothing else is there"));
        fs::write(path.join(FLUSH), "flushes 1\n").expect("written");
        let directory = Directory::open(&path, 1).expect("ours");
        assert!(sentence(directory.flushes()).ends_with("kachel.flush is damaged"));
    }
}
