//! No files of one crate import each other in a circle.
//!
//! Upstream:   Rust files of the tree, and the number of files in circles, by crate.
//! Downstream: nothing.
//!
//! A file imports the modules that its `use` items and its paths with `crate::` or `super::`
//! name. A path may end at a name that the module imports itself, as with `pub use`. The rule then
//! follows that import, so a crate's root hides no circle. Imports between a module and the modules
//! inside it do not count.
//!
//! Invariants:
//! - I1  The counts of the list only shrink: a count that is too high or 0 fails.

use std::collections::{BTreeMap, BTreeSet};

use crate::ratchet::numbers;
use crate::source::{outside_tests, words};
use crate::{Report, Tree};

const RULE: &str = "cycles";
/// The list: `crate files` a line, `#` begins a comment.
const LIST: &str = "crates/tidy/cycles.txt";
/// How many imports of imports the rule follows for one path.
const FOLLOWED_MAX: usize = 8;

/// A module's names from the root of its crate, without `crate`. The root has none.
type Path = Vec<String>;

/// A module with a file: its imports by the names that they have there, and all paths in it.
#[derive(Default)]
struct Module {
    imports: BTreeMap<String, Path>,
    paths: Vec<Path>,
}

type Modules = BTreeMap<Path, Module>;

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    let mut crates = BTreeMap::<&str, Modules>::new();
    for (folder, path, code) in outside_tests(tree) {
        let Some(place) = place(path) else { continue };
        crates.entry(folder).or_default().insert(place, module(&code));
    }
    let mut listed = numbers(tree, LIST, RULE, report);
    let (mut edges, mut standing) = (0, 0);
    for (folder, modules) in &crates {
        let graph = graph(modules);
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

/// The module of the file at `path`; `None` outside of `src` and for binaries.
fn place(path: &str) -> Option<Path> {
    let (_, inside) = path.split_once("/src/")?;
    if inside.starts_with("bin/") {
        return None;
    }
    let module = inside.strip_suffix(".rs")?;
    let module = module.strip_suffix("/mod").unwrap_or(module);
    let root = matches!(module, "lib" | "main");
    Some(if root { Path::new() } else { module.split('/').map(str::to_owned).collect() })
}

fn module(code: &str) -> Module {
    let mut module = Module::default();
    for at in words(code, "use") {
        let item = code[at + 3..].split(';').next().unwrap_or_default();
        expand(item, &[], &mut module);
    }
    for word in ["crate", "super"] {
        for at in words(code, word).filter(|&at| !code[..at].ends_with("::")) {
            let rest = &code[at..];
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
            module.paths.push(names(&rest[..end.unwrap_or(rest.len())]));
        }
    }
    module
}

/// Adds each leaf of the tree of a `use`, with the names before it.
fn expand(text: &str, before: &[String], module: &mut Module) {
    let mut depth = 0;
    let parts = text.split(|c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    for part in parts.map(str::trim).filter(|part| !part.is_empty()) {
        if let Some((head, inner)) = part.split_once('{') {
            let head = [before, &names(head)].concat();
            // Each call has one level of braces less, so the recursion ends.
            expand(inner.strip_suffix('}').unwrap_or(inner), &head, module);
            continue;
        }
        let (path, alias) = part.split_once(" as ").unwrap_or((part, ""));
        let mut path = [before, &names(path)].concat();
        if path.len() > 1 && path.last().is_some_and(|name| name == "self") {
            path.pop();
        }
        let own = path.last().cloned().unwrap_or_default();
        let name = if alias.is_empty() { own } else { alias.trim().to_owned() };
        module.imports.insert(name, path.clone());
        module.paths.push(path);
    }
}

fn names(path: &str) -> Path {
    path.split("::").map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The module that `path` means in the module at `from`; `None` outside of the crate.
fn resolve(modules: &Modules, from: &[String], path: &[String], followed: usize) -> Option<Path> {
    let mut here = from.to_vec();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => (here, rest) = (Path::new(), &path[1..]),
        "self" => rest = &path[1..],
        "super" => {
            while let Some(("super", after)) = rest.split_first().map(|(n, r)| (n.as_str(), r)) {
                here.pop();
                rest = after;
            }
        }
        _ => {}
    }
    let relative = rest.len() == path.len();
    for (index, name) in rest.iter().enumerate() {
        let inner = [&here[..], std::slice::from_ref(name)].concat();
        if modules.contains_key(&inner) {
            here = inner;
            continue;
        }
        // An import that is this very path would lead back here.
        let import = modules.get(&here).and_then(|module| module.imports.get(name));
        let import = import.filter(|import| import.as_slice() != path && followed < FOLLOWED_MAX);
        if let Some(import) = import {
            let onward = [&import[..], &rest[index + 1..]].concat();
            if let Some(found) = resolve(modules, &here, &onward, followed + 1) {
                return Some(found);
            }
        }
        return (index > 0 || !relative).then_some(here);
    }
    Some(here)
}

/// The modules that each module imports from, except those around it and inside it.
fn graph(modules: &Modules) -> BTreeMap<&Path, BTreeSet<Path>> {
    let next = |at: &Path, module: &Module| {
        let found = module.paths.iter().filter_map(|path| resolve(modules, at, path, 0));
        found.filter(|to| !to.starts_with(at) && !at.starts_with(to)).collect()
    };
    modules.iter().map(|(at, module)| (at, next(at, module))).collect()
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
