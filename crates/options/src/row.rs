//! The row of an option: its names, the values it takes, its class and its effect.
//!
//! Upstream:   nothing; it defines types.
//! Downstream: `suboptions.rs` and `table.rs` list the rows, `value.rs` reads values by them.

use crate::OptionsError;
use crate::partial::{Given, PartialOptions};

/// What an option takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Takes {
    /// The option takes no value.
    Nothing,
    /// Any text, called `.0` in help.
    Text(&'static str),
    /// Optional text; a long option takes it only after `=`.
    OptionalText(&'static str),
    /// A whole number from `.1` to `.2`, called `.0` in help.
    Integer(&'static str, i64, i64),
    /// As `Integer`; the value is `.3` if it is omitted.
    OptionalInteger(&'static str, i64, i64, i64),
    /// A number greater than `.1` and at most `.2`, called `.0` in help.
    Real(&'static str, f64, f64),
    /// One of these words.
    Word(&'static [&'static str]),
}

impl Takes {
    /// Whether an option of this kind is an error without a value.
    pub(crate) const fn needs_value(self) -> bool {
        !matches!(self, Self::Nothing | Self::OptionalText(_) | Self::OptionalInteger(..))
    }

    /// What follows a long name in help, `=` included; empty for none.
    pub(crate) fn suffix(self) -> String {
        match self {
            Self::Nothing => String::new(),
            Self::OptionalText(name) | Self::OptionalInteger(name, ..) => format!("[={name}]"),
            Self::Text(name) | Self::Integer(name, ..) | Self::Real(name, ..) => {
                format!("=<{name}>")
            }
            Self::Word(words) => format!("=<{}>", words.join("|")),
        }
    }
}

/// How Kachel treats an option.
#[derive(Clone, Copy)]
pub(crate) enum Class {
    /// It works as in memcached, except for differences that its help names.
    Works,
    /// It works as in memcached in a server that is built with TLS. Any other server refuses it
    /// (I2).
    NeedsTls,
    /// An option of Kachel's own.
    Own,
    /// It is checked and reported by `stats settings`, and has no effect; the text gives the reason
    /// (I3).
    NoMeaning(&'static str),
    /// It is an error; the sentence gives the reason (I2).
    Refused(&'static str),
    /// The text is printed, and no server is started.
    Answers(Answer),
}

/// A text that an option asks for.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    /// The options.
    Help,
    /// The version.
    Version,
    /// The licence.
    License,
}

/// The function that applies a row.
pub(crate) type Effect = fn(&mut PartialOptions, Given<'_>) -> Result<(), OptionsError>;

/// An option of the command line.
pub(crate) struct OptionRow {
    /// The letter after one dash.
    pub(crate) short: Option<char>,
    /// The name after two dashes; empty for none.
    pub(crate) long: &'static str,
    pub(crate) takes: Takes,
    /// As help prints it; empty if there is none.
    pub(crate) default: &'static str,
    pub(crate) class: Class,
    /// One line.
    pub(crate) help: &'static str,
    pub(crate) effect: Effect,
}

/// A word of `-o`.
pub(crate) struct SuboptionRow {
    pub(crate) name: &'static str,
    pub(crate) takes: Takes,
    pub(crate) default: &'static str,
    pub(crate) class: Class,
    pub(crate) help: &'static str,
    pub(crate) effect: Effect,
}

/// The effect of rows that are refused or answered before any effect.
pub(crate) const fn nothing(_: &mut PartialOptions, _: Given<'_>) -> Result<(), OptionsError> {
    Ok(())
}
