//! The limits of the I/O backends, each named once.
//!
//! Upstream:   the code that opens an `Io` sets [`Limits`] from the options.
//! Downstream: the backends size their tables and rings by these numbers.

/// Size of a [`crate::SendBlock`].
pub const SEND_BLOCK_BYTES: usize = 16 * 1024;
/// Pieces of memory held elsewhere that one [`crate::SendBlock`] sends.
pub const HELD_PIECES_MAX: usize = 32;
/// How many receive buffers an `Io` has, and so how many bytes a poll reports at most (1 MiB).
pub const RECEIVE_BUFFERS: usize = 64;
/// The most bytes one `Received` reports.
pub const RECEIVE_BUFFER_BYTES: usize = 16 * 1024;
/// Events that a poll reports at most; those of one socket or listener are not cut in half, so a
/// `Vec` with room for twice as many never grows.
pub const EVENTS_MAX: usize = 256;
/// Connections that one poll accepts at most from one listener.
pub const ACCEPTS_MAX: usize = 16;
/// Pieces that one system call sends at most: two blocks that hold as many as they may.
pub const SEND_GATHER_MAX: usize = 2 * (HELD_PIECES_MAX + 1);
/// `Uring` reports the progress of longer sends. A guess: waiting for the whole send is up to 5 %
/// cheaper with values of 32 KB, four pipelined, and equal with 900 KB.
pub const SEND_WHOLE_BYTES_MAX: usize = 160 * 1024;
/// After `accept` ran out of descriptors or memory: when it is tried again.
pub const ACCEPT_RETRY_NS: u64 = 10_000_000;

/// Seconds without traffic before TCP asks whether the peer is still there.
pub const KEEPALIVE_IDLE_S: u64 = 30;
/// Seconds between two such questions.
pub const KEEPALIVE_INTERVAL_S: u64 = 10;
/// Questions without answer after which the connection fails.
pub const KEEPALIVE_PROBES: u32 = 3;

pub(crate) const RECEIVE_AREA_BYTES: usize = RECEIVE_BUFFERS * RECEIVE_BUFFER_BYTES;

const _: () = {
    assert!(RECEIVE_BUFFERS.is_power_of_two() && RECEIVE_BUFFERS <= 32 * 1024);
    assert!(RECEIVE_AREA_BYTES <= u32::MAX as usize);
};

/// The limits that the creator of an `Io` may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time, those included that were closed and are still being taken down. At
    /// the limit no more are accepted until one is gone.
    pub sockets_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { sockets_max: 1 << 20 }
    }
}
