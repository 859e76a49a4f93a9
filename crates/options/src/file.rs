//! Reads options from a file (`--config`).
//!
//! Upstream:   `apply.rs`, before it applies the options of the command line.
//! Downstream: the words that a command line with the same options would have, so that a file is
//!             checked by the same rows.
//!
//! Invariants:
//! - I1  A key is the whole name of an option, or its letter. An unknown key is an error.
//! - I2  Nothing in a file is ignored.

use toml::{Table, Value};

use crate::row::{OptionRow, Takes};
use crate::suboptions::suboptions;
use crate::table::OPTIONS;
use crate::{EXIT_FAILURE, OptionsError};

/// The table with the options of `-o`.
const EXTENDED: &str = "extended";

/// The words for the options in the file at `path`.
///
/// Errors: the file cannot be read, or is not TOML, or has a key that is no option, or a value of a
/// kind that its option does not take.
pub(crate) fn words(path: &str) -> Result<Vec<String>, OptionsError> {
    let text = std::fs::read_to_string(path).map_err(|error| in_file(path, &error))?;
    words_of(&text).map_err(|error| in_file(path, &error))
}

/// An error about the file at `path`.
pub(crate) fn in_file(path: &str, error: &dyn std::fmt::Display) -> OptionsError {
    OptionsError::new(EXIT_FAILURE, format!("{path}: {}", error.to_string().trim_end()))
}

pub(crate) fn words_of(text: &str) -> Result<Vec<String>, String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let mut words = Vec::new();
    for (key, value) in &table {
        match value {
            Value::Table(table) if key == EXTENDED => extended(&mut words, table)?,
            Value::Array(values) => {
                values.iter().try_for_each(|value| option(&mut words, key, value))?;
            }
            value => option(&mut words, key, value)?,
        }
    }
    Ok(words)
}

/// Adds the words for one option.
fn option(words: &mut Vec<String>, key: &str, value: &Value) -> Result<(), String> {
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

/// Adds the words for the options of `-o`.
fn extended(words: &mut Vec<String>, table: &Table) -> Result<(), String> {
    for (key, value) in table {
        let Some(row) = suboptions().find(|row| row.name == key) else {
            return Err(format!("{EXTENDED}.{key}: no such option; `kachel serve -h` lists them"));
        };
        let opposite = format!("no_{key}");
        let suboption = match value {
            Value::Boolean(false) if suboptions().any(|row| row.name == opposite) => opposite,
            Value::Boolean(false) if row.takes == Takes::Nothing => {
                is_off(&format!("{EXTENDED}.{key}"), row.default)?; // I2
                continue;
            }
            Value::Boolean(true) => key.clone(),
            value => format!("{key}={}", plain(&format!("{EXTENDED}.{key}"), value)?),
        };
        words.extend(["-o".to_string(), suboption]);
    }
    Ok(())
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
