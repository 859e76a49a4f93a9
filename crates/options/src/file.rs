//! Reads options from a file (`--config`).
//!
//! Upstream:   `apply.rs`, before it applies the options of the command line.
//! Downstream: the words that a command line with the same options would have, so that a file is
//!             checked by the same rows.
//!
//! Invariants:
//! - I1  A key is the whole name of an option, or its letter. An unknown key is an error.
//! - I2  Nothing in a file is ignored.
//! - I3  A mistake in a file is wrong usage, with the exit code for that: a service manager does
//!   not try again what stays wrong. The error names the file, the line and the key. A file that
//!   may be readable later, because its folder is not mounted yet, is no mistake.

use std::path::Path;

use toml::de::DeTable;
use toml::{Table, Value};

use crate::options_file::{FileOption, OptionsFile};
use crate::row::{OptionRow, Takes};
use crate::suboptions::suboptions;
use crate::table::OPTIONS;
use crate::{EXIT_USAGE, OptionsError};

/// Bytes of the largest file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The table with the options of `-o`.
const EXTENDED: &str = "extended";

impl OptionsFile {
    /// Reads the file at `path`.
    ///
    /// Errors: the file cannot be read, or is not TOML, or has a key that is no option, or a value
    /// of a kind that its option does not take.
    pub(crate) fn read(name: &str) -> Result<Self, OptionsError> {
        Self::parse(name, &text_of(name, Path::new(name))?)
    }

    /// Reads the text of a file that is called `name`.
    ///
    /// Errors: as [`Self::read`].
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self, OptionsError> {
        let options = options_of(text).map_err(|mistake| match mistake {
            Mistake::Text(error) => in_file(name, &error),
            Mistake::Option { line, error } => in_file(&format!("{name}:{line}"), &error),
        });
        // Without a working folder, a later reading fails and says so.
        let path = std::path::absolute(name).unwrap_or_default();
        Ok(Self { name: name.to_string(), path, options: options? })
    }

    /// Reads the file again. Returns the keys whose options have changed, come or gone.
    ///
    /// Errors: as at the start, about the file as it is now.
    pub fn changes(&self) -> Result<Vec<String>, OptionsError> {
        let now = Self::parse(&self.name, &text_of(&self.name, &self.path)?)?;
        let has = |file: &Self, one: &FileOption| {
            file.options.iter().any(|other| (&other.key, &other.words) == (&one.key, &one.words))
        };
        let gone = self.options.iter().filter(|one| !has(&now, one));
        let come = now.options.iter().filter(|one| !has(self, one));
        let mut keys: Vec<String> = gone.chain(come).map(|one| one.key.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }
}

/// The text of the file at `path`.
fn text_of(name: &str, path: &Path) -> Result<String, OptionsError> {
    let bytes = kachel_host::read_regular_file(path, FILE_BYTES_MAX);
    let bytes = bytes.map_err(|error| match kachel_host::may_pass(path, &error) {
        true => OptionsError::passing(format!("{name}: {error}")), // I3
        false => in_file(name, &error),
    })?;
    String::from_utf8(bytes).map_err(|error| in_file(name, &error))
}

/// An error about the file, or about a line of it, at `place`.
pub(crate) fn in_file(place: &str, error: &dyn std::fmt::Display) -> OptionsError {
    OptionsError::new(EXIT_USAGE, format!("{place}: {}", error.to_string().trim_end()))
}

/// A mistake in a text.
enum Mistake {
    /// It is not TOML; the sentence names the line.
    Text(String),
    /// The option on this line.
    Option { line: usize, error: String },
}

fn options_of(text: &str) -> Result<Vec<FileOption>, Mistake> {
    // Editors of other systems put a byte order mark there.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let of_text = |error: toml::de::Error| Mistake::Text(error.to_string());
    let table: Table = text.parse().map_err(of_text)?;
    let places = DeTable::parse(text).map_err(of_text)?;
    let places = places.get_ref();
    let line_of = |places: &DeTable<'_>, key: &str| {
        let place = places.keys().find(|place| place.get_ref() == key);
        let start = place.map_or(0, |place| place.span().start);
        1 + text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count()
    };
    let mut options = Vec::new();
    let mut add = |line, key: String, words: Result<Vec<String>, String>| {
        let words = words.map_err(|error| Mistake::Option { line, error })?;
        options.push(FileOption { line, key, words });
        Ok(())
    };
    for (key, value) in &table {
        match (value, places.get(key.as_str()).and_then(|value| value.get_ref().as_table())) {
            (Value::Table(table), Some(places)) if key == EXTENDED => {
                for (key, value) in table {
                    let (line, words) = (line_of(places, key), extended(key, value));
                    add(line, format!("{EXTENDED}.{key}"), words)?;
                }
            }
            _ => add(line_of(places, key), key.clone(), option(key, value))?,
        }
    }
    Ok(options)
}

