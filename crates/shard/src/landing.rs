//! Large values received straight to where they stay: the I/O backend is lent the memory of
//! their next bytes.
//!
//! Upstream:   `arrive`, once all that a connection sent is served and its value is not whole;
//!             and when a landing comes back.
//! Downstream: `io` has the kernel receive into it; `segment` takes the bytes as written.
//!
//! Invariants:
//! - I1  A landing is out only for a connection that is uploading, has no input left and is not
//!   paused. So what it brings comes next in the stream, and nothing is fed to the upload beside
//!   it (`segment` asserts that).
//! - I2  A landing that does not come back, because the client has gone, is released by the
//!   backend, before its upload is dropped or after that; once both are gone all memory is back
//!   (`segment`).

use kachel_engine::{Engine, ReceiveValue};
use kachel_io::Io;
use kachel_net::ConnectionIndex;
use kachel_stdx::Landing;

use crate::upload::{Uploads, Values};

/// Bytes for which a landing is worth its ways; fewer are copied. A guess: the copy costs a quarter
/// of a microsecond then.
const LANDING_BYTES_MIN: usize = 4 * 1024;

/// Blocks of a landing beside small requests: these wait while it is filled. On a busy machine the
/// p99 of small reads beside a writer of 900 KB values was 2.4 to 3.1 times theirs alone with 64
/// KiB, and 2.8 to 2.9 with 32 behind epoll on a quiet one (the abuse suite's X24).
const BLOCKS_BESIDE_REQUESTS: usize = 1;
/// Blocks of a landing while there are none: fewer ticks a value, which are a twentieth of its
/// cost.
const BLOCKS_ALONE: usize = 4;
/// Ticks without a small request after which none is expected. A guess: a client that asks again
/// and again comes every second or third tick.
const ALONE_TICKS_MIN: u32 = 16;

impl<E: Engine> Values<'_, E> {
    /// Has the I/O backend receive the next bytes of a connection's value straight to their place,
    /// if that may be. Otherwise they are lent and copied, as all others.
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
        let Self { context, engine, uploads, .. } = self;
        let is_alone = uploads.ticks_alone >= ALONE_TICKS_MIN;
        let blocks_max = if is_alone { BLOCKS_ALONE } else { BLOCKS_BESIDE_REQUESTS };
        let uploading = uploads.get_mut(connection)?;
        let owner = uploading.owner;
        let bytes = uploading.upload.as_ref()?.landing_bytes(blocks_max);
        if bytes < LANDING_BYTES_MIN {
            return None;
        }
        let spare = uploads.spare_landings.pop();
        let mut landing = spare.unwrap_or_else(|| engine.spare_landing());
        let upload = uploads.get_mut(connection)?.upload.as_mut()?;
        let mut lent = upload.landing(&mut landing, blocks_max).is_ok();
        // This shard asks another shard for room in the ordinary way.
        if !lent && owner == context.id && engine.make_upload_room(bytes, &context.now) {
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
    /// Counts the bytes that a landing brought.
    pub(crate) fn take_back(
        &mut self,
        connection: ConnectionIndex,
        mut landing: Landing,
        bytes: usize,
    ) {
        let uploading = self.get_mut(connection).expect("I1: it is uploading");
        let upload = uploading.upload.as_mut().expect("I1: into memory");
        uploading.value_bytes_left -= upload.landed(&mut landing, bytes);
        uploading.asked = 0;
        self.reuse_landing(landing);
    }
}
