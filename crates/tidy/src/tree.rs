//! The repository's files as text, by path.
//!
//! Upstream:   the disk, or a test that plants a violation.
//! Downstream: every rule.
//!
//! Invariants:
//! - I1  Paths are relative to the root and separated by `/`.
//! - I2  A file that is not UTF-8 is in the tree with no text.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Command;

/// Folders without sources of ours, at any depth.
const SKIPPED_FOLDERS: [&str; 6] =
    [".cache", ".git", "target", "node_modules", ".venv", "__pycache__"];

/// Files by path.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// Reads the files under `root` that git does not ignore; without git, all but build outputs.
    ///
    /// Errors: a listed file cannot be read. A file that was deleted meanwhile is left out.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut paths = Vec::new();
        if !list_by_git(root, &mut paths) {
            list_by_walk(root, "", &mut paths)?;
        }
        let mut files = BTreeMap::new();
        for path in paths {
            match std::fs::read(root.join(&path)) {
                Ok(bytes) => {
                    files.insert(path, String::from_utf8(bytes).unwrap_or_default());
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if error.kind() == io::ErrorKind::IsADirectory => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { files })
    }

    /// A tree of the given paths and texts.
    pub fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|&(path, text)| (path.to_owned(), text.to_owned()));
        Self { files: files.collect() }
    }

    /// This tree with one more file, or with another text for a file that it has.
    #[must_use]
    pub fn with(mut self, path: &str, text: &str) -> Self {
        self.files.insert(path.to_owned(), text.to_owned());
        self
    }

    /// The text of the file at `path`.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Whether `path` is a file, or a folder with a file in it.
    pub fn exists(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let folder = format!("{path}/");
        self.files.contains_key(path)
            || self
                .files
                .range(folder.clone()..)
                .next()
                .is_some_and(|(p, _)| p.starts_with(&folder))
    }

    /// All files, by path.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// The files whose name ends in `ending`.
    pub fn ending(&self, ending: &str) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(move |(path, _)| path.ends_with(ending))
    }

    /// The folders directly under `crates/`.
    pub fn crates(&self) -> Vec<&str> {
        let mut folders: Vec<&str> = self
            .files()
            .filter_map(|(path, _)| path.strip_prefix("crates/")?.split_once('/'))
            .map(|(folder, _)| folder)
            .collect();
        folders.dedup();
        folders
    }
}

/// Appends the files that git tracks or does not ignore; `false` if git fails.
fn list_by_git(root: &Path, paths: &mut Vec<String>) -> bool {
    if !root.join(".git").exists() {
        return false;
    }
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output();
    let Ok(listed) = listed else { return false };
    let Ok(text) = String::from_utf8(listed.stdout) else { return false };
    paths.extend(text.split('\0').filter(|path| !path.is_empty()).map(str::to_owned));
    listed.status.success() && !paths.is_empty()
}

/// Appends every file under `folder`, itself relative to `root`, except skipped folders.
fn list_by_walk(root: &Path, folder: &str, paths: &mut Vec<String>) -> io::Result<()> {
    for entry in std::fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        if !entry.file_type()?.is_dir() {
            paths.push(path);
        } else if !SKIPPED_FOLDERS.contains(&name.as_str()) {
            list_by_walk(root, &path, paths)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_git_is_walked_and_build_outputs_are_skipped() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["crates/a/src", "target/debug"] {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        std::fs::write(root.path().join("crates/a/src/lib.rs"), "//! A.").unwrap();
        std::fs::write(root.path().join("target/debug/x.rs"), "x").unwrap();
        std::fs::write(root.path().join("picture.png"), [0x89, 0xff]).unwrap();
        let tree = Tree::read(root.path()).unwrap();
        assert_eq!(tree.text("crates/a/src/lib.rs"), Some("//! A."));
        assert_eq!(tree.text("picture.png"), Some(""));
        assert_eq!(tree.files().count(), 2);
        assert_eq!(tree.crates(), ["a"]);
    }

    #[test]
    fn a_folder_exists_only_with_a_file_in_it() {
        let tree = Tree::of(&[("docs/a.md", ""), ("docs-old", "")]);
        assert!(tree.exists("docs") && tree.exists("docs/") && tree.exists("docs/a.md"));
        assert!(!tree.exists("doc") && !tree.exists("docs/b.md") && !tree.exists("docs-old/x"));
    }
}
