//! The parts of a Cargo.toml that the rules need: name, sections and their keys.
//!
//! Upstream:   Cargo.toml files of the tree.
//! Downstream: `layers`, `documents` and `server`.
//!
//! Invariants:
//! - I1  The reader knows only the form of this repository: one key a line, no multi-line strings.

/// A key of a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The section's name, as between its brackets.
    pub(crate) section: String,
    /// The key up to the first `.` or `=`.
    pub(crate) key: String,
    /// The rest of the line.
    pub(crate) rest: String,
    /// The line, from 1.
    pub(crate) line: usize,
}

/// The entries of a manifest, in order. A section `[dependencies.x]` is an entry `x` of its own.
pub(crate) fn entries(text: &str) -> Vec<Entry> {
    let mut section = String::new();
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let entry = |section: &str, key: &str, rest: &str| Entry {
            section: section.to_owned(),
            key: key.trim().trim_matches('"').to_owned(),
            rest: rest.trim().to_owned(),
            line: index + 1,
        };
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = name.trim_matches(['[', ']']).to_owned();
            if let Some((parent, key)) = section.rsplit_once("dependencies.") {
                found.push(entry(&format!("{parent}dependencies"), key, ""));
            }
        } else if let Some(at) = line.find(['.', '=']) {
            found.push(entry(&section, &line[..at], &line[at..]));
        }
    }
    found
}

/// The strings of the array `key` in `section`, in order.
pub(crate) fn array(text: &str, section: &str, key: &str) -> Vec<String> {
    let Some(start) = text.find(&format!("[{section}]")) else { return Vec::new() };
    let Some(at) = text[start..].find(&format!("{key} = [")) else { return Vec::new() };
    let list = &text[start + at..];
    let list = &list[..list.find(']').unwrap_or(list.len())];
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_keys_and_arrays_are_read() {
        let text = "[workspace]\nmembers = [\n  \"a\",\n  \"b\", # why\n]\n[dependencies]\n\
                    x.workspace = true\ny = \"1\"\n\
                    [target.'cfg(unix)'.dependencies.z]\npath = \"q\"\n";
        assert_eq!(array(text, "workspace", "members"), ["a", "b"]);
        let found: Vec<_> = entries(text).into_iter().map(|e| (e.section, e.key, e.rest)).collect();
        let row = |s: &str, k: &str, r: &str| (s.to_owned(), k.to_owned(), r.to_owned());
        assert!(found.contains(&row("dependencies", "x", ".workspace = true")));
        assert!(found.contains(&row("dependencies", "y", "= \"1\"")));
        assert!(found.contains(&row("target.'cfg(unix)'.dependencies", "z", "")));
    }
}
