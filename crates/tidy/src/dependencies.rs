//! Dependencies: each direct one has a reason. `tests/deny/run` checks the licenses of all.
//!
//! Upstream:   `cargo metadata`, and the table in docs/dependencies.md.
//! Downstream: nothing.
//!
//! Invariants:
//! - I1  The table has one row for each direct dependency, and no other row.
//! - I2  Packages come from a registry: none from a git repository or a path outside the workspace.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{Report, Tree};

const RULE: &str = "dependencies";

/// The table: rows `| name | ... | reason |`.
const TABLE: &str = "docs/dependencies.md";

/// A package that the workspace builds with, or a member of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Where it comes from; `None` for a member of the workspace.
    pub source: Option<String>,
    /// Names of the packages that it depends on directly, tests included.
    pub dependencies: Vec<String>,
}

/// The packages in the JSON that `cargo metadata --format-version 1` prints.
///
/// Errors: names the field that is missing.
pub fn packages_of_metadata(json: &str) -> Result<Vec<Package>, String> {
    let metadata: Value = serde_json::from_str(json).map_err(|error| error.to_string())?;
    // `packages` also lists packages of other platforms; `resolve` has those of this one.
    let nodes = metadata["resolve"]["nodes"].as_array().ok_or("no resolved nodes")?;
    let built: BTreeSet<&str> = nodes.iter().filter_map(|node| node["id"].as_str()).collect();
    let packages = metadata["packages"].as_array().ok_or("no packages")?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let built = packages.iter().filter(|p| p["id"].as_str().is_some_and(|id| built.contains(id)));
    let package = |package: &Value| {
        let dependencies = package["dependencies"].as_array()?;
        Some(Package {
            name: text(&package["name"])?,
            source: text(&package["source"]),
            dependencies: dependencies.iter().filter_map(|d| text(&d["name"])).collect(),
        })
    };
    built.map(|p| package(p).ok_or_else(|| format!("not a package: {p}"))).collect()
}

pub(crate) fn check(tree: &Tree, packages: &[Package], report: &mut Report) {
    let mut direct = BTreeSet::new();
    for package in packages {
        let name = &package.name;
        match &package.source {
            None => direct
                .extend(package.dependencies.iter().map(String::as_str).filter(|d| !is_ours(d))),
            Some(source) if source.starts_with("registry+") => {}
            Some(source) => {
                report.find(RULE, "Cargo.lock", 0, format!("{name} comes from {source} (I2)"));
            }
        }
    }
    let mut reasons = table(tree, report);
    for name in &direct {
        if reasons.remove(*name).is_none() {
            report.find(RULE, TABLE, 0, format!("`{name}` has no row with its reason (I1)"));
        }
    }
    for (name, line) in reasons {
        report.find(RULE, TABLE, line, format!("`{name}` is no direct dependency (I1)"));
    }
    let foreign = packages.iter().filter(|package| package.source.is_some()).count();
    report.looked("direct dependencies", direct.len());
    report.looked("packages from outside", foreign);
}

fn is_ours(name: &str) -> bool {
    name.starts_with("kachel")
}

/// The rows of the table, as line by name. A row without a reason is a finding.
fn table(tree: &Tree, report: &mut Report) -> BTreeMap<String, usize> {
    let mut rows = BTreeMap::new();
    for (index, line) in tree.text(TABLE).unwrap_or_default().lines().enumerate() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let Some(name) = cells.get(1).and_then(|c| c.strip_prefix('`')?.strip_suffix('`')) else {
            continue;
        };
        let reason = cells.iter().rev().find(|cell| !cell.is_empty());
        if reason.is_none_or(|reason| reason.split(' ').count() < 3) {
            report.find(RULE, TABLE, index + 1, format!("`{name}` has no reason"));
        }
        rows.insert(name.to_owned(), index + 1);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(table: &str, libc: Package) -> Vec<String> {
        let ours = Package {
            name: "kachel-io".to_owned(),
            source: None,
            dependencies: vec!["libc".to_owned(), "kachel-stdx".to_owned()],
        };
        let mut report = Report::default();
        check(&Tree::of(&[(TABLE, table)]), &[ours, libc], &mut report);
        report.findings.into_iter().map(|finding| finding.what).collect()
    }

    fn libc(source: &str) -> Package {
        Package {
            name: "libc".to_owned(),
            source: Some(source.to_owned()),
            dependencies: vec!["deeper".to_owned()],
        }
    }

    const ROW: &str = "| name | why |\n|---|---|\n| `libc` | what rustix does not cover |\n";

    #[test]
    fn a_listed_dependency_passes() {
        assert_eq!(whats(ROW, libc("registry+x")), [""; 0]);
    }

    #[test]
    fn a_source_a_missing_row_and_a_row_too_many_are_found() {
        assert!(whats(ROW, libc("git+https://x.org"))[0].contains("comes from git+"));
        assert!(whats("", libc("registry+x"))[0].contains("`libc` has no row"));
        let more = format!("{ROW}| `gone` | it was fast once |\n");
        assert_eq!(whats(&more, libc("registry+x")), ["`gone` is no direct dependency (I1)"]);
        assert_eq!(whats("| `libc` | |", libc("registry+x")), ["`libc` has no reason"]);
    }

    #[test]
    fn metadata_is_read_and_other_platforms_packages_are_left_out() {
        let json = r#"{"packages": [
            {"id": "a", "name": "a", "source": null,
             "dependencies": [{"name": "b"}]},
            {"id": "w", "name": "w", "source": "registry+x", "dependencies": []}
        ], "resolve": {"nodes": [{"id": "a"}]}}"#;
        let packages = packages_of_metadata(json).unwrap();
        assert_eq!(packages.len(), 1);
        assert_eq!(packages[0].dependencies, ["b"]);
        assert!(packages_of_metadata("{}").is_err());
    }
}
