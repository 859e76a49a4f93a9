//! A lock that no thread waits for: a thread that finds it held leaves its work with the holder,
//! and the holder does that work before it releases the lock.
//!
//! Upstream:   threads that change a value together. A thread that wants to change it prepares
//!             [`Work`], and takes the lock or parks the work.
//! Downstream: one word.
//!
//! ```text
//! word:     HELD | LEFT | WANTED | newest parked node, or null
//!
//!            take                 release: nothing parked
//!   free ------------> HELD ---------------------------------> free
//!                       |  ^
//!                  park |  | take_parked
//!                       v  |
//!                 HELD | node     release_leaving      node or LEFT
//!                               ------------------->   (free, but work is left)
//! ```
//!
//! Lock and list are one word, so they cannot disagree: a node that is parked while the lock is
//! held is seen by the holder before it can release.
//!
//! Invariants:
//! - C1  While `HELD` is set, one guard exists, and only it touches the value.
//! - C2  A node in the list is owned by the list. Threads add one node at a time, and the holder
//!   takes all of them at once. So an address that is used again does no harm: to add a node, a
//!   thread needs only that `next` of the node is the newest one at that moment.
//! - C3  [`Guard::release`] fails while a node is parked. So a node that was parked under a holder
//!   is done by it, or left to be seen by [`CombiningLock::is_left`].
//! - C4  A thread that wants the lock and finds it held marks it ([`CombiningLock::want`]).
//!   [`Guard::release`] fails while the mark is there, so the holder sees it, takes it off
//!   ([`Guard::take_wanted`]), and tells that thread after it has released the lock. A thread that
//!   finds the lock free is not told, because it can take it.
//!
//! Source: Hendler and others, "Flat combining and the synchronization-parallelism tradeoff", SPAA
//! 2010: one thread executes the requests of all. There each thread has a record of its own and
//! waits for it; here nobody waits, and the list is a stack (Treiber, 1986) in the word of the
//! lock.

mod node;

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut};

use crate::sync::{AtomicPtr, Ordering};
use node::Node;
pub use node::{Chain, Work};

/// Set in the word while the lock is held.
const HELD: usize = 1;
/// Set in the word when a holder has left work in the value.
const LEFT: usize = 2;
/// Set in the word of a held lock when a thread waits for its release (C4).
const WANTED: usize = 4;
const TAGS: usize = HELD | LEFT | WANTED;

/// A value behind a lock whose holder also does the work that others leave. `W` is what a piece of
/// work says.
pub struct CombiningLock<T, W> {
    word: AtomicPtr<Node<W>>,
    value: UnsafeCell<T>,
}

// SAFETY: only the one guard touches the value (C1), and it may be on any thread; nodes pass from
// thread to thread by release and acquire of the word (C2).
unsafe impl<T: Send, W: Send> Sync for CombiningLock<T, W> {}
// SAFETY: the lock owns its value and the nodes in its list (C2).
unsafe impl<T: Send, W: Send> Send for CombiningLock<T, W> {}

/// The right to change the value. It is not sent to another thread.
#[must_use = "the lock stays held until it is released"]
pub struct Guard<'l, T, W> {
    lock: &'l CombiningLock<T, W>,
    not_sent: PhantomData<*mut T>,
}

/// The result of [`CombiningLock::take_or_park`].
#[must_use]
pub enum Offered<'l, T, W> {
    /// The lock was free, and the caller has it now, with its work.
    Taken(Guard<'l, T, W>, Work<W>),
    /// The holder has the work.
    Parked,
}

fn tags<W>(word: *mut Node<W>) -> usize {
    word.addr() & TAGS
}

fn node_of<W>(word: *mut Node<W>) -> *mut Node<W> {
    const { assert!(align_of::<Node<W>>() > TAGS, "the tags are free in an address") };
    word.map_addr(|address| address & !TAGS)
}

fn with_tags<W>(node: *mut Node<W>, tags: usize) -> *mut Node<W> {
    debug_assert!(node.addr() & TAGS == 0, "a node is aligned");
    node.map_addr(|address| address | tags)
}

impl<T, W> CombiningLock<T, W> {
    /// A lock that is free.
    pub fn new(value: T) -> Self {
        Self { word: AtomicPtr::new(null_mut()), value: UnsafeCell::new(value) }
    }