/// The words for one key: for each value, if it has several.
fn option(key: &str, value: &Value) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    match value {
        Value::Array(values) => {
            values.iter().try_for_each(|value| one_option(&mut words, key, value))?;
        }
        value => one_option(&mut words, key, value)?,
    }
    Ok(words)
}

/// Adds the words for one option.
fn one_option(words: &mut Vec<String>, key: &str, value: &Value) -> Result<(), String> {
    let has_name = |row: &&OptionRow| {
        let is_letter = row.short.is_some_and(|letter| key.chars().eq([letter]));
        is_letter || !row.long.is_empty() && row.long == key
    };
    let Some(row) = OPTIONS.iter().find(has_name) else {
        return Err(format!("{key}: no such option; `kachel serve -h` lists them")); // I1
    };
    if row.long == "config" {
        return Err(format!("{key}: a file names no other file"));
    }
    if row.long == "check" {
        return Err(format!("{key}: only a command line asks for a check"));
    }
    // By the name that the file uses, so that messages name the key.
    let name = if row.long == key { format!("--{key}") } else { format!("-{key}") };
    match (row.takes, value) {
        (Takes::Nothing, Value::Boolean(false)) => is_off(key, row.default)?, // I2
        (Takes::Nothing, Value::Boolean(true)) => words.push(name),
        (Takes::Nothing, _) => return Err(format!("{key}: must be true or false")),
        // A letter takes no optional value; memcached repeats it: -vv.
        (Takes::OptionalText(_), Value::Integer(times @ 0..=9)) => {
            words.extend((0..*times).map(|_| name.clone()));
        }
        (Takes::OptionalText(_), _) => return Err(format!("{key}: must be 0 to 9")),
        (_, value) => {
            words.push(name);
            words.push(plain(key, value)?);
        }
    }
    Ok(())
}

/// The words for one option of `-o`.
fn extended(key: &str, value: &Value) -> Result<Vec<String>, String> {
    let Some(row) = suboptions().find(|row| row.name == key) else {
        return Err(format!("{EXTENDED}.{key}: no such option; `kachel serve -h` lists them"));
    };
    let opposite = format!("no_{key}");
    let suboption = match value {
        Value::Boolean(false) if suboptions().any(|row| row.name == opposite) => opposite,
        Value::Boolean(false) if row.takes == Takes::Nothing => {
            is_off(&format!("{EXTENDED}.{key}"), row.default)?; // I2
            return Ok(Vec::new());
        }
        Value::Boolean(true) => key.to_string(),
        value => format!("{key}={}", plain(&format!("{EXTENDED}.{key}"), value)?),
    };
    Ok(vec!["-o".to_string(), suboption])
}

/// Checks that an option without a value is off by default, so that `false` changes nothing.
///
/// Errors: it is on, at least under one of the names of the program.
fn is_off(key: &str, default: &str) -> Result<(), String> {
    match default {
        "" | "off" => Ok(()),
        _ => Err(format!("{key}: false does not turn it off (default: {default})")),
    }
}

/// A value as a command line has it.
fn plain(key: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        _ => Err(format!("{key}: must be a text or a number")),
    }
}
