//! An item of the cache, as decisions and listings see it.
//!
//! Upstream:   `find` and `walk`.
//! Downstream: `segment` reads the item in place.

use kachel_engine::ItemView;
use kachel_segment::Item;

/// A live item, read in place.
#[derive(Clone, Copy, Debug)]
pub struct CachedItem<'e>(pub(crate) Item<'e>);

impl<'e> ItemView<'e> for CachedItem<'e> {
    #[inline]
    fn expiry(&self) -> u32 {
        self.0.expiry()
    }

    #[inline]
    fn client_flags(&self) -> u32 {
        self.0.client_flags()
    }

    #[inline]
    fn cas(&self) -> u64 {
        self.0.cas()
    }

    #[inline]
    fn value_bytes(&self) -> usize {
        self.0.value().bytes()
    }

    #[inline]
    fn small_value(&self) -> Option<&'e [u8]> {
        self.0.value().as_slice()
    }

    #[inline]
    fn is_stale(&self) -> bool {
        self.0.stale()
    }

    #[inline]
    fn is_win_sent(&self) -> bool {
        self.0.win_sent()
    }

    #[inline]
    fn is_remnant(&self) -> bool {
        self.0.is_remnant()
    }

    #[inline]
    fn protocol_mark(&self) -> bool {
        self.0.protocol_mark()
    }

    #[inline]
    fn is_fetched(&self) -> bool {
        self.0.fetched()
    }

    #[inline]
    fn last_access(&self) -> u32 {
        self.0.last_access()
    }

    fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }
}
