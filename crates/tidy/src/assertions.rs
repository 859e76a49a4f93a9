//! How many assertions each crate has for its functions.
//!
//! Upstream:   Rust files of the tree, and the least ratio of each crate.
//! Downstream: nothing.
//!
//! The ratio is assertions per function with a branch or a loop, in hundredths, rounded down;
//! tests count on neither side.
//!
//! Invariants:
//! - I1  A crate below its line fails. A crate well above its line is reported, so that a
//!   maintainer raises the line.

use std::collections::BTreeMap;

use crate::ratchet::numbers;
use crate::source::{functions, outside_tests, words};
use crate::{Report, Tree};

const RULE: &str = "assertions";
/// The list: `crate hundredths` a line, `#` begins a comment.
const LIST: &str = "crates/tidy/assertions.txt";
/// A crate this many hundredths above its line is reported. The number is a guess: a smaller one
/// would report crates after most changes.
const TOLD_ABOVE: usize = 5;

/// Macros that assert. `expect` is a method and counted apart.
const MACROS: [&str; 7] = [
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "unreachable",
];

/// Words that only occur in a body with a branch or a loop. `else` covers `let .. else`.
const BRANCHES: [&str; 6] = ["if", "match", "for", "while", "loop", "else"];

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    let mut lines = numbers(tree, LIST, RULE, report);
    report.assertions = count(tree);
    let mut judged = 0;
    for (name, assertions, branching) in report.assertions.clone() {
        let Some(ratio) = (100 * assertions).checked_div(branching) else { continue };
        judged += 1;
        let Some((at, least)) = lines.remove(&name) else {
            report.find(RULE, LIST, 0, format!("{name} has no line: write `{name} {ratio}`"));
            continue;
        };
        if ratio < least {
            let what = format!(
                "{name} fell to {ratio}, {least} at least ({assertions} assertions, {branching} \
                 functions with a branch or a loop): assert what the new code takes for granted"
            );
            report.find(RULE, LIST, at, what);
        } else if ratio >= least + TOLD_ABOVE {
            report.warn(RULE, LIST, at, format!("{name} rose to {ratio}: raise its line"));
        }
    }
    for (name, (at, _)) in lines {
        let what = format!("{name} has no function with a branch: drop its line");
        report.find(RULE, LIST, at, what);
    }
    report.looked("crates with an assertion ratio", judged);
}

/// By crate: assertions, and functions with a branch or a loop.
fn count(tree: &Tree) -> Vec<(String, usize, usize)> {
    let mut crates = BTreeMap::<String, (usize, usize)>::new();
    for (folder, path, code) in outside_tests(tree) {
        let sum = crates.entry(folder.to_owned()).or_default();
        sum.0 += macros(&code) + expectations(&code, tree.text(path).unwrap_or_default());
        sum.1 += functions(&code).iter().filter(|f| branches(&code[f.range.clone()])).count();
    }
    crates.into_iter().map(|(name, (asserts, fns))| (name, asserts, fns)).collect()
}

fn macros(code: &str) -> usize {
    let ends = MACROS.iter().flat_map(|name| words(code, name).map(move |at| at + name.len()));
    ends.filter(|&end| code[end..].starts_with('!')).count()
}

/// Calls of `expect` with a literal. `text` still has the literals that `code` has as blanks.
fn expectations(code: &str, text: &str) -> usize {
    let calls = words(code, "expect").filter(|&at| code[..at].ends_with('.'));
    calls
        .filter_map(|at| text.get(at..)?.strip_prefix("expect(")?.trim_start().chars().next())
        .filter(|&first| first == '"')
        .count()
}

/// Whether the body of the function, which begins at its `fn`, holds a branch or a loop.
fn branches(function: &str) -> bool {
    let body = function.find('{').map_or("", |at| &function[at..]);
    let kept = |at: usize, word: &str| !body[at + word.len()..].starts_with('<');
    BRANCHES.iter().any(|word| words(body, word).any(|at| kept(at, word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "crates/a/src/lib.rs";

    /// One assertion of each kind in six functions, of which five have a branch or a loop.
    const TEXT: &str = "fn a() { assert!(x); if y {} }\nfn b() { debug_assert_eq!(a, b); for x in \
                        y {} }\nfn c() { let Some(x) = y else { unreachable!(\"I1\") }; }\nfn d() \
                        { x.expect(\"I1\"); match x {} }\nfn e() { while x {} loop {} }\nfn f<T: \
                        for<'a> X<'a>>() { g::<dyn for<'a> X<'a>>(); x.expect(y); }\n";

    fn report(tree: &Tree) -> Report {
        let mut report = Report::default();
        check(tree, &mut report);
        report
    }

    fn whats(tree: &Tree) -> Vec<String> {
        report(tree).findings.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn assertions_and_branches_are_counted_outside_tests() {
        let tests = "#[cfg(test)]\nmod tests { fn t() { assert!(y); if x {} } }";
        let text = format!("{TEXT}// assert!(x)\n#[expect(dead_code, reason = \"x\")]\n{tests}");
        let tree = Tree::of(&[(FILE, &text), ("crates/a/tests/b.rs", &text)]);
        assert_eq!(count(&tree), [("a".to_owned(), 4, 5)]);
    }

    #[test]
    fn a_crate_at_its_line_passes_and_one_below_fails() {
        let tree = Tree::of(&[(FILE, TEXT), (LIST, "# Why.\na 80\n")]);
        assert_eq!(whats(&tree), [""; 0]);
        let more = format!("{TEXT}fn g() {{ if x {{}} }}\n");
        let found = whats(&tree.clone().with(FILE, &more));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("a fell to 66, 80 at least (4 assertions, 6 functions"));
        let straight = format!("{TEXT}fn g() {{ x(); }}\n");
        assert_eq!(whats(&tree.with(FILE, &straight)), [""; 0]);
    }

    #[test]
    fn a_crate_well_above_its_line_is_told() {
        for (line, told) in [("a 76", 0), ("a 75", 1)] {
            let report = report(&Tree::of(&[(FILE, TEXT), (LIST, line)]));
            assert_eq!((report.findings.len(), report.warnings.len()), (0, told), "{line}");
        }
    }

    #[test]
    fn a_crate_without_a_line_and_a_line_without_a_crate_fail() {
        let found = whats(&Tree::of(&[(FILE, TEXT), (LIST, "b 1\n")]));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("write `a 80`") && found[1].contains("b has no function"));
    }
}
