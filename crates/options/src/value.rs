//! Reads the value of an option, and applies the class of its row.
//!
//! Upstream:   a row, and the text behind the option.
//! Downstream: [`Given`], which the row's effect takes; reports for the operator.

use crate::partial::Given;
use crate::row::{Class, Takes};
use crate::{EXIT_FAILURE, EXIT_USAGE, HAS_TLS, OptionsError};

/// Why a server that is built without TLS refuses its options.
const WITHOUT_TLS: &str = "this server was built without TLS; connections would not be encrypted";

/// Returns an error for a refused option (I2), and reports an option without effect (I3).
pub(crate) fn classify(
    spelled: &str,
    class: Class,
    reports: &mut Vec<String>,
) -> Result<(), OptionsError> {
    match class {
        Class::NeedsTls if !HAS_TLS => {
            let message = format!("{spelled}: refused: {WITHOUT_TLS}.");
            return Err(OptionsError::new(EXIT_USAGE, message));
        }
        Class::Works | Class::NeedsTls | Class::Own | Class::Answers(_) => {}
        Class::NoMeaning(why) => {
            reports.push(format!("{spelled}: accepted, has no meaning here: {why}"));
        }
        Class::Refused(why) => {
            return Err(OptionsError::new(EXIT_USAGE, format!("{spelled}: refused: {why}.")));
        }
    }
    Ok(())
}

/// Checks a value by its row. A number ends at the first byte that is not a digit, as in memcached;
/// the rest is reported.
pub(crate) fn read<'words>(
    spelled: &'words str,
    value: Option<&'words str>,
    takes: Takes,
    reports: &mut Vec<String>,
) -> Result<Given<'words>, OptionsError> {
    let text = value.unwrap_or("");
    let mut given = Given { spelled, text, integer: 0, real: 0.0 };
    let bad = |why: String| Err(OptionsError::new(EXIT_FAILURE, format!("{spelled}: {why}")));
    match takes {
        // An option of `-o` without a value ignores one that is given, as in memcached.
        Takes::Nothing | Takes::OptionalText(_) => {}
        Takes::Text(name) => {
            if text.is_empty() {
                return bad(format!("the {name} is missing"));
            }
        }
        Takes::Word(words) => {
            if !words.contains(&text) {
                return bad(format!("must be one of {}", words.join(", ")));
            }
        }
        Takes::OptionalInteger(.., otherwise) if value.is_none() => given.integer = otherwise,
        Takes::Integer(_, low, high) | Takes::OptionalInteger(_, low, high, _) => {
            let digits = number_length(text, false);
            let Ok(integer) = text[..digits].parse::<i64>() else {
                return bad(format!("must be a number, {low} to {high}"));
            };
            if integer < low || integer > high {
                return bad(format!("must be {low} to {high}"));
            }
            report_rest(spelled, text, digits, reports);
            given.integer = integer;
        }
        Takes::Real(name, above, high) => {
            let digits = number_length(text, true);
            let Ok(real) = text[..digits].parse::<f64>() else {
                return bad(format!("the {name} is missing"));
            };
            if real <= above || real > high {
                return bad(format!("must be greater than {above} and at most {high}"));
            }
            report_rest(spelled, text, digits, reports);
            given.real = real;
        }
    }
    Ok(given)
}

/// Length of the number at the beginning of `text`, in bytes.
fn number_length(text: &str, fraction: bool) -> usize {
    let sign = usize::from(text.starts_with(['-', '+']));
    let is_part = |byte: &u8| byte.is_ascii_digit() || (fraction && *byte == b'.');
    sign + text.as_bytes()[sign..].iter().take_while(|byte| is_part(byte)).count()
}

fn report_rest(spelled: &str, text: &str, digits: usize, reports: &mut Vec<String>) {
    if digits < text.len() {
        reports.push(format!("{spelled}: read as {}", &text[..digits]));
    }
}
