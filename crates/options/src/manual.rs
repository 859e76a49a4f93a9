//! Generates `docs/options.md` and `packaging/kachel.toml` from the tables, and lists the options
//! for man pages and completions.
//!
//! Upstream:   the rows of `table.rs` and `suboptions.rs`.
//! Downstream: the files; a test fails if they differ from the tables. The example `pages` writes
//!             man pages and completions for a package.

use crate::row::OptionRow;
use crate::row::{Class, Takes};
use crate::suboptions::suboptions;
use crate::table::OPTIONS;
use crate::text::spelling;

/// The whole of `docs/options.md`.
pub fn manual() -> String {
    let mut text = INTRODUCTION.to_string();
    let of_class = |wanted: fn(Class) -> bool| OPTIONS.iter().filter(move |row| wanted(row.class));

    text.push_str("## Accepted\n\n| option | default | what it does |\n|---|---|---|\n");
    let is_accepted = |class| is_working(class) || matches!(class, Class::Answers(_));
    for row in OPTIONS.iter().filter(|row| is_accepted(row.class)) {
        let ours = remark(row.class);
        let cells = [cell(spelling(row).trim()), row.default.to_string()];
        text.push_str(&format!("| {} | {} | {}{ours} |\n", cells[0], cells[1], row.help));
    }
    text.push_str("\n### Options of `-o`\n\n| option | default | what it does |\n|---|---|---|\n");
    for row in suboptions().filter(|row| is_working(row.class)) {
        let word = cell(&format!("{}{}", row.name, row.takes.suffix()));
        let remark = remark(row.class);
        text.push_str(&format!("| {word} | {} | {}{remark} |\n", row.default, row.help));
    }

    text.push_str("\n## Accepted, without effect\n\n");
    text.push_str(
        "The server names these options on standard error when it starts, and `stats settings`\n",
    );
    text.push_str("reports their values, because tools read them there.\n\n");
    text.push_str("| option | memcached's default | why it has no effect |\n|---|---|---|\n");
    for row in of_class(|class| matches!(class, Class::NoMeaning(_))) {
        let Class::NoMeaning(why) = row.class else { continue };
        text.push_str(&format!("| {} | {} | {why} |\n", cell(&spelling(row)), row.default));
    }
    for row in suboptions() {
        let Class::NoMeaning(why) = row.class else { continue };
        let word = cell(&format!("-o {}{}", row.name, row.takes.suffix()));
        text.push_str(&format!("| {word} | {} | {why} |\n", row.default));
    }

    text.push_str("\n## Refused\n\n");
    text.push_str(
        "An option that protects, or promises to keep data, is an error until it is built. So are\n\
         the other engines.\n\n",
    );
    text.push_str("| option | why |\n|---|---|\n");
    for row in of_class(|class| matches!(class, Class::Refused(_))) {
        let Class::Refused(why) = row.class else { continue };
        text.push_str(&format!("| {} | {why} |\n", cell(&spelling(row))));
    }
    for row in suboptions() {
        let Class::Refused(why) = row.class else { continue };
        text.push_str(&format!("| {} | {why} |\n", cell(&format!("-o {}", row.name))));
    }
    text
}

/// Whether an option works, in a server that is built with TLS.
const fn is_working(class: Class) -> bool {
    matches!(class, Class::Works | Class::NeedsTls | Class::Own)
}

/// The words after the explanation of an option.
const fn remark(class: Class) -> &'static str {
    match class {
        Class::Own => " (Kachel's own)",
        Class::NeedsTls => " (in a build with TLS)",
        _ => "",
    }
}

/// An option that works, as a page shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The letter after one dash.
    pub short: Option<char>,
    /// The name after two dashes, or the name of an option of `-o`. May be empty.
    pub long: &'static str,
    /// The name of its value; `None` if it takes none.
    pub value: Option<&'static str>,
    /// The words that may be its value. Empty if others may be, too.
    pub words: &'static [&'static str],
    /// Its default, as text; may be empty.
    pub default: &'static str,
    /// Its effect, in one line.
    pub help: &'static str,
}

impl Shown {
    fn new(long: &'static str, takes: Takes, default: &'static str, help: &'static str) -> Self {
        let (value, words): (_, &[&str]) = match takes {
            Takes::Nothing => (None, &[]),
            Takes::Word(words) => (Some("word"), words),
            Takes::Text(name)
            | Takes::OptionalText(name)
            | Takes::Integer(name, ..)
            | Takes::OptionalInteger(name, ..)
            | Takes::Real(name, ..) => (Some(name), &[]),
        };
        Self { short: None, long, value, words, default, help }
    }
}

/// The options that work, in the order of help.
pub fn options_shown() -> impl Iterator<Item = Shown> {
    OPTIONS.iter().filter(|row| is_working(row.class)).map(|row| Shown {
        short: row.short,
        ..Shown::new(row.long, row.takes, row.default, row.help)
    })
}

/// The options of `-o` that work.
pub fn suboptions_shown() -> impl Iterator<Item = Shown> {
    let works = suboptions().filter(|row| is_working(row.class));
    works.map(|row| Shown::new(row.name, row.takes, row.default, row.help))
}

