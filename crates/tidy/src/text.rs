//! Rules for lines of text: ASCII in Rust and TOML, 100 columns, no path of one machine.
//!
//! Upstream:   all text files of the tree.
//! Downstream: nothing.

use crate::source::code;
use crate::{Report, Tree};

const RULE: &str = "text";

/// A Rust line has at most this many columns.
const COLUMNS_MAX: usize = 100;

/// Beginnings of paths that exist on one machine only. Each is in two halves so that this file
/// passes.
const MACHINE_PATHS: [&str; 5] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("/Us", "ers/"),
    concat!("/tmp/", "peer"),
];

/// Words of notes that must not be merged.
const UNMERGED: [&str; 2] = [concat!("FIX", "ME"), concat!("XX", "X:")];

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    let mut count = 0;
    for (path, text) in tree.files().filter(|(path, _)| !is_foreign(path)) {
        let strict = path.ends_with(".rs") || path.ends_with(".toml");
        let code = if path.ends_with(".rs") { code(text) } else { String::new() };
        let mut code = code.lines();
        for (index, line) in text.lines().enumerate() {
            count += 1;
            let mut find = |what: String| report.find(RULE, path, index + 1, what);
            if strict && !line.is_ascii() {
                find("not ASCII: write pictures with +-| and dashes as -".to_owned());
            }
            let code = code.next().unwrap_or_default();
            if path.ends_with(".rs") && line.len() > COLUMNS_MAX && !holds_literal(line, code) {
                find(format!("over {COLUMNS_MAX} columns"));
            }
            if strict && line.ends_with([' ', '\t']) {
                find("blanks at the end of the line".to_owned());
            }
            for machine in MACHINE_PATHS.into_iter().filter(|machine| holds(line, machine)) {
                find(format!("{machine} is a path of one machine"));
            }
            for note in UNMERGED.into_iter().filter(|note| line.contains(*note)) {
                find(format!("{note} is not merged: do it, or write it down in docs"));
            }
        }
        if strict && !text.is_empty() && !text.ends_with('\n') {
            report.find(RULE, path, text.lines().count(), "the last line has no end");
        }
    }
    report.looked("lines of text", count);
}

/// Files that tools write, or that quote bytes from outside.
fn is_foreign(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    path.contains("/fixtures/") || name.ends_with(".lock") || name.contains("-lock.")
}

/// Whether a line holds a part of a literal. A literal may be longer than a line should be.
fn holds_literal(line: &str, code: &str) -> bool {
    !line.trim_start().starts_with("//") && line != code
}

/// Whether a path in `line` begins with `machine`. In a URL or below another folder it does not
/// count.
fn holds(line: &str, machine: &str) -> bool {
    line.match_indices(machine).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "_-.$}/)".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let mut report = Report::default();
        check(&Tree::of(&[(path, text)]), &mut report);
        report.findings.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn each_kind_of_line_is_found_once() {
        let wide = "x".repeat(101);
        let comment = format!("// {wide}");
        for bad in ["// caf\u{e9}", "let x = 1; ", &wide, &comment] {
            assert_eq!(lines("a.rs", &format!("ok\n{bad}\n")), [2], "{bad}");
        }
        assert_eq!(lines("a.rs", "no end"), [1]);
        for bad in MACHINE_PATHS {
            let line = format!("cd {bad}x");
            assert_eq!(lines("a.sh", &line), [1], "{bad}");
            assert_eq!(lines("a.md", &format!("`{bad}`")), [1], "{bad}");
        }
        assert_eq!(lines("a.md", UNMERGED[0]), [1]);
    }

    #[test]
    fn what_only_looks_alike_passes() {
        assert_eq!(lines("a.md", "caf\u{e9}, $HOME/homework/, https://x.org/home/"), [0; 0]);
        assert_eq!(lines("a.rs", &format!("{}\n", "x".repeat(100))), [0; 0]);
        assert_eq!(lines("a.rs", &format!("f(\"{}\");\n", "x".repeat(100))), [0; 0]);
        assert_eq!(lines("Cargo.lock", UNMERGED[0]), [0; 0]);
    }
}
