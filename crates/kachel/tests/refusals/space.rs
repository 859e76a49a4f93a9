//! Address space that the process may not have: limits of the process, as `ulimit` sets them.
//!
//! The server reserves what `-m` needs. Where that is refused it says how much was wanted, for
//! what, and which limit stands in the way.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::server::{announced_port, user};
use crate::{Client, PATIENCE};

/// The answer to a limit that is higher than what is reserved.
const OUT_OF_BOUNDS: &str = "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust";

const LOOK: Duration = Duration::from_millis(5);

/// A server that is started under a limit: `-v` for address space, `-d` for data, in KiB.
struct Limited {
    folder: tempfile::TempDir,
    process: Child,
}

impl Limited {
    fn start(limit: &str, mib: u32, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit {limit} {} && exec \"$@\"", mib << 10), "sh"]);
        command.arg(env!("CARGO_BIN_EXE_kachel")).args(["serve", "-p", "-1"]).args(user());
        command.args(options).env("MEMCACHED_PORT_FILENAME", folder.path().join("port"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let process = command.spawn().expect("a shell");
        Self { folder, process }
    }

    /// Waits until it listens, or has ended; the port.
    fn port(&mut self) -> Option<u16> {
        let file = self.folder.path().join("port");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let port = announced_port(Path::new(&file));
            if port.is_some() || self.process.try_wait().expect("the state of a child").is_some() {
                return port;
            }
            assert!(Instant::now() < deadline, "neither listens nor ends");
            std::thread::sleep(LOOK);
        }
    }

    /// Its end, and what it said.
    fn end(mut self) -> Output {
        let _ended_by_itself = self.process.kill();
        self.process.wait_with_output().expect("an end")
    }
}

/// Stores and reads a value of 100 KiB; what is wrong.
fn serves(port: u16) {
    let mut client = Client::at(port);
    client.send(format!("set k 0 0 {}\r\n", 100 << 10).as_bytes());
    client.send(&vec![b'v'; 100 << 10]);
    client.send(b"\r\n");
    assert_eq!(client.line(), "STORED");
    assert_eq!(client.ask("mg k s"), format!("HD s{}", 100 << 10));
}

/// The sentence of a server that did not start.
fn refusal(limit: &str, mib: u32, options: &[&str]) -> String {
    let mut limited = Limited::start(limit, mib, options);
    let port = limited.port();
    let output = limited.end();
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(port.is_none(), "{mib} MiB suffice for {options:?}: {said}");
    assert_eq!(output.status.code(), Some(71), "{mib} MiB for {options:?}: {said}");
    let sentences: Vec<&str> =
        said.lines().filter(|line| !line.starts_with("started by root")).collect();
    assert_eq!(sentences.len(), 1, "{said}");
    sentences[0].to_owned()
}

#[test]
fn a_server_reserves_what_its_memory_limit_needs() {
    for (limit, mib, options) in [
        ("-v", 1024, &["-m", "64", "-t", "1"][..]),
        ("-v", 1024, &["-m", "64", "-t", "4"]),
        ("-v", 1024, &["-m", "256", "-t", "2"]),
        ("-d", 512, &["-m", "64", "-t", "2"]),
    ] {
        let mut limited = Limited::start(limit, mib, options);
        let Some(port) = limited.port() else {
            panic!("{mib} MiB do not suffice for {options:?}: {:?}", limited.end());
        };
        serves(port);
        limited.end();
    }
}

#[test]
fn the_limit_on_memory_may_be_raised_where_address_space_is_free() {
    let raised = |mut server: Limited| {
        let port = server.port().expect("it listens");
        let answer = Client::at(port).ask("cache_memlimit 128");
        server.end();
        answer
    };
    let options = ["-m", "64", "-t", "1"];
    assert_eq!(raised(Limited::start("-v", 1024, &options)), OUT_OF_BOUNDS);
    // A limit on core files is none on memory. This machine may bound address space by itself.
    let wanted = if kachel_host::is_address_space_free() { "OK" } else { OUT_OF_BOUNDS };
    assert_eq!(raised(Limited::start("-c", 0, &options)), wanted);
}

#[test]
fn a_server_that_may_not_reserve_its_memory_says_what_it_wanted() {
    let said = refusal("-v", 512, &["-m", "1024", "-t", "2"]);
    assert!(said.contains("MiB of address space for items"), "{said}");
    assert!(said.contains("512 MiB") && said.contains("RLIMIT_AS"), "{said}");
    let wanted: u32 = said
        .split_once(" MiB of address space")
        .and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok())
        .expect("a number of MiB");
    assert!((1024..1200).contains(&wanted), "{said}");
    let said = refusal("-d", 512, &["-m", "1024", "-t", "2"]);
    assert!(said.contains("512 MiB") && said.contains("RLIMIT_DATA"), "{said}");
}

/// Under every limit the server serves, or says why it does not start.
#[test]
fn a_server_starts_or_says_why_not_under_any_limit() {
    for threads in ["1", "2", "8"] {
        let options = ["-m", "64", "-t", threads];
        let (mut started, mut refused) = (0, 0);
        for mib in (80..320).step_by(20) {
            let mut limited = Limited::start("-v", mib, &options);
            if let Some(port) = limited.port() {
                serves(port);
                limited.end();
                started += 1;
            } else {
                assert_eq!(started, 0, "a lower limit sufficed, {mib} MiB do not");
                let said = refusal("-v", mib, &options);
                assert!(said.contains("RLIMIT_AS"), "{said}");
                refused += 1;
            }
        }
        assert!(started > 0 && refused > 0, "{started} started, {refused} refused");
    }
}
