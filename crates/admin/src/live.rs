//! The updates of the live page: one a second, the same bytes for all viewers (server-sent events).
//!
//! Upstream:   the thread of the admin address, which runs [`LiveUpdates::run`] until the end.
//! Downstream: [`AdminSource`] makes the updates; `connection` sends them to each viewer.
//!
//! ```text
//! once a second: sample -> JSON -> the newest event -+-> viewer
//!                                                    +-> viewer that is slow: skips events
//! ```
//!
//! Invariants:
//! - L1  At most [`VIEWERS_MAX`] viewers are served. One more is refused.
//! - L2  An event is kept once, not once a viewer, and only the newest one. So what waits for a
//!   slow viewer is what hyper has buffered, which is at most 16 KiB and one event.
//! - L3  While there is no viewer, the thread wakes once a second, takes a sample, and wakes no
//!   shard.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use hyper::body::Bytes;
use tokio::sync::watch::{Receiver, Sender};
use tokio::time::MissedTickBehavior;

use crate::deadline::Deadline;
use crate::limits::{LIVE_RETRY_MS, SAMPLE_TIME, VIEWERS_MAX};
use crate::probe::Probe;
use crate::source::AdminSource;

/// The last event of a viewer whose token was replaced. The page knows its name.
const TOKEN_REPLACED: &[u8] = b"event: token\ndata: replaced\n\n";

/// The newest update, and the viewers that get it.
#[derive(Debug)]
pub(crate) struct LiveUpdates {
    newest: Mutex<Sender<Bytes>>,
    viewers: Arc<Viewers>,
}

/// The number of viewers.
#[derive(Debug, Default)]
struct Viewers(AtomicUsize);

/// A place among the viewers, until it is dropped.
struct Place(Arc<Viewers>);

impl Drop for Place {
    fn drop(&mut self) {
        let before = self.0.0.fetch_sub(1, Ordering::Relaxed);
        assert!((1..=VIEWERS_MAX).contains(&before), "L1");
    }
}

impl LiveUpdates {
    pub(crate) fn new() -> Self {
        Self { newest: Mutex::new(Sender::new(Bytes::new())), viewers: Arc::default() }
    }

    /// Ends the updates of all viewers, after an event that says that the token was replaced. Each
    /// of them may ask for new updates.
    pub(crate) fn end_viewers(&self) {
        let ended = std::mem::replace(&mut *self.newest(), Sender::new(Bytes::new()));
        // A viewer that has not read its last update yet gets this event instead.
        ended.send_replace(Bytes::from_static(TOKEN_REPLACED));
    }

    fn newest(&self) -> MutexGuard<'_, Sender<Bytes>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a sample once a second, and sends it to the viewers. Never ends.
    pub(crate) async fn run(&self, source: &dyn AdminSource, probe: &Probe) {
        let mut times = tokio::time::interval(SAMPLE_TIME);
        times.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            times.tick().await;
            let is_viewed = self.viewers.0.load(Ordering::Relaxed) > 0;
            let stopped = if is_viewed { probe.stopped(source).await } else { Vec::new() }; // L3
            source.sample(&stopped);
            if is_viewed {
                let event = event(source);
                self.newest().send_replace(event);
            }
        }
    }

    /// A viewer whose connection must end at `deadline`, unless the viewer reads. `None` at the
    /// limit (L1).
    pub(crate) fn view(&self, source: &dyn AdminSource, deadline: Deadline) -> Option<Viewer> {
        let place = |viewers| (viewers < VIEWERS_MAX).then_some(viewers + 1);
        self.viewers.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, place).ok()?;
        let place = Place(Arc::clone(&self.viewers));
        let first = [format!("retry: {LIVE_RETRY_MS}\n\n").into_bytes(), event(source).into()];
        let mut newest = self.newest().subscribe();
        newest.mark_unchanged();
        let first = Bytes::from(first.concat());
        Some(Viewer { first: Some(first), next: next(newest), deadline, _place: place })
    }
}

/// The update of now as an event.
fn event(source: &dyn AdminSource) -> Bytes {
    let mut event = b"data: ".to_vec();
    source.now(&mut event);
    debug_assert!(!event.contains(&b'\n'), "a line ends the update");
    event.extend_from_slice(b"\n\n");
    event.into()
}

/// The next event, with the receiver for those that follow. `None` if there are no more.
type Next = Pin<Box<dyn Future<Output = Option<(Bytes, Receiver<Bytes>)>> + Send>>;

fn next(mut newest: Receiver<Bytes>) -> Next {
    Box::pin(async move {
        newest.changed().await.ok()?;
        let event = newest.borrow_and_update().clone();
        Some((event, newest))
    })
}

/// A client that gets the updates.
pub(crate) struct Viewer {
    /// The first event, until it is sent: how to reconnect, and the update of now.
    first: Option<Bytes>,
    next: Next,
    deadline: Deadline,
    _place: Place,
}

impl Viewer {
    /// The next bytes, when the connection has room for them (L2). A viewer that takes them has
    /// read what came before, so its connection goes on.
    pub(crate) fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let event = match self.first.take() {
            Some(first) => Some(first),
            None => match self.next.as_mut().poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => None,
                Poll::Ready(Some((event, newest))) => {
                    self.next = next(newest);
                    Some(event)
                }
            },
        };
        self.deadline.put_off();
        Poll::Ready(event)
    }
}
