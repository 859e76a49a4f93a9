//! Tells obstacles that an operator must remove from those that may pass.
//!
//! Upstream:   `options`, `tls` and `kachel`, when a step of the start has failed.
//! Downstream: `kachel` chooses the status of the process by it.

use std::fmt::{Display, Formatter};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Whether an error stays until the operator changes a file, a right or an option.
///
/// These errors may pass and do not count: an address that is in use or does not exist yet; a
/// folder that does not exist, because its file system may be mounted later; a full disk; too
/// little memory.
pub const fn is_lasting(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::PermissionDenied
            | ErrorKind::AlreadyExists
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::InvalidFilename
            | ErrorKind::InvalidInput
            | ErrorKind::FileTooLarge
            | ErrorKind::Unsupported
    )
}

/// Whether the file at `path`, which could not be read because of `error`, may be readable later
/// although the operator changes nothing.
///
/// A file that is missing does not come by itself. It may come with its folder, or with the place
/// that a link at `path` names, because these may be mounted later.
pub fn may_pass(path: &Path, error: &io::Error) -> bool {
    if error.kind() != ErrorKind::NotFound {
        return !is_lasting(error.kind());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    !folder.unwrap_or(Path::new(".")).is_dir() || path.symlink_metadata().is_ok()
}

/// Why a file that the operator has named cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableFile {
    sentence: String,
    may_pass: bool,
}

impl UnusableFile {
    /// The file at `path` cannot be opened or read. The sentence begins with `what`.
    pub fn unread(what: impl Display, path: &Path, error: &io::Error) -> Self {
        let sentence = format!("{what} {}: {error}", path.display());
        Self { sentence, may_pass: may_pass(path, error) }
    }

    /// Whether the file may be usable later although the operator changes nothing.
    pub const fn may_pass(&self) -> bool {
        self.may_pass
    }
}

/// A sentence about what a file says, or about its option, which the operator must change.
impl From<String> for UnusableFile {
    fn from(sentence: String) -> Self {
        Self { sentence, may_pass: false }
    }
}

/// The sentence for the operator.
impl Display for UnusableFile {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.sentence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;
    use crate::read_regular_file;

    /// The fault: a file of users in a folder that was not mounted yet counted as a mistake.
    #[test]
    fn a_file_may_come_with_its_folder_and_not_by_itself() {
        let folder = Folder::new("obstacle", &[("file", "12345")]);
        let link = |name: &str, to: &str| {
            std::os::unix::fs::symlink(to, folder.path().join(name)).expect("linked");
        };
        link("to-nowhere", "none/file");
        for (name, passes) in [
            ("none/file", true),
            ("to-nowhere", true),
            ("none", false),
            ("file/none", false),
            ("file", false), // It is too long.
            (".", false),
        ] {
            let path = folder.path().join(name);
            let error = read_regular_file(&path, 4).expect_err(name);
            assert_eq!(may_pass(&path, &error), passes, "{name}: {error}");
            let unusable = UnusableFile::unread("the file", &path, &error);
            assert_eq!(unusable.may_pass(), passes, "{name}");
            let sentence = format!("the file {}: {error}", path.display());
            assert_eq!(unusable.to_string(), sentence);
        }
        let full = io::Error::from_raw_os_error(libc::EIO);
        assert!(may_pass(&folder.path().join("file"), &full), "a disk may be mended");
        let missing = io::Error::from_raw_os_error(libc::ENOENT);
        assert!(!may_pass(Path::new("no-such-file"), &missing), "the working folder is there");
    }
}
