//! A part of Rust's lexical grammar: it finds comments, strings and functions in a text.
//!
//! Upstream:   rules that check Rust files.
//! Downstream: nothing.
//!
//! Invariants:
//! - I1  The code of a text has the text's length and its line ends. Comments, strings and
//!   character literals are replaced by spaces.
//! - I2  No input makes these functions panic or loop forever.

use crate::Tree;

/// A function with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// Its name.
    pub(crate) name: String,
    /// The line with `fn`, from 1.
    pub(crate) line: usize,
    /// Lines from `fn` to the closing brace, both included.
    pub(crate) lines: usize,
    /// Bytes of the code from `fn` to past the closing brace.
    pub(crate) range: std::ops::Range<usize>,
}

/// The code of `text`: comments and literals blanked (I1).
pub(crate) fn code(text: &str) -> String {
    let input = text.as_bytes();
    let mut output = input.to_vec();
    let mut at = 0;
    while at < input.len() {
        let end = literal_end(input, at);
        if end == at {
            at += 1;
            continue;
        }
        for byte in &mut output[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    // Blanking replaces whole characters by ASCII, so the rest is still UTF-8.
    String::from_utf8(output).unwrap_or_default()
}

/// The end of the comment or literal that begins at `at`; `at` itself if none begins there.
fn literal_end(input: &[u8], at: usize) -> usize {
    let rest = &input[at..];
    let in_word = at > 0 && is_word(input[at - 1]);
    match rest {
        [b'/', b'/', ..] => at + rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => at + block_comment_bytes(rest),
        [b'"', ..] => at + quoted_bytes(rest),
        [b'r', b'"' | b'#', ..] if !in_word => at + raw_bytes(rest, 1),
        [b'b' | b'c', b'r', b'"' | b'#', ..] if !in_word => at + raw_bytes(rest, 2),
        [b'\'', ..] => at + character_bytes(rest),
        _ => at,
    }
}

fn block_comment_bytes(rest: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0usize);
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => (at, depth) = (at + 2, depth + 1),
            [b'*', b'/', ..] => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn quoted_bytes(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Bytes of a raw string whose hashes begin at `prefix`; 0 when it is a raw identifier.
fn raw_bytes(rest: &[u8], prefix: usize) -> usize {
    let hashes = rest[prefix..].iter().take_while(|&&b| b == b'#').count();
    if rest.get(prefix + hashes) != Some(&b'"') {
        return 0;
    }
    let mut end = vec![b'"'];
    end.resize(1 + hashes, b'#');
    let body = prefix + hashes + 1;
    let found = rest[body..].windows(end.len()).position(|window| window == end);
    found.map_or(rest.len(), |at| body + at + end.len())
}

/// Bytes of a character literal; 0 when the quote begins a lifetime or label.
fn character_bytes(rest: &[u8]) -> usize {
    if rest.get(1) == Some(&b'\\') {
        let close = rest.iter().skip(3).position(|&b| b == b'\'');
        return close.map_or(rest.len(), |at| at + 4);
    }
    // One character of up to four bytes, then the closing quote.
    let width = match rest.get(1) {
        None => return 0,
        Some(0..=0x7f) => 1,
        Some(0x80..=0xdf) => 2,
        Some(0xe0..=0xef) => 3,
        Some(0xf0..) => 4,
    };
    if rest.get(1 + width) == Some(&b'\'') { width + 2 } else { 0 }
}

/// Whether `byte` may stand in an identifier.
pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The byte offsets of the word `word` in `code`.
pub(crate) fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = at.checked_sub(1).is_some_and(|i| is_word(bytes[i]));
        let after = bytes.get(at + word.len()).is_some_and(|&b| is_word(b));
        !before && !after
    })
}

/// The line, from 1, of byte `at`.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at].iter().filter(|&&b| b == b'\n').count()
}

/// The functions with bodies in `code`, nested ones too, in order.
pub(crate) fn functions(code: &str) -> Vec<Function> {
    let bytes = code.as_bytes();
    let mut found = Vec::new();
    for at in words(code, "fn") {
        let name: String = code[at + 2..]
            .trim_start()
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        if name.is_empty() {
            continue;
        }
        let Some(end) = body_end(bytes, at) else { continue };
        let line = line_of(code, at);
        let lines = line_of(code, end - 1) - line + 1;
        found.push(Function { name, line, lines, range: at..end });
    }
    found
}

/// The offset behind the closing brace of the function at `at`; `None` if it has no body.
fn body_end(bytes: &[u8], at: usize) -> Option<usize> {
    let mut brackets = 0i32;
    let mut braces = 0i32;
    for (index, &byte) in bytes.iter().enumerate().skip(at) {
        match byte {
            b'(' | b'[' => brackets += 1,
            b')' | b']' => brackets -= 1,
            b';' if brackets == 0 && braces == 0 => return None,
            b'{' => braces += 1,
            b'}' => {
                braces -= 1;
                if braces == 0 && brackets == 0 {
                    return Some(index + 1);
                }
            }
            _ => {}
        }
        if braces < 0 || brackets < 0 {
            return None;
        }
    }
    None
}

