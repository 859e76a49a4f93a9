//! `kachel-lab report`: the figures of experiments as one HTML file.
//!
//! Upstream:   the command line, and the folders that `kachel-lab run` writes.
//! Downstream: an HTML file, which needs nothing beside it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser};

mod cases;
mod figure;
mod figures;
mod grid;
mod page;
mod panel;
mod published;

use crate::experiment::row::{self, Row};
use crate::experiment::{Experiment, FILE};
use crate::run::conditions::Conditions;

const HELP: &str = "\
The file shows the verdicts, the conditions, and each figure with its table. It needs no network, can be
enlarged on a screen, printed, and read without colors. Several runs are shown one after the other.

Examples:
  kachel-lab report bench-out/capacity
  kachel-lab report bench-out/capacity bench-out/cores --out both.html";

/// The options of `kachel-lab report`.
#[derive(Debug, Parser)]
#[command(
    name = "kachel-lab report",
    bin_name = "kachel-lab report",
    about = "Draws the results of experiments.",
    after_help = HELP
)]
struct Options {
    /// Folders of runs.
    #[arg(value_name = "DIR", required = true)]
    folders: Vec<PathBuf>,
    /// The HTML file; report.html in the first folder without this option.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// A run as its folder has it.
struct RunData {
    folder: PathBuf,
    experiment: Experiment,
    conditions: Conditions,
    /// The file of the conditions.
    raw_conditions: String,
    rows: Vec<Row>,
    /// The lines of the raw data.
    lines: String,
}

impl RunData {
    fn read(folder: &Path) -> Result<Self, String> {
        let (rows, lines) = row::read(folder)?;
        if rows.is_empty() {
            return Err(format!("{}: no step is measured yet", folder.display()));
        }
        let (conditions, raw_conditions) = Conditions::read(folder)?;
        let mut experiment = Experiment::read(&folder.join(FILE))?;
        let named = |error: String| format!("{}: {error}", folder.join(FILE).display());
        experiment.select(&conditions.selection).map_err(named)?;
        Ok(Self { folder: folder.to_owned(), experiment, conditions, raw_conditions, rows, lines })
    }
}

/// Runs `kachel-lab report` with the arguments that follow it.
pub(crate) fn run(words: impl Iterator<Item = OsString>) -> ExitCode {
    crate::with_options(command_line(), words, |options: &Options| {
        let runs = options.folders.iter().map(|folder| RunData::read(folder));
        let runs = runs.collect::<Result<Vec<RunData>, String>>()?;
        let path = options.out.clone().unwrap_or_else(|| options.folders[0].join("report.html"));
        let out = options.out.iter().flat_map(|out| ["--out".into(), out.display().to_string()]);
        let folders = options.folders.iter().map(|folder| folder.display().to_string());
        let words = folders.chain(out).map(|word| format!(" {}", page::quoted(&word)));
        let command = format!("kachel-lab report{}", words.collect::<String>());
        let written = kachel_host::write_whole(&path, &page::page(&runs, &command));
        written.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(format!("{}\n", path.display()))
    })
}

/// The options of `kachel-lab report`.
pub(crate) fn command_line() -> clap::Command {
    Options::command()
}

#[cfg(test)]
mod tests;