    /// Takes the lock. `None` if it is held. The work that is parked stays in the list until
    /// [`Guard::take_parked`]. Cost: a load, and a compare-and-swap if the lock is free.
    #[inline]
    pub fn take(&self) -> Option<Guard<'_, T, W>> {
        let mut word = self.word.load(Ordering::Relaxed);
        while tags(word) & HELD == 0 {
            let held = with_tags(node_of(word), HELD);
            debug_assert!(node_of(held) == node_of(word), "what is parked stays parked");
            match self.word.compare_exchange(word, held, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Guard { lock: self, not_sent: PhantomData }),
                Err(newer) => word = newer,
            }
        }
        None
    }

    /// Takes the lock, or parks the work with its holder. Cost: a compare-and-swap, again whenever
    /// another thread was faster.
    pub fn take_or_park(&self, work: Work<W>) -> Offered<'_, T, W> {
        let node = work.into_node();
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let to = if tags(word) & HELD == 0 {
                with_tags(node_of(word), HELD)
            } else {
                // SAFETY: the node is ours until the exchange succeeds (N1 of `node`).
                unsafe { (*node).next = node_of(word) };
                with_tags(node, tags(word))
            };
            match self.word.compare_exchange(word, to, Ordering::AcqRel, Ordering::Relaxed) {
                Err(newer) => word = newer,
                Ok(_) if tags(word) & HELD == 0 => {
                    let guard = Guard { lock: self, not_sent: PhantomData };
                    let node = NonNull::new(node).expect("a node has an address");
                    // SAFETY: the exchange has put another word than this node.
                    return Offered::Taken(guard, unsafe { Work::from_node(node) });
                }
                Ok(_) => {
                    debug_assert!(tags(to) & HELD != 0, "C3: the holder must see it");
                    return Offered::Parked;
                }
            }
        }
    }

    /// Leaves the work in the list, whether the lock is held or not. Returns whether nothing was in
    /// the list of a free lock, so that the caller must tell a thread that takes it. Cost: as
    /// [`Self::take_or_park`].
    pub fn park(&self, work: Work<W>) -> bool {
        let node = work.into_node();
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            debug_assert!(node_of(word) != node, "C2: a node is in one place");
            // SAFETY: the node is ours until the exchange succeeds (N1 of `node`).
            unsafe { (*node).next = node_of(word) };
            let to = with_tags(node, tags(word));
            match self.word.compare_exchange(word, to, Ordering::Release, Ordering::Relaxed) {
                Err(newer) => word = newer,
                Ok(_) => return tags(word) & HELD == 0 && node_of(word).is_null(),
            }
        }
    }

    /// Marks a lock that is held, so that its holder tells the caller when it releases the lock
    /// (C4). Returns `false` if the lock is free: then nobody tells the caller. Cost: a load, and a
    /// compare-and-swap if the lock is held.
    #[must_use = "nobody tells the caller about a lock that is free"]
    pub fn want(&self) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        while tags(word) & HELD != 0 {
            let wanted = with_tags(node_of(word), tags(word) | WANTED);
            // Released, so that the holder sees what the caller did before: its sleeping flag.
            match self.word.compare_exchange(word, wanted, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(newer) => word = newer,
            }
        }
        false
    }

    /// Whether the lock is free and work is left with it (C3). Cost: a load.
    #[inline]
    pub fn is_left(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        tags(word) & HELD == 0 && !word.is_null()
    }

    /// Whether the lock is free and no work is left with it. Cost: a load.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.word.load(Ordering::Relaxed).is_null()
    }

    /// Whether the lock is free and work is in its list. Cost: a load.
    #[inline]
    pub fn is_left_parked(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        tags(word) & HELD == 0 && !node_of(word).is_null()
    }
}

impl<T, W> Drop for CombiningLock<T, W> {
    fn drop(&mut self) {
        let word = self.word.load(Ordering::Relaxed);
        // SAFETY: the list owns its nodes (C2), and nobody else has the lock any more.
        drop(unsafe { Chain::from_newest(node_of(word)) });
    }
}

