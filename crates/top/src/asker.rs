//! Asks a server for its statistics, within a time and a number of bytes.
//!
//! Upstream:   `run`, once a second, on a thread of its own.
//! Downstream: the server: a connection that stays open for `stats`, and one for each `/metrics`.
//!
//! The request to an admin address is one of HTTP/1.0 (`kachel_stdx::http_question`).

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use kachel_stdx::{HttpAnswer, http_question, printable};

use crate::arguments::Target;
use crate::numbers::{ANSWER_BYTES_MAX, Numbers};

/// The time that all questions of one second have together (T2). A guess: a server that needs more
/// cannot be shown.
pub(crate) const ASK_TIME_MAX: Duration = Duration::from_secs(3);
/// The most characters of a sentence of a server that are shown. A frame has a line for it.
const SENTENCE_CHARACTERS_MAX: usize = 60;
/// The most bytes of a file with a token. A server takes 512.
const TOKEN_BYTES_MAX: u64 = 4096;

/// Asks one server.
#[derive(Debug)]
pub(crate) struct Asker {
    target: Target,
    /// The connection for `stats`.
    connection: Option<Connection>,
}

#[derive(Debug)]
enum Connection {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Asker {
    pub(crate) const fn new(target: Target) -> Self {
        Self { target, connection: None }
    }

    /// The statistics of now.
    ///
    /// Errors: nobody answers in time, or the answer is none. The next question begins with a new
    /// connection.
    pub(crate) fn ask(&mut self) -> Result<Numbers, String> {
        let until = Instant::now() + ASK_TIME_MAX;
        if let Target::Admin { authority, token_file } = &self.target {
            return metrics(authority, token_file.as_deref(), until);
        }
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(&self.target, until).map_err(|error| said(&error))?,
        };
        let mut numbers = Numbers::default();
        numbers.take_stats(&connection.answer("stats\r\n", until)?)?;
        // memcached tells the ages of evicted items by class.
        let is_kachel = numbers.text("kachel_version").is_some();
        let more = if is_kachel { "stats kachel\r\n" } else { "stats items\r\n" };
        numbers.take_stats(&connection.answer(more, until)?)?;
        self.connection = Some(connection);
        Ok(numbers)
    }
}

impl Connection {
    fn open(target: &Target, until: Instant) -> io::Result<Self> {
        match target {
            Target::Unix(path) => UnixStream::connect(path).map(Self::Unix),
            Target::Tcp(address) | Target::Admin { authority: address, .. } => {
                connect(address, until).map(Self::Tcp)
            }
        }
    }

    /// The answer to a question of `stats`: all of its lines, or a refusal, which is one line.
    fn answer(&mut self, question: &str, until: Instant) -> Result<Vec<u8>, String> {
        let mut answer = Vec::new();
        self.exchange(question.as_bytes(), &mut answer, until, |answer| {
            let is_refused = !answer.starts_with(b"STAT ") && answer.ends_with(b"\n");
            is_refused || answer.ends_with(b"END\r\n")
        })?;
        if answer.is_empty() {
            return Err("the server closed the connection; it may want TLS or a login".into());
        }
        Ok(answer)
    }

    /// Sends a question, and reads until the answer is whole or the connection ends.
    fn exchange(
        &mut self,
        question: &[u8],
        answer: &mut Vec<u8>,
        until: Instant,
        is_whole: impl Fn(&[u8]) -> bool,
    ) -> Result<(), String> {
        self.limit(until).and_then(|()| self.write_all(question)).map_err(|error| said(&error))?;
        let mut part = [0; 16 << 10];
        // Each turn reads a byte at least, so the limit of bytes is one of turns.
        while !is_whole(answer) {
            let count = match self.limit(until).and_then(|()| self.read(&mut part)) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(said(&error)),
            };
            if answer.len() + count > ANSWER_BYTES_MAX {
                return Err("the answer has more than 1 MiB".into()); // T2
            }
            answer.extend_from_slice(&part[..count]);
        }
        Ok(())
    }

    /// Lets the next call take the time that is left.
    ///
    /// Errors: none is left.
    fn limit(&self, until: Instant) -> io::Result<()> {
        let left = Some(left(until)?);
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(left).and_then(|()| stream.set_write_timeout(left))
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(left).and_then(|()| stream.set_write_timeout(left))
            }
        }
    }
}

