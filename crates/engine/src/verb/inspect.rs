//! `me`.
//!
//! Upstream:   `decide`.
//! Downstream: a decision without a change. The item does not count as read.

use crate::change::Decision;
use crate::item::ItemView;
use crate::outcome::{Inspection, Verdict};
use crate::time::Now;

pub(super) fn inspect<'e>(found: Option<&impl ItemView<'e>>, now: &Now) -> Decision {
    let Some(item) = found else { return Decision::unchanged(Verdict::Miss) };
    let inspection = Inspection {
        ttl: now.ttl_left(item.expiry()),
        since_access_s: now.second.saturating_sub(item.last_access()),
        cas: item.cas(),
        fetched: item.is_fetched(),
        item_bytes: item.memory_bytes(),
        protocol_mark: item.protocol_mark(),
    };
    Decision::unchanged(Verdict::Inspected(inspection))
}
