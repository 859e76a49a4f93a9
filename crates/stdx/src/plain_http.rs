//! A question by HTTP/1.0 and its answer, for programs that need no more of HTTP.
//!
//! Upstream:   `kachel probe` and `kachel top`, with an address of their user.
//! Downstream: bytes, which the caller sends and receives.
//!
//! Invariants:
//! - H1  What a server says is shown in printable ASCII ([`printable`]).
//!
//! Source: RFC 1945. The answer ends with the connection, so neither lengths nor encodings are
//! needed.

/// A question for a path. `headers` is empty, or lines that end with CR LF. No part may have a line
/// end otherwise: it would begin another header.
pub fn http_question(authority: &str, path: &str, headers: &str) -> String {
    debug_assert!(headers.is_empty() || headers.ends_with("\r\n"), "whole lines");
    debug_assert!(!authority.contains(['\r', '\n']) && !path.contains(['\r', '\n']), "one line");
    format!("GET /{path} HTTP/1.0\r\nHost: {authority}\r\n{headers}\r\n")
}

/// The answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpAnswer<'a> {
    /// The three bytes of the status, which are digits if the server keeps to HTTP.
    pub status: &'a [u8],
    /// The bytes behind the headers. Empty if these are not whole.
    pub body: &'a [u8],
}

impl<'a> HttpAnswer<'a> {
    /// Takes an answer apart. `None` if it is not HTTP.
    pub fn read(answer: &'a [u8]) -> Option<Self> {
        let status = answer.strip_prefix(b"HTTP/1.")?.get(2..5)?;
        let end = b"\r\n\r\n";
        let head = answer.windows(end.len()).position(|window| window == end);
        let body = head.map_or(&[][..], |head| &answer[head + end.len()..]);
        Some(Self { status, body })
    }

    /// Whether the server has done what the question asks for.
    pub fn is_ok(&self) -> bool {
        self.status == b"200"
    }

    /// The first line of the body, and the status, in at most about `characters_max` characters
    /// (H1).
    pub fn sentence(&self, characters_max: usize) -> String {
        let line = self.body.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let (line, status) = (printable(line, characters_max), printable(self.status, 12));
        format!("{line} ({status})")
    }
}

/// A text of another program in printable ASCII, at most `characters_max` characters of it (H1).
pub fn printable(text: &[u8], characters_max: usize) -> String {
    text.escape_ascii().take(characters_max).map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_has_its_host_and_an_empty_line() {
        let plain = "GET /ready HTTP/1.0\r\nHost: a:1\r\n\r\n";
        assert_eq!(http_question("a:1", "ready", ""), plain);
        let more = "GET /metrics HTTP/1.0\r\nHost: a:1\r\nA: b\r\n\r\n";
        assert_eq!(http_question("a:1", "metrics", "A: b\r\n"), more);
    }

    /// H1.
    #[test]
    fn an_answer_is_a_status_and_a_body() {
        let said = |answer: &[u8]| HttpAnswer::read(answer).map(|answer| answer.sentence(200));
        let well = HttpAnswer::read(b"HTTP/1.0 200 OK\r\nA: b\r\n\r\nready\n").expect("HTTP");
        assert!(well.is_ok() && well.body == b"ready\n");
        let draining = said(b"HTTP/1.1 503 X\r\nA: b\r\n\r\ndraining\nmore\n");
        assert_eq!(draining.as_deref(), Some("draining (503)"));
        let hostile = said(b"HTTP/1.1 \x1b[2 X\r\n\r\n\x1b[2J\xff\xe2\x80\xae\n");
        assert_eq!(hostile.as_deref(), Some("\\x1b[2J\\xff\\xe2\\x80\\xae (\\x1b[2)"));
        assert_eq!(said(b"HTTP/1.1 500 X\r\n").as_deref(), Some(" (500)"), "no whole head");
        let long = [b"HTTP/1.1 500 X\r\n\r\n".to_vec(), vec![b'x'; 1 << 20]].concat();
        assert!(said(&long).is_some_and(|said| said.len() < 300));
        for other in [&b""[..], b"ERROR\r\n", b"HTTP/1.", b"HTTP/1.1 2", b"HTTP/2 200\r\n\r\n"] {
            assert_eq!(HttpAnswer::read(other), None);
        }
    }
}
