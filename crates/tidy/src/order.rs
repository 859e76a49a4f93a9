//! Files of a crate import only files below them, in the order of the `mod` lines.
//!
//! Upstream:   the imports of each crate.
//! Downstream: nothing.
//!
//! The order is that in which a reader meets the files: the root of the crate, then the module of
//! each of its `mod` lines, each followed by the modules inside it. So a folder has its place in
//! its parent, and its `mod.rs` orders its files. The root comes first, so no file imports what the
//! root defines. The files of a folder may import what its own `mod.rs` defines, because some of
//! them continue the type that is there.

use std::collections::BTreeMap;

use crate::imports::{Modules, Path, by_crate, graph};
use crate::{Report, Tree};

const RULE: &str = "order";
/// The crates that keep this order.
const ORDERED: [&str; 2] = ["shard", "segment"];

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    let crates = by_crate(tree);
    let mut edges = 0;
    for modules in ORDERED.iter().filter_map(|name| crates.get(name)) {
        let mut places = BTreeMap::new();
        number(modules, &Path::new(), &mut places);
        for (from, imported) in graph(modules) {
            edges += imported.len();
            let is_above = |to: &&Path| !from.starts_with(to) && places.get(*to) < places.get(from);
            let is_root = |to: &&Path| to.is_empty() && !from.is_empty();
            for to in imported.iter().filter(|to| is_above(to) || is_root(to)) {
                let name = if to.is_empty() { "the root".to_owned() } else { to.join("::") };
                let what = format!("imports from {name}, which comes before it in the `mod` lines");
                report.find(RULE, &modules[from].file, 0, what);
            }
        }
    }
    report.looked("imports held against the order of the `mod` lines", edges);
}

/// Numbers the module at `at` and those inside it, in the order of the `mod` lines.
fn number(modules: &Modules, at: &Path, places: &mut BTreeMap<Path, usize>) {
    // A module that only tests or models have is not among the modules.
    let Some(module) = modules.get(at) else { return };
    places.insert(at.clone(), places.len());
    // Each call has a longer path, and paths of files are finite.
    for child in &module.children {
        number(modules, &[&at[..], std::slice::from_ref(child)].concat(), places);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found in a crate of a root, a file, a folder of two files, and a file.
    fn found(texts: [&str; 4]) -> Vec<String> {
        let [a, top, low, z] = texts;
        let root =
            "mod z_first;\nmod folder;\nmod a;\npub use folder::top::T;\npub const K: u8 = 0;\n";
        let files = [
            ("crates/shard/src/lib.rs", root),
            ("crates/shard/src/z_first.rs", z),
            ("crates/shard/src/folder/mod.rs", "mod top;\nmod low;\npub struct Own;\n"),
            ("crates/shard/src/folder/top.rs", top),
            ("crates/shard/src/folder/low.rs", low),
            ("crates/shard/src/a.rs", a),
        ];
        let mut report = Report::default();
        check(&Tree::of(&files), &mut report);
        report.findings.into_iter().map(|f| format!("{}: {}", f.path, f.what)).collect()
    }

    #[test]
    fn imports_downward_and_those_of_a_folder_and_of_tests_pass() {
        let tests = "#[cfg(test)]\nmod tests { use crate::z_first::Z; }\n";
        let low = "use super::Own;\nuse crate::a::A;\n";
        let first = "use crate::folder::low::L;\nuse crate::T;\nuse crate::folder::Own;\n";
        assert_eq!(found([tests, "use super::low::L;\nuse crate::a::A;\n", low, first]), [""; 0]);
    }

    #[test]
    fn an_import_upward_is_found_in_each_kind_of_place() {
        let rows = [
            (["use crate::z_first::Z;\n", "", "", ""], "a.rs", "z_first"),
            (["use crate::folder::low::L;\n", "", "", ""], "a.rs", "folder::low"),
            (["use crate::folder::Own;\n", "", "", ""], "a.rs", "folder"),
            (["use crate::T;\n", "", "", ""], "a.rs", "folder::top"),
            (["const C: u8 = crate::K;\n", "", "", ""], "a.rs", "the root"),
            (["", "use crate::K;\n", "", ""], "folder/top.rs", "the root"),
            (["", "", "use super::top::T;\n", ""], "folder/low.rs", "folder::top"),
            (["", "", "use crate::z_first::Z;\n", ""], "folder/low.rs", "z_first"),
            (["", "", "", "use crate::K;\n"], "z_first.rs", "the root"),
        ];
        for (texts, file, above) in rows {
            let wanted = format!(
                "crates/shard/src/{file}: imports from {above}, which comes before it in the `mod` \
                 lines"
            );
            assert_eq!(found(texts), [wanted], "{texts:?}");
        }
    }
}
