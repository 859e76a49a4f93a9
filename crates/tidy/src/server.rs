//! The packages that the server is built from are on a list.
//!
//! Upstream:   Cargo.lock, the manifests, and the list in crates/tidy/server_packages.txt.
//! Downstream: nothing.
//!
//! The walk begins at `kachel`. From a crate of ours it goes to the `[dependencies]` and
//! `[build-dependencies]` of its manifest, but not to dev-dependencies or those of models. From any
//! other package it goes to the packages that Cargo.lock names for it. The lock file names more
//! packages than one build uses, also those of build scripts, so a compiler of C code (`cc`) cannot
//! enter unnoticed.
//!
//! Invariants:
//! - I1  Every package that the walk reaches is on the list, and every one on the list is reached.
//! - I2  The walk follows optional dependencies too: a feature that needs C code needs a rule here.

use std::collections::{BTreeMap, BTreeSet};

use crate::manifest::entries;
use crate::{Report, Tree};

const RULE: &str = "server";

/// The list: each line has a package and its reason.
const LIST: &str = "crates/tidy/server_packages.txt";

const LOCK: &str = "Cargo.lock";

/// The package of the server.
const SERVER: &str = "kachel";

/// Sections of a manifest that only models use.
const MODELS: [&str; 2] = ["cfg(loom)", "cfg(shuttle)"];

/// Prefixes of packages for other operating systems. They are in the lock file, but not built.
const ELSEWHERE: &str = "windows-";

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    let reached = reached(tree);
    let mut listed = listed(tree, report);
    for (name, from) in &reached {
        if listed.remove(name.as_str()).is_none() {
            let what = format!("the server reaches `{name}`, by way of `{from}`: not in {LIST}");
            report.find(RULE, LOCK, 0, what);
        }
    }
    for (name, line) in listed {
        let what = format!("the server does not reach `{name}`: it leaves the list");
        report.find(RULE, LIST, line, what);
    }
    report.looked("packages of the server", reached.len());
}

/// The packages on the list, with their lines. A package without a reason is a finding.
fn listed<'a>(tree: &'a Tree, report: &mut Report) -> BTreeMap<&'a str, usize> {
    let mut listed = BTreeMap::new();
    for (index, line) in tree.text(LIST).unwrap_or_default().lines().enumerate() {
        if line.starts_with('#') {
            continue;
        }
        let (name, reason) = line.split_once(' ').unwrap_or((line, ""));
        if reason.split(' ').count() < 3 {
            report.find(RULE, LIST, index + 1, format!("`{name}` has no reason"));
        }
        listed.insert(name, index + 1);
    }
    listed
}

/// The foreign packages that the walk reaches, each with the package that led to it.
fn reached(tree: &Tree) -> BTreeMap<String, String> {
    let locked = locked(tree.text(LOCK).unwrap_or_default());
    let mut reached = BTreeMap::new();
    let mut seen = BTreeSet::from([SERVER.to_owned()]);
    let mut waiting = vec![SERVER.to_owned()];
    while let Some(package) = waiting.pop() {
        let next = match folder(&package) {
            Some(folder) => manifest_dependencies(tree, &folder),
            None => locked.get(package.as_str()).cloned().unwrap_or_default(),
        };
        for name in next.into_iter().filter(|name| !name.starts_with(ELSEWHERE)) {
            if !seen.insert(name.clone()) {
                continue;
            }
            if folder(&name).is_none() {
                reached.insert(name.clone(), package.clone());
            }
            waiting.push(name);
        }
    }
    reached
}

/// The folder of a crate of ours.
fn folder(package: &str) -> Option<String> {
    let name = package.strip_prefix("kachel-").or((package == SERVER).then_some(package))?;
    Some(format!("crates/{name}"))
}

/// The dependencies of the crate in `folder` and of its build script.
fn manifest_dependencies(tree: &Tree, folder: &str) -> Vec<String> {
    let text = tree.text(&format!("{folder}/Cargo.toml")).unwrap_or_default();
    let entries = entries(text).into_iter().filter(|entry| {
        let section = entry.section.rsplit('.').next().unwrap_or_default();
        matches!(section, "dependencies" | "build-dependencies")
            && !MODELS.iter().any(|model| entry.section.contains(model))
    });
    entries.map(|entry| entry.key).collect()
}

/// The dependencies of each package in Cargo.lock. All versions of a package count as one.
fn locked(text: &str) -> BTreeMap<&str, Vec<String>> {
    let mut locked: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut package = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("name = \"") {
            package = name.trim_end_matches('"');
        } else if let Some(name) = line.strip_prefix(" \"") {
            let name = name.split([' ', '"']).next().unwrap_or_default();
            locked.entry(package).or_default().push(name.to_owned());
        }
    }
    locked
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKED: &str = "version = 4\n\n[[package]]\nname = \"kachel\"\ndependencies = [\n \
                          \"tempfile\",\n]\n\n[[package]]\nname = \"libc\"\nversion = \"0.2\"\n\n\
                          [[package]]\nname = \"rustix\"\nversion = \"1.0\"\ndependencies = [\n \
                          \"bitflags 2.1.0\",\n \"windows-sys 0.61.2\",\n]\n\n[[package]]\n\
                          name = \"zstd\"\ndependencies = [\n \"cc\",\n]\n";

    const LISTED: &str = "# why\nbitflags sets of flags\nlibc calls of the kernel\nrustix calls \
                          in types\n";

    /// A server that imports `host`, whose dependencies are these.
    fn house(list: &str, host: &str) -> Tree {
        let kachel = "[package]\nname = \"kachel\"\n[dependencies]\nkachel-host.workspace = true\n\
                      libc.workspace = true\n[dev-dependencies]\ntempfile.workspace = true\n\
                      [target.'cfg(loom)'.dependencies]\nloom.workspace = true\n";
        Tree::of(&[
            (LOCK, LOCKED),
            (LIST, list),
            ("crates/kachel/Cargo.toml", kachel),
            ("crates/host/Cargo.toml", host),
        ])
    }

    fn whats(list: &str, host: &str) -> Vec<String> {
        let mut report = Report::default();
        check(&house(list, host), &mut report);
        report.findings.into_iter().map(|finding| finding.what).collect()
    }

    const HOST: &str = "[dependencies]\nrustix.workspace = true\n";

    #[test]
    fn what_is_listed_passes_and_tests_models_and_other_systems_are_apart() {
        assert_eq!(whats(LISTED, HOST), [""; 0]);
    }

    #[test]
    fn a_package_that_is_not_listed_is_found_however_it_comes() {
        let direct = format!("{HOST}zstd.workspace = true\n");
        let found = whats(LISTED, &direct);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("`cc`, by way of `zstd`") && found[1].contains("`zstd`"));
        for section in ["[build-dependencies]", "[target.'cfg(unix)'.dependencies]"] {
            let found = whats(LISTED, &format!("{HOST}{section}\nzstd.workspace = true\n"));
            assert_eq!(found.len(), 2, "{found:?}");
        }
        let optional = "[dependencies.zstd]\nworkspace = true\noptional = true\n";
        assert_eq!(whats(LISTED, &format!("{HOST}{optional}")).len(), 2);
    }

    #[test]
    fn a_row_that_is_not_reached_or_gives_no_reason_is_found() {
        let found = whats(&format!("{LISTED}clap help\n"), HOST);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("`clap` has no reason"), "{found:?}");
        assert!(found[1].contains("does not reach `clap`"), "{found:?}");
    }
}
