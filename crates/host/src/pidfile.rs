//! The file with the number of the server process.
//!
//! Upstream:   `kachel`, for `-P`, once it listens.
//! Downstream: the file: the process's number and a line end.
//!
//! Invariants:
//! - I1  A reader of the file finds a whole number, because the number is written to another file,
//!   which is then renamed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

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
        let number: u32 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
        let process = rustix::process::Pid::from_raw(i32::try_from(number).ok()?)?;
        match rustix::process::test_kill_process(process) {
            Ok(()) | Err(rustix::io::Errno::PERM) => Some(number),
            Err(_) => None,
        }
    }
}

/// Writes `text` to `path` so that no reader sees a part of it: writes another file, then renames
/// that.
///
/// Errors: the folder cannot be written.
pub fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".lck");
    let beside = PathBuf::from(beside);
    fs::write(&beside, text)?;
    fs::rename(&beside, path)
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
}
