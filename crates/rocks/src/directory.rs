//! The data directory: the root file that says what is in it, the lock that one process holds, and
//! the file of the flushes.
//!
//! Upstream:   `opener` opens the directory, and finishes a new one; `shared` writes each flush.
//! Downstream: `host` for the folder, its lock and its small files.
//!
//! ```text
//! DIR/kachel.root    the format, the kind of the engines, and their number
//! DIR/kachel.lock    empty; the process that serves from the directory holds its lock
//! DIR/kachel.flush   the flushes (`engine`: `kept/flushes.rs`)
//! DIR/engine-0000/   the database of the first engine
//! ```
//!
//! A new directory is made in this order. The root file gets its name last, so a start that was
//! killed before leaves no store, and the next start begins again.
//!
//! ```text
//! kachel.lock --> kachel.root.new --> engine-0000, ... --> kachel.flush --> kachel.root
//! ```
//!
//! Invariants:
//! - Y1  A directory that cannot be opened stays as it is.
//! - Y2  Each of the files is replaced as a whole (I2 of `host::DataFolder`).
//! - Y3  One process at a time has the directory open.
//! - Y4  A directory with a root file has all of its parts, and their names are durable. If a part
//!   is missing, the directory is refused: a part that was made anew would be empty.

use std::io;
use std::path::{Path, PathBuf};

use kachel_engine::{
    FLUSH_BYTES_MAX, FLUSH_FILE, KeptFlushes, PARTITIONS, engine_folder, is_engine_folder,
};
use kachel_host::{DataFolder, first_foreign, read_if_there};

const ROOT: &str = "kachel.root";
/// The root file of a directory that is not finished, and the next file of the flushes (Y2).
const NEW_ROOT: &str = "kachel.root.new";
const NEW_FLUSH: &str = "kachel.flush.new";
/// The file that each database of RocksDB has, from its making on.
const DATABASE: &str = "CURRENT";
/// The first line of the root file.
const FORMAT: &str = "kachel data, format 1";
/// What the root file says about the engines.
const ENGINE: &str = "engine rocksdb";
/// How the root file of a directory of `flash` begins.
const OF_FLASH: &str = "kachel store ";
/// No root file is longer.
const ROOT_BYTES_MAX: u64 = 4096;
/// The most files of the directory itself that are open: its lock, and one that is replaced.
pub(crate) const DIRECTORY_FILES_MAX: u64 = 3;

/// A data directory that this process has open.
#[derive(Debug)]
pub(crate) struct Directory {
    /// Y3.
    folder: DataFolder,
    /// Whether it has no root file yet.
    is_new: bool,
}

/// Why a directory is refused, with its path.
fn refused(path: &Path, why: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("--data {}: {why}", path.display()))
}

/// The number of engines that a directory was made for. `None` if there is no directory yet, or
/// nothing in it but what a start of ours has left that was killed.
///
/// Errors: it is another program's, or another engine's, or another version's.
pub(crate) fn engines_of(path: &Path) -> io::Result<Option<u16>> {
    match root_text(path, ROOT)? {
        Some(text) => engines_in(&text).map(Some).map_err(|why| refused(path, why)),
        None => match foreign_in(path)? {
            None => Ok(None),
            Some(name) => Err(refused(path, format_args!("has {name} and no {ROOT}"))),
        },
    }
}

/// The text of a root file. `None` if there is none.
fn root_text(path: &Path, name: &str) -> io::Result<Option<String>> {
    let found = read_if_there(&path.join(name), ROOT_BYTES_MAX);
    let content = found.map_err(|error| refused(path, format_args!("{name}: {error}")))?;
    let text = content.map(String::from_utf8).transpose();
    text.map_err(|_| refused(path, "the root file is damaged"))
}

/// The number of engines that a root file names.
fn engines_in(text: &str) -> Result<u16, String> {
    if text.starts_with(OF_FLASH) {
        return Err("is of another engine (asked for is rocksdb)".to_owned());
    }
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
    let is_possible = |number: &u16| (1..=PARTITIONS).contains(&u32::from(*number));
    number.filter(is_possible).ok_or_else(|| "the root file is damaged".to_owned())
}

/// A name in a directory without a root file that no start of ours leaves there. Only a start that
/// has a new root file makes the other parts.
fn foreign_in(path: &Path) -> io::Result<Option<String>> {
    let is_begun = root_text(path, NEW_ROOT)?.is_some_and(|text| engines_in(&text).is_ok());
    let is_ours = |name: &str| match name {
        NEW_ROOT => true,
        FLUSH_FILE | NEW_FLUSH => is_begun,
        other => is_begun && is_engine_folder(other),
    };
    first_foreign(path, is_ours).map_err(|error| refused(path, error))
}

