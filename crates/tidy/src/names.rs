//! File and folder names that do not describe their content are refused.
//!
//! Upstream:   the tree's paths.
//! Downstream: nothing.

use crate::{Report, Tree};

const RULE: &str = "names";

/// The refused names: such files collect things that do not belong together.
const BANNED: [&str; 9] =
    ["util", "utils", "common", "helper", "helpers", "misc", "base", "handy", "stuff"];

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    let mut count = 0;
    for (path, _) in tree.files() {
        count += 1;
        for part in path.split('/') {
            let stem = part.split('.').next().unwrap_or_default().to_ascii_lowercase();
            if BANNED.contains(&stem.as_str()) {
                report.find(RULE, path, 0, format!("`{part}` says nothing: name what it holds"));
            }
        }
        if path.ends_with(".rs") && path.chars().any(|c| c.is_ascii_uppercase() || c == '-') {
            report.find(RULE, path, 0, "Rust files are named in snake_case");
        }
    }
    report.looked("file names", count);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str) -> usize {
        let mut report = Report::default();
        check(&Tree::of(&[(path, "")]), &mut report);
        report.findings.len()
    }

    #[test]
    fn names_that_say_nothing_are_found_and_others_pass() {
        for path in ["a/util.rs", "a/common/mod.rs", "tests/helpers.py", "a/Misc.sh", "a/b-c.rs"] {
            assert_eq!(count(path), 1, "{path}");
        }
        for path in ["a/utility_bill.rs", "a/base64.rs", "a/bucket.rs", "README.md", "a/b-c.sh"] {
            assert_eq!(count(path), 0, "{path}");
        }
    }
}
