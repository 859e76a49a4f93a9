//! The replies of one TLS connection that are encrypted, or wait for it.
//!
//! Upstream:   `layer` adds the blocks that `net` sends, and takes them back when the backend has
//!             sent their records.
//! Downstream: `session` encrypts; the backend sends blocks of records.
//!
//! ```text
//! plain blocks:   waiting: first (encrypted up to `encrypted_bytes`) | second | ..
//! cipher blocks:  flights: record | record, the last of its plain block | alert | ..
//! ```
//!
//! A plain block whose bytes are all its own is free for the next record as soon as it is
//! encrypted. In its place, the block of its last record goes back to `net`, with the length of the
//! plain one. So most replies need no second block. A block with large values is kept until its
//! last record is sent, because its memory stays pinned so long.
//!
//! Invariants, cited by number where they are asserted:
//! - O1  Plain blocks come back in order, each once, with the length that they had.
//! - O2  There are at most `CIPHER_BLOCKS_MAX` flights when a record is encrypted, and at most
//!   `OWN_BLOCKS_MAX` more with those of TLS itself. So the memory of records is bounded.
//! - O3  The reported progress of a plain block never falls, and is never more than its length.

use std::collections::VecDeque;

use kachel_io::{Event, SendBlock, SocketId};

use crate::limits::{CIPHER_BLOCKS_MAX, OWN_BLOCKS_MAX, RECORD_PLAIN_BYTES_MAX, SPARE_BLOCKS_MAX};
use crate::session::{Broken, Session};

/// Blocks of records that are not in use, and memory to gather the pieces of a record.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    spare: Vec<SendBlock>,
    gathered: Vec<u8>,
}

impl Blocks {
    pub(crate) fn take(&mut self) -> SendBlock {
        self.spare.pop().unwrap_or_default()
    }

    pub(crate) fn put_back(&mut self, mut block: SendBlock) {
        if self.spare.len() < SPARE_BLOCKS_MAX {
            block.clear();
            self.spare.push(block);
        }
    }
}

/// The effect of a sent block of records on its plain block.
#[derive(Debug)]
enum End {
    /// Nothing: more records of the same plain block follow, or it has none.
    Nothing,
    /// A plain block of this length is sent. The block of records takes its place.
    Plain(usize),
    /// This plain block is sent.
    Kept(SendBlock),
}

/// A block of records that the backend has.
#[derive(Debug)]
struct Flight {
    /// Bytes of its plain block before this record.
    before_bytes: usize,
    /// Plain bytes in this record. 0 for a record of TLS itself.
    plain_bytes: usize,
    end: End,
}

/// The unsent replies of one connection.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    waiting: VecDeque<SendBlock>,
    /// Bytes of the first waiting block that are encrypted.
    encrypted_bytes: usize,
    flights: VecDeque<Flight>,
}

impl Outgoing {
    /// Adds a plain block behind the others.
    pub(crate) fn push(&mut self, block: SendBlock) {
        self.waiting.push_back(block);
    }

    /// Whether all that was added is encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether the backend has sent all, and nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.flights.is_empty()
    }

    /// Drops the replies that are not encrypted, because the connection is broken.
    pub(crate) fn drop_waiting(&mut self) {
        self.waiting.clear();
        self.encrypted_bytes = 0;
    }

    /// Encrypts the next record into a block, which the caller must send. `None` if nothing waits,
    /// or if enough is under way (O2).
    ///
    /// Errors: the connection is broken.
    pub(crate) fn encrypt_next(
        &mut self,
        session: &mut Session,
        blocks: &mut Blocks,
    ) -> Result<Option<SendBlock>, Broken> {
        if self.flights.len() >= CIPHER_BLOCKS_MAX {
            return Ok(None); // O2
        }
        let Some(first) = self.waiting.front() else { return Ok(None) };
        let (begin, total) = (self.encrypted_bytes, first.byte_count());
        debug_assert!(begin < total || total == 0, "a block that is encrypted waits no more");
        let plain_bytes = (total - begin).min(RECORD_PLAIN_BYTES_MAX);
        let mut record = blocks.take();
        if plain_bytes > 0 {
            let plain = if first.is_one_piece() {
                &first.bytes()[begin..begin + plain_bytes]
            } else {
                gather(first, begin, plain_bytes, &mut blocks.gathered);
                &blocks.gathered
            };
            let bytes = session.encrypt(plain, record.spare_mut())?;
            record.advance(bytes);
        }
        self.encrypted_bytes += plain_bytes;
        let mut end = End::Nothing;
        if self.encrypted_bytes == total
            && let Some(plain) = self.waiting.pop_front()
        {
            self.encrypted_bytes = 0;
            end = if plain.is_one_piece() {
                blocks.put_back(plain);
                End::Plain(total)
            } else {
                End::Kept(plain)
            };
        }
        self.flights.push_back(Flight { before_bytes: begin, plain_bytes, end });
        Ok(Some(record))
    }

    /// Notes a block with records of TLS itself, which the caller sends.
    ///
    /// Errors: `OWN_BLOCKS_MAX` more blocks than replies may have are under way (O2). rustls limits
    /// the records that it sends of itself only between two requests of the client.
    pub(crate) fn note_own_record(&mut self) -> Result<(), Broken> {
        if self.flights.len() >= CIPHER_BLOCKS_MAX + OWN_BLOCKS_MAX {
            return Err(Broken);
        }
        let end = End::Nothing;
        self.flights.push_back(Flight { before_bytes: 0, plain_bytes: 0, end });
        Ok(())
    }

    /// Takes back a block that the backend has sent. Returns the event for `net`: a plain block, or
    /// progress with one.
    ///
    /// Panics: when the backend sends more blocks back than it got, which is a bug.
    pub(crate) fn sent(
        &mut self,
        socket: SocketId,
        mut record: SendBlock,
        blocks: &mut Blocks,
    ) -> Option<Event> {
        let flight = self.flights.pop_front().expect("O1: a block comes back once");
        match flight.end {
            End::Plain(bytes) => {
                record.clear();
                record.advance(bytes); // O1
                Some(Event::Sent { socket, block: record })
            }
            End::Kept(block) => {
                blocks.put_back(record);
                Some(Event::Sent { socket, block })
            }
            End::Nothing => {
                blocks.put_back(record);
                let block_bytes = flight.before_bytes + flight.plain_bytes;
                (block_bytes > 0).then_some(Event::Taken { socket, block_bytes })
            }
        }
    }

    /// The progress with a plain block, when the backend has sent `bytes` bytes of a block of
    /// records.
    pub(crate) fn taken(&self, socket: SocketId, bytes: usize) -> Option<Event> {
        let flight = self.flights.front()?;
        // A record is longer than its plain bytes, so this is a little ahead. (O3)
        let block_bytes = flight.before_bytes + bytes.min(flight.plain_bytes);
        (flight.plain_bytes > 0).then_some(Event::Taken { socket, block_bytes })
    }
}

/// Copies `bytes` bytes of a block's pieces from `begin` on to `gathered`, because rustls encrypts
/// one slice.
fn gather(block: &SendBlock, begin: usize, bytes: usize, gathered: &mut Vec<u8>) {
    gathered.clear();
    let mut skip = begin;
    for piece in block.pieces() {
        let skipped = skip.min(piece.len());
        skip -= skipped;
        let rest = &piece[skipped..];
        let wanted = rest.len().min(bytes - gathered.len());
        gathered.extend_from_slice(&rest[..wanted]);
        if gathered.len() == bytes {
            break;
        }
    }
    debug_assert!(gathered.len() == bytes, "a block has the bytes that it counts");
}
