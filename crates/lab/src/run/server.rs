//! The processes of an experiment: its servers, and the load generator.
//!
//! Upstream:   `mod` and `measure`, with the words of a command and the cores to pin it to.
//! Downstream: processes, which end with their handle.
//!
//! A child gets SIGKILL when its handle is dropped, and by the kernel when this process ends in any
//! other way (`setpriv --pdeathsig`). The latter does not reach a server that changes its user.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Only a process that was started here, and not waited for yet, is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::certificate;
use crate::experiment::Server;
use crate::experiment::words::filled;

/// How long a server may take until it answers.
const START_MAX: Duration = Duration::from_secs(30);
/// How long a server may take for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// The time between two looks at a process.
const NAP: Duration = Duration::from_millis(10);
/// The lines of a log that an error shows.
const LOG_LINES: usize = 5;

/// A process that ends with its handle.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a command on these cores, or on all. Its output is appended to `log`.
    ///
    /// Errors: it, or one of the tools that start it, cannot be executed.
    pub(super) fn start(
        words: &[OsString],
        environment: &BTreeMap<String, String>,
        cores: Option<&str>,
        log: &Path,
    ) -> Result<Self, String> {
        let named = |error: std::io::Error| format!("{}: {error}", log.display());
        let output = File::options().create(true).append(true).open(log).map_err(named)?;
        let mut all: Vec<OsString> = ["setpriv", "--pdeathsig", "KILL"].map(Into::into).to_vec();
        if let Some(cores) = cores {
            all.extend(["taskset", "-c", cores].map(Into::into));
        }
        all.extend(words.iter().cloned());
        let child = Command::new(&all[0])
            .args(&all[1..])
            .envs(environment)
            .stdin(Stdio::null())
            .stdout(output.try_clone().map_err(named)?)
            .stderr(output)
            .spawn()
            .map_err(|error| format!("{} (of util-linux): {error}", all[0].display()))?;
        Ok(Self { child, log: log.to_owned() })
    }

    /// Its number.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child that was started can be waited for")
    }

    /// The last lines of its log.
    pub(super) fn last_words(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
        match last {
            [] => "it printed nothing".to_owned(),
            last => format!("its last lines, in {}:\n{}", self.log.display(), last.join("\n")),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended().is_none() {
            // I1: the number belongs to the child as long as nobody has waited for it.
            let killed = self.child.kill().and_then(|()| self.child.wait());
            assert!(killed.is_ok(), "I1: a child can be killed: {killed:?}");
        }
    }
}

/// A server that answers.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) name: String,
    pub(super) address: String,
    /// Its answer to `version`.
    pub(super) version: String,
    /// The command as it was executed, with the program's file name in place of its path; empty if
    /// it ran already. Raw data are published, and a path says nothing about another machine.
    pub(super) command: Vec<String>,
    /// Whether it has cores that no load generator uses.
    pub(super) has_own_cores: bool,
    /// The values of `{port}` and `{tls_port}`; none if it ran already.
    pub(super) values: BTreeMap<String, String>,
    process: Option<Process>,
}

impl Running {
    /// Starts the server, or looks for one that runs, and waits until it answers.
    ///
    /// Errors: the program is missing, or the server ends or does not answer.
    pub(super) fn start(
        server: &Server,
        program: Option<&Path>,
        options: &BTreeMap<String, String>,
        cores: Option<&str>,
        log: &Path,
    ) -> Result<Self, String> {
        let named = |error: String| format!("server '{}': {error}", server.name);
        let Some(program) = program else {
            let address = server.address.clone().expect("a server has a program or an address");
            let version =
                version(&address).map_err(|error| named(format!("{address}: {error}")))?;
            return Ok(Self {
                name: server.name.clone(),
                address,
                version,
                command: Vec::new(),
                has_own_cores: false,
                values: BTreeMap::new(),
                process: None,
            });
        };
        let [port, tls_port] = free_ports().map_err(|error| named(error.to_string()))?;
        let ports = [("port", port), ("tls_port", tls_port)];
        let ports = ports.map(|(name, port)| (name.to_owned(), port.to_string()));
        let mut values = options.clone();
        values.extend(ports.clone());
        values.extend(certificate::values(log.parent().expect("a file in the folder of the run")));
        let mut words = vec![program.as_os_str().to_owned()];
        words.extend(server.arguments.iter().map(|word| OsString::from(filled(word, &values))));
        let environment = server.environment.iter();
        let environment =
            environment.map(|(name, value)| (name.clone(), filled(value, &values))).collect();
        let process = Process::start(&words, &environment, cores, log).map_err(named)?;
        let arguments = words[1..].iter().map(|word| word.display().to_string());
        let command = [file_name(program)].into_iter().chain(arguments).collect();
        let address = format!("{}:{port}", Ipv4Addr::LOCALHOST);
        let mut running = Self {
            name: server.name.clone(),
            address,
            version: String::new(),
            command,
            has_own_cores: false,
            values: BTreeMap::from(ports),
            process: Some(process),
        };
        let deadline = Instant::now() + START_MAX;
        loop {
            running.check()?;
            match version(&running.address) {
                Ok(version) => running.version = version,
                Err(_) if Instant::now() < deadline => {
                    std::thread::sleep(NAP);
                    continue;
                }
                Err(error) => return Err(named(format!("does not answer: {error}"))),
            }
            return Ok(running);
        }
    }

