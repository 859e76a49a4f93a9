//! The limits of the I/O backends, each named once.
//!
//! Upstream:   the code that opens an `Io` sets [`Limits`] from the options.
//! Downstream: the backends size their tables and rings by these numbers.

use std::ops::RangeInclusive;

/// Size of a [`crate::SendBlock`].
pub const SEND_BLOCK_BYTES: usize = 16 * 1024;
/// Pieces of memory held elsewhere that one [`crate::SendBlock`] sends.
pub const HELD_PIECES_MAX: usize = 32;
/// The number of receive buffers of an `Io`. So one poll reports at most 1 MiB.
pub const RECEIVE_BUFFERS: usize = 64;
/// The most bytes that one `Received` reports.
pub const RECEIVE_BUFFER_BYTES: usize = 16 * 1024;
/// About the most events that a poll reports. It reports the events of one socket or listener
/// together, so it may exceed this number. A `Vec` with room for twice as many never grows.
pub const EVENTS_MAX: usize = 256;
/// The most connections that one poll accepts from one listener.
pub const ACCEPTS_MAX: usize = 16;
/// The most pieces that one system call sends: those of two blocks that hold as many as they may.
pub const SEND_GATHER_MAX: usize = 2 * (HELD_PIECES_MAX + 1);
/// `Uring` reports the progress of longer sends. A guess: waiting for the whole send is up to 5 %
/// cheaper with values of 32 KB, four pipelined, and equal with 900 KB.
pub const SEND_WHOLE_BYTES_MAX: usize = 160 * 1024;
/// The most datagrams that one poll reports. A request over TCP waits for that many, so more would
/// delay it beside a flood. With fewer, each datagram would pay for a larger part of a poll.
pub const DATAGRAMS_MAX: usize = 8;
/// The most bytes of a datagram. A longer one is cut.
pub const DATAGRAM_BYTES_MAX: usize = RECEIVE_BUFFER_BYTES - 64;
/// The most datagrams that wait to be sent.
pub const DATAGRAMS_QUEUED_MAX: usize = 2048;
/// The most operations on files that one `Io` has in flight. Its owner keeps further ones. A guess:
/// a fast disk is busy with fewer.
pub const FILE_OPERATIONS_MAX: usize = 128;
/// The number of threads that execute the operations on files of one `Epoll`. A guess: a disk with
/// this number of operations in flight is rarely faster with more.
pub const FILE_THREADS: usize = 4;
/// The most bytes that one operation reads or writes. A guess: a disk is as fast with less, and
/// other operations wait for a long one.
pub const FILE_OPERATION_BYTES_MAX: usize = 1 << 20;
/// The most bytes of the name of a file.
pub const FILE_NAME_BYTES_MAX: usize = 63;
/// The alignment of direct I/O where the kernel does not report it (before Linux 6.1, and some file
/// systems). No disk asks for more.
pub const FILE_ALIGNMENT_BYTES: usize = 4096;
/// The time after which `accept` is tried again when it ran out of descriptors or memory.
pub const ACCEPT_RETRY_NS: u64 = 10_000_000;

/// The least and the most seconds without traffic before TCP probes whether the peer is still
/// there. Each connection has its own number. The kernel sends probes that are due together at
/// once, and drops those that its queues cannot hold (1,000 packets a processor on the loopback).
/// With 30 seconds for all, 10 between probes and 3 probes, 6,897 of 9,900 idle connections that
/// were opened together were closed after a minute, and with these numbers none of 79,600.
pub const KEEPALIVE_IDLE_S: RangeInclusive<u64> = 14..=28;
/// Seconds between two keepalive probes. Short, so that there are many: see [`KEEPALIVE_IDLE_S`].
pub const KEEPALIVE_INTERVAL_S: u64 = 2;
/// The connection fails after this number of unanswered probes.
pub const KEEPALIVE_PROBES: u32 = 15;

pub(crate) const RECEIVE_AREA_BYTES: usize = RECEIVE_BUFFERS * RECEIVE_BUFFER_BYTES;

/// The most datagrams that one system call receives or sends. A guess: more headers are longer to
/// write for a call that finds one datagram.
pub(crate) const DATAGRAMS_PER_CALL: usize = 16;

const _: () = {
    let noticed_s = *KEEPALIVE_IDLE_S.end() + KEEPALIVE_INTERVAL_S * KEEPALIVE_PROBES as u64;
    assert!(noticed_s < 60, "a vanished peer must be gone within a minute");
    assert!(RECEIVE_BUFFERS.is_power_of_two() && RECEIVE_BUFFERS <= 32 * 1024);
    assert!(RECEIVE_AREA_BYTES <= u32::MAX as usize);
};

/// The limits that the creator of an `Io` may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most connections at a time, including closed ones that the kernel still uses. At the
    /// limit, the backend accepts no more until one is gone.
    pub sockets_max: u32,
    /// How long a poll that waits may keep an event back, in microseconds, so that one wake-up
    /// reports several. Only a wait of at least [`SLACK_WAIT_NS_MIN`] does so.
    pub slack_us: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { sockets_max: 1 << 20, slack_us: 0 }
    }
}

/// A shorter wait has a cause, and its caller must not be kept back.
pub const SLACK_WAIT_NS_MIN: u64 = 1_000_000;
/// A poll that waits for several events does not wait for more than this number.
pub(crate) const SLACK_EVENTS: usize = 32;