/// Whether the file holds only tests, benches or examples.
pub(crate) fn is_test_file(path: &str) -> bool {
    let folder = |name: &str| path.contains(&format!("/{name}/"));
    path.starts_with("tests/")
        || folder("tests")
        || folder("benches")
        || folder("examples")
        || path.ends_with("/tests.rs")
}

/// Whether the file is a model that only loom builds.
fn is_model_file(path: &str) -> bool {
    ["/model.rs", "/models.rs", "_model.rs"].iter().any(|ending| path.ends_with(ending))
}

/// Rust files under `crates/` without tests and models: the crate, the path, and the code.
pub(crate) fn outside_tests(tree: &Tree) -> impl Iterator<Item = (&str, &str, String)> {
    tree.ending(".rs").filter_map(|(path, text)| {
        let (folder, _) = path.strip_prefix("crates/")?.split_once('/')?;
        Some((folder, path, code_outside_tests(path, text)?))
    })
}

/// The code of the file without its tests; `None` if the whole file is a test or a model.
pub(crate) fn code_outside_tests(path: &str, text: &str) -> Option<String> {
    let apart = is_test_file(path) || is_model_file(path);
    (!apart).then(|| without_test_modules(code(text)))
}

/// The code with blanks in place of modules under `cfg(test)` or `cfg(all(test, ..))`.
fn without_test_modules(mut code: String) -> String {
    let mut from = 0;
    while let Some(at) = code[from..].find("#[cfg(").map(|at| from + at) {
        from = at + "#[cfg(".len();
        if !code[from..].starts_with("test)") && !code[from..].starts_with("all(test,") {
            continue;
        }
        let Some(item) = code[at..].find("]\n").map(|end| at + end + 2) else { break };
        if !code[item..].trim_start().starts_with("mod ") {
            continue;
        }
        if let Some(end) = body_end(code.as_bytes(), item) {
            let blank: String =
                code[at..end].chars().map(|c| if c == '\n' { c } else { ' ' }).collect();
            // I1: spaces make up for characters of several bytes.
            let lost = end - at - blank.len();
            code.replace_range(at..end, &(blank + &" ".repeat(lost)));
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_code_is_kept() {
        let rows = [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("x \" y") g"#, r#"f(        ) g"#),
            ("r#\"a\"b\"# c", "          c"),
            ("br\"\\\" c", "       c"),
            ("'a' 'b '\\'' <'c>", "    'b      <'c>"),
            ("r#fn x", "r#fn x"),
            ("\"\u{e9}\n\" z", "   \n  z"),
            ("x / y * z", "x / y * z"),
            ("\"open", "     "),
            ("'\\", "  "),
        ];
        for (text, wanted) in rows {
            let blanked = code(text);
            assert_eq!(blanked.len(), text.len(), "I1: {text}");
            let spaced = |c: &str| c.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(spaced(&blanked), spaced(wanted), "{text}");
        }
    }

    #[test]
    fn functions_are_found_with_their_lines() {
        let text = "trait T { fn no_body(&self) -> [u8; 2]; }\nfn a<F: fn(u8)>() {\n}\nimpl X {\n  \
                    pub fn b(\n  x: u8,\n) { if x { y } }\n}\n";
        let found = functions(&code(text));
        let found: Vec<_> = found.iter().map(|f| (f.name.as_str(), f.line, f.lines)).collect();
        assert_eq!(found, [("a", 2, 2), ("b", 5, 3)]);
    }

    #[test]
    fn words_stand_alone() {
        assert_eq!(words("fn xfn fn_ fn", "fn").collect::<Vec<_>>(), [0, 11]);
    }

    #[test]
    fn test_modules_and_models_are_left_out_and_what_follows_them_is_kept() {
        let text = "#[cfg(test)]\nmod tests;\nfn a() {}\n#[cfg(all(test, not(loom)))]\nmod t { \
                    fn b() { {} } }\nfn c() {}\n#[cfg(loom)]\nmod d {}\n#[cfg(test)]\nmod open {";
        let code = without_test_modules(text.to_owned());
        assert_eq!(code.len(), text.len());
        let names: Vec<_> = functions(&code).into_iter().map(|f| f.name).collect();
        assert_eq!(names, ["a", "c"]);
        assert!(code.contains("mod tests;") && code.contains("mod d {}"), "{code}");
        let paths = ["src/a.rs", "src/tests.rs", "src/models.rs", "src/b_model.rs", "tests/a.rs"];
        let paths = paths.map(|path| format!("crates/x/{path}"));
        let tree = Tree::of(&paths.each_ref().map(|path| (path.as_str(), "")));
        let kept: Vec<_> = outside_tests(&tree).map(|(folder, path, _)| (folder, path)).collect();
        assert_eq!(kept, [("x", "crates/x/src/a.rs")]);
    }
}
