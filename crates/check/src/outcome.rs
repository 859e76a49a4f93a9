//! An outcome: the reply that a client received for an operation, or the fact that there was none.
//!
//! Upstream:   reply bytes, as the client received them.
//! Downstream: `model`, which decides which outcomes are possible.
//!
//! Invariants:
//! - I1  `Unknown` means that the operation may be executed now, later or never. `Silent` means
//!   that the operation was executed, and that the server withheld its reply.

use crate::Value;
use crate::request::{line, number, words};

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The client received no reply and does not know whether the operation was executed.
    Unknown,
    /// The server withheld the reply because of `noreply` or `q`. A later reply on the same
    /// connection shows that the operation was executed.
    Silent,
    /// `END` alone: a retrieval without a hit.
    Miss,
    /// `VALUE` and `END`.
    Hit {
        /// The value.
        value: Value,
        /// The client flags.
        client_flags: u32,
        /// The CAS token, if the client requested it.
        cas: Option<u64>,
    },
    /// `LVALUE` and `END`.
    Leased {
        /// The token of the lease; 1 while another client has it.
        token: u64,
        /// The client flags of the stale value.
        client_flags: u32,
        /// The stale value; empty if there is none.
        value: Value,
    },
    /// `NOT_FOUND_HOT`.
    NotFoundHot,
    /// `STALE_STORED`.
    StaleStored,
    /// `STORED`.
    Stored,
    /// `NOT_STORED`.
    NotStored,
    /// `EXISTS`.
    Exists,
    /// `NOT_FOUND`.
    NotFound,
    /// `DELETED`.
    Deleted,
    /// `TOUCHED`.
    Touched,
    /// `OK`.
    Ok,
    /// The reply to `incr` and `decr`.
    Number(u64),
    /// A meta reply.
    Meta {
        /// The two letters of the code.
        code: [u8; 2],
        /// The return flags, exactly as in the reply line.
        flags: Vec<u8>,
        /// The value, if the code is `VA`.
        value: Option<Value>,
    },
    /// `ME`, with the rest of the line.
    Debug(Vec<u8>),
    /// A refusal, without its line end.
    Refused(Vec<u8>),
}

impl Outcome {
    /// The bytes of the outcome as a reply to a request for `key`. Empty: there was no reply.
    pub fn word(&self, key: &[u8]) -> Vec<u8> {
        let line = |text: &[u8]| [text, b"\r\n"].concat();
        match self {
            Self::Unknown | Self::Silent => Vec::new(),
            Self::Miss => line(b"END"),
            Self::Hit { value, client_flags, cas } => {
                let cas = cas.map_or_else(String::new, |token| format!(" {token}"));
                let head = format!(" {client_flags} {}{cas}\r\n", value.bytes().len());
                [b"VALUE ", key, head.as_bytes(), value.bytes(), b"\r\nEND\r\n"].concat()
            }
            Self::Leased { token, client_flags, value } => {
                let head = format!(" {token} {client_flags} {}\r\n", value.bytes().len());
                [b"LVALUE ", key, head.as_bytes(), value.bytes(), b"\r\nEND\r\n"].concat()
            }
            Self::NotFoundHot => line(b"NOT_FOUND_HOT"),
            Self::StaleStored => line(b"STALE_STORED"),
            Self::Stored => line(b"STORED"),
            Self::NotStored => line(b"NOT_STORED"),
            Self::Exists => line(b"EXISTS"),
            Self::NotFound => line(b"NOT_FOUND"),
            Self::Deleted => line(b"DELETED"),
            Self::Touched => line(b"TOUCHED"),
            Self::Ok => line(b"OK"),
            Self::Number(number) => line(number.to_string().as_bytes()),
            Self::Meta { code, flags, value } => {
                let mut reply = code.to_vec();
                if let Some(value) = value {
                    reply.extend_from_slice(format!(" {}", value.bytes().len()).as_bytes());
                }
                if !flags.is_empty() {
                    reply.push(b' ');
                    reply.extend_from_slice(flags);
                }
                reply.extend_from_slice(b"\r\n");
                if let Some(value) = value {
                    reply.extend_from_slice(value.bytes());
                    reply.extend_from_slice(b"\r\n");
                }
                reply
            }
            Self::Debug(rest) => line(&[b"ME ", &rest[..]].concat()),
            Self::Refused(refusal) => line(refusal),
        }
    }

