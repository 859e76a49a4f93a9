//! Decides which items eviction keeps, by their reads and bytes, and how fast the main queue turns.
//!
//! Upstream:   `job` asks about each living item of a victim, and reports what it saw in the
//!             victim.
//! Downstream: nothing.
//!
//! When an item reaches the end of its queue, it is granted turns in the main queue:
//!
//! ```text
//! turns = (reads since eviction last examined the item + 1) * mean bytes / (2 * bytes of the item)
//! ```
//!
//! The mean is that of the items that leave probation. An item of mean size gets one turn for one
//! read, and none without a read. An item of half that size that leaves probation gets one turn
//! even without a read. An item of twice that size needs three reads. Three reads give a turn at
//! any size. So memory goes to the items whose bytes serve most reads.
//!
//! The main queue turns slowly while new items pass through probation, so that a scan does not
//! evict the items of main. Once less than a tenth of main is read between two turns, main is
//! *cold*: both queues then move as one FIFO, and unread items get no turns. So items that are no
//! longer read are evicted, however small they are: once main is cold, within about one memory's
//! worth of new items.
//!
//! Source: reads weighed against bytes are GreedyDual-Size-Frequency's (Cherkasova, HP Labs 1998),
//! there with an exact priority queue. The evidence is in docs/decisions/0005-eviction.md.

use crate::layout::Access;
use crate::segments::log::queues::Queue;

/// A mean covers about this many victims: the sums lose one part in this many for each new victim.
const WINDOW_VICTIMS: usize = 4;

/// Main is cold if less than this part of its bytes is read between two turns; as a divisor.
const COLD_DIVISOR: usize = 10;

/// How many times slower main turns than probation while it is not cold. It must turn, because
/// otherwise eviction would never notice that it became cold.
const HOT_SLOWNESS: usize = 16;

/// The most turns that are granted at once: one now, the others owed.
const TURNS_MAX: usize = 1 + Access::TURNS_MAX as usize;

/// What a job saw in its victim.
#[derive(Clone, Copy, Debug, Default)]
pub struct VictimSeen {
    items: usize,
    bytes: usize,
    read_bytes: usize,
}

/// The part of a victim that a job examined.
#[derive(Clone, Copy, Debug)]
pub struct Examined {
    /// The items that were examined.
    pub seen: VictimSeen,
    /// Whether the job ended at the end of the segment.
    pub is_whole: bool,
}

impl VictimSeen {
    /// Notes a living item.
    pub const fn add(&mut self, access: Access, bytes: usize) {
        self.items += 1;
        self.bytes += bytes;
        self.read_bytes += if access.reads() > 0 { bytes } else { 0 };
    }

    /// The sums of two parts of a victim.
    const fn and(self, part: Self) -> Self {
        Self {
            items: self.items + part.items,
            bytes: self.bytes + part.bytes,
            read_bytes: self.read_bytes + part.read_bytes,
        }
    }

    /// The recent sums after one more victim.
    const fn and_then(self, victim: Self) -> Self {
        Self {
            items: self.items - self.items / WINDOW_VICTIMS + victim.items,
            bytes: self.bytes - self.bytes / WINDOW_VICTIMS + victim.bytes,
            read_bytes: self.read_bytes - self.read_bytes / WINDOW_VICTIMS + victim.read_bytes,
        }
    }
}

/// What eviction saw recently in each queue.
#[derive(Debug, Default)]
pub struct Weights {
    seen: [VictimSeen; 2],
    /// Sums over the victims that were left early, since a job last reached the end of one.
    parts: [VictimSeen; 2],
    /// Mean size of the items that leave probation; 0 until one has left.
    mean_bytes: usize,
    /// Bytes of main to turn before probation.
    main_due_bytes: usize,
}

