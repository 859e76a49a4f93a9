//! Every module begins with a header: what it is, where its data comes from and where it goes.
//!
//! Upstream:   Rust files of the tree.
//! Downstream: nothing.

use crate::source::is_test_file;
use crate::{Report, Tree};

const RULE: &str = "headers";

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    let mut count = 0;
    for (path, text) in tree.ending(".rs").filter(|(path, _)| path.starts_with("crates/")) {
        if path.ends_with("/tests.rs") {
            continue;
        }
        count += 1;
        let header: Vec<&str> = text
            .lines()
            .skip_while(|line| line.starts_with("#![") || line.trim().is_empty())
            .take_while(|line| line.starts_with("//!"))
            .collect();
        if header.is_empty() {
            report.find(RULE, path, 1, "a module opens with a header: `//!` and what it is");
            continue;
        }
        let is_module = path.contains("/src/") && !is_test_file(path) && !path.contains("/bin/");
        if !is_module || path.ends_with("/main.rs") {
            continue;
        }
        for word in ["Upstream:", "Downstream:"] {
            if !header.iter().any(|line| line.contains(word)) {
                report.find(RULE, path, 1, format!("the header lacks its `{word}` line"));
            }
        }
    }
    report.looked("headers", count);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        let mut report = Report::default();
        check(&Tree::of(&[(path, text)]), &mut report);
        report.findings.len()
    }

    #[test]
    fn a_missing_header_or_line_of_it_is_found() {
        let whole = "//! X.\n//!\n//! Upstream:   a.\n//! Downstream: b.\n";
        assert_eq!(count("crates/a/src/x.rs", whole), 0);
        assert_eq!(count("crates/a/src/x.rs", "use a;\n"), 1);
        assert_eq!(count("crates/a/src/x.rs", "//! X.\n"), 2);
        assert_eq!(count("crates/a/src/x.rs", "//! X.\n//! Upstream: a.\n\nuse b;\n"), 1);
        assert_eq!(count("crates/a/src/x.rs", "use a;\n//! Upstream: Downstream:\n"), 1);
    }

    #[test]
    fn tests_and_binaries_need_only_the_line_that_says_what_they_are() {
        for path in ["crates/a/tests/x.rs", "crates/a/src/main.rs", "crates/a/examples/x.rs"] {
            assert_eq!(count(path, "//! X.\n"), 0, "{path}");
            assert_eq!(count(path, "use a;\n"), 1, "{path}");
        }
        assert_eq!(count("crates/a/src/x/tests.rs", "use a;\n"), 0);
    }
}
