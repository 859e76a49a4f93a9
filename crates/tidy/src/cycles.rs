//! No files of one crate import each other in a circle.
//!
//! Upstream:   the imports of each crate, and the number of files in circles, by crate.
//! Downstream: nothing.
//!
//! `imports` finds the imports. Those between a module and the modules inside it do not count.
//!
//! Invariants:
//! - I1  The counts of the list only shrink: a count that is too high or 0 fails.

use std::collections::{BTreeMap, BTreeSet};

use crate::imports::{Modules, Path, by_crate, graph};
use crate::ratchet::numbers;
use crate::{Report, Tree};

const RULE: &str = "cycles";
/// The list: `crate files` a line, `#` begins a comment.
const LIST: &str = "crates/tidy/cycles.txt";

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    let crates = by_crate(tree);
    let mut listed = numbers(tree, LIST, RULE, report);
    let (mut edges, mut standing) = (0, 0);
    for (folder, modules) in &crates {
        let graph = between_files(modules);
        edges += graph.values().map(BTreeSet::len).sum::<usize>();
        let names: Vec<String> =
            graph.keys().filter(|at| in_circle(&graph, at)).map(|at| at.join("::")).collect();
        standing += names.len();
        match listed.remove(*folder) {
            Some((_, most)) if names.len() == most && most > 0 => {}
            Some((at, most)) if names.len() < most || most == 0 => {
                let what = format!("{folder} has {} files in circles now: its line", names.len());
                report.find(RULE, LIST, at, format!("{what} says {most}"));
            }
            None if names.is_empty() => {}
            listed => {
                let (at, most) = listed.unwrap_or_default();
                let what = format!("{folder} has {} files in circles, {most} at", names.len());
                report.find(RULE, LIST, at, format!("{what} most: {}", names.join(", ")));
            }
        }
    }
    for (name, (at, _)) in listed {
        report.find(RULE, LIST, at, format!("there is no crate {name}: drop its line"));
    }
    report.looked("imports between files of a crate", edges);
    report.counted("files in circles of imports", standing);
}

/// The modules that each module imports from, except those around it and inside it.
fn between_files(modules: &Modules) -> BTreeMap<&Path, BTreeSet<Path>> {
    let mut graph = graph(modules);
    for (at, next) in &mut graph {
        next.retain(|to| !to.starts_with(at) && !at.starts_with(to));
    }
    graph
}

/// Whether following imports from the module at `from` leads back to it.
fn in_circle(graph: &BTreeMap<&Path, BTreeSet<Path>>, from: &Path) -> bool {
    let mut seen = BTreeSet::new();
    let mut waiting = vec![from];
    while let Some(at) = waiting.pop() {
        for next in graph.get(at).into_iter().flatten() {
            if next == from {
                return true;
            }
            if seen.insert(next) {
                waiting.push(next);
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(tree: &Tree) -> Vec<String> {
        let mut report = Report::default();
        check(tree, &mut report);
        report.findings.into_iter().map(|finding| finding.what).collect()
    }

    /// A crate of a root, two files, and a folder of two, one of them with this text.
    fn house(b: &str) -> Tree {
        let text = |path: &str| match path {
            "lib" => "mod a;\nmod b;\nmod c;\npub use a::A;\nuse c::{self, deep::{D as E, F}};\n",
            "a" => "use crate::b::B;\nuse std::{a, c};\nstruct A;\n",
            "b" => b,
            "c/mod" => "mod deep;\npub use self::deep::D;\n",
            _ => "use super::super::a::A;\nuse super::C;\n",
        };
        let files = ["lib", "a", "b", "c/mod", "c/deep"];
        let files = files.map(|path| (format!("crates/x/src/{path}.rs"), text(path)));
        Tree::of(&files.each_ref().map(|(path, text)| (path.as_str(), *text)))
    }

    #[test]
    fn imports_in_one_direction_and_those_of_tests_and_parents_pass() {
        let tests = "#[cfg(test)]\nmod tests { use crate::a::A; }\n// crate::a::A\n";
        assert_eq!(whats(&house(tests)), [""; 0]);
        assert_eq!(whats(&house("use crate::Z;\nuse a::A;\nuse other::crate_a;\n")), [""; 0]);
    }

    #[test]
    fn a_circle_is_found_however_the_path_is_written() {
        let paths = [
            "use crate::a::A;",
            "use crate::A;",
            "use super::{Z, a::{self}};",
            "use super::a as z;",
            "fn f(a: crate::a::A) {}",
        ];
        for path in paths {
            assert_eq!(
                whats(&house(path)),
                ["x has 2 files in circles, 0 at most: a, b"],
                "{path}"
            );
        }
        for path in ["use crate::c::D;", "use crate::{E};", "use crate::c::deep::D;"] {
            let found = whats(&house(path));
            assert_eq!(found, ["x has 3 files in circles, 0 at most: a, b, c::deep"], "{path}");
        }
    }

    #[test]
    fn circles_of_the_fuzz_targets_count() {
        let files = [
            ("fuzz/src/lib.rs", "mod a;\nmod b;\n"),
            ("fuzz/src/a.rs", "use crate::b::B;\n"),
            ("fuzz/src/b.rs", "use crate::a::A;\n"),
        ];
        let wanted = "fuzz has 2 files in circles, 0 at most: a, b";
        assert_eq!(whats(&Tree::of(&files)), [wanted]);
    }

    #[test]
    fn the_list_only_shrinks() {
        let tree = house("use crate::a::A;");
        assert_eq!(whats(&tree.clone().with(LIST, "# Why.\nx 2\n")), [""; 0]);
        let wanted = "x has 2 files in circles now: its line says 3";
        assert_eq!(whats(&tree.clone().with(LIST, "x 3\n")), [wanted]);
        let wanted = "x has 2 files in circles, 1 at most: a, b";
        assert_eq!(whats(&tree.with(LIST, "x 1\n")), [wanted]);
        let none = whats(&house("").with(LIST, "x 0\ny 1\n"));
        assert_eq!(none.len(), 2, "{none:?}");
        assert!(none[1].contains("there is no crate y"));
    }
}