impl Weights {
    /// Notes what an eviction saw in a victim of this queue.
    ///
    /// A job that is left early counts for what it saw, no more. How often that happens depends on
    /// what else frees memory; if each such job counted as a whole segment, main would hardly turn
    /// where it happens often.
    pub fn note(
        &mut self,
        queue: Queue,
        examined: Examined,
        queue_bytes: [usize; 2],
        segment_bytes: usize,
    ) {
        let Examined { seen: victim, is_whole } = examined;
        let (seen, parts) = (&mut self.seen[queue as usize], &mut self.parts[queue as usize]);
        let earlier_bytes = parts.bytes;
        *parts = parts.and(victim);
        if is_whole {
            *seen = seen.and_then(std::mem::take(parts));
        }
        match queue {
            Queue::Main => {
                let rest_bytes = segment_bytes.saturating_sub(earlier_bytes);
                let turned_bytes = victim.bytes.max(if is_whole { rest_bytes } else { 0 });
                self.main_due_bytes = self.main_due_bytes.saturating_sub(turned_bytes);
            }
            Queue::Probation => {
                if let Some(mean_bytes) = seen.bytes.checked_div(seen.items) {
                    self.mean_bytes = mean_bytes;
                }
                let [probation_bytes, main_bytes] = queue_bytes;
                let slowness = if self.is_cold() { 1 } else { HOT_SLOWNESS };
                // A victim may have the heads of gigabytes, and main may hold terabytes.
                let due_bytes = victim.bytes as u128 * main_bytes as u128
                    / (probation_bytes.max(1) * slowness) as u128;
                let due_bytes = due_bytes.min(main_bytes as u128) as usize;
                self.main_due_bytes = (self.main_due_bytes + due_bytes).min(main_bytes);
            }
        }
    }

    /// Whether main is cold. It is, until it has turned once.
    const fn is_cold(&self) -> bool {
        let main = &self.seen[Queue::Main as usize];
        main.read_bytes * COLD_DIVISOR <= main.bytes
    }

    /// The turns in the main queue that an item is granted, this one included; 0 to drop it.
    pub fn turns(&self, queue: Queue, access: Access, bytes: usize) -> u32 {
        debug_assert!(bytes > 0, "an item has a header");
        let owed = if self.is_cold() { 0 } else { access.turns() };
        if access.reads() == 0 && (queue == Queue::Main || self.is_cold()) {
            return owed;
        }
        let mean_bytes = if self.mean_bytes == 0 { bytes } else { self.mean_bytes };
        let granted = (access.reads() as usize + 1) * mean_bytes / (2 * bytes);
        let floor = u32::from(access.reads() == Access::READS_MAX);
        (granted.min(TURNS_MAX) as u32).max(owed).max(floor)
    }

    /// Whether the next victim comes from main although probation is over its share.
    pub const fn is_main_due(&self, segment_bytes: usize) -> bool {
        self.main_due_bytes >= segment_bytes
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_job_in_parts_counts_as_much_as_in_one() {
        const SEGMENT_BYTES: usize = 1 << 20;
        let queue_bytes = [100 << 20, 900 << 20];
        let part =
            VictimSeen { items: 100, bytes: SEGMENT_BYTES / 8, read_bytes: SEGMENT_BYTES / 8 };
        let left = Examined { seen: part, is_whole: false };
        let ended = Examined { seen: part, is_whole: true };
        let whole = VictimSeen { items: 800, bytes: SEGMENT_BYTES, read_bytes: SEGMENT_BYTES };
        let whole = Examined { seen: whole, is_whole: true };
        let mut weights = [Weights::default(), Weights::default()];
        for weights in &mut weights {
            weights.note(Queue::Probation, whole, queue_bytes, SEGMENT_BYTES);
            weights.note(Queue::Probation, whole, queue_bytes, SEGMENT_BYTES);
        }
        let [parts, once] = &mut weights;
        (0..7).for_each(|_| parts.note(Queue::Main, left, queue_bytes, SEGMENT_BYTES));
        assert!(parts.is_cold(), "main has not turned yet");
        parts.note(Queue::Main, ended, queue_bytes, SEGMENT_BYTES);
        once.note(Queue::Main, whole, queue_bytes, SEGMENT_BYTES);
        assert_eq!(parts.main_due_bytes, once.main_due_bytes);
        assert!(!parts.is_cold() && !once.is_cold(), "all of it is read");
    }

    #[test]
    fn a_victim_with_the_heads_of_gigabytes_is_weighed_among_terabytes() {
        let mut weights = Weights::default();
        let victim = VictimSeen { items: 26_000, bytes: 26 << 30, read_bytes: 0 };
        let [probation_bytes, main_bytes] = [100 << 30, 900 << 30];
        let examined = Examined { seen: victim, is_whole: true };
        weights.note(Queue::Probation, examined, [probation_bytes, main_bytes], 1 << 20);
        assert_eq!(weights.main_due_bytes, 9 * victim.bytes, "main is cold: as one FIFO");
    }
}