    /// The number of the process, if it was started here.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Errors: it has ended.
    pub(super) fn check(&mut self) -> Result<(), String> {
        let Some(process) = &mut self.process else { return Ok(()) };
        match process.ended() {
            None => Ok(()),
            Some(status) => {
                let words = process.last_words();
                Err(format!("server '{}' ended ({status}); {words}", self.name))
            }
        }
    }
}

/// The last part of a path, for raw data, which have no path of this machine.
pub(super) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).display().to_string()
}

/// Whether no generator uses these cores. One without a list may use all.
pub(super) fn is_alone(own: &str, generators: &[Option<String>]) -> bool {
    assert!(!generators.is_empty(), "each step has a load");
    generators.iter().all(|other| other.as_ref().is_some_and(|other| !share(own, other)))
}

/// Whether two lists of cores, as `taskset -c` takes them, have a core in common. A list that has
/// another form may have.
fn share(one: &str, other: &str) -> bool {
    match (cores(one), cores(other)) {
        (Some(one), Some(other)) => !one.is_disjoint(&other),
        _ => true,
    }
}

/// The cores of a list such as `0,2-5`.
fn cores(list: &str) -> Option<BTreeSet<usize>> {
    let mut all = BTreeSet::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(all)
}

/// Two ports of loopback that nobody uses now.
fn free_ports() -> std::io::Result<[u16; 2]> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let (first, second) = (bind()?, bind()?);
    Ok([first.local_addr()?.port(), second.local_addr()?.port()])
}

/// Asks the server for its version.
fn version(address: &str) -> std::io::Result<String> {
    let none = || std::io::Error::other("the name has no address");
    let address = address.to_socket_addrs()?.next().ok_or_else(none)?;
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_MAX)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.write_all(b"version\r\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    match line.trim().strip_prefix("VERSION ") {
        Some(version) => Ok(version.to_owned()),
        None => Err(std::io::Error::other(format!("'{}' is no answer to version", line.trim()))),
    }
}

/// The file of a program: as it is named if that has a slash, or else beside this program, or in
/// `PATH`.
pub(super) fn find_program(program: &OsStr) -> Option<PathBuf> {
    let is_file = |path: &PathBuf| path.is_file();
    if Path::new(program).components().count() > 1 {
        return std::path::absolute(program).ok().filter(is_file);
    }
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(program)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).map(|folder| folder.join(program));
    beside.into_iter().chain(folders).find(is_file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(words: &[&str], log: &Path) -> Process {
        let words: Vec<OsString> = words.iter().map(Into::into).collect();
        Process::start(&words, &BTreeMap::new(), None, log).expect("started")
    }

    #[test]
    fn a_process_ends_with_its_handle() {
        let log = tempfile::NamedTempFile::new().expect("a file");
        let process = started(&["sleep", "600"], log.path());
        let proc = PathBuf::from(format!("/proc/{}", process.pid()));
        assert!(proc.exists());
        drop(process);
        assert!(!proc.exists(), "it was killed and waited for");
    }

    #[test]
    fn an_error_shows_the_last_lines_of_a_log() {
        let log = tempfile::NamedTempFile::new().expect("a file");
        let mut process = started(&["sh", "-c", "seq 9 >&2; exit 3"], log.path());
        while process.ended().is_none() {
            std::thread::sleep(NAP);
        }
        assert_eq!(process.ended().and_then(|status| status.code()), Some(3));
        assert!(process.last_words().ends_with("5\n6\n7\n8\n9"), "{}", process.last_words());
    }

    #[test]
    fn lists_of_cores_are_compared() {
        assert!(!share("0", "1") && !share("0,2-3", "1,4-7"));
        assert!(share("0,1", "0,1") && share("0-5", "3") && share("0,9", "7-12"));
        assert!(share("0-31:2", "1"), "a list with a stride is not read");
    }

    #[test]
    fn a_server_has_its_own_cores_if_no_generator_uses_them() {
        let list = |cores: &str| Some(cores.to_owned());
        assert!(is_alone("0", &[list("1")]) && is_alone("0", &[list("1"), list("2")]));
        assert!(!is_alone("0", &[list("1"), list("0-2")]), "the load beside uses them");
        assert!(!is_alone("0", &[list("1"), None]), "the load beside may use all");
    }

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        assert!(find_program(OsStr::new("sh")).expect("in PATH").ends_with("sh"));
        assert_eq!(find_program(OsStr::new("./no/such/program")), None);
        assert_eq!(find_program(OsStr::new("no-such-program")), None);
    }
}
