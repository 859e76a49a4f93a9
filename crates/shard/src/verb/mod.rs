//! The verbs, one a file: what each does to the engine, and the reply it words.
//!
//! Upstream:   `execute` picks the verb of a request.
//! Downstream: `engine` for items, `kachel_wire` for words.
//!
//! A verb writes its reply into a sink. A value too large for one block is not written: the verb
//! returns a pin on it, and whoever owns the connection lets it flow, CR LF behind it.

mod arithmetic;
mod delete;
mod get;
mod meta_arithmetic;
mod meta_debug;
mod meta_delete;
mod meta_get;
mod meta_set;
mod store;
mod touch;

pub(crate) use arithmetic::arithmetic;
pub(crate) use delete::delete;
pub(crate) use get::get;
pub(crate) use meta_arithmetic::meta_arithmetic;
pub(crate) use meta_debug::meta_debug;
pub(crate) use meta_delete::meta_delete;
pub(crate) use meta_get::meta_get;
pub(crate) use meta_set::meta_set;
pub(crate) use store::{Block, classic_store, leaves_nothing};
pub(crate) use touch::touch;

use kachel_segment::Item;
use kachel_wire::Sink;
use kachel_wire::request::{Meta, Ttl};

use crate::second::Epoch;

/// Seconds of life that an expiry leaves; `None` lives for ever.
#[inline]
pub(crate) fn ttl_left(expiry: u32, second: u32) -> Option<i64> {
    (expiry != 0).then(|| i64::from(expiry) - i64::from(second))
}

/// What the flags `T`, `N` and `R` of a meta request do to the life of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    /// The expiry after them.
    pub(crate) expiry: u32,
    /// Seconds of life that `T` gives.
    pub(crate) ttl: Option<i64>,
    /// Seconds of life that `N` gives.
    pub(crate) ttl_made: Option<i64>,
    /// Whether `R` found less life left than it names.
    pub(crate) recached: bool,
}

/// Carries out `T`, `N` (on an item that this request made) and `R` on an item of expiry `before`,
/// in the order in which they stand, as memcached does: the later of `T` and `N` holds, and `R`
/// looks at what the flags before it left.
pub(crate) fn live_on(
    meta: &Meta<'_>,
    (epoch, second): (&Epoch, u32),
    (before, created): (u32, bool),
) -> Life {
    let mut life = Life { expiry: before, ttl: None, ttl_made: None, recached: false };
    if meta.ttl.is_none() && meta.vivify.is_none() && meta.recache.is_none() {
        return life;
    }
    for letter in meta.letters_in_order() {
        match (letter, meta.ttl, meta.vivify, meta.recache) {
            (b'T', Some(ttl), _, _) => {
                life.expiry = epoch.expiry(ttl, second);
                life.ttl = ttl_left(life.expiry, second);
            }
            (b'N', _, Some(ttl), _) if created => {
                life.expiry = epoch.expiry(ttl, second);
                life.ttl_made = ttl_left(life.expiry, second);
            }
            (b'R', _, _, Some(seconds)) => {
                let limit = epoch.expiry(Ttl(seconds), second);
                life.recached = life.expiry != 0 && life.expiry < limit;
            }
            _ => {}
        }
    }
    life
}

/// Where a reply that may show a value goes.
pub(crate) trait ReplySink: Sink {
    /// Bytes of the longest value that is worded into it; a longer one is pinned.
    fn value_bytes_max(&self) -> usize;
}

/// The item's value, when it is short enough to be worded into `sink`.
#[inline]
pub(crate) fn inline_value<'i>(item: Item<'i>, sink: &impl ReplySink) -> Option<&'i [u8]> {
    item.value().as_slice().filter(|value| value.len() <= sink.value_bytes_max())
}
