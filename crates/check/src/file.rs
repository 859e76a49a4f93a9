//! Histories as text files, which this judge and an independent judge (Porcupine) can read.
//!
//! Upstream:   tests, which write their histories with `write_history`.
//! Downstream: `read_history`; `tests/porcupine/judge.go` at the root, which reads the same
//!             lines.
//!
//! ```text
//! kachel-history 1 store cas          mode (`cache` or `store`), tokens (`cas` or `nocas`)
//! # a comment
//! 3 <TAB> 120 <TAB> 180 <TAB> 7 <TAB> 8 <TAB> "get k\r\n" <TAB> "END\r\n"
//! |       |         |         |       |       |                 |
//! client  invoked   returned  first   last    request           reply
//!                   - never   second  - none  of one key        ? not known, "" withheld
//! ```
//!
//! Request and reply are the bytes of the protocol in double quotes. Printable ASCII stands for
//! itself, except `\"` and `\\`. All other bytes are written as `\r`, `\n`, `\t` or `\xNN`.
//!
//! Invariants:
//! - I1  A history that is written and read back is the same history.

use std::fmt::{self, Write as _};

use crate::{Entry, History, Mode, NEVER, Operation, Outcome, Rules, Window};

const MAGIC: &str = "kachel-history 1";

/// Why a text is not a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    /// The number of the line, counted from 1.
    pub line: usize,
    /// What the line should contain.
    pub expected: &'static str,
}

impl fmt::Display for FileError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {}: expected {}", self.line, self.expected)
    }
}

impl std::error::Error for FileError {}

/// Formats a history and its rules as text. The text does not contain the rules `item_bytes_max`,
/// `memory_may_be_short` and `unix_s`.
pub fn write_history(history: &History, rules: &Rules) -> String {
    let mode = match rules.mode {
        Mode::Cache => "cache",
        Mode::Store => "store",
    };
    let mut text = format!("{MAGIC} {mode} {}\n", if rules.cas { "cas" } else { "nocas" });
    for Entry { client, operation, outcome, invoked, returned, window } in &history.entries {
        let returned = if *returned == NEVER { "-".to_owned() } else { returned.to_string() };
        let latest = match window.latest_s {
            u32::MAX => "-".to_owned(),
            latest => latest.to_string(),
        };
        let request = quoted(operation.wire());
        let reply = match outcome {
            Outcome::Unknown => "?".to_owned(),
            known => quoted(&known.word(operation.key())),
        };
        let earliest = window.earliest_s;
        writeln!(text, "{client}\t{invoked}\t{returned}\t{earliest}\t{latest}\t{request}\t{reply}")
            .expect("a string takes everything");
    }
    text
}

/// Reads the text that [`write_history`] formats. Rules that the text does not contain have the
/// values of [`Rules::new`].
///
/// Errors: the first line that is not valid.
///
/// ```
/// use kachel_check::{read_history, check_history};
/// let text = "kachel-history 1 store cas\n1\t10\t20\t5\t5\t\"get k\\r\\n\"\t\"END\\r\\n\"\n";
/// let (history, rules) = read_history(text).unwrap();
/// assert_eq!(check_history(&history, &rules).unwrap().operations, 1);
/// ```
pub fn read_history(text: &str) -> Result<(History, Rules), FileError> {
    let mut lines = text.lines().enumerate();
    let head = lines.next().and_then(|(_, line)| line.strip_prefix(MAGIC));
    let error = |line, expected| FileError { line, expected };
    let rules = head.and_then(|words| {
        let (mode, cas) = words.trim().split_once(' ')?;
        let mode = match mode {
            "cache" => Mode::Cache,
            "store" => Mode::Store,
            _ => return None,
        };
        Some(Rules { cas: cas == "cas", ..Rules::new(mode) })
    });
    let rules = rules.ok_or(error(1, "kachel-history 1, a mode, cas or nocas"))?;
    let mut history = History::default();
    for (index, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let entry = read_entry(line).map_err(|expected| error(index + 1, expected))?;
        history.push(entry);
    }
    Ok((history, rules))
}

