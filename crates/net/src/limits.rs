//! What a client may cost before it must wait, or is closed.
//!
//! Upstream:   the options of the process replace some of them.
//! Downstream: `input`, `outbox` and `overdue`.

use kachel_io::{RECEIVE_BUFFER_BYTES, SEND_BLOCK_BYTES};

/// Bytes of memory that a client which does not read may cost, replies and kept requests; the reply
/// under way comes on top.
pub const OWED_BYTES_MAX: usize = 64 * 1024;
/// Of those, for what a connection is itself: its state here and in `io`, and what the allocator
/// adds.
pub const STATE_BYTES: usize = 8 * 1024;
/// A request is begun while less than this is held: the block that its reply begins may be full but
/// for a byte, and then it takes another.
pub const BEGUN_BYTES_MAX: usize = OWED_BYTES_MAX - STATE_BYTES - SEND_BLOCK_BYTES;
/// Bytes of kept requests that count against [`BEGUN_BYTES_MAX`]: what one receive may bring beside
/// a line. A client that keeps more has it charged to `-m` (`Input::chargeable_bytes`), and must
/// not wait for itself.
pub const KEPT_BYTES_MAX: usize = RECEIVE_BUFFER_BYTES + 2 * 1024;
/// Bytes of input that a connection may keep without their counting against `-m`; and bytes that it
/// may owe without their counting.
pub const OWN_BYTES_PER_CONNECTION: usize = 32 * 1024;
/// What a connection may owe beyond its own bytes, charged to `-m` as a whole when it needs more.
pub const WIDENED_BYTES: u64 = (OWED_BYTES_MAX - OWN_BYTES_PER_CONNECTION) as u64;
/// Replies of one connection that may wait for other shards or for their turn.
pub const SLOTS_PER_CONNECTION_MAX: u32 = 256;
/// Seconds that a command line may take from its first byte to its last, where no option says
/// otherwise.
pub const LINE_SECONDS_MAX: u32 = 10;
/// Seconds that a data block may take, where no option says otherwise, and more by its length.
pub const BLOCK_SECONDS_MAX: u32 = 10;
/// Bytes a second that a data block must keep up on average, beyond [`BLOCK_SECONDS_MAX`].
pub const DATA_BYTES_PER_SECOND_MIN: u32 = 64 * 1024;
/// Seconds that a client may owe the server any progress in reading, where no option says
/// otherwise.
pub const STALLED_READER_SECONDS_MAX: u32 = 60;
/// Percent of the memory of the process that may be pinned before clients are closed for it, where
/// no option says otherwise. What is left must serve all others.
pub const PINNED_PERCENT_MAX: u32 = 25;
/// Seconds for which a client may hold large values before it counts as slow: a pause of a second
/// harms no other client.
pub const HELD_SECONDS_MIN: u32 = 2;
/// Bytes a second at which a client that is sent large values is never too slow: the longest value
/// of the default options in [`HELD_SECONDS_MIN`].
pub const FAIR_BYTES_PER_SECOND: u64 = (1 << 20) / HELD_SECONDS_MIN as u64;

/// What a client may take before it is closed for it. A second is a sweep of the shard; 0 is no
/// limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Seconds for a command line, from its first byte to its last.
    pub line_s: u32,
    /// Seconds for a data block, and one more for each [`DATA_BYTES_PER_SECOND_MIN`] of it.
    pub block_s: u32,
    /// Seconds without any progress in reading what is owed.
    pub reader_s: u32,
    /// Seconds of silence; there is no limit unless an option sets one.
    pub idle_s: u32,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            line_s: LINE_SECONDS_MAX,
            block_s: BLOCK_SECONDS_MAX,
            reader_s: STALLED_READER_SECONDS_MAX,
            idle_s: 0,
        }
    }
}

const _: () = {
    assert!(SEND_BLOCK_BYTES < OWN_BYTES_PER_CONNECTION);
    assert!(OWN_BYTES_PER_CONNECTION < BEGUN_BYTES_MAX);
    // So that a client that is owed less than a block never waits for itself.
    assert!(SEND_BLOCK_BYTES + KEPT_BYTES_MAX < BEGUN_BYTES_MAX);
};
