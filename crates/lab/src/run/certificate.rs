//! The certificate of servers that speak TLS.
//!
//! Upstream:   an experiment with `{certificate}` in the arguments of a server.
//! Downstream: two files in the folder of the run, and the arguments of the server.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::experiment::Experiment;

/// The names in arguments, and the files that they stand for.
const FILES: [(&str, &str); 2] = [("certificate", "certificate.pem"), ("key", "key.pem")];
/// A key of P-256, as most servers have one.
const WORDS: &str = "req -x509 -nodes -days 30 -subj /CN=kachel-lab -newkey ec -pkeyopt \
                     ec_paramgen_curve:prime256v1 -addext subjectAltName=IP:127.0.0.1";

/// The values of the names in arguments.
pub(super) fn values(folder: &Path) -> [(String, String); 2] {
    FILES.map(|(name, file)| (name.to_owned(), folder.join(file).display().to_string()))
}

/// Makes the files with `openssl`, if a server needs them and they are not there.
///
/// Errors: `openssl` is missing or fails.
pub(super) fn make(experiment: &Experiment, folder: &Path) -> Result<(), String> {
    let mut words = experiment.servers.iter().flat_map(|server| &server.arguments);
    let [(_, certificate), (_, key)] = values(folder);
    if !words.any(|word| word.contains("{certificate}")) || Path::new(&certificate).exists() {
        return Ok(());
    }
    let log = folder.join("openssl.log");
    let output = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
    let mut command = Command::new("openssl");
    command.args(WORDS.split(' ')).args(["-keyout", &key, "-out", &certificate]);
    match command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("openssl ended ({status}); see {}", log.display())),
        Err(error) => Err(format!("openssl, which makes the certificate: {error}")),
    }
}
