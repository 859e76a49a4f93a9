//! Work that passes from one thread to another: nodes, and the list that links them without an
//! allocation.
//!
//! Upstream:   the lock and the stack of this folder; owners of work.
//! Downstream: `alloc`.
//!
//! ```text
//! Chain:  first -> node -> node -> node (last) -> null
//! ```
//!
//! Invariants:
//! - N1  Each node has one owner: a [`Work`], a chain, or a stack of this folder.
//! - N2  A chain's nodes are linked from `first` to `last`, and `last` links to null. Both are null
//!   when the chain is empty.

use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut};

/// A node in its allocation.
pub(super) struct Node<W> {
    pub(super) next: *mut Self,
    work: W,
}

/// A piece of work that one thread prepares, another one may do, and the first one takes back. It
/// has an address of its own, so that passing it on moves a pointer.
pub struct Work<W>(NonNull<Node<W>>);

// SAFETY: a `Work` owns its node (N1), so sending it sends the value in it.
unsafe impl<W: Send> Send for Work<W> {}
// SAFETY: a shared `Work` lends only a shared reference to its value.
unsafe impl<W: Sync> Sync for Work<W> {}

impl<W> Work<W> {
    /// The size of a node, in bytes.
    pub const BYTES: usize = size_of::<Node<W>>();

    /// Puts `work` into a node. Cost: an allocation.
    pub fn new(work: W) -> Self {
        Self(NonNull::from(Box::leak(Box::new(Node { next: null_mut(), work }))))
    }

    /// The value, out of its node.
    pub fn into_inner(self) -> W {
        let node = self.into_node();
        // SAFETY: `new` leaked this box, and `into_node` has made this call its owner (N1).
        unsafe { Box::from_raw(node) }.work
    }

    /// Gives the node up to the caller, who owns it from now on (N1).
    pub(super) fn into_node(self) -> *mut Node<W> {
        let node = self.0.as_ptr();
        std::mem::forget(self);
        node
    }

    /// Takes a node over (N1).
    ///
    /// # Safety
    /// `node` came from [`Self::into_node`], and the caller is its owner.
    pub(super) unsafe fn from_node(node: NonNull<Node<W>>) -> Self {
        Self(node)
    }
}

impl<W> Deref for Work<W> {
    type Target = W;

    #[inline]
    fn deref(&self) -> &W {
        // SAFETY: the node lives until drop, and this `Work` owns it (N1).
        unsafe { &self.0.as_ref().work }
    }
}

impl<W> DerefMut for Work<W> {
    #[inline]
    fn deref_mut(&mut self) -> &mut W {
        // SAFETY: as for `deref`; `self` is borrowed exclusively.
        unsafe { &mut self.0.as_mut().work }
    }
}

impl<W> Drop for Work<W> {
    fn drop(&mut self) {
        // SAFETY: `new` leaked this box, and this `Work` owns it (N1).
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// A first-in, first-out list of work. No operation allocates.
pub struct Chain<W> {
    first: *mut Node<W>,
    last: *mut Node<W>,
}

// SAFETY: a chain owns its nodes (N1), so sending it sends the values in them.
unsafe impl<W: Send> Send for Chain<W> {}

impl<W> Chain<W> {
    /// An empty chain.
    pub const fn new() -> Self {
        Self { first: null_mut(), last: null_mut() }
    }

    /// Whether there is no work.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// Adds work at the end.
    pub fn push(&mut self, work: Work<W>) {
        let node = work.into_node();
        debug_assert_eq!(self.first.is_null(), self.last.is_null(), "N2");
        // SAFETY: the node is ours now (N1).
        unsafe { (*node).next = null_mut() };
        match NonNull::new(self.last) {
            None => self.first = node,
            // SAFETY: the last node belongs to this chain (N1, N2).
            Some(last) => unsafe { (*last.as_ptr()).next = node },
        }
        self.last = node;
    }

    /// Adds work at the front, so that it is the next to be taken out.
    pub fn push_first(&mut self, work: Work<W>) {
        let node = work.into_node();
        // SAFETY: the node is ours now (N1).
        unsafe { (*node).next = self.first };
        if self.first.is_null() {
            debug_assert!(self.last.is_null(), "N2");
            self.last = node;
        }
        self.first = node;
    }

    /// Takes the work at the front out: the oldest.
    pub fn pop(&mut self) -> Option<Work<W>> {
        let node = NonNull::new(self.first)?;
        // SAFETY: the node belongs to this chain (N1).
        self.first = unsafe { (*node.as_ptr()).next };
        if self.first.is_null() {
            debug_assert_eq!(self.last, node.as_ptr(), "N2");
            self.last = null_mut();
        }
        // SAFETY: nothing in the chain links to the node any more, so it has no other owner.
        Some(unsafe { Work::from_node(node) })
    }

    /// Moves all work of `later` to the end of this chain.
    pub fn append(&mut self, mut later: Self) {
        let (first, last) = (later.first, later.last);
        later.first = null_mut();
        later.last = null_mut();
        match NonNull::new(self.last) {
            None => (self.first, self.last) = (first, last),
            Some(before) if !first.is_null() => {
                // SAFETY: the node belongs to this chain (N1, N2).
                unsafe { (*before.as_ptr()).next = first };
                self.last = last;
            }
            Some(_) => {}
        }
        debug_assert_eq!(self.first.is_null(), self.last.is_null(), "N2");
    }

    /// The work, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &W> {
        let mut next = self.first;
        std::iter::from_fn(move || {
            // SAFETY: the nodes belong to this chain (N1), which is borrowed while they are lent.
            let node = unsafe { next.as_ref() }?;
            next = node.next;
            Some(&node.work)
        })
    }

    /// The chain of nodes that a stack held, whose newest node is `newest`. Cost: a step for each.
    ///
    /// # Safety
    /// The caller owns the nodes from `newest` on, which link to older ones, the oldest to null.
    pub(super) unsafe fn from_newest(newest: *mut Node<W>) -> Self {
        let (mut first, mut node) = (null_mut::<Node<W>>(), newest);
        while !node.is_null() {
            // SAFETY: the caller owns the node.
            let older = std::mem::replace(unsafe { &mut (*node).next }, first);
            first = node;
            node = older;
        }
        debug_assert_eq!(first.is_null(), newest.is_null(), "N2");
        Self { first, last: newest }
    }
}

impl<W> Default for Chain<W> {
    fn default() -> Self {
        Self::new()
    }
}

impl<W> Drop for Chain<W> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_chain_keeps_the_order_through_pushes_pops_and_appends() {
        let mut chain = Chain::new();
        let mut later = Chain::new();
        later.append(Chain::new());
        assert!(later.is_empty() && chain.pop().is_none());
        (0..3).for_each(|number| chain.push(Work::new(number)));
        assert_eq!(chain.pop().as_deref(), Some(&0));
        (3..5).for_each(|number| later.push(Work::new(number)));
        chain.append(later);
        chain.append(Chain::new());
        chain.push(Work::new(5));
        assert_eq!(chain.iter().copied().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        for number in 1..=5 {
            assert_eq!(chain.pop().as_deref(), Some(&number));
        }
        assert!(chain.is_empty());
        let mut refilled = Chain::default();
        refilled.append({
            let mut one = Chain::new();
            one.push(Work::new(7));
            one
        });
        assert_eq!(refilled.pop().as_deref(), Some(&7), "an empty chain takes the nodes over");
        refilled.push_first(Work::new(2));
        refilled.push_first(Work::new(1));
        refilled.push(Work::new(3));
        assert_eq!(refilled.iter().copied().collect::<Vec<_>>(), [1, 2, 3]);
    }
}