impl<T, W> Guard<'_, T, W> {
    /// Takes the work that was parked, the oldest first. Cost: a load, if there is none.
    #[inline]
    pub fn take_parked(&mut self) -> Chain<W> {
        let word = &self.lock.word;
        if node_of(word.load(Ordering::Relaxed)).is_null() {
            return Chain::new();
        }
        let mut seen = word.load(Ordering::Relaxed);
        let taken = loop {
            debug_assert!(tags(seen) & (HELD | LEFT) == HELD, "C1: taking it has cleared LEFT");
            let emptied = with_tags(null_mut(), tags(seen)); // C4: the mark stays.
            match word.compare_exchange(seen, emptied, Ordering::Acquire, Ordering::Relaxed) {
                Ok(taken) => break taken,
                Err(newer) => seen = newer,
            }
        };
        // SAFETY: the exchange has made this thread the owner of the list (C2).
        unsafe { Chain::from_newest(node_of(taken)) }
    }

    /// Takes the mark off by which a thread wants the lock (C4). Returns whether it was there: then
    /// the caller must tell that thread after the release. Cost: a load, if it is not there.
    pub fn take_wanted(&mut self) -> bool {
        let word = &self.lock.word;
        let mut seen = word.load(Ordering::Relaxed);
        while tags(seen) & WANTED != 0 {
            let to = with_tags(node_of(seen), tags(seen) & !WANTED);
            // Acquired: as for `want`.
            match word.compare_exchange(seen, to, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(newer) => seen = newer,
            }
        }
        false
    }

    /// Releases the lock. Errors: work was parked meanwhile, or another thread wants the lock, and
    /// it is still held.
    #[inline]
    pub fn release(self) -> Result<(), Self> {
        let held = with_tags(null_mut(), HELD);
        let word = &self.lock.word;
        debug_assert!(tags(word.load(Ordering::Relaxed)) & (HELD | LEFT) == HELD, "C1");
        match word.compare_exchange(held, null_mut(), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => {
                std::mem::forget(self);
                Ok(())
            }
            Err(_) => Err(self), // C3, C4
        }
    }

    /// Releases the lock although work is left: in the list, or in the value. From now on
    /// [`CombiningLock::is_left`] is true until a thread takes the lock, and the caller must tell
    /// one to do so: the one that wants the lock (C4), if any thread can.
    pub fn release_leaving(self) {
        drop(self);
    }
}

impl<T, W> Deref for Guard<'_, T, W> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: only this guard touches the value (C1).
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, W> DerefMut for Guard<'_, T, W> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: only this guard touches the value (C1), and it is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T, W> Drop for Guard<'_, T, W> {
    /// As [`Guard::release_leaving`]. A thread that panics keeps the lock: the value may be broken.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let word = &self.lock.word;
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            debug_assert!(tags(seen) & (HELD | LEFT) == HELD, "C1");
            let left = with_tags(node_of(seen), LEFT);
            match word.compare_exchange(seen, left, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(newer) => seen = newer,
            }
        }
    }
}

/// Work that many threads hand back to one, which takes all of it at once.
pub struct Returned<W> {
    newest: AtomicPtr<Node<W>>,
}

// SAFETY: nodes pass from thread to thread by release and acquire of the word (C2).
unsafe impl<W: Send> Sync for Returned<W> {}
// SAFETY: the stack owns its nodes.
unsafe impl<W: Send> Send for Returned<W> {}

impl<W> Returned<W> {
    /// Nothing is handed back.
    pub fn new() -> Self {
        Self { newest: AtomicPtr::new(null_mut()) }
    }

    /// Hands work back. Returns whether there was none before, so that the caller must wake the
    /// thread that takes it. Cost: a compare-and-swap, again whenever another thread was faster.
    pub fn push(&self, work: Work<W>) -> bool {
        let node = work.into_node();
        let mut newest = self.newest.load(Ordering::Relaxed);
        loop {
            debug_assert!(newest != node, "C2: a node is in one place");
            // SAFETY: the node is ours until the exchange succeeds (N1 of `node`).
            unsafe { (*node).next = newest };
            match self.newest.compare_exchange(newest, node, Ordering::Release, Ordering::Relaxed) {
                Err(newer) => newest = newer,
                Ok(_) => return newest.is_null(),
            }
        }
    }

    /// Takes all work that was handed back, the oldest first. Only one thread may call this at a
    /// time. Cost: a load, if there is none.
    #[inline]
    pub fn take(&self) -> Chain<W> {
        if self.is_empty() {
            return Chain::new();
        }
        let newest = self.newest.swap(null_mut(), Ordering::Acquire);
        // SAFETY: the swap has made this thread the owner of the nodes.
        unsafe { Chain::from_newest(newest) }
    }

    /// Whether nothing is handed back. Cost: a load.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.newest.load(Ordering::Relaxed).is_null()
    }
}

impl<W> Default for Returned<W> {
    fn default() -> Self {
        Self::new()
    }
}

impl<W> Drop for Returned<W> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
#[cfg(all(test, loom))]
mod models;
