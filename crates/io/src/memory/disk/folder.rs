//! One folder of a disk in memory: the names that it has, and which of them are durable.
//!
//! Upstream:   operations create, rename and unlink; a crash decides which changes stay.
//! Downstream: the disk finds the file of a name.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  `names` is `durable` with all `changes`, in their order.
//! - I2  A file has at most one name.

use std::collections::BTreeMap;

use super::dice::Dice;
use crate::files::FileName;

/// A change that is durable only after a sync of the folder, or if a crash happens to keep it.
#[derive(Clone, Copy, Debug)]
enum Change {
    Create { name: FileName, file: usize },
    Rename { to: FileName, file: usize },
    Unlink { name: FileName, file: usize },
}

type Names = BTreeMap<FileName, usize>;

/// A folder. Files are numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct DiskFolder {
    pub(super) path: Box<str>,
    names: Names,
    durable: Names,
    changes: Vec<Change>,
}

impl DiskFolder {
    pub(super) fn new(path: &str) -> Self {
        Self { path: path.into(), ..Self::default() }
    }

    pub(super) fn find(&self, name: &FileName) -> Option<usize> {
        self.names.get(name).copied()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = (&FileName, usize)> {
        self.names.iter().map(|(name, file)| (name, *file))
    }

    /// Whether a name leads to the file, or would after some crash.
    pub(super) fn may_name(&self, file: usize) -> bool {
        let named = |names: &Names| names.values().any(|&each| each == file);
        // A change names the file only while `names` or `durable` does, except in between.
        let changed = self.changes.iter().any(|change| match change {
            Change::Create { file: each, .. } | Change::Rename { file: each, .. } => *each == file,
            Change::Unlink { .. } => false,
        });
        named(&self.names) || named(&self.durable) || changed
    }

    pub(super) fn create(&mut self, name: FileName, file: usize) {
        assert!(!self.names.contains_key(&name), "the caller has looked");
        self.change(Change::Create { name, file });
    }

    /// Returns whether there is a file of the name `from`.
    pub(super) fn rename(&mut self, from: FileName, to: FileName) -> bool {
        let Some(file) = self.find(&from) else { return false };
        if from != to {
            self.change(Change::Rename { to, file });
        }
        true
    }

    /// Returns whether there was a file of this name.
    pub(super) fn unlink(&mut self, name: FileName) -> bool {
        let Some(file) = self.find(&name) else { return false };
        self.change(Change::Unlink { name, file });
        true
    }

    fn change(&mut self, change: Change) {
        apply(&mut self.names, change);
        self.changes.push(change); // I1
    }

    /// Makes every change durable.
    pub(super) fn sync(&mut self) {
        self.durable = self.names.clone();
        self.changes.clear();
    }

    /// Drops some of the changes that are not durable, each by a choice of its own. Returns how
    /// many were kept and how many were dropped.
    pub(super) fn crash(&mut self, dice: &mut Dice) -> [u64; 2] {
        let (mut kept, mut dropped) = (0, 0);
        self.names = self.durable.clone();
        for change in std::mem::take(&mut self.changes) {
            if dice.chance(500) {
                apply(&mut self.names, change);
                kept += 1;
            } else {
                dropped += 1;
            }
        }
        self.durable = self.names.clone();
        [kept, dropped]
    }
}

fn apply(names: &mut Names, change: Change) {
    match change {
        Change::Create { name, file } => {
            names.insert(name, file);
        }
        Change::Rename { to, file } => {
            names.retain(|_, each| *each != file); // I2: the name that it had
            names.insert(to, file);
        }
        Change::Unlink { name, file } => {
            if names.get(&name) == Some(&file) {
                names.remove(&name);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn name(text: &str) -> FileName {
        FileName::new(text).unwrap()
    }

    #[test]
    fn a_crash_keeps_or_drops_each_change_on_its_own_and_loses_no_durable_name() {
        let mut folder = DiskFolder::new("f");
        folder.create(name("manifest"), 1);
        folder.sync();
        folder.create(name("new"), 2);
        assert!(folder.rename(name("new"), name("manifest")));
        folder.create(name("other"), 3);
        let mut seen = std::collections::HashSet::new();
        for seed in 0..200 {
            let mut crashed = folder.clone();
            crashed.crash(&mut Dice::new(seed));
            let manifest = crashed.find(&name("manifest")).expect("old or new, never neither");
            let names = (manifest, crashed.find(&name("new")), crashed.find(&name("other")));
            assert!(names.1 != Some(manifest), "I2");
            seen.insert(names);
        }
        // The manifest old with and without the new file beside it, or new; each with and without
        // the other file.
        assert_eq!(seen.len(), 6, "{seen:?}");
        folder.sync();
        folder.crash(&mut Dice::new(1));
        assert_eq!(folder.find(&name("manifest")), Some(2));
        assert_eq!(folder.find(&name("new")), None);
    }
}
