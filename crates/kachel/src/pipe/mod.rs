//! The smart pipe (`--pipe`), in a server that is built with it (the feature `pipe`).
//!
//! Upstream:   `serve` loads it while the process has its rights; `shards` gives it to the engines.
//! Downstream: `kachel_pipe`; without the feature, nothing.

#[cfg(feature = "pipe")]
mod with;
#[cfg(not(feature = "pipe"))]
mod without;

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use kachel_options::Protocol;
use kachel_shard::Shared;

#[cfg(feature = "pipe")]
pub(crate) use with::SmartPipe;
#[cfg(not(feature = "pipe"))]
pub(crate) use without::SmartPipe;

/// The facts about the server that the pipe needs to answer.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "pipe"), expect(dead_code, reason = "without the pipe nobody reads it"))]
pub(crate) struct Answers<'a> {
    /// The keys of the secret hash.
    pub(crate) hash_keys: [u64; 2],
    /// When the server began, in nanoseconds of the monotonic clock.
    pub(crate) start_ns: u64,
    /// The protocol and the local address of each UDP socket.
    pub(crate) sockets: &'a [(Protocol, SocketAddr)],
    /// What the shards share: the observers of hot keys.
    pub(crate) shared: &'a Arc<Shared>,
    /// The UDP ports of the process.
    pub(crate) own_ports: &'a [RangeInclusive<u16>],
}
