//! Paths and functions that the documents name exist. The crates are described in their order.
//! ARCHITECTURE.md is short. No two rows of hostile inputs have the same number.
//!
//! Upstream:   README.md, ARCHITECTURE.md, STYLE.md and everything under docs.
//! Downstream: nothing.
//!
//! A path is a quoted word (`like/this.rs`) that begins with one of the repository's folders, or
//! the target of a link. After a path of a Rust file, `: name` or `: Type::name` names what it
//! defines.

use std::collections::HashSet;

use crate::manifest::array;
use crate::source::words;
use crate::{Report, Tree};

const RULE: &str = "documents";

/// Folders with which a path in a document begins.
const FOLDERS: [&str; 10] = [
    "crates/",
    "docs/",
    "tests/",
    "scripts/",
    "experiments/",
    "fuzz/",
    ".ci/",
    "bpf/",
    "hw/",
    "web/",
];

/// The most bytes of ARCHITECTURE.md, because a new engineer reads it first. Details belong to
/// docs/internals.
const ARCHITECTURE_BYTES_MAX: usize = 20_000;

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    let (mut paths, mut names) = (0, 0);
    for (document, text) in tree.ending(".md") {
        if document.contains('/') && !document.starts_with("docs/") {
            continue;
        }
        let mut fenced = false;
        for (index, line) in text.lines().enumerate() {
            fenced ^= line.starts_with("```");
            if fenced || line.starts_with("```") {
                continue;
            }
            if line.matches('`').count() % 2 == 1 {
                report.find(RULE, document, index + 1, "a quoted word is broken over two lines");
            }
            for quoted in line.split('`').skip(1).step_by(2) {
                let Some((path, name)) = reference(quoted) else { continue };
                paths += 1;
                if !tree.exists(path) {
                    report.find(RULE, document, index + 1, format!("{path} does not exist"));
                    continue;
                }
                for part in name.split("::").filter(|part| !part.is_empty()) {
                    names += 1;
                    let text = tree.text(path).unwrap_or_default();
                    if words(text, part).next().is_none() {
                        let what = format!("{path} has no `{part}`");
                        report.find(RULE, document, index + 1, what);
                    }
                }
            }
            for target in links(line) {
                paths += 1;
                let path = resolve(document, target);
                if !tree.exists(&path) {
                    report.find(RULE, document, index + 1, format!("{path} does not exist"));
                }
            }
        }
    }
    let length = tree.text("ARCHITECTURE.md").unwrap_or_default().len();
    if length > ARCHITECTURE_BYTES_MAX {
        let what = format!("has {length} bytes, at most {ARCHITECTURE_BYTES_MAX} are allowed");
        report.find(RULE, "ARCHITECTURE.md", 0, what);
    }
    check_described_crates(tree, report);
    check_row_numbers(tree, report);
    report.looked("paths in documents", paths);
    report.looked("names in documents", names);
}

/// The path in a quoted word, and the name after its colon; `None` when it is no path of ours.
fn reference(quoted: &str) -> Option<(&str, &str)> {
    let (path, name) = quoted.split_once(": ").unwrap_or((quoted, ""));
    let path = path.strip_prefix("./").unwrap_or(path);
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let ours = FOLDERS.iter().any(|folder| path.starts_with(folder)) && path.chars().all(plain);
    let name = name.trim_end_matches("()");
    let named = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':');
    (ours && named).then_some((path, name))
}

/// Targets of the links in a line that lead into the repository.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| {
        let target = rest.split(')').next()?.split('#').next()?;
        (!target.is_empty() && !target.contains(':')).then_some(target)
    })
}

