//! Hops: how a request reaches the shard that owns its key, and how its answer comes back.
//!
//! Upstream:   `serve` and `upload`, with requests for keys of other shards that this core may not
//!             execute itself; listings, and sockets that another shard takes over.
//! Downstream: `apply` at the owner; the outbox of the client that waits for the answer.
//!
//! ```text
//! shard A: send  --record-->  rings  -->  mail: shard B carries it out
//! shard A: mail  <--answer--  rings  <--  send: shard B
//! ```

mod taken;
mod send;
mod record;
mod rings;

pub(crate) use record::{
    ANSWER_BYTES_MAX, ANSWER_HEAD_BYTES, Answer, Hop, HopKey, REQUEST_BYTES_MAX,
    REQUEST_HEAD_BYTES, ReplyTo, answer_bytes_max,
};
pub use rings::{Mailbox, Mailboxes, mailbox_bytes, mailboxes};
pub(crate) use rings::{MailboxFull, Parcel};
pub(crate) use send::{Mail, Outgoing};
pub(crate) use taken::{Taken, apply_taken};