/// The whole of `packaging/kachel.toml`: each option that works, commented out, with a value that
/// it takes.
pub fn example_file() -> String {
    let mut text = EXAMPLE_INTRODUCTION.to_string();
    let in_file = |row: &&OptionRow| {
        is_working(row.class) && !matches!(row.long, "" | "config" | "check" | "extended")
    };
    for row in OPTIONS.iter().filter(in_file) {
        example(&mut text, row.long, row.takes, row.default, row.help);
    }
    text.push_str("\n# The options of -o.\n[extended]\n");
    for row in suboptions().filter(|row| is_working(row.class)) {
        example(&mut text, row.name, row.takes, row.default, row.help);
    }
    text
}

fn example(text: &mut String, name: &str, takes: Takes, default: &str, help: &str) {
    let of_default = |digits: fn(char) -> bool| {
        let number: String = default.chars().take_while(|letter| digits(*letter)).collect();
        (!number.is_empty()).then_some(number)
    };
    let value = match takes {
        Takes::Nothing => "true".to_string(),
        Takes::OptionalText(_) => "1".to_string(),
        Takes::Text(name) => {
            let first = default.split(';').next().unwrap_or_default();
            let is_word = !first.is_empty() && !first.contains(' ');
            let shown = if is_word { first } else { name };
            format!("\"{}\"", shown.replace("net=A,shard=B", "net=1,shard=3"))
        }
        Takes::Integer(_, low, _) | Takes::OptionalInteger(_, low, ..) => {
            of_default(|letter| letter.is_ascii_digit()).unwrap_or_else(|| low.max(1).to_string())
        }
        Takes::Real(_, _, high) => of_default(|letter| letter.is_ascii_digit() || letter == '.')
            .unwrap_or_else(|| high.to_string()),
        Takes::Word(words) => {
            let word = words.iter().find(|word| **word == default).or(words.first());
            format!("\"{}\"", word.copied().unwrap_or_default())
        }
    };
    text.push('\n');
    let mut line = String::from("#");
    let sentence = match default {
        "" => help.to_string(),
        default => format!("{help} (default: {default})"),
    };
    for word in sentence.split_whitespace() {
        if line.len() + 1 + word.len() > EXAMPLE_COLUMNS {
            text.push_str(&line);
            text.push('\n');
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    text.push_str(&format!("{line}\n#{name} = {value}\n"));
}

/// Columns of a comment in the example file.
const EXAMPLE_COLUMNS: usize = 90;

const EXAMPLE_INTRODUCTION: &str = "\
# Options of `kachel serve --config FILE`. Generated from the tables in crates/options/src by
# `KACHEL_BLESS=1 cargo test -p kachel-options`.
#
# A key is the long name of an option. Remove the `#` before a key to set it. An option of the
# command line counts more than this file. An option that may be repeated takes a list.
# `false` stands for the option with `no_` before its name, where there is one. Otherwise `false` is
# an error for an option that is on by default.
";

/// A table cell with code. A `|` is escaped, because it would end the cell.
fn cell(code: &str) -> String {
    format!("`{}`", code.replace('|', "\\|"))
}

const INTRODUCTION: &str = "\
# Options

This page is generated from the tables in `crates/options/src` by
`KACHEL_BLESS=1 cargo test -p kachel-options`; a test fails if it differs from them.

`kachel serve` takes memcached's options, in every spelling that memcached accepts: `-m 64`, `-m64`,
`\"-m 64\"` in one word, `-dvv`, `--memory-limit=64`, `--memory-limit 64`, or a unique prefix of a long
name. If an option is repeated, the last one counts; `-l` and `--admin-host` are added to their lists.

Under the name `memcached` (for example through a link), the binary takes the same options with
memcached's defaults. These are the differences:

| | `kachel serve` | `memcached` |
|---|---|---|
| listens on | 127.0.0.1 | every interface |
| listings of keys (`-X`, `--dumps`) | refused | answered |
| started by root without `-u` | starts, with a warning | refuses to start, as memcached does |
| an argument that is not an option | an error | ignored, with a warning |
| what no restart can help | status 64 or 67 | the statuses of memcached |

If the environment variable `MEMCACHED_PORT_FILENAME` is set, the server writes its ports to that file
once it listens, one per line, such as `TCP INET: 11211`. The port of `--admin` is in a line such as
`ADMIN INET: 9000`.

A server that cannot start, or has failed, ends with one of these statuses. A service manager that starts it
again after any other status than 64 and 67 repeats nothing in vain:

| status | `kachel serve` | `memcached` |
|---|---|---|
| 1 | a shard has failed, or the items could not be saved | also a bad value, an unknown option, a file of users that cannot be used |
| 64 | any mistake in the options; a file that they name, a right or a limit that must be changed first | options that exclude each other or are not built; any mistake in a file of options; certificates that cannot be used |
| 67 | an unknown user (`-u`) | the same |
| 71 | an obstacle that may pass, such as an address in use, a folder that is not there or a full disk | any error of the system; a bad listener |

";
