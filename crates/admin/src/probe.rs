//! The health of the shards: each must make a tick within a second.
//!
//! Upstream:   `route`, for each request for `/health`.
//! Downstream: [`AdminSource`] counts the ticks of the shards, and wakes them.
//!
//! A shard counts its ticks anyway, so a probe costs a busy shard nothing. A shard that sleeps is
//! woken once a probe.
//!
//! Invariants:
//! - P1  One probe runs at a time, and none begins within [`PROBE_PAUSE`] of the last one.
//! - P2  A shard that is reported has made no tick for [`PROBE_TIME_MAX`] after it was woken.
//! - P3  Only pauses of this probe count, not the time in which the process, or the thread of the
//!   probe, did not run. So no shard is reported because the process was suspended.

use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use crate::limits::{PROBE_PAUSE, PROBE_TIME_MAX};
use crate::source::AdminSource;

/// The pause before the first look at the shards that were asked.
const LOOK_PAUSE_MIN: Duration = Duration::from_millis(1);
/// The longest pause between two looks. Each is twice as long as the one before.
const LOOK_PAUSE_MAX: Duration = Duration::from_millis(64);

/// The probe of the process.
#[derive(Debug, Default)]
pub(crate) struct Probe {
    last: Mutex<Option<Probed>>,
}

/// The result of a probe.
#[derive(Clone, Debug)]
struct Probed {
    ended: Instant,
    /// The shards that did not answer.
    stopped: Vec<Asked>,
}

/// A shard, with the number of its ticks when it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    shard: usize,
    ticks: u64,
}

impl Asked {
    /// Whether the shard has made no tick since. A shard without a count has ended, which is no
    /// failure.
    fn is_silent(&self, ticks: &[u64]) -> bool {
        ticks.get(self.shard).is_some_and(|ticks| *ticks == self.ticks)
    }
}

impl Probe {
    /// The shards that have not answered for [`PROBE_TIME_MAX`], by number. Takes at most that long
    /// after the probe before this one.
    pub(crate) async fn stopped(&self, source: &dyn AdminSource) -> Vec<usize> {
        let mut last = self.last.lock().await; // P1
        let is_recent = |last: &Probed| last.ended.elapsed() < PROBE_PAUSE;
        if !last.as_ref().is_some_and(is_recent) {
            let before = last.take().map(|last| last.stopped).unwrap_or_default();
            let stopped = probe(source, &before).await;
            *last = Some(Probed { ended: Instant::now(), stopped });
        }
        let stopped = last.as_ref().map(|last| last.stopped.as_slice()).unwrap_or_default();
        stopped.iter().map(|asked| asked.shard).collect()
    }
}

/// Asks all shards, and returns those that do not answer. `before` are those of the last probe: if
/// they have made no tick since, the probe does not wait for them again.
async fn probe(source: &dyn AdminSource, before: &[Asked]) -> Vec<Asked> {
    let mut ticks = Vec::new();
    source.ticks(&mut ticks);
    let asked = ticks.iter().enumerate().map(|(shard, &ticks)| Asked { shard, ticks });
    let (mut stopped, mut waiting): (Vec<_>, Vec<_>) =
        asked.partition(|asked| before.contains(asked));
    let (mut pause, mut waited) = (LOOK_PAUSE_MIN, Duration::ZERO);
    let mut is_woken = false;
    while !waiting.is_empty() && waited < PROBE_TIME_MAX {
        tokio::time::sleep(pause).await;
        source.ticks(&mut ticks);
        waiting.retain(|asked| asked.is_silent(&ticks));
        if is_woken {
            waited += pause; // P3
            pause = (2 * pause).min(LOOK_PAUSE_MAX);
        } else {
            waiting.iter().for_each(|asked| source.wake(asked.shard)); // P2
            is_woken = true;
        }
    }
    stopped.append(&mut waiting);
    stopped.sort_unstable_by_key(|asked| asked.shard);
    stopped
}
