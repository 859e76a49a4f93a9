//! What an item is worth its bytes, and how fast the main queue turns.
//!
//! Upstream:   `job` asks for each living item of a victim, and tells what it saw in the victim.
//! Downstream: nothing.
//!
//! An item at the end of its queue is granted turns in the main queue: half as many as the mean
//! size of what leaves probation holds times its own, for each read since eviction last looked and
//! once for itself. At the mean size one read gives one turn and none gives none; an item half as
//! large is kept once unread; one twice as large needs three reads, and three give a turn whatever
//! the size. So memory goes where a byte answers most reads.
//!
//! The main queue is turned slowly while new items stream by, so that a scan washes nothing out.
//! Once less than a tenth of it is read between two turns it is *cold*: both queues then move as
//! one FIFO, and unread items are owed nothing. So items that are no longer read
//! leave, however small they are: once main is cold, within about one memory's worth of new items.
//!
//! Source: reads weighed against bytes are GreedyDual-Size-Frequency's (Cherkasova, HP Labs 1998),
//! there with an exact priority queue. The evidence is in docs/decisions/0005-eviction.md.

use crate::layout::Access;
use crate::segments::log::queues::Queue;

/// Victims over which a mean is taken: each new one displaces this part of what was seen before.
const WINDOW_VICTIMS: usize = 4;

/// Part of main's bytes that is read between two turns, as a divisor; main is cold below it.
const COLD_DIVISOR: usize = 10;

/// How much slower main turns than probation while it is not cold. It must turn, or it
/// would never be seen to become cold.
const HOT_SLOWNESS: usize = 16;

/// Turns granted at once: one now, the others owed.
const TURNS_MAX: usize = 1 + Access::TURNS_MAX as usize;

/// What a job saw in its victim.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    items: usize,
    bytes: usize,
    read_bytes: usize,
}

impl Seen {
    /// Notes a living item.
    pub(crate) const fn add(&mut self, access: Access, bytes: usize) {
        self.items += 1;
        self.bytes += bytes;
        self.read_bytes += if access.reads() > 0 { bytes } else { 0 };
    }

    /// What was seen recently, after one more victim.
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
pub(crate) struct Weights {
    seen: [Seen; 2],
    /// Mean size of what leaves probation; 0 until something did.
    mean_bytes: usize,
    /// Bytes of main to turn before probation.
    main_due_bytes: usize,
}

impl Weights {
    /// Notes what an eviction saw in a victim of this queue.
    pub(crate) fn note(
        &mut self,
        queue: Queue,
        victim: Seen,
        queue_bytes: [usize; 2],
        segment_bytes: usize,
    ) {
        let seen = &mut self.seen[queue as usize];
        *seen = seen.and_then(victim);
        match queue {
            Queue::Main => {
                let turned_bytes = victim.bytes.max(segment_bytes);
                self.main_due_bytes = self.main_due_bytes.saturating_sub(turned_bytes);
            }
            Queue::Probation => {
                if let Some(mean_bytes) = seen.bytes.checked_div(seen.items) {
                    self.mean_bytes = mean_bytes;
                }
                let [probation_bytes, main_bytes] = queue_bytes;
                let slowness = if self.is_cold() { 1 } else { HOT_SLOWNESS };
                // A victim may have the heads of gigabytes, and main hold terabytes.
                let due_bytes = victim.bytes as u128 * main_bytes as u128
                    / (probation_bytes.max(1) * slowness) as u128;
                let due_bytes = due_bytes.min(main_bytes as u128) as usize;
                self.main_due_bytes = (self.main_due_bytes + due_bytes).min(main_bytes);
            }
        }
    }

    /// Whether main is read too little to be kept. It is until it was turned.
    const fn is_cold(&self) -> bool {
        let main = &self.seen[Queue::Main as usize];
        main.read_bytes * COLD_DIVISOR <= main.bytes
    }

    /// The turns in the main queue that an item is granted, this one included; 0 to drop it.
    pub(crate) fn turns(&self, queue: Queue, access: Access, bytes: usize) -> u32 {
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
    pub(crate) const fn is_main_due(&self, segment_bytes: usize) -> bool {
        self.main_due_bytes >= segment_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_victim_with_the_heads_of_gigabytes_is_weighed_among_terabytes() {
        let mut weights = Weights::default();
        let victim = Seen { items: 26_000, bytes: 26 << 30, read_bytes: 0 };
        let [probation_bytes, main_bytes] = [100 << 30, 900 << 30];
        weights.note(Queue::Probation, victim, [probation_bytes, main_bytes], 1 << 20);
        assert_eq!(weights.main_due_bytes, 9 * victim.bytes, "main is cold: as one FIFO");
    }
}