    /// The outcome at the front of `input`, and the length of its reply in bytes. `None`: `input`
    /// does not begin with a complete reply to an operation.
    ///
    /// ```
    /// use kachel_check::Outcome;
    /// assert_eq!(Outcome::read(b"STORED\r\nEND\r\n"), Some((Outcome::Stored, 8)));
    /// assert_eq!(Outcome::read(b"END\r\n"), Some((Outcome::Miss, 5)));
    /// ```
    pub fn read(input: &[u8]) -> Option<(Self, usize)> {
        let (line, line_bytes) = line(input)?;
        let mut words = words(line);
        let block = |value_bytes: usize, after: &[u8]| {
            let (value, rest) = input[line_bytes..].split_at_checked(value_bytes)?;
            let bytes = line_bytes + value_bytes + after.len();
            rest.starts_with(after).then(|| (Value::new(value), bytes))
        };
        let outcome = match words.next()? {
            b"VALUE" => {
                words.next()?;
                let (client_flags, bytes) = (number(words.next()?)?, number(words.next()?)?);
                let cas = words.next().map_or(Some(None), |word| number(word).map(Some))?;
                let (value, bytes) = block(bytes, b"\r\nEND\r\n")?;
                return Some((Self::Hit { value, client_flags, cas }, bytes));
            }
            b"LVALUE" => {
                words.next()?;
                let (token, client_flags) = (number(words.next()?)?, number(words.next()?)?);
                let (value, bytes) = block(number(words.next()?)?, b"\r\nEND\r\n")?;
                return Some((Self::Leased { token, client_flags, value }, bytes));
            }
            b"VA" => {
                let (value, bytes) = block(number(words.next()?)?, b"\r\n")?;
                let flags = words.rest().to_vec();
                return Some((Self::Meta { code: *b"VA", flags, value: Some(value) }, bytes));
            }
            code @ (b"HD" | b"EN" | b"NS" | b"EX" | b"NF" | b"MN") => {
                let (code, flags) = ([code[0], code[1]], words.rest().to_vec());
                Self::Meta { code, flags, value: None }
            }
            b"ME" => Self::Debug(words.rest().to_vec()),
            b"END" => Self::Miss,
            b"NOT_FOUND_HOT" => Self::NotFoundHot,
            b"STALE_STORED" => Self::StaleStored,
            b"STORED" => Self::Stored,
            b"NOT_STORED" => Self::NotStored,
            b"EXISTS" => Self::Exists,
            b"NOT_FOUND" => Self::NotFound,
            b"DELETED" => Self::Deleted,
            b"TOUCHED" => Self::Touched,
            b"OK" => Self::Ok,
            b"ERROR" | b"CLIENT_ERROR" | b"SERVER_ERROR" => Self::Refused(line.to_vec()),
            word => Self::Number(number(word)?),
        };
        Some((outcome, line_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::Outcome;

    #[test]
    fn an_outcome_is_worded_as_it_was_read() {
        for reply in [
            &b"END\r\n"[..],
            b"VALUE k 7 3\r\na\nc\r\nEND\r\n",
            b"VALUE k 0 0 9\r\n\r\nEND\r\n",
            b"LVALUE k 1 7 3\r\na\nc\r\nEND\r\n",
            b"LVALUE k 42 0 0\r\n\r\nEND\r\n",
            b"NOT_FOUND_HOT\r\n",
            b"STALE_STORED\r\n",
            b"STORED\r\n",
            b"NOT_STORED\r\n",
            b"EXISTS\r\n",
            b"NOT_FOUND\r\n",
            b"DELETED\r\n",
            b"TOUCHED\r\n",
            b"OK\r\n",
            b"18446744073709551615\r\n",
            b"HD\r\n",
            b"EN kk\r\n",
            b"VA 1 c7 W\r\na\r\n",
            b"VA 0\r\n\r\n",
            b"ME k exp=-1\r\n",
            b"SERVER_ERROR out of memory\r\n",
        ] {
            let (outcome, read) = Outcome::read(reply).expect("a reply");
            assert_eq!(read, reply.len());
            assert_eq!(outcome.word(b"k"), reply, "{outcome:?}");
        }
    }
}
