//! The admin address: metrics, health, readiness and a live page over HTTP, for operators and their
//! tools.
//!
//! Upstream:   `kachel` opens the listener and starts the thread ([`AdminAddress::start`]).
//! Downstream: hyper and tokio, on one thread of their own. [`AdminSource`] has what is answered.
//!
//! ```text
//! client --> accept --> one request: head --> may it ask? --> route --> answer --> close
//!              |                                                |
//!              +-- at the limit, the oldest one ends            +-- probe: a tick of each shard
//!                                                               +-- live: one event a second
//! ```
//!
//! Reading order: `limits`, `source`, `route` with `hosts`, `token`, `wrong_tokens`, `login` and
//! `page`, `probe`, `live`, `deadline`, `connection`, `accept`, `admin`.
//!
//! Architecture invariants:
//! - No shard knows this crate, and no request here runs code on the thread of a shard. A probe may
//!   wake a shard that sleeps.
//! - While no client is connected, the thread wakes once a second to take a sample of counters.
//! - Nothing that a client sends changes the server, or makes this crate panic.
//! - The memory and the descriptors of all clients together have limits, named in `limits`.

#![forbid(unsafe_code)]

mod accept;
mod admin;
mod connection;
mod deadline;
mod hosts;
mod limits;
mod live;
mod login;
mod page;
mod probe;
mod route;
mod source;
mod token;
mod wrong_tokens;

#[cfg(feature = "tls")]
pub use accept::AdminCertificates;
pub use accept::AdminListener;
pub use admin::AdminAddress;
pub use limits::DESCRIPTORS_MAX;
pub use source::AdminSource;
pub use token::{ADMIN_TOKEN_BYTES_MAX, AdminToken};
