//! The admin address: metrics, health and readiness over HTTP, for operators and their tools.
//!
//! Upstream:   `kachel` opens the listener and starts the thread ([`AdminAddress::start`]).
//! Downstream: hyper and tokio, on one thread of their own. [`AdminSource`] has what is answered.
//!
//! ```text
//! client --> accept --> one request: head --> may it ask? --> route --> answer --> close
//!              |                                                |
//!              +-- at the limit, the oldest one ends            +-- probe: a tick of each shard
//! ```
//!
//! Reading order: `limits`, `source`, `route` with `hosts`, `token` and `wrong_tokens`, `probe`,
//! `connection`, `accept`, `admin`.
//!
//! Architecture invariants:
//! - No shard knows this crate, and no request here runs code on the thread of a shard. A probe may
//!   wake a shard that sleeps.
//! - The thread sleeps while no client is connected: it has no timer.
//! - Nothing that a client sends changes the server, or makes this crate panic.
//! - The memory and the descriptors of all clients together have limits, named in `limits`.

#![forbid(unsafe_code)]

mod accept;
mod admin;
mod connection;
mod hosts;
mod limits;
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
