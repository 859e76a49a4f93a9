//! `kachel-lab packets`: a generator of GETs over UDP that makes its own frames.
//!
//! Upstream:   `kachel-lab` hands over the arguments after `packets`.
//! Downstream: a server's UDP port, by a packet socket on one interface; its TCP port for sets.
//!
//! ```text
//! options -> drive: schedule, popularity, keys -> frame -> packet socket -> server
//!              |  +--- setter: sets over TCP ------------------------------->
//!            tally, meter -> report (text, JSON)
//! ```
//!
//! The client's end of a cable costs little, so a measurement shows the server's end. The pipe
//! (`docs/pipe.md`) needs that: its whole cost for a request is below that of a socket of UDP.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::CommandFactory as _;

mod drive;
mod frame;
mod options;
mod report;
mod setter;
mod versions;

use crate::meter::Meter;
use crate::packets::drive::Drive;
use crate::packets::options::Options;
use crate::packets::report::Report;
use crate::{EXIT_USAGE, parsed, say, write_json};

/// Runs the generator with the arguments that follow `kachel-lab packets`.
///
/// Prints the result on standard output, and errors on standard error. Returns success, 1 if there
/// were errors while measuring, 2 if the options are invalid or the run failed.
pub fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    let words = std::iter::once(OsString::from("kachel-lab packets")).chain(args);
    let options: Options = match parsed(words) {
        Ok(options) => options,
        Err(code) => return code,
    };
    match measure(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(words) => {
            eprintln!("kachel-lab packets: {words}");
            ExitCode::from(EXIT_USAGE)
        }
    }
}

/// The options of `kachel-lab packets`, from which a package makes its man pages.
pub fn command_line() -> clap::Command {
    Options::command()
}

/// Measures and prints. True if there were no errors.
fn measure(options: &Options) -> Result<bool, String> {
    options.check()?;
    let cores = options.cores.as_ref().map_or(&[][..], |cores| &cores.0);
    let meter = Meter::new(options.server_pid)?.with_cores(cores);
    let measured = Drive::new(options)?.run(&meter)?;
    let report = Report::new(options, &measured);
    say(&report);
    write_json(options.json.as_deref(), &report)?;
    Ok(report.is_clean())
}
