//! No two crates of the server declare public types of the same name.
//!
//! Upstream:   Rust files of the crates that the server is built from, and the list of names that
//!   are declared twice.
//! Downstream: nothing.
//!
//! With two types of one name a reader must look up at each import which one is meant. `pub use`
//! does not count: it declares no type.
//!
//! Invariants:
//! - I1  The list of names only shrinks: a row that no longer holds fails.

use std::collections::{BTreeMap, BTreeSet};

use crate::ratchet::rows;
use crate::source::{outside_tests, words};
use crate::{Report, Tree};

const RULE: &str = "type names";
/// The list: a name, and the crates that declare it.
const LIST: &str = "crates/tidy/duplicate_types.txt";

/// Crates of the server.
const SERVER: [&str; 16] = [
    "kachel", "options", "host", "io", "tls", "net", "wire", "shard", "engine", "cache", "table",
    "segment", "log", "observe", "admin", "pipe",
];

const KINDS: [&str; 5] = ["struct", "enum", "union", "trait", "type"];

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    let mut crates = BTreeMap::<String, BTreeSet<&str>>::new();
    for (folder, _, code) in outside_tests(tree) {
        let Some(&folder) = SERVER.iter().find(|&&name| name == folder) else { continue };
        for name in public_types(&code) {
            crates.entry(name.to_owned()).or_default().insert(folder);
        }
    }
    report.looked("public types of the server", crates.len());
    let mut twice: BTreeSet<String> = crates
        .into_iter()
        .filter(|(_, folders)| folders.len() > 1)
        .map(|(name, folders)| {
            format!("{name} {}", folders.into_iter().collect::<Vec<_>>().join(" "))
        })
        .collect();
    report.counted("type names in two crates of the server", twice.len());
    for (line, row) in rows(tree, LIST) {
        if !twice.remove(row) {
            report.find(RULE, LIST, line, format!("`{row}` no longer holds: drop its row"));
        }
    }
    for row in twice {
        let (name, folders) = row.split_once(' ').unwrap_or((&row, ""));
        let what = format!("`{name}` is a public type in each of {folders}: rename all but one");
        report.find(RULE, LIST, 0, what);
    }
}

/// Names of the types that `code` declares `pub`, without `pub(..)`.
fn public_types(code: &str) -> impl Iterator<Item = &str> {
    words(code, "pub").filter_map(|at| {
        let mut tokens = code[at + 3..].split_whitespace();
        let kind = tokens.find(|&token| token != "unsafe")?;
        let name = KINDS.contains(&kind).then(|| tokens.next())??;
        let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
        Some(&name[..end])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(tree: &Tree) -> Vec<String> {
        let mut report = Report::default();
        check(tree, &mut report);
        report.findings.into_iter().map(|finding| finding.what).collect()
    }

    fn house(net: &str) -> Tree {
        let io = "pub struct A<T>(T);\npub enum B {}\npub unsafe trait C: X {}\npub type D = A;\n";
        Tree::of(&[("crates/io/src/lib.rs", io), ("crates/net/src/x.rs", net)])
    }

    #[test]
    fn names_of_one_crate_and_what_is_not_public_pass() {
        let net = "pub use io::{A, B};\npub(crate) struct A;\nstruct B;\nimpl X { type C = u8; }\n\
                   pub fn D() {}\n// pub struct A;\n#[cfg(test)]\nmod tests { pub struct A; }\n";
        let tree = house(net)
            .with("crates/io/src/y.rs", "pub struct A;")
            .with("crates/net/src/tests.rs", "pub struct A;")
            .with("crates/lab/src/lib.rs", "pub struct A;");
        assert_eq!(whats(&tree), [""; 0]);
    }

    #[test]
    fn a_name_in_two_crates_fails_unless_it_is_listed() {
        let kinds = ["struct A;", "enum B {}", "trait C {}", "type D = u8;"];
        for (kind, name) in kinds.iter().zip(["A", "B", "C", "D"]) {
            let tree = house(&format!("pub {kind}"));
            let found = whats(&tree);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(&format!("`{name}` is a public type in each of io net")));
            assert_eq!(whats(&tree.with(LIST, &format!("# Why.\n{name} io net\n"))), [""; 0]);
        }
    }

    #[test]
    fn the_list_only_shrinks() {
        let found = whats(&house("pub struct E;").with(LIST, "A io net\n"));
        assert_eq!(found, ["`A io net` no longer holds: drop its row"]);
    }
}
