//! Connections: partial input, replies in the order of the requests, and the limits of clients.
//!
//! Upstream:   `shard` passes on the events of `io`, and takes input to parse.
//! Downstream: `shard` formats replies into an outbox; the outbox passes its blocks to `io`.
//!
//! Architecture invariants:
//! - The crate makes no system call and reads no clock. The number of the sweep is an argument, and
//!   bytes come through `kachel_io::Io`.
//! - An idle connection holds no buffer: input is lent by `io`, and only a partial request is
//!   copied.
//! - Replies are sent in the order of the requests, whichever shard answered first (`outbox`,
//!   `slots`).

#![forbid(unsafe_code)]

mod connections;
mod overdue;
mod connection;
mod login;
mod endpoint;
mod exchange;
mod reflection;
mod sender_budget;
mod input;
mod outbox;
mod slots;
mod stream;
mod holding;
mod blocks;
mod index;
mod limits;
mod sasl;
mod users;
mod mechanism;
mod attempts;
mod address_key;

pub use attempts::{
    AddressGroup, Attempts, CalledLogin, LoginAttempt, LoginCall, LoginTurn, LoginWaiter,
    WRONG_PER_MINUTE_MAX,
};
pub use blocks::BlockPool;
pub use connection::{CloseReason, Connection, Waiting};
pub use connections::Connections;
pub use endpoint::{ClientProtocol, Endpoint, EndpointIndex, Endpoints};
pub use exchange::{
    Asker, DATAGRAM_REPLY_BYTES_MAX, EXCHANGES_MAX, Exchanges, REPLY_DATAGRAMS_MAX, ReplyState,
};
pub use holding::{Holding, SlowHolder};
pub use index::{ClientIndex, ConnectionIndex, CoreIndex, ExchangeIndex};
pub use input::{Input, Resume, add_to_tail};
pub use limits::{
    BEGUN_BYTES_MAX, BLOCK_SECONDS_MAX, ClientLimits, DATA_BYTES_PER_SECOND_MIN,
    FAIR_BYTES_PER_SECOND, HELD_SECONDS_MIN, KEPT_BYTES_MAX, LINE_SECONDS_MAX, LOGIN_SECONDS_MAX,
    OWED_BYTES_MAX, OWN_BYTES_PER_CONNECTION, PINNED_PERCENT_MAX, SLOTS_PER_CONNECTION_MAX,
    STALLED_READER_SECONDS_MAX, STATE_BYTES, WAITING_INPUT_BYTES_MAX, WIDENED_BYTES,
};
pub use login::{LOGIN_FAILURES_MAX, LOGIN_WAIT_SECONDS_MAX, LoginOwed};
pub use mechanism::Mechanisms;
pub use outbox::Outbox;
pub use overdue::{Overdue, TooSlow};
pub use reflection::{is_answerable, reflects};
pub use sasl::{Exchange, SaslMessage, SaslStep};
pub use sender_budget::SenderBudget;
pub use slots::{AnswerRoom, Fence, SlotIndex, Slots};
pub use stream::{Source, Stream};
pub use users::{BadUsers, USERS_KEY_BYTES, Users};
