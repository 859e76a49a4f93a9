//! The binary protocol: reads one request from the front of a connection's input.
//!
//! Upstream:   `protocol`, with the input of a connection that speaks it.
//! Downstream: a [`Request`] that borrows the input; `answer` formats its reply.
//!
//! ```text
//! bytes of the header           2..4   length of the key       12..16  opaque, for the reply
//! 0  magic; that of replies     4      length of the extras    16..24  CAS token; 0: none
//!    is 0x81                    5..8   ignored                 24..    body: extras, key, value
//! 1  opcode                     8..12  length of the body
//! ```
//!
//! Invariants:
//! - I1  A request consists of its header, its extras and its key. The value of a storage request
//!   follows it, with nothing behind.
//! - I2  A refusal skips the whole body as the header announces it, or closes the connection. So
//!   the next request is found in any case. 1.6.45 loses it after some refusals.
//! - I3  At most `REQUEST_BYTES_MAX` bytes are awaited for a request, whatever its header
//!   announces.
//!
//! Source: memcached's protocol_binary.txt, and 1.6.45's replies where that text is incomplete.

mod answer;
mod opcode;
mod sasl;
mod stats;

use kachel_engine::{
    ArithmeticTerms, DeleteTerms, Direction, GetTerms, LifeStep, LifeTerms, StoreMode, StoreTerms,
    Ttl, ValueWanted, Verb, Wanted,
};

pub(crate) use self::answer::{REPLY_MAGIC, answer};
use self::opcode::Lengths;
pub use self::sasl::{
    MECHANISM_BYTES_MAX, SASL_MESSAGE_BYTES_MAX, SaslParsed, SaslRequest, parse_sasl,
};
pub use self::stats::binary_stats_topic;
use crate::line::Parsed;
use crate::refusal::BinaryRefusal;
use crate::reply::{BinaryStatus, Reply};
use crate::request::{Admin, BinaryHead, BinaryRequest, BinaryVerb, KEY_BYTES_MAX, Request};

/// The first byte of every request.
pub(crate) const REQUEST_MAGIC: u8 = 0x80;
/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 24;
/// Bytes of the longest extras of a request: those of `INCREMENT` and `DECREMENT`.
const EXTRAS_BYTES_MAX: usize = 20;
/// Bytes of the longest request without its value.
const REQUEST_BYTES_MAX: usize = HEADER_BYTES + EXTRAS_BYTES_MAX + KEY_BYTES_MAX;
/// Bytes of the longest reply without a value: a header, client flags and a key.
pub(crate) const BINARY_REPLY_BYTES_MAX: u16 = (HEADER_BYTES + 4 + KEY_BYTES_MAX) as u16;
/// Bytes of the longest body. 1.6.45 refuses longer ones, whatever they announce.
const BODY_BYTES_MAX: u32 = 1 << 30;
/// The expiry with which `INCREMENT` and `DECREMENT` create no number.
const CREATES_NOTHING: u32 = u32::MAX;

impl BinaryHead {
    /// Whether the opcode is a quiet one: a retrieval hides a miss, other requests hide a success.
    #[inline]
    pub const fn is_quiet(self) -> bool {
        opcode::without_quiet(self.opcode).1
    }
}

/// The head of the request at the front of `input`, whatever its lengths are. `None` if its header
/// is not whole, or it is of another protocol.
pub fn binary_head(input: &[u8]) -> Option<BinaryHead> {
    let header = input.first_chunk::<HEADER_BYTES>()?;
    (header[0] == REQUEST_MAGIC).then(|| Header::read(header).head)
}

/// Reads one request from the front of `input`.
pub(crate) fn parse(input: &[u8]) -> Parsed<'_> {
    if input.first().is_some_and(|&magic| magic != REQUEST_MAGIC) {
        return Parsed::Close;
    }
    let Some((header, body)) = input.split_first_chunk::<HEADER_BYTES>() else {
        return Parsed::NeedMore;
    };
    let header = Header::read(header);
    let lengths = match header.lengths() {
        Ok(lengths) => lengths,
        Err(refusal) => return Parsed::RefusedBinary { refusal, line_bytes: HEADER_BYTES },
    };
    let Some((extras, rest)) = body.split_at_checked(lengths.extras_bytes) else {
        return Parsed::NeedMore;
    };
    let Some(key) = rest.get(..lengths.key_bytes) else { return Parsed::NeedMore };
    let line_bytes = HEADER_BYTES + extras.len() + key.len();
    debug_assert!(line_bytes <= REQUEST_BYTES_MAX, "I3");
    Parsed::Request { request: header.request(extras, key, lengths.value_bytes), line_bytes }
}

