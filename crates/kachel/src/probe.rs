//! `kachel probe`: asks a server whether it answers, for a health check that has no shell.
//!
//! Upstream:   `main`, with the arguments after `probe`.
//! Downstream: a server, by a connection for each question.
//!
//! A server lives if it answers anything. One that wants a login, speaks TLS or is full refuses the
//! question, and must not be restarted for it.
//!
//! Invariants:
//! - I1  The process ends within the time limit, whatever the server does.
//! - I2  No server is changed by the questions, which all ask for its version.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

const USAGE: &str = "\
usage: kachel probe [--timeout-s N] [ADDRESS]

Asks the server at ADDRESS for its version. Ends with status 0 if it answers anything, with 1 if it
does not within N seconds (default: 2), and with 64 if the arguments are wrong. ADDRESS is HOST:PORT,
or the path of a unix socket (default: 127.0.0.1:11211).
";

const ADDRESS_DEFAULT: &str = "127.0.0.1:11211";
const TIMEOUT_S_DEFAULT: u64 = 2;
const TIMEOUT_S_MAX: u64 = 3600;

const EXIT_USAGE: u8 = 64;

/// The question by the text protocol, and by the binary one (a header of 24 bytes, opcode 0x0b). A
/// listener of one protocol closes a connection that speaks the other.
const QUESTIONS: [&[u8]; 2] =
    [b"version\r\n", b"\x80\x0b\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"];

/// The server to ask, and the seconds that it has.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    address: String,
    timeout_s: u64,
}

/// Asks the server that `words` name. Prints a sentence if it does not answer.
#[expect(clippy::print_stderr, reason = "the answer to a command is no line of the log")]
pub(crate) fn run(words: Vec<OsString>) -> ExitCode {
    if words.iter().any(|word| word == "-h" || word == "--help") {
        return crate::print(USAGE);
    }
    let Some(asked) = read(&words) else {
        eprint!("{USAGE}");
        return ExitCode::from(EXIT_USAGE);
    };
    let Asked { address, timeout_s } = asked;
    let (tell, told) = mpsc::channel();
    let shown = address.clone();
    // If it does not end in time, it ends with the process (I1).
    let asker = std::thread::Builder::new().spawn(move || tell.send(ask(&address)));
    let why = match asker.map(|_| told.recv_timeout(Duration::from_secs(timeout_s))) {
        Ok(Ok(Ok(()))) => return ExitCode::SUCCESS,
        Ok(Ok(Err(error))) => error.to_string(),
        Ok(Err(_)) => format!("no answer within {timeout_s} s"),
        Err(error) => format!("no thread: {error}"),
    };
    eprintln!("kachel probe: {shown}: {why}");
    ExitCode::FAILURE
}

/// Reads the arguments; `None` if they are wrong.
fn read(words: &[OsString]) -> Option<Asked> {
    let mut asked = Asked { address: ADDRESS_DEFAULT.to_owned(), timeout_s: TIMEOUT_S_DEFAULT };
    let mut words = words.iter().map(|word| word.to_str());
    let mut has_address = false;
    while let Some(word) = words.next() {
        let word = word?;
        let value = match word.split_once('=') {
            Some(("--timeout-s", value)) => Some(value),
            _ if word == "--timeout-s" => Some(words.next()??),
            _ => None,
        };
        if let Some(value) = value {
            let seconds = value.parse().ok()?;
            asked.timeout_s = (1..=TIMEOUT_S_MAX).contains(&seconds).then_some(seconds)?;
        } else if has_address || word.is_empty() || word.starts_with('-') {
            return None;
        } else {
            has_address = true;
            asked.address = word.to_owned();
        }
    }
    Some(asked)
}

/// Asks each question until one is answered. May wait forever.
///
/// Errors: nobody listens, or nothing is answered.
fn ask(address: &str) -> io::Result<()> {
    let mut last = io::Error::from(ErrorKind::UnexpectedEof);
    for question in QUESTIONS {
        let answered = if address.contains('/') {
            UnixStream::connect(address).and_then(|stream| answers(stream, question))
        } else {
            TcpStream::connect(address).and_then(|stream| answers(stream, question))
        };
        match answered {
            Ok(()) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Whether the server answers at least a byte.
fn answers(mut stream: impl Read + Write, question: &[u8]) -> io::Result<()> {
    // A full server answers before it is asked, and closes; the question then fails.
    let asked = stream.write_all(question);
    match stream.read(&mut [0; 64]) {
        Ok(0) => Err(asked.err().unwrap_or_else(|| ErrorKind::UnexpectedEof.into())),
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_name_a_server_and_a_time() {
        let asked = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            read(&words).map(|Asked { address, timeout_s }| (address, timeout_s))
        };
        let some = |address: &str, seconds| Some((address.to_owned(), seconds));
        assert_eq!(asked(&[]), some("127.0.0.1:11211", 2));
        assert_eq!(asked(&["--timeout-s", "5", "[::1]:1"]), some("[::1]:1", 5));
        assert_eq!(asked(&["/run/k", "--timeout-s=1"]), some("/run/k", 1));
        for wrong in [&["a:1", "b:2"][..], &["--timeout-s", "0"], &["--timeout-s"], &["-x"], &[""]]
        {
            assert_eq!(asked(wrong), None, "{wrong:?}");
        }
    }
}
