//! The memcached protocols without I/O: bytes become requests, replies become bytes.
//!
//! Upstream:   `net` lends the bytes that a connection received.
//! Downstream: `shard` applies the operations of requests, and formats its answers with [`reply`]
//!             and [`format`]; [`client`] is the client's side of the same protocols.
//!
//! Both sides speak text, meta and binary.
//!
//! Invariants:
//! - I1  This crate does not allocate, read a clock or make a system call.
//! - I2  No input causes a panic: a client's mistake is a value ([`ParseError`]).
//! - I3  The meaning of a request does not depend on the pieces in which it arrived.
#![forbid(unsafe_code)]

pub mod base64;
mod binary;
mod frame;
mod line;
mod meta;
pub mod number;
mod observers;
mod protocol;
mod refusal;
mod streams;
mod text;
mod words;

pub mod format;
pub mod reply;
pub mod request;

pub mod client;

pub use binary::{
    MECHANISM_BYTES_MAX, SASL_MESSAGE_BYTES_MAX, SaslParsed, SaslRequest, binary_head,
    binary_stats_topic, parse_sasl,
};
pub use format::Sink;
pub use frame::{FRAME_BYTES, Frame};
pub use line::Parsed;
pub use meta::parse_key;
pub use observers::ObserverSet;
pub use protocol::{begins_binary, lease_terms, parse, parse_binary, parse_text, retrieval_terms};
pub use refusal::{BinaryRefusal, ParseError};
pub use reply::{BinaryStatus, Reply};
pub use streams::Streams;
pub use text::login::{Login, TOKEN_BYTES_MAX, parse_login};
pub use text::stats::{Cachedump, DetailTopic, StatsTopic, stats_topic};