/// A header whose magic is right.
struct Header {
    head: BinaryHead,
    key_bytes: u16,
    extras_bytes: u8,
    body_bytes: u32,
    cas: u64,
}

impl Header {
    #[inline]
    fn read(bytes: &[u8; HEADER_BYTES]) -> Self {
        Self {
            head: BinaryHead { opcode: bytes[1], opaque: array(bytes, 12) },
            key_bytes: u16::from_be_bytes(array(bytes, 2)),
            extras_bytes: bytes[4],
            body_bytes: u32::from_be_bytes(array(bytes, 8)),
            cas: u64::from_be_bytes(array(bytes, 16)),
        }
    }

    /// The lengths of the parts of the body. Errors: they are more than the body, or the body is
    /// too long.
    #[inline]
    fn split(&self) -> Result<Lengths, BinaryRefusal> {
        if self.body_bytes > BODY_BYTES_MAX {
            return Err(self.refused(BinaryStatus::InvalidArguments));
        }
        let before_value = u32::from(self.key_bytes) + u32::from(self.extras_bytes);
        let Some(value_bytes) = self.body_bytes.checked_sub(before_value) else {
            return Err(self.refused(BinaryStatus::UnknownCommand));
        };
        Ok(Lengths {
            extras_bytes: usize::from(self.extras_bytes),
            key_bytes: usize::from(self.key_bytes),
            value_bytes,
        })
    }

    /// As [`Self::split`], of a request that this parser reads. Errors: a length is wrong, or the
    /// opcode is unknown.
    fn lengths(&self) -> Result<Lengths, BinaryRefusal> {
        let lengths = self.split()?;
        let (opcode, _) = opcode::without_quiet(self.head.opcode);
        let are_right = opcode::are_right(opcode, lengths);
        if lengths.key_bytes > KEY_BYTES_MAX || are_right == Some(false) {
            return Err(self.refused(BinaryStatus::InvalidArguments));
        }
        // Where clients log in by SASL, `sasl` reads these requests.
        if are_right.is_none() || opcode::is_sasl(self.head.opcode) {
            let skip_bytes = u64::from(self.body_bytes);
            let refusal = self.refused(BinaryStatus::UnknownCommand);
            return Err(BinaryRefusal { skip_bytes, closes: false, ..refusal }); // I2
        }
        Ok(lengths)
    }

    /// A refusal after which the connection is closed.
    #[cold]
    const fn refused(&self, status: BinaryStatus) -> BinaryRefusal {
        BinaryRefusal { head: self.head, status, skip_bytes: 0, closes: true }
    }

    /// The request, whose lengths are right.
    fn request<'b>(&self, extras: &[u8], key: &'b [u8], value_bytes: u32) -> Request<'b> {
        let head = self.head;
        let admin = |admin| Request::BinaryAdmin { head, admin };
        let (opcode, _) = opcode::without_quiet(head.opcode);
        let verb = match opcode {
            opcode::GET | opcode::GETK => {
                BinaryVerb::Get { ttl: None, with_value: true, with_key: opcode == opcode::GETK }
            }
            opcode::TOUCH | opcode::GAT | opcode::GATK => BinaryVerb::Get {
                ttl: Some(ttl(u32_at(extras, 0))),
                with_value: opcode != opcode::TOUCH,
                with_key: opcode == opcode::GATK,
            },
            opcode::SET | opcode::ADD | opcode::REPLACE => BinaryVerb::Store {
                mode: match opcode {
                    opcode::SET => StoreMode::Set,
                    opcode::ADD => StoreMode::Add,
                    _ => StoreMode::Replace,
                },
                client_flags: u32_at(extras, 0),
                ttl: ttl(u32_at(extras, 4)),
                value_bytes,
            },
            opcode::APPEND | opcode::PREPEND => {
                let is_append = opcode == opcode::APPEND;
                let mode = if is_append { StoreMode::Append } else { StoreMode::Prepend };
                BinaryVerb::Store { mode, client_flags: 0, ttl: Ttl(0), value_bytes }
            }
            opcode::DELETE => BinaryVerb::Delete,
            opcode::INCREMENT | opcode::DECREMENT => {
                let is_up = opcode == opcode::INCREMENT;
                let expiry = u32_at(extras, 16);
                BinaryVerb::Arithmetic {
                    direction: if is_up { Direction::Up } else { Direction::Down },
                    delta: u64_at(extras, 0),
                    initial: u64_at(extras, 8),
                    create: (expiry != CREATES_NOTHING).then(|| ttl(expiry)),
                }
            }
            opcode::NOOP => return admin(Admin::Settled { reply: Reply::Ok, noreply: false }),
            opcode::VERSION => return admin(Admin::Version),
            opcode::QUIT => return admin(Admin::Quit),
            opcode::FLUSH => {
                let delay = if extras.is_empty() { Ttl(0) } else { ttl(u32_at(extras, 0)) };
                return admin(Admin::FlushAll { delay, noreply: false });
            }
            opcode::STAT => return admin(Admin::Stats { topic: key }),
            _ => unreachable!("opcode {opcode:#x} was refused"),
        };
        let compare_cas = (self.cas != 0).then_some(self.cas);
        Request::Binary(BinaryRequest { head, key, compare_cas, verb })
    }
}

