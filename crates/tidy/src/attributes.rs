//! Refused attributes, such as `allow`, and the attribute that every safe crate must have.
//!
//! Upstream:   Rust files of the tree.
//! Downstream: nothing.

use crate::source::{code, line_of};
use crate::{Report, Tree};

const RULE: &str = "attributes";

/// Crates that may hold unsafe code, in the files that `unsafety` names.
pub(crate) const UNSAFE_CRATES: [&str; 6] = ["host", "io", "table", "segment", "rocks", "stdx"];

/// Refused attributes, each with what to write instead.
const BANNED: [(&str, &str); 4] = [
    ("#[ignore", "a test that does not run proves nothing: assert what is wrong and say why"),
    ("#[allow(", "write #[expect(.., reason = \"..\")]"),
    ("#![allow(", "write #![expect(.., reason = \"..\")]"),
    ("cfg_attr(ignore", "a test that does not run proves nothing"),
];

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    for (path, text) in tree.ending(".rs") {
        let code = code(text);
        for (attribute, instead) in BANNED {
            for (at, _) in code.match_indices(attribute) {
                report.find(RULE, path, line_of(&code, at), instead);
            }
        }
        for (at, _) in code.match_indices("[expect(") {
            let attribute = &code[at..];
            let attribute = &attribute[..attribute.find(")]").unwrap_or(attribute.len())];
            if !attribute.contains("reason") {
                report.find(RULE, path, line_of(&code, at), "an exemption says its reason");
            }
        }
    }
    let mut roots = 0;
    for folder in tree.crates() {
        for root in ["lib.rs", "main.rs"] {
            let path = format!("crates/{folder}/src/{root}");
            let Some(text) = tree.text(&path) else { continue };
            roots += 1;
            let forbids = code(text).contains("#![forbid(unsafe_code)]");
            if !forbids && !UNSAFE_CRATES.contains(&folder) {
                report.find(RULE, &path, 0, "says #![forbid(unsafe_code)]");
            }
        }
    }
    report.looked("crate roots", roots);
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
    fn hiding_attributes_are_found_in_code_only() {
        assert_eq!(count("a.rs", "#[ignore]\nfn t() {}"), 1);
        assert_eq!(count("a.rs", "#[ignore = \"slow\"]\nfn t() {}"), 1);
        assert_eq!(count("a.rs", "#[allow(dead_code)]\nfn t() {}"), 1);
        assert_eq!(count("a.rs", "#![allow(dead_code)]"), 1);
        assert_eq!(count("a.rs", "#[expect(dead_code)]\nfn t() {}"), 1);
        assert_eq!(count("a.rs", "#[expect(dead_code, reason = \"x\")]\nfn t() {}"), 0);
        assert_eq!(count("a.rs", "// #[ignore]\nlet s = \"#[allow(\";"), 0);
    }

    #[test]
    fn a_safe_crate_forbids_unsafe_code() {
        assert_eq!(count("crates/wire/src/lib.rs", "//! Wire."), 1);
        assert_eq!(count("crates/wire/src/lib.rs", "// #![forbid(unsafe_code)]"), 1);
        assert_eq!(count("crates/wire/src/lib.rs", "#![forbid(unsafe_code)]"), 0);
        assert_eq!(count("crates/io/src/lib.rs", "//! Io."), 0);
        assert_eq!(count("crates/kachel/src/main.rs", "fn main() {}"), 1);
    }
}
