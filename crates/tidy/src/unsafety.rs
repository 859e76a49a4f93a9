//! Only the listed files have unsafe code, and each use has a `SAFETY` comment.
//!
//! Upstream:   Rust files of the tree, and the list of files with unsafe code.
//! Downstream: nothing.
//!
//! Invariants:
//! - I1  The list names exactly the files that hold unsafe code.

use std::collections::BTreeMap;

use crate::attributes::UNSAFE_CRATES;
use crate::source::{code, is_test_file, line_of, words};
use crate::{Report, Tree};

const RULE: &str = "unsafe";

/// The list: each line has a path and a reason; `#` begins a comment.
const LIST: &str = "crates/tidy/unsafe_files.txt";

/// The `SAFETY` comment begins at most this many lines above.
const ARGUMENT_LINES_MAX: usize = 20;

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    let mut listed: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, line) in tree.text(LIST).unwrap_or_default().lines().enumerate() {
        let path = line.split(' ').next().unwrap_or_default();
        if !path.is_empty() && !path.starts_with('#') {
            listed.insert(path, index + 1);
            if line.split(' ').count() < 3 {
                report.find(RULE, LIST, index + 1, "say after the path why it must be unsafe");
            }
        }
    }
    let (mut files, mut places) = (0, 0);
    for (path, text) in tree.ending(".rs") {
        let code = code(text);
        let lines: Vec<usize> = words(&code, "unsafe")
            .filter(|&at| is_place(&code, at))
            .map(|at| line_of(&code, at))
            .collect();
        if lines.is_empty() {
            continue;
        }
        files += 1;
        places += lines.len();
        if listed.remove(path).is_none() {
            report.find(RULE, path, lines[0], "not one of the files that may be unsafe");
        }
        if !in_unsafe_crate(path) && !is_test_file(path) {
            report.find(RULE, path, lines[0], "not in a crate that may be unsafe");
        }
        for line in lines {
            if !is_argued(text, line) {
                report.find(RULE, path, line, "an unsafe place without its SAFETY argument");
            }
        }
    }
    for (path, at) in listed {
        report.find(RULE, LIST, at, format!("{path} holds no unsafe code: drop its entry"));
    }
    report.looked("files with unsafe code", files);
    report.looked("unsafe places", places);
}

fn in_unsafe_crate(path: &str) -> bool {
    UNSAFE_CRATES.iter().any(|name| path.starts_with(&format!("crates/{name}/")))
}

/// Whether the `unsafe` at `at` begins a block, function, impl, trait or attribute, not a type.
fn is_place(code: &str, at: usize) -> bool {
    let rest = code[at + "unsafe".len()..].trim_start();
    // The name of the calling convention may be blank here.
    let behind_extern = |rest: &str| rest.trim_start_matches(['"', ' ', 'C']).to_owned();
    let function = rest.strip_prefix("extern").map_or_else(|| rest.to_owned(), behind_extern);
    if let Some(rest) = function.strip_prefix("fn") {
        return !rest.trim_start().starts_with('(');
    }
    let opens = ["{", "impl", "trait", "extern", "(no_mangle", "(export"];
    opens.iter().any(|open| rest.starts_with(open))
}

/// Whether a comment with `SAFETY` or `# Safety` is on the line or close above it.
fn is_argued(text: &str, line: usize) -> bool {
    let first = line.saturating_sub(ARGUMENT_LINES_MAX);
    text.lines().skip(first).take(line - first).any(|line| {
        let comment = line.find("//").map(|at| &line[at..]).unwrap_or_default();
        comment.contains("SAFETY:") || comment.contains("# Safety")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "crates/io/src/ring.rs";
    const ARGUED: &str = "fn f() {\n    // SAFETY: I1.\n    unsafe { g() }\n}\n";

    fn whats(tree: &Tree) -> Vec<String> {
        let mut report = Report::default();
        check(tree, &mut report);
        report.findings.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn a_listed_and_argued_place_passes() {
        let tree =
            Tree::of(&[(PATH, ARGUED), (LIST, &format!("# Why.\n{PATH} the ring is shared\n"))]);
        assert_eq!(whats(&tree), [""; 0]);
        let tree = tree.with(PATH, "/// # Safety\n/// I1.\npub unsafe fn f(x: unsafe fn()) {}\n");
        assert_eq!(whats(&tree), [""; 0]);
        let tree =
            tree.with("a.rs", "// unsafe { }\n#![forbid(unsafe_code)]\ntype F = unsafe fn();");
        assert_eq!(whats(&tree), [""; 0]);
        let tree = tree.with("a.rs", "type F = unsafe extern \"C\" fn();");
        assert_eq!(whats(&tree), [""; 0]);
    }

    #[test]
    fn an_unlisted_file_an_entry_without_need_and_a_safe_crate_are_found() {
        assert_eq!(
            whats(&Tree::of(&[(PATH, ARGUED)])),
            ["not one of the files that may be unsafe"]
        );
        let listed = Tree::of(&[(LIST, &format!("{PATH} the ring is shared\n"))]);
        assert!(whats(&listed)[0].contains("drop its entry"));
        let path = "crates/wire/src/text.rs";
        let safe = Tree::of(&[(path, ARGUED), (LIST, &format!("{path} it is fast\n"))]);
        assert_eq!(whats(&safe), ["not in a crate that may be unsafe"]);
        let bare = Tree::of(&[(PATH, ARGUED), (LIST, &format!("{PATH}\n"))]);
        assert_eq!(whats(&bare), ["say after the path why it must be unsafe"]);
    }

    #[test]
    fn a_place_without_its_argument_is_found() {
        let list = (LIST, format!("{PATH} the ring is shared\n"));
        for text in [
            "fn f() { unsafe { g() } }\n",
            "unsafe impl Send for X {}\n",
            "unsafe extern \"C\" fn f() {}\n",
            "unsafe extern \"C\" { fn f(); }\n",
            "pub unsafe fn f() {}\n",
            &format!("// SAFETY: far away.\n{}unsafe {{ }}\n", "\n".repeat(20)),
            "let s = \"SAFETY:\";\nunsafe { g() }\n",
        ] {
            let tree = Tree::of(&[(PATH, text), (list.0, &list.1)]);
            assert_eq!(whats(&tree), ["an unsafe place without its SAFETY argument"], "{text}");
        }
    }
}
