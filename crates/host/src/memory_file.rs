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
//! The folder may be one that others may write, such as `/tmp`.
//!
//! Invariants:
//! - I1  `PATH` is whole: what is written lies beside it until all of it is on the disk.
//! - I2  The file is gone before a client is served, also after a loss of power. So no later server
//!   finds items that this one has changed. Until then it stays: a server that fails or is killed
//!   while it loads loses nothing.
//! - I3  Two servers do not use the same file: the lock on `PATH.new` is held until the process
//!   ends, also while it writes.
//! - I4  What is read was written by this user, and nobody else has written or read what is
//!   written: both files are regular files of the effective user, without other names, and others
//!   may not write them. This is checked on the open descriptor. No link is followed.
//! - I5  A group of this process may have the right to write the file that is read. Only the owner
//!   or root can give the group that right, and Kubernetes does so for all files of a volume with
//!   `fsGroup`. The file that is written is always new, so a member of the group that has an older
//!   file open cannot change it. In a file with an access control list, the permissions of the
//!   group are the list's mask: they say what named users and groups may do, and not what the group
//!   may. If the mask lets them write, the file is refused, whoever is in the list.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// How often a server opens the file anew because another one renamed or removed it meanwhile.
const ATTEMPTS_MAX: usize = 8;

/// The permissions of a memory file, which has the values of all clients.
const MODE: u32 = 0o600;

/// The permissions by which the group, and by which everybody else, writes a file.
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;

