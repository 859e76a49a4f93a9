//! An item as a decision sees it, and the facts about it in an outcome.
//!
//! Upstream:   an engine shows the item that it found.
//! Downstream: `verb` bases its decisions on the item; `wire` formats the facts that the operation
//!             wanted.

/// A live item, as an engine shows it. Every method is a read of the item's first cache lines.
pub trait ItemView<'e> {
    /// The second in which the item expires; 0 for never.
    fn expiry(&self) -> u32;
    /// The client flags.
    fn client_flags(&self) -> u32;
    /// The CAS token; 0 if items have no tokens.
    fn cas(&self) -> u64;
    /// Bytes of the value.
    fn value_bytes(&self) -> usize;
    /// The value, if it has at most [`crate::INLINE_VALUE_BYTES_MAX`] bytes and lies in one piece
    /// of memory. A longer value is pinned and sent as fast as its client reads.
    fn small_value(&self) -> Option<&'e [u8]>;
    /// Whether the item was marked stale.
    fn is_stale(&self) -> bool;
    /// Whether a client was given the right to refill the item.
    fn is_win_sent(&self) -> bool;
    /// Whether the item is a remnant: what a delete or a lease left for leases. No other request
    /// sees it. A remnant is always stale.
    fn is_remnant(&self) -> bool;
    /// One bit that the protocol of the storing client keeps with an item. It has no meaning for an
    /// engine. `wire` uses it to note whether the key was sent in base64.
    fn protocol_mark(&self) -> bool;
    /// Whether the item was fetched since it was stored.
    fn is_fetched(&self) -> bool;
    /// The second of the last access.
    fn last_access(&self) -> u32;
    /// Bytes of memory that the item takes.
    fn memory_bytes(&self) -> usize;
}

/// The facts that an operation wants. Other facts are not looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted(u8);

impl Wanted {
    /// No fact.
    pub const NOTHING: Self = Self(0);
    /// [`Facts::client_flags`].
    pub const CLIENT_FLAGS: Self = Self(1);
    /// [`Facts::cas`].
    pub const CAS: Self = Self(1 << 1);
    /// [`Facts::value_bytes`].
    pub const VALUE_BYTES: Self = Self(1 << 2);
    /// [`Facts::ttl_before`].
    pub const TTL: Self = Self(1 << 3);
    /// [`Facts::hit_before`] and [`Facts::since_access_s`].
    pub const ACCESS: Self = Self(1 << 4);
    /// [`Facts::stale`], [`Facts::win_sent`] and [`Facts::protocol_mark`].
    pub const MARKS: Self = Self(1 << 5);

    /// These facts and the others.
    #[must_use]
    pub const fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Whether all of `others` are wanted.
    #[inline]
    pub const fn has(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }
}

/// The facts about an item in an outcome: the facts that were wanted, and what the operation did to
/// the item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Bytes of the value: of the item that was read, of the item that was stored (after
    /// appending), or the digits of a number.
    pub value_bytes: usize,
    /// The client flags.
    pub client_flags: u32,
    /// The CAS token; 0 when nothing was stored.
    pub cas: u64,
    /// Seconds of life left before the operation; `None` when the item never expires.
    pub ttl_before: Option<i64>,
    /// Seconds of life that [`crate::LifeStep::Touch`] gave.
    pub ttl: Option<i64>,
    /// Seconds of life that [`crate::LifeStep::Vivify`] gave to an item that this operation
    /// created.
    pub ttl_made: Option<i64>,
    /// Whether this operation created the item.
    pub created: bool,
    /// Whether the item was fetched before this operation.
    pub hit_before: bool,
    /// Seconds since the access before this one.
    pub since_access_s: u32,
    /// Whether this operation won the right to refill the item.
    pub won: bool,
    /// Whether the item is stale.
    pub stale: bool,
    /// Whether another operation had won the right to refill before.
    pub win_sent: bool,
    /// The protocol's mark. `None` if it was not looked up; a reply then uses the form of the
    /// request.
    pub protocol_mark: Option<bool>,
}

impl Facts {
    /// The wanted facts of an item, as they were before the operation.
    #[inline(always)]
    pub(crate) fn of<'e>(item: &impl ItemView<'e>, wanted: Wanted, now: &crate::Now) -> Self {
        debug_assert!(
            item.small_value().is_none_or(|value| value.len() == item.value_bytes()),
            "a value in one piece has the item's length"
        );
        let mut facts = Self::default();
        if wanted.has(Wanted::CLIENT_FLAGS) {
            facts.client_flags = item.client_flags();
        }
        if wanted.has(Wanted::CAS) {
            facts.cas = item.cas();
        }
        if wanted.has(Wanted::VALUE_BYTES) {
            facts.value_bytes = item.value_bytes();
        }
        if wanted.has(Wanted::TTL) {
            facts.ttl_before = now.ttl_left(item.expiry());
        }
        if wanted.has(Wanted::ACCESS) {
            facts.hit_before = item.is_fetched();
            facts.since_access_s = now.second.saturating_sub(item.last_access());
        }
        if wanted.has(Wanted::MARKS) {
            facts.stale = item.is_stale();
            facts.win_sent = item.is_win_sent();
            facts.protocol_mark = Some(item.protocol_mark());
        }
        facts
    }
}