/// Some bytes of a header.
#[inline]
fn array<const BYTES: usize>(header: &[u8; HEADER_BYTES], at: usize) -> [u8; BYTES] {
    *header[at..].first_chunk().expect("the field is in the header")
}

#[inline]
fn u32_at(extras: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(*extras[at..].first_chunk().expect("the extras have their length"))
}

#[inline]
fn u64_at(extras: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(*extras[at..].first_chunk().expect("the extras have their length"))
}

/// The TTL in a request. The protocol has no negative ones: from 2^31 on it is a time after the
/// year 2038, as in 1.6.45. Here it is the last second that a TTL can name.
#[inline]
fn ttl(expiry: u32) -> Ttl {
    Ttl(i32::try_from(expiry).unwrap_or(i32::MAX))
}

impl BinaryRequest<'_> {
    /// Whether the request may change nothing.
    #[inline]
    pub(crate) const fn is_read(&self) -> bool {
        matches!(self.verb, BinaryVerb::Get { ttl: None, .. })
    }

    /// Whether the reply has the item's value.
    #[inline]
    pub(crate) const fn shows_value(&self) -> bool {
        matches!(self.verb, BinaryVerb::Get { with_value: true, .. })
    }

    /// Bytes of the value that follows a storage request.
    #[inline]
    pub(crate) const fn announced_bytes(&self) -> Option<u32> {
        match self.verb {
            BinaryVerb::Store { value_bytes, .. } => Some(value_bytes),
            _ => None,
        }
    }

    /// The client flags of a storage request; 0 for others.
    pub(crate) const fn client_flags(&self) -> u32 {
        match self.verb {
            BinaryVerb::Store { client_flags, .. } => client_flags,
            _ => 0,
        }
    }

    /// Whether a storage request whose value is refused removes the item: `SET` does, also with a
    /// token.
    pub(crate) const fn removes_when_refused(&self) -> bool {
        matches!(self.verb, BinaryVerb::Store { mode: StoreMode::Set, .. })
    }

    /// The terms of a storage request; `None` for others.
    pub(crate) fn store_terms(&self) -> Option<StoreTerms> {
        let BinaryVerb::Store { mode, client_flags, ttl, value_bytes } = self.verb else {
            return None;
        };
        let compares_to_set = self.compare_cas.is_some()
            && matches!(mode, StoreMode::Set | StoreMode::Add | StoreMode::Replace);
        Some(StoreTerms {
            mode: if compares_to_set { StoreMode::Set } else { mode },
            value_bytes: value_bytes as usize,
            client_flags,
            ttl,
            compare_cas: self.compare_cas,
            new_cas: None,
            stores_stale: false,
            protocol_mark: false,
            vivify: None,
        })
    }

    /// The engine's verb. A value of at most `value_bytes_max` bytes is lent.
    pub(crate) fn engine_verb(&self, value_bytes_max: usize) -> Verb {
        match self.verb {
            BinaryVerb::Get { ttl, with_value, .. } => Verb::Get(GetTerms {
                life: LifeTerms::touch(ttl),
                new_cas: None,
                value: if with_value { ValueWanted::Yes } else { ValueWanted::No },
                value_bytes_max,
                notes_access: true,
                may_win: false,
                leases: false,
                wanted: Wanted::CLIENT_FLAGS.with(Wanted::CAS),
            }),
            BinaryVerb::Store { .. } => {
                Verb::Store(self.store_terms().expect("a storage request has terms"))
            }
            BinaryVerb::Delete => {
                Verb::Delete(DeleteTerms { compare_cas: self.compare_cas, ..Default::default() })
            }
            BinaryVerb::Arithmetic { direction, delta, initial, create } => {
                let mut life = LifeTerms::NONE;
                if let Some(ttl) = create {
                    life.push(LifeStep::Vivify(ttl));
                }
                Verb::Arithmetic(ArithmeticTerms {
                    direction,
                    delta,
                    initial,
                    compare_cas: self.compare_cas,
                    new_cas: None,
                    life,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests;
