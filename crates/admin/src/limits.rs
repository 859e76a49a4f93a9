//! The limits of the admin address. Each is a guess: an operator's tools ask a few times a minute.
//!
//! Upstream:   nothing; these are numbers.
//! Downstream: the rest of the crate, and `kachel`, which raises the limit on open files.

use std::time::Duration;

use crate::token::ADMIN_TOKEN_BYTES_MAX;

/// The time from one sample of the live page to the next.
pub(crate) const SAMPLE_TIME: Duration = Duration::from_secs(1);

/// The most clients that get updates of the live page at once. One more is refused.
pub(crate) const VIEWERS_MAX: usize = 20;

/// The time after which a browser connects again for updates, in milliseconds.
pub(crate) const LIVE_RETRY_MS: u32 = 2000;

/// Bytes of a form with a token.
pub(crate) const LOGIN_BYTES_MAX: usize = 1 << 10;

/// The most connections at once. One more ends the oldest of the network that has most.
pub(crate) const CONNECTIONS_MAX: usize = 64;

/// The most descriptors that the thread has open: the connections, one that is being ended, the
/// listener, the one in reserve, and those of the runtime.
pub const DESCRIPTORS_MAX: u64 = CONNECTIONS_MAX as u64 + 8;

/// How long a connection may take from its acceptance to the last byte of its answer. Then it is
/// closed: its client sends slowly, reads slowly or is silent. A client that gets updates has as
/// much time for each of them.
pub(crate) const CONNECTION_TIME_MAX: Duration = Duration::from_secs(5);

/// Bytes of a request's line and headers together. A longer head is answered with status 431.
pub(crate) const HEAD_BYTES_MAX: usize = 16 << 10;

/// The most headers of a request. More are answered with status 431.
pub(crate) const HEADERS_MAX: usize = 64;

/// The pause after an accept that failed for want of descriptors or memory.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a shard may take to answer a probe.
pub(crate) const PROBE_TIME_MAX: Duration = Duration::from_secs(1);

/// A probe begins at least this long after the last one has ended. A client that asks earlier gets
/// the result of the last one, so clients that ask often wake no shard more often.
pub(crate) const PROBE_PAUSE: Duration = Duration::from_millis(100);

const _: () = assert!(VIEWERS_MAX < CONNECTIONS_MAX / 2, "others are answered");
const _: () =
    assert!(2 * SAMPLE_TIME.as_secs() < CONNECTION_TIME_MAX.as_secs(), "a viewer that reads stays");
const _: () = assert!(LOGIN_BYTES_MAX > ADMIN_TOKEN_BYTES_MAX + 16, "each token fits into a form");

/// How long a client with a token waits until it is checked, if wrong ones came before.
pub(crate) const TOKEN_WAIT_MAX: Duration = Duration::from_secs(3);

const _: () = assert!(TOKEN_WAIT_MAX.as_secs() < CONNECTION_TIME_MAX.as_secs(), "it is answered");
const _: () =
    assert!(2 * PROBE_TIME_MAX.as_secs() < CONNECTION_TIME_MAX.as_secs(), "it is answered");
