//! Decisions and changes: what an engine must do to an item.
//!
//! Upstream:   `verb` decides.
//! Downstream: `apply` passes the change to the engine's primitives.
//!
//! Invariants:
//! - I1  A decision holds one change at most (`lib`, I1).
//! - I2  [`PutValue::Joined`] and [`PutValue::Unchanged`] are decided only if an item was found.

use std::fmt;

use crate::outcome::Verdict;

/// No room for an item: memory is full, and nothing in it may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

impl fmt::Display for NoRoom {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("no room left for the item")
    }
}

impl std::error::Error for NoRoom {}

/// Why a change was not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Memory is full, and nothing in it may be evicted.
    NoRoom,
    /// Room is on its way. Nothing was changed; the operation must be executed again later.
    NotYet,
}

/// An operation cannot be executed now, because room for its item is on its way, or because its
/// item must be fetched first. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotYet;

impl fmt::Display for NotYet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the operation must be applied again later")
    }
}

impl std::error::Error for NotYet {}

/// What a verb decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The change to apply (I1).
    pub change: Change,
    /// Whether the item counts as read. This is not a change: any core may note it.
    pub notes_access: bool,
    /// The answer, once the change was applied.
    pub verdict: Verdict,
}

impl Decision {
    /// Whether the change can be applied. `found` says whether an item was found (I2).
    pub(crate) const fn is_possible(&self, found: bool) -> bool {
        match &self.change {
            Change::None => true,
            Change::Mark(_) | Change::Remove => found,
            Change::Put(put) => match put.value {
                PutValue::Joined(_) | PutValue::Unchanged => found,
                PutValue::Block | PutValue::Empty | PutValue::Number { .. } => true,
            },
        }
    }

    /// A decision that changes nothing.
    pub(crate) const fn unchanged(verdict: Verdict) -> Self {
        Self { change: Change::None, notes_access: false, verdict }
    }
}

/// A change of at most one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    None,
    /// The item's header gets new marks. Its CAS token stays.
    Mark(Mark),
    /// A new item is stored. It replaces the item that was found, if any.
    Put(Put),
    /// The item is removed.
    Remove,
}

/// New marks in an item's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The new expiry, if it changes.
    pub expiry: Option<u32>,
    /// Whether the right to refill the item is given away now.
    pub win_sent: bool,
}

/// An item to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// Where its value comes from.
    pub value: PutValue,
    /// The client flags.
    pub client_flags: u32,
    /// The second in which it expires; 0 for never.
    pub expiry: u32,
    /// The CAS token that the client chose. `None` for the engine's next token.
    pub cas: Option<u64>,
    /// Whether the item is stale from the start.
    pub stale: bool,
    /// Whether the right to refill the item was already given away.
    pub win_sent: bool,
    /// Whether the item is a remnant: see [`crate::ItemView::is_remnant`].
    pub remnant: bool,
    /// The protocol's mark: see [`crate::ItemView::protocol_mark`].
    pub protocol_mark: bool,
    /// Whether the item counts as read if the item that it replaces was read.
    pub keeps_access: bool,
    /// Whether the item that was found is removed if there is no room for this one. A stale value
    /// must not outlive a `set` that was refused.
    pub removes_when_refused: bool,
}

/// Where a new item's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutValue {
    /// The operation's block.
    Block,
    /// The value of the item that was found, with the block added to it.
    Joined(Side),
    /// The value of the item that was found.
    Unchanged,
    /// No bytes.
    Empty,
    /// A number in decimal, padded with spaces at its end to `bytes`.
    Number {
        /// The number.
        number: u64,
        /// Bytes of the value, at least the number's digits.
        bytes: usize,
    },
}

/// The side of a value on which the block is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Before the value (`prepend`).
    Before,
    /// After the value (`append`).
    After,
}
