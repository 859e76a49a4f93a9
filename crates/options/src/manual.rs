//! `docs/options.md`, printed from the tables.
//!
//! Upstream:   the rows of `table.rs` and `suboptions.rs`.
//! Downstream: the file; a test says when it is no longer what the tables say.

use crate::row::Class;
use crate::suboptions::SUBOPTIONS;
use crate::table::OPTIONS;
use crate::text::spelling;

/// The whole of `docs/options.md`.
pub fn manual() -> String {
    let mut text = INTRODUCTION.to_string();
    let of_class = |wanted: fn(Class) -> bool| OPTIONS.iter().filter(move |row| wanted(row.class));

    text.push_str("## What works\n\n| option | default | what it does |\n|---|---|---|\n");
    for row in of_class(|class| matches!(class, Class::Works | Class::Own | Class::Answers(_))) {
        let ours = if matches!(row.class, Class::Own) { " (Kachel's own)" } else { "" };
        let cells = [cell(spelling(row).trim()), row.default.to_string()];
        text.push_str(&format!("| {} | {} | {}{ours} |\n", cells[0], cells[1], row.help));
    }
    text.push_str("\n### Words of `-o`\n\n| word | default | what it does |\n|---|---|---|\n");
    for row in SUBOPTIONS.iter().filter(|row| matches!(row.class, Class::Works)) {
        let word = cell(&format!("{}{}", row.name, row.takes.suffix()));
        text.push_str(&format!("| {word} | {} | {} |\n", row.default, row.help));
    }

    text.push_str("\n## What is accepted and has no meaning here\n\n");
    text.push_str(
        "The server says so on standard error when it starts, and `stats settings` says the\n",
    );
    text.push_str("value back, because tools read it there.\n\n");
    text.push_str("| option | memcached's default | why it has no meaning |\n|---|---|---|\n");
    for row in of_class(|class| matches!(class, Class::NoMeaning(_))) {
        let Class::NoMeaning(why) = row.class else { continue };
        text.push_str(&format!("| {} | {} | {why} |\n", cell(&spelling(row)), row.default));
    }
    for row in SUBOPTIONS {
        let Class::NoMeaning(why) = row.class else { continue };
        let word = cell(&format!("-o {}{}", row.name, row.takes.suffix()));
        text.push_str(&format!("| {word} | {} | {why} |\n", row.default));
    }

    text.push_str("\n## What is refused\n\n");
    text.push_str(
        "An option that protects, or promises to keep something, is an error until it is\n",
    );
    text.push_str(
        "built. `-U` with a port is one, and so are the engines and `--reads=crew` above.\n\n",
    );
    text.push_str("| option | why |\n|---|---|\n");
    for row in of_class(|class| matches!(class, Class::Refused(_))) {
        let Class::Refused(why) = row.class else { continue };
        text.push_str(&format!("| {} | {why} |\n", cell(&spelling(row))));
    }
    for row in SUBOPTIONS {
        let Class::Refused(why) = row.class else { continue };
        text.push_str(&format!("| {} | {why} |\n", cell(&format!("-o {}", row.name))));
    }
    text
}

/// A cell of code: a bar would end the cell.
fn cell(code: &str) -> String {
    format!("`{}`", code.replace('|', "\\|"))
}

const INTRODUCTION: &str = "\
# Options

This page is printed from the tables in `crates/options/src`; a test says when it is not what they
say, and `KACHEL_BLESS=1 cargo test -p kachel-options` writes it.

`kachel serve` takes memcached's options, spelled in any way that memcached takes them: `-m 64`,
`-m64`, `\"-m 64\"` in one word, `-dvv`, `--memory-limit=64`, `--memory-limit 64`, a unique beginning
of a long name; an option given again replaces what stood before (`-l` adds to it).

Called by the name `memcached` (through a link, say), the binary takes the same options with
memcached's defaults. They differ in four things.

| | `kachel serve` | `memcached` |
|---|---|---|
| listens on | 127.0.0.1 | every interface |
| dumps of keys (`-X`, `--dumps`) | refused | answered |
| started by root without `-u` | starts, with a warning | refuses to start, as memcached does |
| a word that is no option | an error | passed over, with a warning |

The file that the environment variable `MEMCACHED_PORT_FILENAME` names is written when the server
listens: a line for each port, such as `TCP INET: 11211`.

A mistake ends the program with 1 (an unknown option, or a value that it does not take), 64 (options
that do not go together or are not built), 67 (an unknown user) or 71 (what the system refuses).

";
