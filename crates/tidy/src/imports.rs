//! The imports between the files of each crate.
//!
//! Upstream:   Rust files of the tree, those of the fuzz targets included.
//! Downstream: `cycles` and `order`.
//!
//! A file imports the modules that its `use` items and its paths with `crate::` or `super::`
//! name. A path may end at a name that the module imports itself, as with `pub use`. The path then
//! means that import, so a crate's root hides no import.

use std::collections::{BTreeMap, BTreeSet};

use crate::Tree;
use crate::source::{code_outside_tests, words};

/// How many imports of imports are followed for one path.
const FOLLOWED_MAX: usize = 8;

/// A module's names from the root of its crate, without `crate`. The root has none.
pub(crate) type Path = Vec<String>;

/// A module with a file: its imports by the names that they have there, and all paths in it.
#[derive(Default)]
pub(crate) struct Module {
    /// The path of its file.
    pub(crate) file: String,
    /// The modules that its `mod` lines name, in their order.
    pub(crate) children: Vec<String>,
    imports: BTreeMap<String, Path>,
    paths: Vec<Path>,
}

/// The modules of a crate.
pub(crate) type Modules = BTreeMap<Path, Module>;

/// The modules of each crate, by the folder of the crate.
pub(crate) fn by_crate(tree: &Tree) -> BTreeMap<&str, Modules> {
    let mut crates = BTreeMap::<&str, Modules>::new();
    for (path, text) in tree.ending(".rs") {
        let Some((folder, _)) = path.strip_prefix("crates/").unwrap_or(path).split_once('/') else {
            continue;
        };
        if !path.starts_with("crates/") && folder != "fuzz" {
            continue;
        }
        let (Some(place), Some(code)) = (place(path), code_outside_tests(path, text)) else {
            continue;
        };
        crates.entry(folder).or_default().insert(place, module(path, &code));
    }
    crates
}

/// The modules that each module imports from, except itself.
pub(crate) fn graph(modules: &Modules) -> BTreeMap<&Path, BTreeSet<Path>> {
    let next = |at: &Path, module: &Module| {
        let found = module.paths.iter().filter_map(|path| resolve(modules, at, path, 0));
        found.filter(|to| to != at).collect()
    };
    modules.iter().map(|(at, module)| (at, next(at, module))).collect()
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

fn module(path: &str, code: &str) -> Module {
    let mut module = Module { file: path.to_owned(), ..Module::default() };
    for at in words(code, "mod") {
        let name = code[at + 3..].split(';').next().unwrap_or_default().trim();
        if name.chars().all(|c| c.is_alphanumeric() || c == '_') {
            module.children.push(name.to_owned());
        }
    }
    for at in words(code, "use") {
        let item = code[at + 3..].split(';').next().unwrap_or_default();
        expand(item, &[], &mut module);
    }
    for word in ["crate", "super"] {
        for at in words(code, word).filter(|&at| !code[..at].ends_with("::")) {
            let rest = &code[at..];
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
            let path = names(&rest[..end.unwrap_or(rest.len())]);
            // Without a name behind it, it says who sees an item: `pub(crate)`.
            if path.len() > 1 {
                module.paths.push(path);
            }
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
