//! Reads the files that an operator names: options, users, certificates, keys.
//!
//! Upstream:   `options`, `tls` and `kachel`, at the start and at SIGHUP.
//! Downstream: the file system.
//!
//! Invariants:
//! - I1  Opening never waits for another process: a FIFO without a writer, or a device, is an error
//!   and not a wait. A dead network mount may still make the thread wait, so a server that runs
//!   reads on a thread that nothing waits for.
//! - I2  At most the bytes that the caller allows are read, whatever length the file has.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// No caller wants files of this size. They have options, users and certificates.
const BOUND_BYTES_MAX: u64 = 1 << 30;

/// Opens a regular file to read it (I1). Symbolic links are followed.
///
/// Errors: the file cannot be opened, or is none.
pub fn open_regular_file(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
    }
}

/// The bytes of a regular file.
///
/// Errors: as [`open_regular_file`]; the file cannot be read, or has more than `bytes_max` bytes.
pub fn read_regular_file(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    assert!(bytes_max < BOUND_BYTES_MAX, "I2: all of it is kept in memory");
    let mut bytes = Vec::new();
    open_regular_file(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let error = format!("more than {bytes_max} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, error));
    }
    debug_assert!(bytes.len() as u64 <= bytes_max, "I2");
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;

    #[test]
    fn only_regular_files_are_read_and_none_is_waited_for() {
        let folder = Folder::new("regular", &[]);
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("file"), "12345").expect("written");
        std::os::unix::fs::symlink(path("file"), path("link")).expect("linked");
        for name in ["file", "link"] {
            assert_eq!(read_regular_file(&path(name), 5).expect("a file"), b"12345");
            let error = read_regular_file(&path(name), 4).expect_err("too long");
            assert_eq!(error.to_string(), "more than 4 bytes");
        }
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), rustix::fs::FileType::Fifo, mode, 0)
            .expect("a FIFO");
        for other in [path("fifo"), folder.path().to_path_buf(), "/dev/zero".into()] {
            let error = read_regular_file(&other, 5).expect_err("not a regular file");
            assert_eq!(error.to_string(), "not a regular file", "{}", other.display());
        }
        let error = read_regular_file(&path("none"), 5).expect_err("there is none");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
