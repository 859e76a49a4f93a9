//! How long files and functions are.
//!
//! Upstream:   Rust files of the tree, and the list of long functions.
//! Downstream: nothing.
//!
//! Invariants:
//! - I1  The list of long functions only shrinks: an entry that is too high or not needed fails.

use crate::ratchet::numbers;
use crate::source::{code, functions};
use crate::{Report, Tree};

const FILE_RULE: &str = "file length";
const FUNCTION_RULE: &str = "function length";

/// A file with more lines is reported.
const FILE_LINES_WARN: usize = 700;
/// A file with more lines fails.
const FILE_LINES_MAX: usize = 1000;
/// A function with more lines fails, unless it is listed.
const FUNCTION_LINES_MAX: usize = 70;
/// The list: `path name lines` a line, `#` begins a comment.
const LIST: &str = "crates/tidy/long_functions.txt";

pub(crate) fn check_files(tree: &Tree, report: &mut Report) {
    let (mut files, mut sum) = (0, 0);
    for (path, text) in tree.ending(".rs") {
        let lines = text.lines().count();
        (files, sum) = (files + 1, sum + lines);
        if lines > FILE_LINES_MAX {
            let what = format!("{lines} lines, {FILE_LINES_MAX} at most: make it two rooms");
            report.find(FILE_RULE, path, 0, what);
        } else if lines > FILE_LINES_WARN {
            report.warn(FILE_RULE, path, 0, format!("{lines} lines, over {FILE_LINES_WARN}"));
        }
    }
    report.looked("Rust files", files);
    report.looked("lines of Rust", sum);
}

pub(crate) fn check_functions(tree: &Tree, report: &mut Report) {
    let mut listed = numbers(tree, LIST, FUNCTION_RULE, report);
    let (mut count, mut long) = (0, 0);
    for (path, text) in tree.ending(".rs") {
        for function in functions(&code(text)) {
            count += 1;
            if function.lines <= FUNCTION_LINES_MAX {
                continue;
            }
            long += 1;
            let (name, lines) = (&function.name, function.lines);
            match listed.remove(&format!("{path} {name}")) {
                Some((_, most)) if lines == most => {}
                Some((at, most)) if lines < most => {
                    let what = format!("{path} {name} has {lines} lines now: lower its entry");
                    report.find(FUNCTION_RULE, LIST, at, what);
                }
                _ => {
                    let what = format!("`{name}` has {lines} lines, {FUNCTION_LINES_MAX} at most");
                    report.find(FUNCTION_RULE, path, function.line, what);
                }
            }
        }
    }
    for (name, (at, _)) in listed {
        report.find(FUNCTION_RULE, LIST, at, format!("{name} is no longer long: drop its entry"));
    }
    report.looked("functions", count);
    report.counted("functions over 70 lines", long);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(tree: &Tree) -> Vec<String> {
        let mut report = Report::default();
        check_files(tree, &mut report);
        check_functions(tree, &mut report);
        report.findings.into_iter().map(|finding| finding.what).collect()
    }

    fn long(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    // Same.\n".repeat(lines - 2))
    }

    #[test]
    fn a_long_file_is_told_and_a_longer_one_fails() {
        let mut report = Report::default();
        let tree = Tree::of(&[("a.rs", &"\n".repeat(701)), ("b.rs", &"\n".repeat(1001))]);
        check_files(&tree, &mut report);
        assert_eq!((report.warnings.len(), report.findings.len()), (1, 1));
        assert_eq!((&*report.warnings[0].path, &*report.findings[0].path), ("a.rs", "b.rs"));
    }

    #[test]
    fn a_long_function_fails_unless_it_is_listed() {
        assert_eq!(whats(&Tree::of(&[("a.rs", &long(70))])), [""; 0]);
        let tree = Tree::of(&[("a.rs", &long(71))]);
        assert_eq!(whats(&tree), ["`long` has 71 lines, 70 at most"]);
        let listed = tree.clone().with(LIST, "# Why.\na.rs long 71\n");
        assert_eq!(whats(&listed), [""; 0]);
        let grown = listed.with("a.rs", &long(72));
        assert_eq!(whats(&grown), ["`long` has 72 lines, 70 at most"]);
    }

    #[test]
    fn the_list_only_shrinks() {
        let listed = Tree::of(&[("a.rs", &long(71)), (LIST, "a.rs long 72\n")]);
        assert!(whats(&listed)[0].contains("lower its entry"));
        let listed = listed.with("a.rs", &long(70));
        assert!(whats(&listed)[0].contains("drop its entry"));
        assert!(whats(&Tree::of(&[(LIST, "a.rs long\n")]))[0].contains("not a name and a number"));
    }
}
