//! The name of a file within its folder.
//!
//! Upstream:   the owner of the folder names its files.
//! Downstream: a backend passes the name to the kernel, which reads it while the operation runs.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A name is 1 to `FILE_NAME_BYTES_MAX` bytes long, names no other folder, and ends with NUL
//!   in memory.

use std::ffi::CStr;
use std::fmt;

use crate::limits::FILE_NAME_BYTES_MAX;

/// The name of a file in a folder. It is stored in place, so a name allocates nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileName {
    /// The name and at least one NUL.
    bytes: [u8; FILE_NAME_BYTES_MAX + 1],
}

impl FileName {
    /// The name `name`, or `None` if it is empty, longer than [`FILE_NAME_BYTES_MAX`] bytes, `.` or
    /// `..`, or if it contains a slash or NUL.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let is_plain = !name.bytes().any(|byte| byte == b'/' || byte == 0);
        let fits = (1..=FILE_NAME_BYTES_MAX).contains(&name.len());
        if !is_plain || !fits || name == "." || name == ".." {
            return None;
        }
        let mut bytes = [0; FILE_NAME_BYTES_MAX + 1];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Some(Self { bytes })
    }

    /// The name as the kernel reads it.
    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).expect("I1: a name ends with NUL")
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.as_c_str().to_str().expect("I1: a name was made from a string")
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_within_its_folder() {
        let longest = "x".repeat(FILE_NAME_BYTES_MAX);
        for name in ["log.1", "..x", "a b", longest.as_str()] {
            assert_eq!(FileName::new(name).expect("a plain name").as_str(), name);
        }
        let too_long = "x".repeat(FILE_NAME_BYTES_MAX + 1);
        for name in ["", ".", "..", "a/b", "/", "a\0b", too_long.as_str()] {
            assert_eq!(FileName::new(name), None, "{name:?}");
        }
    }
}
