//! The limits on what a client may cost before it must wait or is closed.
//!
//! Upstream:   the options of the process replace some of them.
//! Downstream: `input`, `outbox` and `overdue`.

use kachel_io::{RECEIVE_BUFFER_BYTES, SEND_BLOCK_BYTES};
use kachel_wire::TOKEN_BYTES_MAX;
use kachel_wire::request::LINE_BYTES_MAX;

/// Bytes of memory that a client which does not read may cost, for replies and kept requests
/// together. The reply that is being formatted comes on top.
pub const OWED_BYTES_MAX: usize = 64 * 1024;
/// The part of [`OWED_BYTES_MAX`] for the connection itself: its state here and in `io`, and the
/// overhead of the allocator.
pub const STATE_BYTES: usize = 8 * 1024;
/// A request is begun only while less memory than this is held. The open block may have only one
/// byte left, and then the reply takes another block.
pub const BEGUN_BYTES_MAX: usize = OWED_BYTES_MAX - STATE_BYTES - SEND_BLOCK_BYTES;
/// The most bytes of kept requests that count against [`BEGUN_BYTES_MAX`]: those that one receive
/// can bring, and one line. Longer input is charged to `-m` (`Input::chargeable_bytes`), so that a
/// client never waits because of its own input.
pub const KEPT_BYTES_MAX: usize = RECEIVE_BUFFER_BYTES + 2 * 1024;
/// While a client waits for its turn, or its login waits for a check, the shard receives from the
/// client until this number of bytes is kept. It is what one poll receives.
pub const WAITING_INPUT_BYTES_MAX: usize = RECEIVE_BUFFER_BYTES;
/// The own share of a connection: bytes of input that it may keep, and bytes of replies that it may
/// owe, without a charge to `-m`.
pub const OWN_BYTES_PER_CONNECTION: usize = 32 * 1024;
/// Bytes that a connection may owe beyond its own share. All of them are charged to `-m` when the
/// connection needs more than its share.
pub const WIDENED_BYTES: u64 = (OWED_BYTES_MAX - OWN_BYTES_PER_CONNECTION) as u64;
/// Replies of one connection that may wait for other shards or for their turn.
pub const SLOTS_PER_CONNECTION_MAX: u32 = 256;
/// Seconds that a command line may take from its first byte to its last, unless an option changes
/// it.
pub const LINE_SECONDS_MAX: u32 = 10;
/// Seconds that a data block may take, unless an option changes it. A long data block may take
/// more.
pub const BLOCK_SECONDS_MAX: u32 = 10;
/// A data block may take one second more for every `DATA_BYTES_PER_SECOND_MIN` of its bytes. So
/// this is the average rate that a client must keep up in a long block.
pub const DATA_BYTES_PER_SECOND_MIN: u32 = 64 * 1024;
/// Seconds within which a client must have logged in, where it must, unless an option changes it.
pub const LOGIN_SECONDS_MAX: u32 = 10;
/// Seconds for which a client may make no progress in reading its replies, unless an option changes
/// it.
pub const STALLED_READER_SECONDS_MAX: u32 = 60;
/// Percent of the memory of the process that may be pinned before slow readers are closed, unless
/// an option changes it. The remaining memory must serve all other clients.
pub const PINNED_PERCENT_MAX: u32 = 25;
/// Seconds for which a client may hold large values before it can count as slow, because a pause of
/// a second harms no other client.
pub const HELD_SECONDS_MIN: u32 = 2;
/// A client that takes this many bytes per second of large values is never too slow. The rate takes
/// the longest value of the default options in [`HELD_SECONDS_MIN`].
pub const FAIR_BYTES_PER_SECOND: u64 = (1 << 20) / HELD_SECONDS_MIN as u64;

/// The time limits of a client. A client that exceeds one is closed. A second is a sweep of the
/// shard; 0 means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Seconds for a command line, from its first byte to its last.
    pub line_s: u32,
    /// Seconds for a data block, and one more for each [`DATA_BYTES_PER_SECOND_MIN`] of it.
    pub block_s: u32,
    /// Seconds without a login, where one is needed.
    pub login_s: u32,
    /// Seconds without any progress in reading replies.
    pub reader_s: u32,
    /// Seconds without a request and without progress in reading. There is no limit by default.
    pub idle_s: u32,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            line_s: LINE_SECONDS_MAX,
            block_s: BLOCK_SECONDS_MAX,
            login_s: LOGIN_SECONDS_MAX,
            reader_s: STALLED_READER_SECONDS_MAX,
            idle_s: 0,
        }
    }
}

const _: () = {
    assert!(SEND_BLOCK_BYTES < OWN_BYTES_PER_CONNECTION);
    assert!(OWN_BYTES_PER_CONNECTION < BEGUN_BYTES_MAX);
    // Input that is kept while a login waits is not charged: the last receive is within the share.
    assert!(WAITING_INPUT_BYTES_MAX + RECEIVE_BUFFER_BYTES <= OWN_BYTES_PER_CONNECTION);
    assert!(LINE_BYTES_MAX + TOKEN_BYTES_MAX < WAITING_INPUT_BYTES_MAX);
    // A client that is owed less than a block must never wait because of its own input.
    assert!(SEND_BLOCK_BYTES + KEPT_BYTES_MAX < BEGUN_BYTES_MAX);
};
