//! `kachel probe`: asks a server whether it answers, for a health check that has no shell.
//!
//! Upstream:   `main`, with the arguments after `probe`.
//! Downstream: a server, by a connection for each question.
//!
//! A server lives if it answers anything. One that wants a login, speaks TLS or is full refuses the
//! question, and must not be restarted for it. An admin address is asked for its health or another
//! path, by a line of HTTP/1.0, and its status counts.
//!
//! Invariants:
//! - I1  The process ends within the time limit, whatever the server does.
//! - I2  No server is changed by the questions: they ask for its version, or by GET.
//! - I3  What a server says is printed in printable ASCII, and not much of it.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use kachel_stdx::{HttpAnswer, http_question};

const USAGE: &str = "\
usage: kachel probe [--timeout-s N] [ADDRESS]

Asks the server at ADDRESS for its version. Ends with status 0 if it answers anything, with 1 if it
does not within N seconds (default: 2), and with 64 if the arguments are wrong. ADDRESS is
HOST:PORT, or the path of a unix socket (default: 127.0.0.1:11211). It may also be
http://HOST:PORT/PATH of an admin address (--admin), which must answer with status 200. PATH is
health, ready or another one (default: health).
";

const ADDRESS_DEFAULT: &str = "127.0.0.1:11211";
const TIMEOUT_S_DEFAULT: u64 = 2;
const TIMEOUT_S_MAX: u64 = 3600;

/// The path of an admin address without one.
const PATH_DEFAULT: &str = "health";
/// The most bytes of an answer over HTTP that are read. Those to health and ready have some
/// hundred.
const ANSWER_BYTES_MAX: u64 = 4096;
/// The most characters of a sentence that are printed. A server with many threads that stand still
/// names them all.
const SENTENCE_CHARACTERS_MAX: usize = 200;

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
        } else if has_address || word.starts_with('-') || !is_address(word) {
            return None;
        } else {
            has_address = true;
            asked.address = word.to_owned();
        }
    }
    Some(asked)
}

/// Whether a word may be an address: it becomes a part of a request.
fn is_address(word: &str) -> bool {
    let is_http = word.starts_with("http://");
    let is_of_request = |byte: u8| byte.is_ascii_graphic();
    !word.is_empty() && (!is_http || word.bytes().all(is_of_request))
}

/// Asks each question until one is answered. May wait forever.
///
/// Errors: nobody listens, or nothing is answered; an admin address says no.
fn ask(address: &str) -> io::Result<()> {
    if let Some(place) = address.strip_prefix("http://") {
        let (authority, path) = place.split_once('/').unwrap_or((place, ""));
        let path = if path.is_empty() { PATH_DEFAULT } else { path };
        return TcpStream::connect(authority).and_then(|stream| is_well(stream, authority, path));
    }
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

/// Whether an admin address answers with status 200.
///
/// Errors: it does not; the error has the first line that it says.
fn is_well(mut stream: impl Read + Write, authority: &str, path: &str) -> io::Result<()> {
    stream.write_all(http_question(authority, path, "").as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    match HttpAnswer::read(&answer) {
        Some(answer) if answer.is_ok() => Ok(()),
        Some(answer) => Err(io::Error::other(answer.sentence(SENTENCE_CHARACTERS_MAX))), // I3
        None => Err(io::Error::other("the answer is not HTTP")),
    }
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
        for wrong in [
            &["a:1", "b:2"][..],
            &["--timeout-s", "0"],
            &["--timeout-s"],
            &["-x"],
            &[""],
            &["http://a:1/x y"],
            &["http://a:1/\r\nX: y"],
        ] {
            assert_eq!(asked(wrong), None, "{wrong:?}");
        }
    }

    /// A stream that takes a question and has an answer.
    struct Answering<'a>(&'a [u8], Vec<u8>);

    impl Read for Answering<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            self.0.read(to)
        }
    }

    impl Write for Answering<'_> {
        fn write(&mut self, from: &[u8]) -> io::Result<usize> {
            self.1.write(from)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_admin_address_is_well_if_its_status_says_so() {
        let why = |answer: &[u8]| {
            let well = is_well(Answering(answer, Vec::new()), "a:1", "ready");
            well.map_err(|error| error.to_string())
        };
        assert_eq!(why(b"HTTP/1.0 200 OK\r\n\r\nready\n"), Ok(()));
        let draining = why(b"HTTP/1.1 503 X\r\nA: b\r\n\r\ndraining\n");
        assert_eq!(draining, Err("draining (503)".into()));
        assert_eq!(why(b"ERROR\r\n"), Err("the answer is not HTTP".into()));
        let mut asked = Answering(b"", Vec::new());
        let _ = is_well(&mut asked, "a:1", "ready");
        assert_eq!(asked.1, b"GET /ready HTTP/1.0\r\nHost: a:1\r\n\r\n");
    }
}
