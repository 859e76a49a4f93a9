//! Help, version and licence, printed from the tables.
//!
//! Upstream:   the rows of `table.rs` and `suboptions.rs`.
//! Downstream: standard output, for users, and for tools that read memcached's first line.
//!
//! Invariants:
//! - I1  Under the name memcached, the first line of help and version is memcached's.
//! - I2  Help lists only options that work: memcached's tests read it to find out what is
//!   supported.

use crate::row::{Class, OptionRow};
use crate::suboptions::suboptions;
use crate::table::OPTIONS;
use crate::{CalledAs, HAS_TLS, KACHEL_VERSION, MEMCACHED_VERSION};

/// Columns of help.
const COLUMNS: usize = 80;
/// The column in which the explanation of an option begins.
const INDENT: usize = 28;

/// `-V`: two lines; the line of the name by which the binary was called comes first.
pub(crate) fn version(called_as: CalledAs) -> String {
    let memcached = format!("memcached {MEMCACHED_VERSION}");
    match called_as {
        CalledAs::Memcached => format!("{memcached}\nkachel {KACHEL_VERSION}\n"),
        CalledAs::Kachel => format!("kachel {KACHEL_VERSION}\nreplaces {memcached}\n"),
    }
}

/// `-i`.
pub(crate) fn license(called_as: CalledAs) -> String {
    format!(
        "{}\nCopyright The Kachel authors.\n\nLicensed under the Apache License, Version 2.0, or the \
         MIT license, at your option;\nsee LICENSE-APACHE and LICENSE-MIT. Kachel contains no code of \
         memcached, whose\nprotocol it speaks.\n",
        version(called_as)
    )
}

/// `kachel --help`.
pub(crate) fn subcommands() -> String {
    format!(
        "kachel {KACHEL_VERSION}: a drop-in replacement for memcached\n\n\
         kachel serve [options]   start the server, with memcached's options\n\
         kachel check-config FILE check a file of options, and the files that it names\n\
         kachel load [options]    send load to a server and measure it (needs kachel-lab)\n\
         kachel probe [address]   ask a server whether it answers, for health checks\n\
         kachel top [address]     show the state of a server, once a second\n\
         kachel verify DIR        verify the files of a data directory of flash\n\
         kachel backup DIR TO     copy a data directory of flash, also while it is served\n\
         kachel version           print the version\n\
         kachel license           print the licence\n\n\
         `kachel serve --help` and `kachel load --help` list the options. Under the name\n\
         memcached (for example a link), the binary behaves as memcached does.\n"
    )
}

/// `-h`: the options that work.
pub(crate) fn help(called_as: CalledAs) -> String {
    let mut text = version(called_as);
    let usage = match called_as {
        CalledAs::Memcached => "memcached [options]",
        CalledAs::Kachel => "kachel serve [options]",
    };
    text.push_str(&format!("\n{usage}\n\n"));
    let useful = OPTIONS.iter().filter(|row| !is_hidden(row.class));
    for row in useful {
        entry(&mut text, &spelling(row), row.help, row.default);
    }
    text.push_str("\nOptions of -o:\n");
    for row in suboptions().filter(|row| !is_hidden(row.class)) {
        // I2: it names a filter that is not built.
        if row.name == "no_drop_privileges" {
            continue;
        }
        let spelling = format!("  {}{}", row.name, row.takes.suffix());
        entry(&mut text, &spelling, row.help, row.default);
    }
    text.push_str(
        "\nmemcached's options for slabs, LRU lists and its hash table are accepted and\n\
         have no meaning here; the server reports them when it starts.\n",
    );
    text
}

const fn is_hidden(class: Class) -> bool {
    match class {
        Class::Refused(_) | Class::NoMeaning(_) => true,
        Class::NeedsTls => !HAS_TLS,
        Class::Works | Class::Own | Class::Answers(_) => false,
    }
}

/// `-p, --port=<num>`, as memcached spells it.
pub(crate) fn spelling(row: &OptionRow) -> String {
    let value = row.takes.suffix();
    match (row.short, row.long) {
        (Some(letter), "") => format!("-{letter} {}", value.trim_start_matches('=')),
        (Some(letter), long) => format!("-{letter}, --{long}{value}"),
        (None, long) => format!("    --{long}{value}"),
    }
}

/// An option and its explanation, wrapped.
fn entry(text: &mut String, spelling: &str, help: &str, default: &str) {
    let mut line = format!("{spelling:<width$}", width = INDENT - 1);
    if spelling.len() >= INDENT {
        text.push_str(&line);
        text.push('\n');
        line = " ".repeat(INDENT - 1);
    }
    let explanation = match default {
        "" => help.to_string(),
        default => format!("{help} (default: {default})"),
    };
    for word in explanation.split_whitespace() {
        if line.len() + 1 + word.len() > COLUMNS {
            text.push_str(line.trim_end());
            text.push('\n');
            line = " ".repeat(INDENT - 1);
        }
        line.push(' ');
        line.push_str(word);
    }
    text.push_str(line.trim_end());
    text.push('\n');
}
