//! The file with the number of the server process.
//!
//! Upstream:   `kachel`, for `-P`, once it listens.
//! Downstream: the file: the process's number and a line end.
//!
//! Invariants:
//! - I1  A reader of the file finds a whole number, because the number is written to another file,
//!   which is then renamed.
//! - I2  No other file is written. A file that another user has put beside it is removed, and a
//!   link there is not followed.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::regular_file::read_regular_file;

/// Bytes of the longest file that is taken for one with a process number.
const TEXT_BYTES_MAX: u64 = 32;

/// A written process number.
#[derive(Debug)]
pub struct Pidfile {
    path: PathBuf,
}

impl Pidfile {
    /// Writes the process's number to `path` (I1).
    ///
    /// Errors: the folder cannot be written.
    pub fn write(path: &Path) -> io::Result<Self> {
        write_whole(path, &format!("{}\n", std::process::id()))?;
        Ok(Self { path: path.to_path_buf() })
    }

    /// Removes the file.
    ///
    /// Errors: the folder cannot be written, for example because the process has given up rights.
    pub fn remove(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }

    /// The number of the process that `path` names, if that process lives.
    pub fn living(path: &Path) -> Option<u32> {
        let text = read_regular_file(path, TEXT_BYTES_MAX).ok()?;
        let number: u32 = str::from_utf8(&text).ok()?.trim().parse().ok()?;
        let process = rustix::process::Pid::from_raw(i32::try_from(number).ok()?)?;
        match rustix::process::test_kill_process(process) {
            Ok(()) | Err(rustix::io::Errno::PERM) => Some(number),
            Err(_) => None,
        }
    }
}

/// Writes `text` to `path` so that no reader sees a part of it: writes another file, then renames
/// that (I1, I2).
///
/// Errors: the folder cannot be written, the disk is full, or there is a device, a FIFO or a folder
/// at `path`.
pub fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let is_in_the_way = |found: fs::Metadata| !found.is_file() && !found.is_symlink();
    if path.symlink_metadata().is_ok_and(is_in_the_way) {
        let why = "there is something that is no file";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(".lck");
    let beside = PathBuf::from(beside);
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o644);
    let mut file = match options.open(&beside) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // A process that was killed has left it, or another user has put it there.
            fs::remove_file(&beside)?;
            options.open(&beside)?
        }
        made => made?,
    };
    let placed = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&beside, path));
    if placed.is_err() {
        let _nothing_is_left = fs::remove_file(&beside);
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_names_this_process_until_it_is_removed() {
        let path = std::env::temp_dir().join(format!("kachel-pid-{}", std::process::id()));
        assert_eq!(Pidfile::living(&path), None);
        let pidfile = Pidfile::write(&path).expect("a file");
        assert_eq!(fs::read_to_string(&path).expect("text"), format!("{}\n", std::process::id()));
        assert_eq!(Pidfile::living(&path), Some(std::process::id()));
        pidfile.remove().expect("removed");
        assert!(!path.exists());
        fs::write(&path, "no number").expect("a file");
        assert_eq!(Pidfile::living(&path), None);
        fs::remove_file(&path).expect("removed");
    }

    /// The fault: the text went where a link named, into a file of anybody's choice.
    #[test]
    fn a_link_or_a_file_beside_it_is_replaced_and_a_device_stays() {
        let folder = crate::folder::Folder::new("pidfile", &[("other", "precious")]);
        let (path, beside) = (folder.path().join("pid"), folder.path().join("pid.lck"));
        for link in ["other", "nowhere"] {
            std::os::unix::fs::symlink(link, &beside).expect("a link");
            write_whole(&path, "1\n").expect("written");
            assert_eq!(fs::read_to_string(&path).expect("text"), "1\n");
            assert!(path.symlink_metadata().expect("it is there").is_file(), "no link");
        }
        assert_eq!(fs::read_to_string(folder.path().join("other")).expect("text"), "precious");
        assert!(!folder.path().join("nowhere").exists(), "nothing was made there");
        fs::write(&beside, "left").expect("written");
        write_whole(&path, "2\n").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("text"), "2\n");
        fs::create_dir(folder.path().join("folder")).expect("a folder");
        write_whole(&folder.path().join("folder"), "3\n").expect_err("it is no file");
        write_whole(Path::new("/dev/null"), "3\n").expect_err("a device is not replaced");
    }
}
