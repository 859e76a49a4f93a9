//! `touch`.
//!
//! Upstream:   `decide`.
//! Downstream: a decision: the item gets a new expiry, and its CAS token stays.

use crate::change::{Change, Decision, Mark};
use crate::item::ItemView;
use crate::outcome::Verdict;
use crate::time::{Now, Ttl};

#[inline]
pub(super) fn touch<'e>(ttl: Ttl, found: Option<&impl ItemView<'e>>, now: &Now) -> Decision {
    if found.is_none() {
        return Decision::unchanged(Verdict::Miss);
    }
    let mark = Mark { expiry: Some(now.expiry(ttl)), win_sent: false };
    Decision { change: Change::Mark(mark), notes_access: true, verdict: Verdict::Touched }
}
