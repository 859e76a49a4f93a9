//! Every source file is reached from its crate's root: a file that is not compiled is dead.
//!
//! Upstream:   Rust files of the tree.
//! Downstream: nothing.

use crate::source::{code, words};
use crate::{Report, Tree};

const RULE: &str = "reach";

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    let mut count = 0;
    for (path, _) in tree.ending(".rs") {
        let Some(parents) = parents(path) else { continue };
        count += 1;
        let name = module_name(path);
        let declared = parents
            .iter()
            .filter_map(|parent| tree.text(parent))
            .any(|text| declares(&code(text), name));
        if !declared {
            report.find(RULE, path, 0, format!("no parent says `mod {name};`: nobody compiles it"));
        }
    }
    report.looked("modules", count);
}

/// The files that may declare the module at `path`; `None` for roots and files outside `src`.
fn parents(path: &str) -> Option<Vec<String>> {
    let (member, inside) = path.strip_prefix("crates/")?.split_once("/src/")?;
    let module = inside.strip_suffix("/mod.rs").or_else(|| inside.strip_suffix(".rs"))?;
    if matches!(module, "lib" | "main") || inside.starts_with("bin/") {
        return None;
    }
    let source = format!("crates/{member}/src");
    Some(match module.rsplit_once('/') {
        None => vec![format!("{source}/lib.rs"), format!("{source}/main.rs")],
        Some((folder, _)) => {
            vec![format!("{source}/{folder}/mod.rs"), format!("{source}/{folder}.rs")]
        }
    })
}

fn module_name(path: &str) -> &str {
    let stem = path.strip_suffix("/mod.rs").or_else(|| path.strip_suffix(".rs")).unwrap_or(path);
    stem.rsplit('/').next().unwrap_or(stem)
}

fn declares(code: &str, name: &str) -> bool {
    words(code, "mod").any(|at| {
        let rest = code[at + 3..].trim_start();
        rest.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with(';'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_no_parent_declares_is_found() {
        let tree = Tree::of(&[
            ("crates/a/src/lib.rs", "mod x;\nmod y;\n// mod dead;\nmod tests { }"),
            ("crates/a/src/x.rs", "mod deep;"),
            ("crates/a/src/x/deep.rs", ""),
            ("crates/a/src/y/mod.rs", "pub mod z;"),
            ("crates/a/src/y/z.rs", ""),
            ("crates/a/src/dead.rs", ""),
            ("crates/a/src/y/dead.rs", ""),
            ("crates/a/src/bin/b.rs", ""),
            ("crates/a/tests/t.rs", ""),
        ]);
        let mut report = Report::default();
        check(&tree, &mut report);
        let found: Vec<_> = report.findings.iter().map(|f| f.path.as_str()).collect();
        assert_eq!(found, ["crates/a/src/dead.rs", "crates/a/src/y/dead.rs"]);
    }
}
