//! A folder of small files that stands in for `/sys` in tests.
//!
//! Upstream:   the tests of the modules that read the kernel's files.
//! Downstream: the system's folder for temporary files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder of files, gone with the value.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// A new folder with these files: the path of each, and its text.
    pub(crate) fn new(name: &str, files: &[(&str, &str)]) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let root = format!("kachel-{name}-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(root);
        assert!(!root.exists(), "no other test has this folder: {}", root.display());
        fs::create_dir_all(&root).expect("a folder");
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        Self(root)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _left_behind = fs::remove_dir_all(&self.0);
    }
}
