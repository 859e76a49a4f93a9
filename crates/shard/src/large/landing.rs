//! Receives large values directly into the memory where they are stored: the shard lends the memory
//! for the next bytes to the I/O backend.
//!
//! Upstream:   `arrive`, when all input of a connection is served and its value is not whole, and
//!             when a landing comes back.
//! Downstream: `io` has the kernel receive into the landing; `segment` counts the bytes as written.
//!
//! Invariants:
//! - I1  A landing is lent only for a connection that is uploading, has no input left and is not
//!   paused. So the bytes that it brings come next in the stream, and no other bytes are written to
//!   the upload meanwhile (`segment` asserts this).
//! - I2  If the client has left, its landing does not come back. The backend releases the landing,
//!   before or after the shard drops the upload. When both are gone, all their memory is free again
//!   (`segment`).

use kachel_engine::{Common as _, Engine, ReceiveValue, Room};
use kachel_io::Io;
use kachel_net::ConnectionIndex;
use kachel_stdx::Landing;

use crate::large::upload::{Uploads, Values};

/// The smallest landing, in bytes. Fewer bytes are copied instead, because lending costs more than
/// their copy. A guess: a copy of this many bytes takes a quarter of a microsecond.
const LANDING_BYTES_MIN: usize = 4 * 1024;

/// Blocks of a landing while there are small requests, because small requests wait while the
/// landing is filled. X24 of the abuse suite compares the p99 of small reads beside a writer of 900
/// KB values with their p99 alone. It was 2.4 to 3.1 times as long with landings of 64 KiB on a
/// busy machine, and 2.8 to 2.9 times with 32 KiB and epoll on a quiet machine.
const BLOCKS_BESIDE_REQUESTS: usize = 1;
/// Blocks of a landing while there are no small requests. A value of 900 KB then takes 9 system
/// calls instead of the 17 with 4 blocks, and 2 to 3 % less processor time. The copy of a landing
/// takes 27 us, and a small request that comes after all waits for it.
const BLOCKS_ALONE: usize = 16;
/// After this many ticks without a small request, none is expected soon. A guess: a client that
/// sends one small request after another is served every second or third tick.
const ALONE_TICKS_MIN: u32 = 16;

impl<E: Engine> Values<'_, E> {
    /// Lends a landing for the next bytes of a connection's value to the I/O backend, if possible.
    /// Otherwise the bytes are received into the receive buffer and copied, as all other input.
    pub(crate) fn offer<I: Io>(&mut self, io: &mut I, connection: ConnectionIndex) {
        let Some(open) = self.clients.connections.get_mut(connection) else { return };
        if !open.may_land() {
            return; // I1
        }
        let socket = open.socket();
        let Some(landing) = self.lend(connection) else { return };
        debug_assert!(landing.piece_bytes() > 0, "a landing that is lent has memory");
        if let Err(refused) = io.receive_into(socket, landing) {
            self.uploads.take_back(connection, refused, 0);
        }
    }

    fn lend(&mut self, connection: ConnectionIndex) -> Option<Landing> {
        let Self { context, engines, uploads, .. } = self;
        let is_alone = uploads.ticks_alone >= ALONE_TICKS_MIN;
        let blocks_max = if is_alone { BLOCKS_ALONE } else { BLOCKS_BESIDE_REQUESTS };
        let uploading = uploads.get_mut(connection)?;
        let owner = uploading.owner;
        let bytes = uploading.upload.as_ref()?.landing_bytes(blocks_max);
        if bytes < LANDING_BYTES_MIN {
            return None;
        }
        let spare = uploads.spare_landings.pop();
        let mut landing = spare.unwrap_or_else(|| engines.common().spare_landing());
        let upload = uploads.get_mut(connection)?.upload.as_mut()?;
        let mut lent = upload.landing(&mut landing, blocks_max).is_ok();
        // This makes room in one engine only. `feed` tries the other engines.
        let is_open = engines.are_open_to_all();
        let asked = || if is_open { engines.fullest(context).unwrap_or(owner) } else { owner };
        if !lent
            && engines.may_take(owner, context)
            && let Some(mut engine) = engines.take(asked(), context)
            && engine.make_upload_room(bytes, &context.now()) == Room::Made
        {
            lent = upload.landing(&mut landing, blocks_max).is_ok();
        }
        if !lent {
            uploads.reuse_landing(landing);
            return None;
        }
        Some(landing)
    }
}

impl<U: ReceiveValue> Uploads<U> {
    /// Takes a landing back into which `bytes` bytes were received, and counts those of the value.
    pub(crate) fn take_back(
        &mut self,
        connection: ConnectionIndex,
        mut landing: Landing,
        bytes: usize,
    ) {
        let uploading = self.get_mut(connection).expect("I1: it is uploading");
        let upload = uploading.upload.as_mut().expect("I1: into memory");
        uploading.value_bytes_left -= upload.landed(&mut landing, bytes);
        uploading.refused = 0;
        self.reuse_landing(landing);
    }
}
