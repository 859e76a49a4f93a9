//! The interface between a thread's loop and its clients: connections, or flows of datagrams.
//!
//! Upstream:   `drive` calls a link when its socket is ready, or when requests are due.
//! Downstream: `connection` and `flow`.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A link that has failed is never used again.

use std::io;
use std::os::fd::OwnedFd;

use crate::books::Books;
use crate::request::{Next, Pending, Source};

/// Result of an attempt to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Bytes were received, and more may be waiting.
    More,
    /// Bytes were received, and no more are waiting.
    Drained,
    /// No bytes were waiting.
    Nothing,
}

/// The state of a link in the loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkState {
    /// False after the link failed (I1).
    pub(crate) is_alive: bool,
    /// True while the link is in the list of idle links.
    pub(crate) is_idle: bool,
}

impl LinkState {
    /// The state of a new link.
    pub(crate) const NEW: Self = Self { is_alive: true, is_idle: false };
}

/// A client of the server.
pub(crate) trait Link {
    /// The socket, for polling.
    fn socket(&self) -> &OwnedFd;

    /// The state of the link in the loop.
    fn state(&mut self) -> &mut LinkState;

    /// The number of requests in flight.
    fn in_flight(&self) -> usize;

    /// Takes the next request of the source, if there is one now, and formats it.
    fn take(&mut self, source: &mut impl Source, now_ns: u64) -> Next;

    /// Sends as much as the kernel accepts.
    ///
    /// Errors: the link failed.
    fn flush(&mut self) -> io::Result<()>;

    /// Receives once, and reads all answers that are complete. Sets `Books::now_ns`.
    ///
    /// Errors: the link failed, or the server violated the protocol.
    fn serve(&mut self, source: &mut impl Source, books: &mut Books) -> io::Result<Received>;

    /// Gives up the requests that have waited for longer than a datagram may. Returns whether there
    /// were any.
    fn expire(&mut self, source: &mut impl Source, books: &mut Books) -> bool;

    /// Removes and returns all requests in flight, and discards bytes that are not sent yet.
    fn abandon(&mut self) -> Vec<Pending>;
}
