//! Writes the man pages of `kachel-lab` from the options of its subcommands.
//!
//! Upstream:   `packaging/deb`: pages FOLDER
//! Downstream: FOLDER gets `kachel-lab.1`, `kachel-lab-load.1` and `kachel-lab-load-replay.1`.

use std::fs::File;
use std::path::PathBuf;

use clap::Command;

fn main() -> std::io::Result<()> {
    let folder = PathBuf::from(std::env::args_os().nth(1).expect("usage: pages FOLDER"));
    std::fs::create_dir_all(&folder)?;
    // The pages of subcommands are named after their parents. `kachel load` is the same command.
    let load = kachel_load::command_line().name("load").bin_name("kachel-lab load");
    let command = Command::new("kachel-lab")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Measures servers with memcached's protocol")
        .disable_help_subcommand(true)
        .subcommand(load);
    clap_mangen::generate_to(command, &folder)?;
    // A page that is missing would be missing in the package unnoticed.
    for page in ["kachel-lab.1", "kachel-lab-load.1", "kachel-lab-load-replay.1"] {
        File::open(folder.join(page))?;
    }
    Ok(())
}