/// The target of a link in `document`, from the root.
fn resolve(document: &str, target: &str) -> String {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// The headings of the page on crates (`### crates/x`) are the workspace's members, in their order.
fn check_described_crates(tree: &Tree, report: &mut Report) {
    let path = "docs/internals/crates.md";
    let (Some(map), Some(manifest)) = (tree.text(path), tree.text("Cargo.toml")) else { return };
    let headings: Vec<String> = map
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .map(|heading| heading.trim_matches('`').to_owned())
        .filter(|heading| heading.starts_with("crates/"))
        .collect();
    let members = array(manifest, "workspace", "members");
    if headings != members {
        let what = format!("it describes {headings:?}, the workspace has {members:?}");
        report.find(RULE, path, 0, what);
    }
    report.looked("crates described", headings.len());
}

/// Rows of the list of hostile inputs begin with a number (`A11`), and no two with the same one.
fn check_row_numbers(tree: &Tree, report: &mut Report) {
    let path = "docs/hostile-inputs.md";
    let mut seen = HashSet::new();
    for (index, line) in tree.text(path).unwrap_or_default().lines().enumerate() {
        let cell = line.strip_prefix("| ").and_then(|row| row.split(" |").next());
        let Some((letter, digits)) = cell.and_then(|cell| cell.split_at_checked(1)) else {
            continue;
        };
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if is_number && !seen.insert((letter, digits)) {
            report.find(RULE, path, index + 1, format!("a second row {letter}{digits}"));
        }
    }
    report.looked("numbered rows", seen.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(document: &str, text: &str) -> Vec<String> {
        let mut report = Report::default();
        let tree = Tree::of(&[
            ("Cargo.toml", "[workspace]\nmembers = [\"crates/a\", \"crates/b\"]\n"),
            ("crates/a/src/lib.rs", "struct Tick;\nfn turn() {}\n"),
            ("docs/x.md", ""),
        ]);
        check(&tree.with(document, text), &mut report);
        report.findings.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn what_exists_passes() {
        let text = "`crates/a/src/lib.rs`, `crates/a/`, `crates/a/src/lib.rs: Tick::turn`, \
                    `get k`, `a/b`, [x](docs/x.md#part), [y](https://x.org/y), `crates/<name>/src`";
        assert_eq!(whats("README.md", text), [""; 0]);
        assert_eq!(whats("docs/deep/y.md", "[x](../x.md) [r](../../crates/a/src/lib.rs)"), [""; 0]);
        assert_eq!(whats("README.md", "```sh\ncat `crates/gone.rs` `x\n```\n"), [""; 0]);
        assert_eq!(whats("crates/a/notes.md", "`crates/gone.rs`"), [""; 0]);
    }

    #[test]
    fn a_path_a_name_and_a_link_that_are_gone_are_found() {
        let gone = ["crates/a/src/gone.rs does not exist"];
        assert_eq!(whats("README.md", "`crates/a/src/gone.rs`"), gone);
        assert_eq!(whats("docs/y.md", "see\n`crates/a/src/gone.rs: f`"), gone);
        let text = "`crates/a/src/lib.rs: Tick::tur`";
        assert_eq!(whats("STYLE.md", text), ["crates/a/src/lib.rs has no `tur`"]);
        assert_eq!(whats("README.md", "[x](docs/gone.md)"), ["docs/gone.md does not exist"]);
        let broken = "`crates/a/src/lib.rs:\nTick`";
        assert_eq!(whats("README.md", broken), ["a quoted word is broken over two lines"; 2]);
    }

    #[test]
    fn a_second_row_with_a_number_is_found() {
        let rows =
            "| | input |\n|---|---|\n| A1 | x |\n| B1 | x |\n| A1 to A3 | x |\n| idle | x |\n";
        assert_eq!(whats("docs/hostile-inputs.md", rows), [""; 0]);
        assert_eq!(
            whats("docs/hostile-inputs.md", &rows.repeat(2)),
            ["a second row A1", "a second row B1"]
        );
    }

    #[test]
    fn an_architecture_that_is_too_long_is_found() {
        assert_eq!(whats("ARCHITECTURE.md", &"x".repeat(ARCHITECTURE_BYTES_MAX)), [""; 0]);
        assert_eq!(whats("ARCHITECTURE.md", &"x".repeat(ARCHITECTURE_BYTES_MAX + 1)).len(), 1);
    }

    #[test]
    fn described_crates_that_are_not_the_workspace_are_found() {
        assert_eq!(whats("docs/internals/crates.md", "### crates/a\n### crates/b\n"), [""; 0]);
        assert_eq!(whats("docs/internals/crates.md", "### crates/b\n### crates/a\n").len(), 1);
        assert_eq!(whats("docs/internals/crates.md", "### crates/a\n").len(), 1);
    }
}
