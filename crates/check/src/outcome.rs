//! An outcome: the reply that a client received for an operation, or the fact that there was none.
//!
//! Upstream:   reply bytes, as the client received them.
//! Downstream: `model`, which decides which outcomes are possible.
//!
//! Invariants:
//! - I1  `Unknown` means that the operation may be executed now, later or never. `Silent` means
//!   that the operation was executed, and that the server withheld its reply.

use kachel_wire::client::{ClientReply, ReplyParsed, parse_reply};
use kachel_wire::format;

use crate::Value;

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
                let mut reply = Vec::new();
                format::value_head(&mut reply, key, *client_flags, value.bytes().len(), *cas);
                reply.extend_from_slice(value.bytes());
                reply.extend_from_slice(b"\r\nEND\r\n");
                reply
            }
            Self::Leased { token, client_flags, value } => {
                let mut reply = Vec::new();
                let bytes = value.bytes();
                format::leased_head(&mut reply, key, *token, *client_flags, bytes.len());
                reply.extend_from_slice(bytes);
                reply.extend_from_slice(b"\r\nEND\r\n");
                reply
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
        let ReplyParsed::Reply { reply, reply_bytes } = parse_reply(input) else { return None };
        let outcome = match reply {
            ClientReply::Value { client_flags, value, cas, .. } => {
                let value = Value::new(&input[value]);
                return with_end(Self::Hit { value, client_flags, cas }, input, reply_bytes);
            }
            ClientReply::Leased { token, client_flags, value, .. } => {
                let value = Value::new(&input[value]);
                return with_end(Self::Leased { token, client_flags, value }, input, reply_bytes);
            }
            ClientReply::NotFoundHot => Self::NotFoundHot,
            ClientReply::StaleStored => Self::StaleStored,
            ClientReply::End => Self::Miss,
            ClientReply::Stored => Self::Stored,
            ClientReply::NotStored => Self::NotStored,
            ClientReply::Exists => Self::Exists,
            ClientReply::NotFound => Self::NotFound,
            ClientReply::Deleted => Self::Deleted,
            ClientReply::Touched => Self::Touched,
            ClientReply::Ok => Self::Ok,
            ClientReply::Number(number) => Self::Number(number),
            ClientReply::Meta { code, flags, value } => Self::Meta {
                code,
                flags: flags.to_vec(),
                value: value.map(|range| Value::new(&input[range])),
            },
            ClientReply::Debug(rest) => Self::Debug(rest.to_vec()),
            ClientReply::Error(line) => Self::Refused(line.to_vec()),
            ClientReply::Stat(_) | ClientReply::Version(_) => return None,
        };
        Some((outcome, reply_bytes))
    }
}

/// An outcome whose reply ends with `END`, after `reply_bytes`.
fn with_end(outcome: Outcome, input: &[u8], reply_bytes: usize) -> Option<(Outcome, usize)> {
    match parse_reply(&input[reply_bytes..]) {
        ReplyParsed::Reply { reply: ClientReply::End, reply_bytes: end_bytes } => {
            Some((outcome, reply_bytes + end_bytes))
        }
        _ => None,
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
