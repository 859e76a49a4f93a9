//! Writes the man page and the completions of `kachel` from the tables of options.
//!
//! Upstream:   `packaging/deb`: pages FOLDER
//! Downstream: FOLDER gets `kachel.1` and a completion for bash, zsh and fish.

use std::fs::File;
use std::path::PathBuf;

use clap::{Arg, ArgAction, Command};
use clap_complete::{Shell, generate_to};
use kachel_options::{KACHEL_VERSION, Shown, options_shown, suboptions_shown};

/// An option of the tables, as clap describes it. One option has a letter only.
fn argument(shown: &Shown) -> Arg {
    let name = if shown.long.is_empty() { "letter" } else { shown.long };
    let default = match shown.default {
        "" => String::new(),
        default => format!(" (default: {default})"),
    };
    let mut argument = Arg::new(name).help(format!("{}{default}", shown.help));
    if let Some(letter) = shown.short {
        argument = argument.short(letter);
    }
    if !shown.long.is_empty() {
        argument = argument.long(shown.long);
    }
    match shown.value {
        None => argument.action(ArgAction::SetTrue),
        Some(_) if !shown.words.is_empty() => argument.value_parser(shown.words.to_vec()),
        Some(value) => argument.value_name(value),
    }
}

/// The command line, with the subcommands whose options are known here.
fn command() -> Command {
    let extended = suboptions_shown().map(|shown| {
        let value = shown.value.map_or_else(String::new, |value| format!("={value}"));
        format!("{}{value}: {}\n\n", shown.long, shown.help)
    });
    let serve = Command::new("serve")
        .about("Start the server, with memcached's options")
        .after_help(format!("Options of -o:\n\n{}", extended.collect::<String>()))
        .disable_help_flag(true)
        .args(options_shown().map(|shown| argument(&shown)));
    let check = Command::new("check-config")
        .about("Check a file of options, and the files that it names")
        .arg(Arg::new("FILE").required(true));
    let seconds = "the time in which the server must answer (default: 2)";
    let probed = "HOST:PORT, a path, or http://HOST:PORT/PATH of an admin address (default: \
                  127.0.0.1:11211)";
    let probe = Command::new("probe")
        .about("Ask a server whether it answers, for health checks")
        .arg(Arg::new("timeout-s").long("timeout-s").value_name("N").help(seconds))
        .arg(Arg::new("ADDRESS").help(probed));
    let token = "the token of the admin address, sent to this machine only";
    let address =
        "HOST:PORT, a path, or http://HOST:PORT of an admin address (default: 127.0.0.1:11211)";
    let once =
        Arg::new("once").long("once").action(ArgAction::SetTrue).help("print the state once");
    let top = Command::new("top")
        .about("Show the state of a server in a terminal, once a second")
        .arg(once)
        .arg(Arg::new("token-file").long("token-file").value_name("FILE").help(token))
        .arg(Arg::new("ADDRESS").help(address));
    let data = "a data directory of `--engine flash`";
    let verify = Command::new("verify")
        .about("Verify the files of a data directory, which no server may have open")
        .arg(Arg::new("DIR").required(true).help(data));
    let to = "the directory of the copy, which is made or is empty";
    let backup = Command::new("backup")
        .about("Copy a data directory, also while a server serves from it")
        .arg(Arg::new("DIR").required(true).help(data))
        .arg(Arg::new("TO").required(true).help(to));
    Command::new("kachel")
        .version(KACHEL_VERSION)
        .about("A drop-in replacement for memcached, for machines with many cores")
        .after_help("`kachel load` starts `kachel-lab load`, which describes its options itself.")
        .disable_help_subcommand(true)
        .subcommands([serve, check, probe, top, verify, backup])
}

fn main() -> std::io::Result<()> {
    let folder = PathBuf::from(std::env::args_os().nth(1).expect("usage: pages FOLDER"));
    std::fs::create_dir_all(&folder)?;
    clap_mangen::generate_to(command(), &folder)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut command(), "kachel", &folder)?;
    }
    // A page without its sections would be installed unnoticed.
    File::open(folder.join("kachel.1")).and(File::open(folder.join("kachel-serve.1"))).map(drop)
}
