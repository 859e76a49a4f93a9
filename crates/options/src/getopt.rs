//! Splits the command line into options and their values, as `getopt_long` does.
//!
//! Upstream:   the arguments after the program's name.
//! Downstream: `apply.rs` applies each row, in order.
//!
//! Supported as in `getopt_long`: bundled flags (`-dvv`), values with or without a space (`-m64`,
//! `-m 64`), long options with `=` or a space, unique prefixes of long names, operands between
//! options, and `--` to end the options. Blanks around a value are ignored (`"-m 8192"`).

use crate::row::{Class, OptionRow, Takes};
use crate::table::OPTIONS;

/// One option or operand of the command line.
#[derive(Clone, Copy)]
pub(crate) enum Found<'words> {
    /// An option, and its value if it has one.
    Option(&'static OptionRow, Form, Option<&'words str>),
    /// An argument that is not an option.
    Operand(&'words str),
}

/// The name by which an option was given. Messages use the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Its letter.
    Short(char),
    /// Its long name, or the beginning of it.
    Long,
}

/// A mistake in the command line, in the words of `getopt_long`.
pub(crate) struct Mistake(pub(crate) String);

/// All options and operands of `words`, in order. Each item is a result of its own, so options
/// before a mistake are still applied.
pub(crate) struct Scan<'words> {
    words: std::slice::Iter<'words, String>,
    /// The rest of a word of bundled short options.
    bundle: &'words str,
    options_ended: bool,
}

impl<'words> Scan<'words> {
    pub(crate) fn new(words: &'words [String]) -> Self {
        Self { words: words.iter(), bundle: "", options_ended: false }
    }

    /// The value that an option must have: the rest of its word, or the next word.
    fn required(&mut self, attached: &'words str) -> Option<&'words str> {
        if attached.is_empty() { self.words.next().map(String::as_str) } else { Some(attached) }
    }

    fn short(&mut self) -> Result<Found<'words>, Mistake> {
        let mut letters = self.bundle.chars();
        let letter = letters.next().unwrap_or_else(|| unreachable!("a bundle is not empty"));
        let rest = letters.as_str();
        self.bundle = rest;
        let Some(row) = OPTIONS.iter().find(|row| row.short == Some(letter)) else {
            self.bundle = "";
            return Err(Mistake(format!("invalid option -- '{letter}'")));
        };
        if !row.takes.needs_value() {
            return Ok(Found::Option(row, Form::Short(letter), None));
        }
        self.bundle = "";
        match self.required(rest) {
            Some(value) => Ok(Found::Option(row, Form::Short(letter), Some(value.trim()))),
            None => Err(Mistake(format!("option requires an argument -- '{letter}'"))),
        }
    }

    fn long(&mut self, word: &'words str) -> Result<Found<'words>, Mistake> {
        let (name, attached) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        let row = find_long(name)?;
        match (row.takes, attached) {
            (Takes::Nothing, Some(_)) => {
                Err(Mistake(format!("option '--{}' doesn't allow an argument", row.long)))
            }
            (takes, None) if takes.needs_value() => match self.words.next() {
                Some(value) => Ok(Found::Option(row, Form::Long, Some(value.trim()))),
                None => Err(Mistake(format!("option '--{}' requires an argument", row.long))),
            },
            _ => Ok(Found::Option(row, Form::Long, attached.map(str::trim))),
        }
    }
}

impl<'words> Iterator for Scan<'words> {
    type Item = Result<Found<'words>, Mistake>;

    fn next(&mut self) -> Option<Self::Item> {
        if !self.bundle.is_empty() {
            return Some(self.short());
        }
        let word = self.words.next()?.as_str();
        if self.options_ended || word == "-" || !word.starts_with('-') {
            return Some(Ok(Found::Operand(word)));
        }
        if word == "--" {
            self.options_ended = true;
            return self.next();
        }
        if let Some(long) = word.strip_prefix("--") {
            return Some(self.long(long));
        }
        self.bundle = &word[1..];
        Some(self.short())
    }
}

/// The row whose long name is `name`, or the only row whose long name begins with `name`. A prefix
/// that is unique among memcached's options selects that option, also if one of Kachel's own
/// options begins with it.
fn find_long(name: &str) -> Result<&'static OptionRow, Mistake> {
    if let Some(row) = OPTIONS.iter().find(|row| !row.long.is_empty() && row.long == name) {
        return Ok(row);
    }
    let is_theirs = |row: &&OptionRow| !matches!(row.class, Class::Own);
    let theirs = OPTIONS.iter().filter(is_theirs);
    let mut theirs = theirs.filter(|row| !name.is_empty() && row.long.starts_with(name));
    if let (Some(row), None) = (theirs.next(), theirs.next()) {
        return Ok(row);
    }
    let mut rows = OPTIONS.iter().filter(|row| !name.is_empty() && row.long.starts_with(name));
    match (rows.next(), rows.next()) {
        (None, _) => Err(Mistake(format!("unrecognized option '--{name}'"))),
        (Some(row), None) => Ok(row),
        (Some(_), Some(_)) => {
            let candidates: Vec<String> = OPTIONS
                .iter()
                .filter(|row| row.long.starts_with(name))
                .map(|row| format!("'--{}'", row.long))
                .collect();
            Err(Mistake(format!(
                "option '--{name}' is ambiguous; possibilities: {}",
                candidates.join(" ")
            )))
        }
    }
}
