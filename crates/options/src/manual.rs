//! Generates `docs/options.md` from the tables.
//!
//! Upstream:   the rows of `table.rs` and `suboptions.rs`.
//! Downstream: the file; a test fails if it differs from the tables.

use crate::row::Class;
use crate::suboptions::SUBOPTIONS;
use crate::table::OPTIONS;
use crate::text::spelling;

/// The whole of `docs/options.md`.
pub fn manual() -> String {
    let mut text = INTRODUCTION.to_string();
    let of_class = |wanted: fn(Class) -> bool| OPTIONS.iter().filter(move |row| wanted(row.class));

    text.push_str("## Accepted\n\n| option | default | what it does |\n|---|---|---|\n");
    for row in of_class(|class| matches!(class, Class::Works | Class::Own | Class::Answers(_))) {
        let ours = if matches!(row.class, Class::Own) { " (Kachel's own)" } else { "" };
        let cells = [cell(spelling(row).trim()), row.default.to_string()];
        text.push_str(&format!("| {} | {} | {}{ours} |\n", cells[0], cells[1], row.help));
    }
    text.push_str("\n### Options of `-o`\n\n| option | default | what it does |\n|---|---|---|\n");
    for row in SUBOPTIONS.iter().filter(|row| matches!(row.class, Class::Works)) {
        let word = cell(&format!("{}{}", row.name, row.takes.suffix()));
        text.push_str(&format!("| {word} | {} | {} |\n", row.default, row.help));
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
    for row in SUBOPTIONS {
        let Class::NoMeaning(why) = row.class else { continue };
        let word = cell(&format!("-o {}{}", row.name, row.takes.suffix()));
        text.push_str(&format!("| {word} | {} | {why} |\n", row.default));
    }

    text.push_str("\n## Refused\n\n");
    text.push_str(
        "An option that protects, or promises to keep data, is an error until it is built. So are\n",
    );
    text.push_str("`-U` with a port, and the other engines.\n\n");
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
name. If an option is repeated, the last one counts; `-l` is added to the list.

Under the name `memcached` (for example through a link), the binary takes the same options with
memcached's defaults. These are the differences:

| | `kachel serve` | `memcached` |
|---|---|---|
| listens on | 127.0.0.1 | every interface |
| listings of keys (`-X`, `--dumps`) | refused | answered |
| started by root without `-u` | starts, with a warning | refuses to start, as memcached does |
| an argument that is not an option | an error | ignored, with a warning |

If the environment variable `MEMCACHED_PORT_FILENAME` is set, the server writes its ports to that file
once it listens, one per line, such as `TCP INET: 11211`.

A mistake ends the program with status 1 (unknown option, bad value), 64 (options that exclude each
other or are not built), 67 (unknown user) or 71 (error of the system, bad listener).

";
