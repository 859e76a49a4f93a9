//! The layer map: which crate may import which, and the order in which they stand.
//!
//! Upstream:   the manifests, and the table of crates in ARCHITECTURE.md.
//! Downstream: nothing.
//!
//! Invariants:
//! - I1  [`ROOMS`] has the order in which a request passes the crates; the workspace's members have
//!   the same order.
//! - I2  An import that is not in [`ROOMS`] fails. Dev-dependencies do not count.
//! - I3  The table of crates in ARCHITECTURE.md has a row for each member, in their order, with the
//!   imports that [`ROOMS`] allows.

use crate::manifest::{array, entries};
use crate::{Report, Tree};

const RULE: &str = "layers";

/// Crates that every crate may import.
const BELOW_ALL: [&str; 2] = ["host", "stdx"];

/// Every crate, also planned ones, with the crates that it may import besides [`BELOW_ALL`].
/// `*` means all crates. A new import is a decision: write its page in docs/decisions.
const ROOMS: [(&str, &[&str]); 31] = [
    (
        "kachel",
        &[
            "options", "io", "tls", "net", "shard", "engine", "cache", "log", "flash", "rocks",
            "observe", "admin", "top", "pipe",
        ],
    ),
    ("options", &[]),
    ("host", &["stdx"]),
    ("io", &[]),
    ("tls", &["io"]),
    ("net", &["io", "wire"]),
    ("wire", &["engine"]),
    ("shard", &["io", "net", "wire", "engine", "observe"]),
    ("engine", &[]),
    ("cache", &["engine", "table", "segment"]),
    ("table", &[]),
    ("segment", &[]),
    ("log", &["io"]),
    ("tree", &[]),
    ("flash", &["io", "engine", "cache", "log"]),
    ("rocks", &["io", "engine"]),
    ("observe", &["io", "net", "wire", "engine"]),
    ("admin", &[]),
    ("top", &["observe"]),
    ("pipe", &["engine"]),
    ("shm", &[]),
    ("client", &[]),
    ("cluster", &[]),
    ("check", &[]),
    (
        "sim",
        &["io", "net", "wire", "shard", "engine", "cache", "flash", "rocks", "check", "testkit"],
    ),
    ("load", &["io", "wire"]),
    ("lab", &["io", "load", "engine", "cache"]),
    ("stdx", &[]),
    ("testkit", &["*"]),
    ("tidy", &[]),
    ("fuzz", &["*"]),
];

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    let members = check_members(tree, report);
    check_table(tree, &members, report);
    let (mut edges, mut development) = (0, 0);
    for folder in tree.crates() {
        let path = format!("crates/{folder}/Cargo.toml");
        let Some(text) = tree.text(&path) else {
            report.find(RULE, &path, 0, "a folder of crates without a manifest");
            continue;
        };
        let Some((_, allowed)) = ROOMS.iter().find(|(name, _)| *name == folder) else {
            report.find(RULE, &path, 0, "this crate is not on the layer map");
            continue;
        };
        if !text.contains("[lints]\nworkspace = true") {
            report.find(RULE, &path, 0, "takes its lints from the workspace: `[lints]` is missing");
        }
        for entry in entries(text) {
            let section = entry.section.rsplit('.').next().unwrap_or_default();
            if entry.key == "name" && entry.section == "package" {
                check_name(folder, &path, &entry.rest, report);
            }
            if !section.ends_with("dependencies") {
                continue;
            }
            if !entry.rest.contains("workspace = true") {
                let what = format!("`{}` takes its version from the workspace", entry.key);
                report.find(RULE, &path, entry.line, what);
            }
            let Some(room) = entry.key.strip_prefix("kachel-") else { continue };
            if section == "dev-dependencies" {
                development += 1;
                continue;
            }
            edges += 1;
            let below = BELOW_ALL.contains(&room) && !BELOW_ALL.contains(&folder);
            if !(below || allowed.contains(&room) || allowed.contains(&"*")) {
                let what = format!("{folder} may not import {room}");
                report.find(RULE, &path, entry.line, what);
            }
        }
    }
    report.looked("edges between crates", edges);
    report.counted("edges of tests between crates", development);
}

fn check_name(folder: &str, path: &str, rest: &str, report: &mut Report) {
    let name = rest.trim_start_matches('=').trim().trim_matches('"');
    let wanted = if folder == "kachel" { folder.to_owned() } else { format!("kachel-{folder}") };
    if name != wanted {
        report.find(RULE, path, 0, format!("the package in {folder} is named {wanted}"));
    }
}