const _: () = assert!(MODE & (GROUP_WRITES | OTHERS_WRITE) == 0, "I4: a new file passes");

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
    /// Errors: `WouldBlock` if another process has claimed it (I3); `PermissionDenied` if there is
    /// something beside the file that is not this user's own file (I4), or the file system does not
    /// keep owners; the folder cannot be written or synced.
    pub fn claim(path: &Path) -> io::Result<Self> {
        debug_assert!(path.is_absolute(), "the process may leave its folder");
        let mut beside = OsString::from(path);
        beside.push(".new");
        let beside = PathBuf::from(beside);
        for _ in 0..ATTEMPTS_MAX {
            let of = |error: io::Error| {
                io::Error::new(error.kind(), format!("{}: {error}", beside.display()))
            };
            let Some((next, is_new)) = make_or_open(&beside).map_err(of)? else { continue };
            check_own(&next).map_err(of)?; // I4: before it is locked, or removed.
            match next.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // The server before may have put this very file in place just before it ended.
            if !is_at(&next, &beside)? {
                continue;
            }
            if !is_new {
                // A server that was ended while it wrote has left this file. Another process may
                // have opened it since (I5).
                fs::remove_file(&beside).map_err(of)?;
                continue;
            }
            debug_assert!(next.metadata()?.len() == 0, "I5: it is a new file");
            let file = Self { path: path.to_path_buf(), beside, next, is_placed: false };
            // A folder that cannot be synced shows it here, while the old file is still there.
            file.sync_folder()?;
            return Ok(file);
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Opens the file of the server before. `None` if there is none.
    ///
    /// Errors: it cannot be read; `PermissionDenied` if it is not this user's own file (I4).
    pub fn open(&self) -> io::Result<Option<File>> {
        assert!(!self.is_placed, "I2: what this process writes is for the next one");
        let file = match open_itself(File::options().read(true), &self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        check_own(&file)?;
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
        self.next.sync_all()?;
        debug_assert!(self.path != self.beside, "I1: what is not placed lies beside the file");
        if !is_at(&self.next, &self.beside)? {
            return Err(io::Error::other("the file beside it was replaced or removed")); // I4
        }
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

/// Makes an empty file at `path`, or opens the file that a server has left there. Also returns
/// whether it is new. `None` if another server has just renamed that file into its place.
fn make_or_open(path: &Path) -> io::Result<Option<(File, bool)>> {
    debug_assert!(path.is_absolute(), "the process may leave its folder");
    let mut options = File::options();
    options.write(true);
    match open_itself(options.clone().create_new(true).mode(MODE), path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made.map(|file| Some((file, true))),
    }
    match open_itself(&mut options, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(|file| Some((file, false))),
    }
}

/// Opens what is at `path` itself, not what a link names, and waits for nobody (a FIFO).
fn open_itself(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    debug_assert!(path.file_name().is_some(), "a file has a name");
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    options.custom_flags(flags).open(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => refused("it is a symbolic link, which is not followed"),
        // A FIFO without a reader, or a socket.
        Some(libc::ENXIO) => refused(NOT_REGULAR),
        _ => error,
    })
}

/// Why a FIFO, a socket, a folder or a device is refused.
const NOT_REGULAR: &str = "it is no regular file";

/// The error for what is not this user's own file (I4).
fn refused(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why.into())
}

/// The name of the list that gives single users and groups access to a file.
const ACCESS_LIST: &std::ffi::CStr = c"system.posix_acl_access";

/// Whether a file has an access control list besides its permissions.
fn has_access_list(file: &File) -> io::Result<bool> {
    let no_value: &mut [u8] = &mut [];
    match rustix::fs::fgetxattr(file, ACCESS_LIST, no_value) {
        Ok(_) => Ok(true),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether `group` is one of the groups of this process.
fn is_own_group(group: u32) -> io::Result<bool> {
    let is = |own: rustix::process::Gid| own.as_raw() == group;
    Ok(is(rustix::process::getegid()) || rustix::process::getgroups()?.into_iter().any(is))
}

/// Checks that only this user, or a group of this process, can have written a file (I4, I5).
///
/// Errors: somebody else may have, or the file system does not say whether.
fn check_own(file: &File) -> io::Result<()> {
    let found = file.metadata()?;
    let own = rustix::process::geteuid().as_raw();
    let mode = found.mode();
    let grants = mode & GROUP_WRITES != 0;
    let is_listed = grants && has_access_list(file)?;
    let group_may = !grants || is_own_group(found.gid())?;
    let why = if !found.is_file() {
        NOT_REGULAR.to_string()
    } else if found.uid() != own {
        format!("it belongs to user {}, and this server is user {own}", found.uid())
    } else if mode & OTHERS_WRITE != 0 {
        format!("other users may write it (its mode is {:o})", mode & 0o7777)
    } else if is_listed {
        "it has an access control list by which others may write it (remove it: setfacl -b)"
            .to_string()
    } else if !group_may {
        let (group, mode) = (found.gid(), mode & 0o7777);
        format!(
            "group {group}, which is none of this server's, may write it (its mode is {mode:o})"
        )
    } else if found.nlink() > 1 {
        "it has a second name (a hard link)".to_string()
    } else {
        return Ok(());
    };
    Err(refused(why))
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
    use std::os::unix::fs::{PermissionsExt as _, chown};

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
        fs::remove_file(folder.path().join("items.new")).expect("removed");
        let claimed = MemoryFile::claim(&path).expect("free");
        std::os::unix::fs::symlink("items.new", &path).expect("a link");
        let refused = claimed.open().expect_err("a link is no file");
        assert!(refused.to_string().contains("symbolic link"), "{refused}");
        let folder = MemoryFile::claim(&folder.path().join("folder")).expect("free");
        fs::create_dir(&folder.path).expect("a folder");
        folder.open().expect_err("a folder is no file");
    }

    /// Files that another user may plant, each with a part of the reason why it is refused.
    const PLANTED: [(&str, &str); 6] = [
        ("with an access list", "an access control list by which others may write"),
        ("writable by another group", "group 12345, which is none of this server's, may write"),
        ("writable by all", "other users may write"),
        ("with a second name", "a second name"),
        ("a FIFO", "no regular file"),
        ("of another user", "belongs to user 12345"),
    ];

    /// Gives user 12345 the right to write a file. Its group is one of this process, and may read.
    /// The mode then says that the group may write. Returns `false` if there are no such lists.
    fn give_access(at: &Path) -> bool {
        const NOBODY: u32 = u32::MAX;
        let (owner, user, group, mask, others) = (1, 2, 4, 16, 32);
        let list = [
            (owner, 6, NOBODY),
            (user, 6, 12345),
            (group, 4, NOBODY),
            (mask, 6, NOBODY),
            (others, 0, NOBODY),
        ];
        let mut bytes = 2_u32.to_le_bytes().to_vec(); // The version of the format.
        for (tag, may, id) in list {
            bytes.extend(u16::to_le_bytes(tag));
            bytes.extend(u16::to_le_bytes(may));
            bytes.extend(id.to_le_bytes());
        }
        let flags = rustix::fs::XattrFlags::empty();
        let given = rustix::fs::setxattr(at, ACCESS_LIST, &bytes, flags);
        if given == Err(Errno::OPNOTSUPP) {
            println!("skip memory_file.list the file system has no access control lists");
            return false;
        }
        given.expect("its owner may");
        assert_eq!(at.metadata().expect("a file").mode() & 0o777, 0o660, "the mask");
        true
    }

    /// Returns `false` if this process may not plant it.
    fn plant(at: &Path, what: &str) -> bool {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        if what == "a FIFO" {
            mknodat(CWD, at, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
            return true;
        }
        fs::write(at, "planted").expect("written");
        let mode = match what {
            "writable by another group" => 0o620,
            "with an access list" => return give_access(at),
            "writable by all" => 0o602,
            _ => MODE,
        };
        fs::set_permissions(at, fs::Permissions::from_mode(mode)).expect("its permissions");
        match what {
            "with a second name" => fs::hard_link(at, at.with_extension("second")).is_ok(),
            "of another user" => chown(at, Some(12345), None).is_ok(),
            "writable by another group" => chown(at, None, Some(12345)).is_ok(),
            _ => true,
        }
    }

    /// Removes what was planted. Returns whether it was as before.
    fn unplant(at: &Path) -> bool {
        let is_as_before = match at.metadata().expect("it is there").is_file() {
            true => fs::read(at).expect("a file") == b"planted",
            false => true,
        };
        let _none = fs::remove_file(at.with_extension("second"));
        fs::remove_file(at).expect("removed");
        is_as_before
    }

    /// The fault: a file of another user was written, and later loaded.
    #[test]
    fn only_own_regular_files_are_written_and_read() {
        let folder = Folder::new("memory-file", &[]);
        let (path, beside) = (folder.path().join("items"), folder.path().join("items.new"));
        for (what, why) in PLANTED {
            if plant(&beside, what) {
                let refused = MemoryFile::claim(&path).expect_err(what);
                assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{what}: {refused}");
                assert!(refused.to_string().contains(why), "{what}: {refused}");
            }
            assert!(unplant(&beside), "{what}: it was written");
            let claimed = MemoryFile::claim(&path).expect("free");
            if plant(&path, what) {
                let refused = claimed.open().expect_err(what);
                assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{what}: {refused}");
                assert!(refused.to_string().contains(why), "{what}: {refused}");
            }
            assert!(unplant(&path), "{what}: it was written");
        }
        // What replaces the new file meanwhile is not put in place.
        let claimed = MemoryFile::claim(&path).expect("free");
        fs::remove_file(&beside).expect("removed");
        fs::write(&beside, "planted").expect("written");
        claimed.place().expect_err("it is another file");
        assert!(!path.exists(), "nothing was put in place");
    }

    /// The fault: `fsGroup` of Kubernetes gives a group of the process the right to write, and the
    /// next server refused its own file.
    #[test]
    fn a_group_of_this_process_may_write_what_is_read_and_not_what_is_written() {
        let folder = Folder::new("memory-file", &[("items", "whole"), ("items.new", "left")]);
        let (path, beside) = (folder.path().join("items"), folder.path().join("items.new"));
        let own = rustix::process::getegid().as_raw();
        for file in [&path, &beside] {
            chown(file, None, Some(own)).expect("an own group");
            fs::set_permissions(file, fs::Permissions::from_mode(0o664)).expect("its permissions");
        }
        let mut opened = File::options().write(true).open(&beside).expect("as a member may");
        let claimed = MemoryFile::claim(&path).expect("it is this user's own");
        opened.write_all(b"planted").expect("written");
        let written = claimed.next().metadata().expect("a file");
        assert_eq!((written.len(), written.mode() & 0o7777), (0, MODE), "I5: it is another file");
        assert_eq!(text(claimed.open().expect("readable")).as_deref(), Some("whole"));
    }
}
