//! Applies the options of a command line, one after another.
//!
//! Upstream:   `getopt.rs` finds rows and values.
//! Downstream: [`ServeOptions`], checked, or a text to print.

use crate::getopt::{Found, Scan};
use crate::partial::PartialOptions;
use crate::row::{Answer, Class};
use crate::value::{classify, read};
use crate::{CalledAs, Command, EXIT_USAGE, OptionsError, ServeOptions, text};

/// Reads the arguments of `kachel serve`, or of `memcached`.
pub(crate) fn serve(words: &[String], called_as: CalledAs) -> Result<Command, OptionsError> {
    let mut partial = PartialOptions {
        serve: ServeOptions::defaults(called_as),
        port: 11211,
        listen: Vec::new(),
        unix_path: None,
        unix_mode: 0o700,
    };
    for found in Scan::new(words) {
        match found? {
            Found::Option(row, value) => {
                let spelled = match (row.short, value) {
                    (Some(letter), None) => format!("-{letter}"),
                    (Some(letter), Some(value)) => format!("-{letter} {value}"),
                    (None, None) => format!("--{}", row.long),
                    (None, Some(value)) => format!("--{}={value}", row.long),
                };
                if let Class::Answers(text) = row.class {
                    return Ok(answer(text, called_as));
                }
                let given = read(&spelled, value, row.takes, &mut partial.serve.reports)?;
                classify(&spelled, row.class, &mut partial.serve.reports)?;
                (row.effect)(&mut partial, given)?;
            }
            // memcached ignores such a word. For `kachel serve` it is an error, because a dash is
            // probably missing.
            Found::Operand(word) if called_as == CalledAs::Memcached => {
                partial.serve.reports.push(format!("{word}: not an option, ignored"));
            }
            Found::Operand(word) => {
                let message =
                    format!("kachel serve: {word} is not an option; -h lists the options.");
                return Err(OptionsError::new(EXIT_USAGE, message));
            }
        }
    }
    partial.finish().map(|options| Command::Serve(Box::new(options)))
}

/// The text that an option asks for.
fn answer(answer: Answer, called_as: CalledAs) -> Command {
    match answer {
        Answer::Help => Command::Help(text::help(called_as)),
        Answer::Version => Command::Version(text::version(called_as)),
        Answer::License => Command::License(text::license(called_as)),
    }
}