/// The workspace's members are all folders of crates, in the order of [`ROOMS`] (I1). Returns the
/// members.
fn check_members(tree: &Tree, report: &mut Report) -> Vec<String> {
    let path = "Cargo.toml";
    let Some(text) = tree.text(path) else {
        report.find(RULE, path, 0, "the workspace's manifest is missing");
        return Vec::new();
    };
    let members = array(text, "workspace", "members");
    let members: Vec<&str> = members.iter().filter_map(|m| m.strip_prefix("crates/")).collect();
    let place = |name: &str| ROOMS.iter().position(|(room, _)| *room == name);
    if !members.iter().map(|name| place(name)).is_sorted() {
        report.find(RULE, path, 0, "members stand in the order in which a byte travels");
    }
    for folder in tree.crates() {
        if !members.contains(&folder) {
            report.find(RULE, path, 0, format!("crates/{folder} is not a member"));
        }
    }
    report.looked("crates", members.len());
    members.into_iter().map(str::to_owned).collect()
}

/// The table of crates has a row for each of `members`, with the imports of [`ROOMS`] (I3).
fn check_table(tree: &Tree, members: &[String], report: &mut Report) {
    let path = "ARCHITECTURE.md";
    let Some(text) = tree.text(path) else { return };
    let mut rows = Vec::new();
    for (line, row) in (1..).zip(text.lines()) {
        let Some((name, row)) = row.strip_prefix("| `crates/").and_then(|r| r.split_once("` |"))
        else {
            continue;
        };
        let imports = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        let imports: Vec<&str> = imports.split('`').skip(1).step_by(2).collect();
        rows.push(name);
        let Some((_, allowed)) = ROOMS.iter().find(|(room, _)| *room == name) else { continue };
        if imports != *allowed {
            report.find(RULE, path, line, format!("{name} may import {allowed:?}"));
        }
    }
    if rows != members {
        let what = format!("the table of crates has {rows:?}, the workspace {members:?}");
        report.find(RULE, path, 0, what);
    }
    report.looked("rows in the table of crates", rows.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn house(table: &str) -> Tree {
        let manifest = |name: &str, dependencies: &str| {
            format!(
                "[package]\nname = \"kachel-{name}\"\n{dependencies}\n[lints]\nworkspace = true\n"
            )
        };
        let net = manifest("net", "[dependencies]\nkachel-io.workspace = true");
        Tree::of(&[
            (
                "Cargo.toml",
                "[workspace]\nmembers = [\"crates/io\", \"crates/net\", \"crates/table\"]",
            ),
            ("crates/io/Cargo.toml", &manifest("io", "")),
            ("crates/net/Cargo.toml", &net),
            ("crates/table/Cargo.toml", &manifest("table", table)),
        ])
    }

    fn whats(tree: &Tree) -> Vec<String> {
        let mut report = Report::default();
        check(tree, &mut report);
        report.findings.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn the_map_as_drawn_passes_and_tests_are_apart() {
        assert_eq!(whats(&house("[dependencies]\nkachel-stdx.workspace = true")), [""; 0]);
        assert_eq!(whats(&house("[dev-dependencies]\nkachel-segment.workspace = true")), [""; 0]);
    }

    #[test]
    fn an_edge_off_the_map_is_found() {
        let wanted = ["table may not import segment"];
        assert_eq!(whats(&house("[dependencies]\nkachel-segment.workspace = true")), wanted);
        let target = "[target.'cfg(unix)'.dependencies]\nkachel-segment.workspace = true";
        assert_eq!(whats(&house(target)), wanted);
        assert_eq!(whats(&house("[build-dependencies.kachel-segment]\nworkspace = true")).len(), 2);
    }

    #[test]
    fn a_version_of_its_own_is_found() {
        let found = whats(&house("[dependencies]\nlibc = \"0.2\""));
        assert_eq!(found, ["`libc` takes its version from the workspace"]);
    }

    #[test]
    fn members_out_of_order_or_missing_are_found() {
        let wrong =
            house("").with("Cargo.toml", "[workspace]\nmembers = [\"crates/net\", \"crates/io\"]");
        let found = whats(&wrong);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("order") && found[1].contains("crates/table is not a member"));
    }

    #[test]
    fn a_table_of_crates_that_is_not_the_map_is_found() {
        let found = |rows: &str| whats(&house("").with("ARCHITECTURE.md", rows));
        let (io, net) = ("| `crates/io` | x | |\n", "| `crates/net` | `x` | `io`, `wire` |\n");
        let table = "| `crates/table` | x | |\n";
        assert_eq!(found(&format!("{io}{net}{table}")), [""; 0]);
        assert!(found(&format!("{net}{io}{table}"))[0].contains("the table of crates"));
        assert!(found(&format!("{io}{net}"))[0].contains("the table of crates"));
        let wrong = "| `crates/net` | x | `io` |\n";
        assert_eq!(found(&format!("{io}{wrong}{table}")), [r#"net may import ["io", "wire"]"#]);
    }

    #[test]
    fn an_unknown_crate_a_wrong_name_and_missing_lints_are_found() {
        let found = whats(&house("").with("crates/rogue/Cargo.toml", ""));
        assert!(found.iter().any(|what| what.contains("not on the layer map")), "{found:?}");
        let found = whats(&house("").with("crates/io/Cargo.toml", "[package]\nname = \"io\""));
        assert_eq!(found.len(), 2, "{found:?}");
    }
}
