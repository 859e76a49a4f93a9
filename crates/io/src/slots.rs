//! Slots for connections: small dense indices, and names that are never used twice.
//!
//! Upstream:   a backend takes a slot for each connection that it accepts or adopts.
//! Downstream: `SocketId::index` addresses the slot; the whole `SocketId` proves that the slot
//!             still holds the same connection.
//!
//! ```text
//!   free --insert--> live --retire--> dying --release--> free (generation + 1 since retire)
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A live slot's id is the only one that finds it.
//! - I2  A slot is in the free list exactly once while free, never otherwise.

use crate::event::SocketId;

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    state: State,
    value: T,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Live,
    Dying,
}

/// A table of slots, each with a `T` that outlives the connections in it (so its buffers are
/// reused).
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    count_max: u32,
}

impl<T: Default> Slots<T> {
    /// An empty table that will hold at most `count_max` connections.
    pub(crate) fn new(count_max: u32) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), count_max }
    }

    /// Whether no connection fits any more.
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() >= self.count_max as usize
    }

    /// The number of slots, free ones included.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Takes a slot. Its value is the default, or the value that its last user left. It grows even
    /// at the limit, because an adopted connection is never refused; before accepting, the caller
    /// checks [`Self::is_full`].
    pub(crate) fn insert(&mut self) -> (SocketId, &mut T) {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.slots.len()).expect("fewer than 2^32 connections");
            self.slots.push(Slot { generation: 1, state: State::Free, value: T::default() });
            index
        });
        let slot = &mut self.slots[index as usize];
        assert!(slot.state == State::Free, "I2");
        slot.state = State::Live;
        (SocketId::new(index, slot.generation), &mut slot.value)
    }

    /// The value of a live connection; `None` when `id` does not name one, or no longer does.
    #[inline]
    pub(crate) fn find(&mut self, id: SocketId) -> Option<&mut T> {
        let slot = self.slots.get_mut(id.index())?;
        let live = slot.state == State::Live && slot.generation == id.generation();
        live.then_some(&mut slot.value)
    }

    /// The value of a live connection.
    ///
    /// Panics: when the caller uses an id after `close` or `give_up`, which is a bug.
    #[inline]
    pub(crate) fn live(&mut self, id: SocketId) -> &mut T {
        self.find(id).expect("a SocketId that was not closed")
    }

    /// The value of a slot, also of a free one, and the id if its connection is live.
    #[inline]
    pub(crate) fn at(&mut self, index: usize) -> (Option<SocketId>, &mut T) {
        let slot = &mut self.slots[index];
        let live = slot.state == State::Live;
        (live.then(|| SocketId::new(index as u32, slot.generation)), &mut slot.value)
    }

    /// Ends a connection's name. The slot stays taken until [`Self::release`].
    pub(crate) fn retire(&mut self, id: SocketId) {
        self.live(id);
        let slot = &mut self.slots[id.index()];
        slot.state = State::Dying;
        slot.generation = slot.generation.wrapping_add(1).max(1); // I1
    }

    /// Makes a retired slot free for reuse.
    pub(crate) fn release(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        assert!(slot.state == State::Dying, "I2");
        slot.state = State::Free;
        self.free.push(index as u32);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_reused_slot_has_a_new_name_and_the_old_one_finds_nothing() {
        let mut slots = Slots::<u8>::new(4);
        let (first, value) = slots.insert();
        *value = 7;
        slots.retire(first);
        assert!(slots.find(first).is_none());
        assert_eq!(slots.at(first.index()), (None, &mut 7));
        slots.release(first.index());
        let (second, _) = slots.insert();
        assert_eq!(first.index(), second.index());
        assert_ne!(first, second);
        assert!(slots.find(first).is_none());
        assert!(slots.find(second).is_some());
    }

    #[test]
    fn a_dying_slot_is_not_reused_and_counts_as_taken() {
        let mut slots = Slots::<u8>::new(2);
        let (first, _) = slots.insert();
        slots.retire(first);
        let (second, _) = slots.insert();
        assert_ne!(first.index(), second.index());
        assert!(slots.is_full());
        slots.release(first.index());
        assert!(!slots.is_full());
    }
}
