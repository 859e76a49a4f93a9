//! Applies the options of a command line, one after another.
//!
//! Upstream:   `getopt.rs` finds rows and values.
//! Downstream: [`ServeOptions`], checked, or a text to print.

use crate::file;
use crate::getopt::{Form, Found, Mistake, Scan};
use crate::options_file::OptionsFile;
use crate::partial::PartialOptions;
use crate::row::{Answer, Class};
use crate::value::{classify, read};
use crate::{CalledAs, Command, EXIT_FAILURE, EXIT_USAGE, OptionsError, ServeOptions, text};

/// Reads the arguments of `kachel serve`, or of `memcached`. The options of a file come before
/// them, so an option of the command line counts more.
pub(crate) fn serve(words: &[String], called_as: CalledAs) -> Result<Command, OptionsError> {
    let read = config_of(words).map(OptionsFile::read).transpose();
    let file =
        read.map_err(|error| if asks_for_check(words) { error.into_usage() } else { error })?;
    serve_with(file, words, called_as)
}

/// Applies the options of a file, if there is one, then those of the command line.
pub(crate) fn serve_with(
    file: Option<OptionsFile>,
    words: &[String],
    called_as: CalledAs,
) -> Result<Command, OptionsError> {
    let mut partial = PartialOptions {
        serve: ServeOptions::defaults(called_as),
        protocol: None,
        port: None,
        udp_port: 0,
        listen: Vec::new(),
        unix_path: None,
        unix_mode: 0o700,
        has_slab_chunk_max: false,
    };
    for option in file.iter().flat_map(|file| &file.options) {
        let place = || format!("{}:{}", file.as_ref().map_or("", |file| &file.name), option.line);
        let answered = apply(&mut partial, &option.words)
            .map_err(|error| file::in_file(&place(), &format_args!("{}: {error}", option.key)))?;
        if let Some(answer) = answered {
            return Ok(answer);
        }
    }
    // Listeners of the command line replace those of the file.
    let of_file = std::mem::take(&mut partial.listen);
    if let Some(answer) = apply(&mut partial, words)? {
        return Ok(answer);
    }
    if partial.listen.is_empty() {
        partial.listen = of_file;
    }
    let has_file = file.is_some();
    partial.serve.options_file = file;
    let finished = partial.finish().map(|options| Command::Serve(Box::new(options)));
    // Options that exclude each other may all be those of the file.
    finished.map_err(|error| match has_file {
        true => OptionsError::new(EXIT_USAGE, error.message),
        false => error,
    })
}

/// The options whose bad values end memcached as bad usage does. All others end it as a failure.
const ENDS_AS_USAGE: [&str; 3] = ["port", "udp-port", "protocol"];

/// The file of `--config`, if it comes before an option that only asks for a text.
fn config_of(words: &[String]) -> Option<&str> {
    let rows = Scan::new(words).map_while(Result::ok).filter_map(|found| match found {
        Found::Option(row, _, value) => Some((row, value)),
        Found::Operand(_) => None,
    });
    let mut rows = rows.take_while(|(row, _)| !matches!(row.class, Class::Answers(_)));
    rows.find(|(row, _)| row.long == "config").and_then(|(_, value)| value)
}

/// Whether a command line has `--check`, for which every error is wrong usage.
fn asks_for_check(words: &[String]) -> bool {
    let mut options = Scan::new(words).map_while(Result::ok);
    options.any(|found| matches!(found, Found::Option(row, ..) if row.long == "check"))
}

/// Applies options in order. Returns the text that one of them asks for.
fn apply(partial: &mut PartialOptions, words: &[String]) -> Result<Option<Command>, OptionsError> {
    let called_as = partial.serve.called_as;
    for found in Scan::new(words) {
        match found.map_err(|mistake| unknown(&mistake, called_as))? {
            Found::Option(row, form, value) => {
                let spelled = match (form, value) {
                    (Form::Short(letter), None) => format!("-{letter}"),
                    (Form::Short(letter), Some(value)) => format!("-{letter} {value}"),
                    (Form::Long, None) => format!("--{}", row.long),
                    (Form::Long, Some(value)) => format!("--{}={value}", row.long),
                };
                if let Class::Answers(text) = row.class {
                    return Ok(Some(answer(text, called_as)));
                }
                let given = read(&spelled, value, row.takes, &mut partial.serve.reports);
                let given = given.map_err(|error| match ENDS_AS_USAGE.contains(&row.long) {
                    true => OptionsError::new(EXIT_USAGE, error.message),
                    false => error,
                })?;
                classify(&spelled, row.class, &mut partial.serve.reports)?;
                (row.effect)(partial, given)?;
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
    Ok(None)
}

/// The refusal of a mistake: under the name memcached, the two lines that memcached prints, and a
/// hint.
fn unknown(Mistake(what): &Mistake, called_as: CalledAs) -> OptionsError {
    match called_as {
        CalledAs::Memcached => OptionsError::new(
            EXIT_FAILURE,
            format!("memcached: {what}\nIllegal argument \"?\"\n(-h lists the options)"),
        ),
        CalledAs::Kachel => {
            OptionsError::new(EXIT_USAGE, format!("kachel serve: {what}; -h lists the options."))
        }
    }
}

/// The text that an option asks for.
fn answer(answer: Answer, called_as: CalledAs) -> Command {
    match answer {
        Answer::Help => Command::Help(text::help(called_as)),
        Answer::Version => Command::Version(text::version(called_as)),
        Answer::License => Command::License(text::license(called_as)),
    }
}