fn read_entry(line: &str) -> Result<Entry, &'static str> {
    let words: Vec<&str> = line.split('\t').collect();
    let [client, invoked, returned, earliest, latest, request, reply] = words[..] else {
        return Err("seven fields with tabs between them");
    };
    let operation = unquoted(request).and_then(|wire| Operation::new(&wire));
    let operation = operation.ok_or("a request of one key, in quotes")?;
    let outcome = match reply {
        "?" => Some(Outcome::Unknown),
        "\"\"" => Some(Outcome::Silent),
        reply => unquoted(reply).and_then(|wire| {
            let (outcome, read) = Outcome::read(&wire)?;
            (read == wire.len()).then_some(outcome)
        }),
    };
    let invoked = invoked.parse().map_err(|_| "when it was invoked")?;
    let returned = match returned {
        "-" => NEVER,
        returned => returned.parse().map_err(|_| "when it returned")?,
    };
    let earliest_s = earliest.parse().map_err(|_| "the earliest second")?;
    let latest_s = match latest {
        "-" => u32::MAX,
        latest => latest.parse().map_err(|_| "the latest second")?,
    };
    let outcome = outcome.ok_or("a reply in quotes, or ?")?;
    if invoked > returned || earliest_s > latest_s {
        return Err("invoked <= returned and earliest <= latest");
    }
    if outcome == Outcome::Unknown && returned != NEVER {
        return Err("no return time if the reply is ?");
    }
    Ok(Entry {
        client: client.parse().map_err(|_| "a client")?,
        operation,
        outcome,
        invoked,
        returned,
        window: Window { earliest_s, latest_s },
    })
}

fn quoted(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for &byte in bytes {
        match byte {
            b'\'' => text.push('\''),
            _ => write!(text, "{}", byte.escape_ascii()).expect("a string takes everything"),
        }
    }
    text.push('"');
    text
}

fn unquoted(text: &str) -> Option<Vec<u8>> {
    let mut left = text.strip_prefix('"')?.strip_suffix('"')?.bytes();
    let mut bytes = Vec::new();
    while let Some(byte) = left.next() {
        bytes.push(match byte {
            b'"' => return None,
            b'\\' => match left.next()? {
                b'r' => b'\r',
                b'n' => b'\n',
                b't' => b'\t',
                b'x' => {
                    let digit = |byte: u8| char::from(byte).to_digit(16);
                    (digit(left.next()?)? * 16 + digit(left.next()?)?) as u8
                }
                same @ (b'"' | b'\\') => same,
                _ => return None,
            },
            plain => plain,
        });
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::{quoted, read_history, unquoted, write_history};
    use crate::{Entry, History, Mode, Operation, Outcome, Rules, Value, Window};

    #[test]
    fn a_history_is_read_back_as_it_was_written() {
        let mut history = History::default();
        let set = Operation::new(b"set k 0 0 4\r\n\"'\\\xff\r\n").expect("a set");
        history.push(Entry::unknown(7, set, 3, 9));
        let value = Value::new(b"\"'\\\xff");
        let hit = Outcome::Hit { value, client_flags: 0, cas: Some(8) };
        let silent = Operation::new(b"delete k noreply\r\n").expect("a delete");
        let gets = Operation::new(b"gets k\r\n").expect("a gets");
        for (operation, outcome) in [(gets, hit), (silent, Outcome::Silent)] {
            let window = Window { earliest_s: 1, latest_s: 2 };
            history.push(Entry { client: 1, operation, outcome, invoked: 4, returned: 6, window });
        }
        for mode in [Mode::Cache, Mode::Store] {
            let rules = Rules { cas: mode == Mode::Store, ..Rules::new(mode) };
            let text = write_history(&history, &rules);
            assert_eq!(read_history(&text), Ok((history.clone(), rules)), "I1: {text}");
        }
    }

    #[test]
    fn every_byte_is_quoted_and_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unquoted(&quoted(&all)).as_deref(), Some(&all[..]));
        for wrong in ["", "\"", "\"\\q\"", "\"\\x1\"", "\"a\"b\"", "a"] {
            assert_eq!(unquoted(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_no_history_is_refused_by_its_line() {
        let good = "1\t1\t2\t3\t3\t\"get k\\r\\n\"\t\"END\\r\\n\"";
        let head = "kachel-history 1 cache cas";
        assert!(read_history(&format!("{head}\n# said\n{good}\n")).is_ok());
        for (wrong, line) in [
            (good.to_owned(), 1),
            (format!("{head}\n{good}\nx"), 3),
            (format!("{head}\n{}", good.replace("END", "ENX")), 2),
            (format!("{head}\n{}", good.replace("\t2\t", "\t0\t")), 2),
            (format!("{head}\n{}", good.replace("get k", "get k j")), 2),
        ] {
            let error = read_history(&wrong).expect_err("it is wrong");
            assert_eq!(error.line, line, "{wrong}: {error}");
        }
    }
}