impl Directory {
    /// Opens the directory for `engines` engines. If there is none, begins to make it for them:
    /// [`Self::finish`] ends that.
    ///
    /// Errors: another process has it open, it is not for these engines, or a part of it is missing
    /// (Y1, Y4).
    pub(crate) fn open(path: &Path, engines: u16) -> io::Result<Self> {
        is_made_for(path, engines)?; // Y1: before the lock is made.
        let folder = DataFolder::open(path).map_err(|error| refused(path, error))?;
        // Another process may have made it before it gave the lock back.
        let is_new = !is_made_for(path, engines)?;
        let directory = Self { folder, is_new };
        if is_new {
            let root = format!("{FORMAT}\n{ENGINE}\nengines {engines}\n");
            let written = directory.folder.write_new(ROOT, root.as_bytes());
            written.map_err(|error| refused(path, error))?;
        } else if let Some(part) = directory.first_missing(engines) {
            return Err(refused(path, format_args!("{part} is missing"))); // Y4
        }
        Ok(directory)
    }

    /// Whether the directory has no root file yet, so that its databases must be made.
    pub(crate) const fn is_new(&self) -> bool {
        self.is_new
    }

    /// Gives a new directory its root file, now that it has all other parts (Y4). Does nothing to
    /// another one.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        if self.is_new {
            let kept = self.keep(&KeptFlushes::default());
            let result = kept.and_then(|()| self.folder.give_name(ROOT));
            result.map_err(|error| refused(self.folder.path(), error))?;
            self.is_new = false;
        }
        Ok(())
    }

    /// The first part that is not there.
    fn first_missing(&self, engines: u16) -> Option<String> {
        let of_engine = |engine: u16| {
            let folder = engine_folder(engine);
            [folder.clone(), format!("{folder}/{DATABASE}")]
        };
        let parts = (0..engines).flat_map(of_engine);
        let mut parts = std::iter::once(FLUSH_FILE.to_owned()).chain(parts);
        parts.find(|part| !self.folder.path().join(part).exists())
    }

    /// The folder of an engine's database.
    pub(crate) fn folder(&self, engine: u16) -> PathBuf {
        self.folder.path().join(engine_folder(engine))
    }

    /// The flushes of the process before. There are none in a new directory.
    ///
    /// Errors: the file cannot be read, or is damaged.
    pub(crate) fn flushes(&self) -> io::Result<KeptFlushes> {
        if self.is_new {
            return Ok(KeptFlushes::default());
        }
        let of_file = |why: &dyn std::fmt::Display| {
            refused(self.folder.path(), format_args!("{FLUSH_FILE} {why}"))
        };
        let found =
            self.folder.read(FLUSH_FILE, FLUSH_BYTES_MAX).map_err(|error| of_file(&error))?;
        let content = found.ok_or_else(|| of_file(&"is missing"))?; // Y4
        KeptFlushes::parse(&content).map_err(|why| of_file(&why))
    }

    /// Makes flushes durable (Y2). Waits for the disk.
    pub(crate) fn keep(&self, flushes: &KeptFlushes) -> io::Result<()> {
        self.folder.replace(FLUSH_FILE, flushes.text().as_bytes())
    }
}

