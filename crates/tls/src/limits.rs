//! The limits of TLS, each named once.
//!
//! Upstream:   nothing.
//! Downstream: all files of this crate.

use kachel_io::{RECEIVE_BUFFER_BYTES, SEND_BLOCK_BYTES};

/// Plain bytes of the longest record that we send. The record, and a message about new keys before
/// it, fit into one send block.
pub const RECORD_PLAIN_BYTES_MAX: usize = SEND_BLOCK_BYTES - 512;
/// The header of a record: type, version, length.
pub(crate) const RECORD_HEADER_BYTES: usize = 5;
/// Bytes after the header in the longest record that a client may send (RFC 5246, 6.2.3).
pub(crate) const RECORD_BODY_BYTES_MAX: usize = 16 * 1024 + 2048;
/// Bytes of the longest record that a client may send.
pub(crate) const RECORD_BYTES_MAX: usize = RECORD_HEADER_BYTES + RECORD_BODY_BYTES_MAX;
/// Bytes that a client may send before its handshake is complete, its padding included. It bounds
/// all that rustls keeps of a handshake: messages, their records, the certificates of the client. A
/// client that sends more is refused. A handshake has 2 KB; chains of certificates with signatures
/// of the next kind (ML-DSA), 20 KB.
pub(crate) const HANDSHAKE_BYTES_MAX: usize = 64 * 1024;
/// Bytes of whole records of one message after the handshake, their padding included. The only such
/// message that a client may send is about new keys and has 5 bytes: 115 bytes in five records. So
/// a client that needs more sends another message, or pads pieces of this one.
pub(crate) const LATE_MESSAGE_BYTES_MAX: usize = 512;
/// Blocks of records of one connection that the backend has at a time. Replies are encrypted only
/// when it has fewer, so a client that does not read costs at most these beside its replies.
pub const CIPHER_BLOCKS_MAX: usize = 4;
/// Blocks with records of TLS itself (alerts, answers to new keys) of one connection that the
/// backend has beside those. A client that asks for more, and does not read them, is closed.
pub(crate) const OWN_BLOCKS_MAX: usize = 4;
/// Spare blocks that a core keeps: 1 MiB.
pub(crate) const SPARE_BLOCKS_MAX: usize = 64;

/// Handshakes that one thread has under way at a time. At the limit it accepts no more clients, so
/// these wait in the kernel.
pub const HANDSHAKES_MAX: u32 = 512;
/// How long a client may take for its handshake, in nanoseconds.
pub(crate) const HANDSHAKE_NS_MAX: u64 = 5_000_000_000;
/// The same while more than half of [`HANDSHAKES_MAX`] are under way. So clients that send nothing
/// do not keep the others out for long.
pub(crate) const CROWDED_HANDSHAKE_NS_MAX: u64 = 1_000_000_000;
/// Connections that wait for one core to take them over.
pub(crate) const INBOX_MAX: usize = 4096;
/// Plain bytes of those connections: first requests that came with the end of their handshakes.
/// Beyond it a connection is closed, as beyond [`INBOX_MAX`].
pub(crate) const INBOX_BYTES_MAX: usize = 4 << 20;

/// Bytes of the longest file with certificates or a key.
pub(crate) const FILE_BYTES_MAX: u64 = 4 << 20;
/// Sessions that a listener's kind remembers for resumption.
pub(crate) const SESSIONS_MAX: usize = 4096;
/// Bytes of the longest of these sessions, most of which are the certificates of the client. A
/// longer one is not remembered: its client does a whole handshake each time.
pub(crate) const SESSION_BYTES_MAX: usize = 8 * 1024;

const _: () = {
    assert!(RECORD_PLAIN_BYTES_MAX < SEND_BLOCK_BYTES);
    // The longest record and the bytes of one receive behind it are no more than a handshake.
    assert!(LATE_MESSAGE_BYTES_MAX < RECORD_BYTES_MAX);
    assert!(RECORD_BYTES_MAX + RECEIVE_BUFFER_BYTES <= HANDSHAKE_BYTES_MAX);
};