impl Read for Connection {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(to),
            Self::Unix(stream) => stream.read(to),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(from),
            Self::Unix(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The time that is left. Errors: none is.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Connects to the first address of a name that answers.
fn connect(address: &str, until: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(until)?) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Reads the metrics of an admin address.
fn metrics(authority: &str, token_file: Option<&Path>, until: Instant) -> Result<Numbers, String> {
    let stream = connect(authority, until).map_err(|error| said(&error))?;
    let is_here = stream.peer_addr().is_ok_and(|peer| peer.ip().is_loopback());
    let token = match token_file {
        None => String::new(),
        Some(_) if !is_here => return Err("a token is sent only to 127.0.0.1 or ::1".into()),
        Some(path) => format!("Authorization: Bearer {}\r\n", token(path)?),
    };
    let request = http_question(authority, "metrics", &token);
    let mut answer = Vec::new();
    Connection::Tcp(stream).exchange(request.as_bytes(), &mut answer, until, |_| false)?;
    let Some(answer) = HttpAnswer::read(&answer) else {
        return Err("the answer is not HTTP".into());
    };
    match answer.status {
        b"200" => Ok(Numbers::of_metrics(answer.body)),
        b"401" => Err("the admin address needs a token: --token-file FILE".into()),
        _ => Err(answer.sentence(SENTENCE_CHARACTERS_MAX)),
    }
}

/// The token in a file. Errors: it cannot be read, or would not be one header.
fn token(path: &Path) -> Result<String, String> {
    let of_file = |why: &str| format!("--token-file {}: {why}", path.display());
    let read = || {
        let mut text = String::new();
        kachel_host::open_regular_file(path)?.take(TOKEN_BYTES_MAX).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = read().map_err(|error: io::Error| of_file(&error.to_string()))?;
    let token = text.trim_ascii();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(of_file("it has no token"));
    }
    Ok(token.to_owned())
}

/// An error of the kernel in words.
fn said(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            format!("no answer within {} s", ASK_TIME_MAX.as_secs())
        }
        ErrorKind::ConnectionRefused => "nothing listens there".into(),
        _ => printable(error.to_string().as_bytes(), 70),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// The result of a question to a server that sends one of `answers` to each question, whatever
    /// it is, and then closes.
    fn asked(answers: &[&[u8]], is_admin: bool) -> Result<Numbers, String> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let target = match is_admin {
            true => Target::Admin { authority: address, token_file: None },
            false => Target::Tcp(address),
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut client, _) = listener.accept().expect("a client");
                for answer in answers {
                    let _ = client.read(&mut [0; 512]);
                    // It fails if the client closes first.
                    let _ = client.write_all(answer);
                }
            });
            Asker::new(target).ask()
        })
    }

    #[test]
    fn both_answers_of_stats_are_read() {
        let answers = [&b"STAT uptime 1\r\nEND\r\n"[..], b"STAT items:1:evicted_time 5\r\nEND\r\n"];
        let numbers = asked(&answers, false).expect("read");
        assert_eq!(numbers.number("uptime"), Some(1.0));
        assert_eq!(numbers.numbers_of("items:", ":evicted_time").collect::<Vec<_>>(), [("1", 5.0)]);
    }

    /// T2.
    #[test]
    fn a_server_cannot_send_more_than_fits() {
        let too_long = Err("the answer has more than 1 MiB".into());
        let endless = b"STAT a 1\r\n".repeat(2 * ANSWER_BYTES_MAX / 10);
        assert_eq!(asked(&[&endless], false), too_long);
        let line = [b"STAT a ".to_vec(), vec![b'x'; 2 * ANSWER_BYTES_MAX]].concat();
        assert_eq!(asked(&[&line], false), too_long);
        let head = [b"HTTP/1.1 200 OK\r\n".to_vec(), vec![b'x'; 2 * ANSWER_BYTES_MAX]].concat();
        assert_eq!(asked(&[&head], true), too_long);
    }

    #[test]
    fn refusals_are_told_in_words() {
        let refused = |answer: &[u8], is_admin| asked(&[answer], is_admin).expect_err("no numbers");
        assert_eq!(refused(b"ERROR\r\n", false), "the server answers: ERROR");
        assert!(refused(b"", false).contains("TLS or a login"));
        assert_eq!(refused(b"STAT a 1\r\n", false), "the answer to stats has no end");
        assert_eq!(refused(b"+OK\r\n", true), "the answer is not HTTP");
        let page = b"HTTP/1.1 421 X\r\nA: b\r\n\r\nanother \x1b[31mname\n";
        assert_eq!(refused(page, true), "another \\x1b[31mname (421)");
        assert!(refused(b"HTTP/1.1 401 X\r\n\r\n", true).contains("--token-file"));
        let target = Target::Unix("/nonexistent/socket".into());
        assert!(Asker::new(target).ask().is_err());
    }
}
