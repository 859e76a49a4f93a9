//! `kachel verify`: reads every record of a data directory, and names each fault.
//!
//! Upstream:   `main`, with the arguments after `verify`.
//! Downstream: `kachel_flash` verifies the store.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use kachel_engine::engine_folder;
use kachel_flash::{Verified, WatchVerification, verify_store};
use kachel_stdx::plural;

use crate::upkeep::{Pace, mib, paths, refuse};

const USAGE: &str = "\
usage: kachel verify DIR

Reads every record of DIR, which is a data directory of `--engine flash`, and prints a line for each
fault. It changes nothing. No server may have DIR open. Ends with status 0 if there is no fault,
with 1 if there is one or if DIR cannot be verified, and with 64 if the arguments are wrong.
";

/// Prints faults to standard output, and the progress to standard error.
#[derive(Debug)]
struct Printer(Pace);

/// Prints a line. A reader that closes the pipe early wants no more.
fn print(line: &str) {
    let _nobody_reads = writeln!(std::io::stdout(), "{line}");
}

impl WatchVerification for Printer {
    fn fault(&self, fault: &str) {
        print(fault);
    }

    fn progress(&self, engine: u16, done_bytes: u64, of_bytes: u64) {
        let line = || {
            let (folder, done, of) = (engine_folder(engine), mib(done_bytes), mib(of_bytes));
            format!("{folder}: {done} of {of} MiB are verified")
        };
        self.0.tell(line);
    }
}

/// Verifies the directory that `words` name.
pub(crate) fn run(words: Vec<OsString>) -> ExitCode {
    let [path] = match paths(words, USAGE) {
        Ok(paths) => paths,
        Err(ended) => return ended,
    };
    let printer: Arc<dyn WatchVerification> = Arc::new(Printer(Pace::new()));
    let verified = match verify_store(&path, &printer) {
        Ok(verified) => verified,
        Err(why) => return refuse("verify", &path, &why),
    };
    let Verified { engines, records, items, graves, faults } = verified;
    let count = |count: u64, one, many| format!("{count} {}", plural(count, one, many));
    let engines = count(engines.into(), "engine", "engines");
    let records = count(records, "record", "records");
    let (stores, removals) =
        (count(items, "store", "stores"), count(graves, "removal", "removals"));
    let faults_said = match faults {
        0 => "no fault".to_owned(),
        faults => count(faults, "fault", "faults"),
    };
    let path = path.display();
    print(&format!("{path}: {faults_said}; {records} of {engines}: {stores}, {removals}"));
    if faults == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
