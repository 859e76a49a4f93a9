//! The names of the folders of engines in a data directory: `engine-0000`, `engine-0001`, ...
//!
//! Upstream:   the directories of `flash` and `rocks`.
//! Downstream: `key` for the most engines.

use crate::key::PARTITIONS;

/// The beginning of a name. The number of the engine has four digits.
const FOLDER: &str = "engine-";

/// The name of an engine's folder.
#[must_use]
pub fn engine_folder(engine: u16) -> String {
    format!("{FOLDER}{engine:04}")
}

/// Whether a folder has the name of an engine's folder.
#[must_use]
pub fn is_engine_folder(name: &str) -> bool {
    let number = name.strip_prefix(FOLDER).and_then(|digits| digits.parse().ok());
    number.is_some_and(|engine| u32::from(engine) < PARTITIONS && engine_folder(engine) == name)
}
