//! The verbs, one a file: what each does to the engine, and the reply it words.
//!
//! Upstream:   `execute` picks the verb of a request.
//! Downstream: `engine` for items, `kachel_wire` for words.
//!
//! A verb writes its reply into a sink. A value too large for one block is not written: the verb returns
//! a pin on it, and whoever owns the connection lets it flow, CR LF behind it.

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
pub(crate) use store::{Block, classic_store};
pub(crate) use touch::touch;

use kachel_segment::Pinned;
use kachel_wire::Sink;

use crate::engine::{Engine, Found};

/// Seconds of life that an expiry leaves; `None` lives for ever.
#[inline]
pub(crate) fn ttl_left(expiry: u32, second: u32) -> Option<i64> {
    (expiry != 0).then(|| i64::from(expiry) - i64::from(second))
}

/// Words an item's value and CR LF, or hands out a pin when it is large.
#[inline]
pub(crate) fn put_value(engine: &Engine, at: Found, sink: &mut impl Sink) -> Option<Pinned> {
    if let Some(value) = engine.item(at).value().as_slice() {
        sink.put(value);
        sink.put(b"\r\n");
        return None;
    }
    Some(engine.pin(at))
}