/// Whether the directory was made for `engines` engines. `false` if there is none yet.
///
/// Errors: it was made for another number, or is not ours.
fn is_made_for(path: &Path, engines: u16) -> io::Result<bool> {
    let found = engines_of(path)?;
    match found.filter(|&found| found != engines) {
        None => Ok(found.is_some()),
        Some(found) => {
            let why = format!("was made for {found} engines, and is opened for {engines}");
            Err(refused(path, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kachel_engine::KeptPrefix;
    use kachel_stdx::BytePrefix;

    use super::*;

    fn sentence(result: io::Result<impl std::fmt::Debug>) -> String {
        result.expect_err("refused").to_string()
    }

    /// Opens a directory, and makes what the databases of RocksDB would be.
    fn made(path: &Path, engines: u16) -> Directory {
        let mut directory = Directory::open(path, engines).expect("it is made");
        for engine in 0..engines {
            fs::create_dir(directory.folder(engine)).expect("a folder");
            fs::write(directory.folder(engine).join(DATABASE), "").expect("written");
        }
        directory.finish().expect("written");
        directory
    }

    /// The names in a folder, in their order.
    fn names(path: &Path) -> Vec<String> {
        let entries = fs::read_dir(path).expect("a folder").map(|entry| entry.expect("an entry"));
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }

    #[test]
    fn a_directory_keeps_the_number_of_its_engines_and_its_flushes() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("deep/data");
        assert_eq!(engines_of(&path).expect("nothing is there"), None);
        let directory = made(&path, 3);
        assert_eq!(directory.flushes().expect("none"), KeptFlushes::default());
        let prefix = BytePrefix::of_name(b"user", b':').expect("a name");
        let prefixes = vec![KeptPrefix::new(3, &prefix)];
        let flushes = KeptFlushes { epoch: 7, due_unix_s: 1, newest_prefix: 4, prefixes };
        directory.keep(&flushes).expect("written");
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
            (ROOT, "kachel data, format 1\nengine rocksdb\nengines 4097\n", "damaged"),
            (ROOT, "kachel data, format 1\nengine rocksdb\n", "damaged"),
            (ROOT, "", "damaged"),
            (ROOT, "kachel store 1\nengine flash\n", "another engine (asked for is rocksdb)"),
            ("precious", "", "has precious and no kachel.root"),
            ("precious.new", "", "has precious.new and no kachel.root"),
            ("renew", "", "has renew and no kachel.root"),
            (FLUSH_FILE, "flushes 1\npending 0\n", "has kachel.flush and no kachel.root"),
            ("engine-0000", "", "has engine-0000 and no kachel.root"),
        ];
        for (number, (name, text, wanted)) in cases.into_iter().enumerate() {
            let path = place.path().join(number.to_string());
            fs::create_dir(&path).expect("a folder");
            fs::write(path.join(name), text).expect("written");
            let said = sentence(Directory::open(&path, 3));
            assert!(said.starts_with("--data ") && said.contains(wanted), "{said}");
            assert_eq!(names(&path), [name], "Y1");
        }
        let path = place.path().join("damaged");
        drop(made(&path, 1));
        let directory = Directory::open(&path, 1).expect("ours");
        let whole = fs::read(path.join(FLUSH_FILE)).expect("it is there");
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            for damaged in [&changed, &whole[..at]] {
                fs::write(path.join(FLUSH_FILE), damaged).expect("written");
                assert!(sentence(directory.flushes()).ends_with("kachel.flush is damaged"), "{at}");
                assert_eq!(fs::read(path.join(FLUSH_FILE)).expect("a file"), damaged, "Y1");
            }
        }
    }

    #[test]
    fn a_start_that_was_killed_leaves_no_store_and_the_next_one_begins_again() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("data");
        let directory = Directory::open(&path, 2).expect("it is begun");
        fs::create_dir(path.join("lost+found")).expect("a folder");
        fs::create_dir(directory.folder(1)).expect("a folder");
        directory.keep(&KeptFlushes::default()).expect("written");
        drop(directory);
        assert_eq!(engines_of(&path).expect("it is ours"), None, "there is no root file");
        fs::create_dir(path.join("engine-00001")).expect("a folder");
        let said = sentence(Directory::open(&path, 3));
        assert!(said.ends_with("has engine-00001 and no kachel.root"), "{said}");
        fs::remove_dir(path.join("engine-00001")).expect("it is there");
        // It may be for another number of engines.
        let directory = Directory::open(&path, 3).expect("it is begun again");
        assert!(directory.is_new());
        drop(directory);
        // A root file that was not written whole says nothing, and nothing was made after it.
        fs::write(path.join(NEW_ROOT), "kachel data").expect("written");
        let said = sentence(Directory::open(&path, 3));
        assert!(said.contains("and no kachel.root"), "{said}");
    }

    #[test]
    fn a_directory_that_lacks_a_part_is_named_and_stays_as_it_is() {
        let place = tempfile::tempdir().expect("a folder");
        for part in [FLUSH_FILE, "engine-0001", "engine-0001/CURRENT"] {
            let path = place.path().join(part.replace('/', "-"));
            drop(made(&path, 2));
            let lost = path.join(part);
            let removed =
                if lost.is_dir() { fs::remove_dir_all(lost) } else { fs::remove_file(lost) };
            removed.expect("it is there");
            let before = names(&path);
            let said = sentence(Directory::open(&path, 2));
            assert!(said.ends_with(&format!(": {part} is missing")), "{said}");
            assert_eq!(names(&path), before, "Y1");
        }
    }
}
