//! Writes the man pages of `kachel-lab` from the options of its subcommands.
//!
//! Upstream:   `packaging/deb`: pages FOLDER
//! Downstream: FOLDER gets a page for `kachel-lab` and for each of its subcommands.

use std::fs::File;
use std::path::PathBuf;

const PAGES: [&str; 12] = [
    "",
    "-load",
    "-load-agent",
    "-load-presets",
    "-load-replay",
    "-packets",
    "-run",
    "-report",
    "-cost",
    "-misses",
    "-power",
    "-breakdown",
];

fn main() -> std::io::Result<()> {
    let folder = PathBuf::from(std::env::args_os().nth(1).expect("usage: pages FOLDER"));
    std::fs::create_dir_all(&folder)?;
    clap_mangen::generate_to(kachel_lab::command_line(), &folder)?;
    // A page that is missing would be missing in the package unnoticed.
    for page in PAGES {
        File::open(folder.join(format!("kachel-lab{page}.1")))?;
    }
    Ok(())
}
