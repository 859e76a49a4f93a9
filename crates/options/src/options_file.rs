//! A file of options, as it was read.
//!
//! Upstream:   `file.rs` reads it, at the start and again at SIGHUP.
//! Downstream: `apply.rs` applies its options; `kachel` asks what has changed.

use std::path::PathBuf;

/// An option of a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FileOption {
    /// The line of its key, from 1 on.
    pub(crate) line: usize,
    /// Its key; one of `-o` with the name of its table.
    pub(crate) key: String,
    /// The words that a command line would have for it. Empty if it changes nothing.
    pub(crate) words: Vec<String>,
}

/// A file of options.
#[derive(Clone, Debug, PartialEq)]
pub struct OptionsFile {
    /// Its name, as the operator gave it.
    pub(crate) name: String,
    /// Where it is: a daemon leaves its folder.
    pub(crate) path: PathBuf,
    pub(crate) options: Vec<FileOption>,
}

impl OptionsFile {
    /// Its name, as the operator gave it.
    pub fn name(&self) -> &str {
        &self.name
    }
}
