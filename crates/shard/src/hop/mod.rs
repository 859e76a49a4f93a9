//! Hops: how a request reaches the shard that owns its key, and its answer the one who asked.
//!
//! Upstream:   `serve`, with requests of our clients whose keys are not ours.
//! Downstream: `apply` at the owner; the outbox of the client that waits for the answer.
//!
//! ```text
//! shard A: send  --record-->  rings  -->  take: shard B carries it out
//! shard A: take  <--answer--  rings  <--  take: shard B
//! ```

mod record;
mod rings;
mod send;
mod take;

pub(crate) use record::{
    ANSWER_BYTES_MAX, ANSWER_HEAD_BYTES, Hop, HopKey, REQUEST_BYTES_MAX, REQUEST_HEAD_BYTES,
    ReplyTo,
};
pub use rings::{Mailbox, Mailboxes, mailboxes};
pub(crate) use rings::{MailboxFull, Parcel, mailbox_bytes};
pub(crate) use send::hop;
pub(crate) use take::{TAKEN_BYTES_MAX, answer_dump, has_room_for_answer, take_mail};
