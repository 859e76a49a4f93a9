//! The meaning of each verb, as pure decisions. Each verb has a file of its own.
//!
//! Upstream:   `apply`, or a core that reads another shard.
//! Downstream: `apply` applies the decision.
//!
//! Source: memcached's protocol.txt, and the behaviour of 1.6.45 where that text says nothing.

mod arithmetic;
mod delete;
pub(crate) mod get;
mod inspect;
pub(crate) mod lease;
mod life_terms;
mod store;
mod touch;

pub use arithmetic::{NUMBER_BYTES_MAX, decimal_digits};
pub use lease::NO_TOKEN_MAX;

use crate::change::Decision;
use crate::item::ItemView;
use crate::operation::{Operation, Verb};
use crate::options::EngineOptions;
use crate::time::Now;

/// Decides what an operation does to the item that was found, and the answer. Only leases and
/// deletes see a remnant; it is a miss for all others.
///
/// Cost: reads of the item's first cache lines; no allocation.
#[inline]
pub fn decide<'e>(
    operation: &Operation<'_>,
    found: Option<&impl ItemView<'e>>,
    options: &EngineOptions,
    now: &Now,
) -> Decision {
    // Retrievals, stores and deletes look at a remnant by themselves.
    let seen = || found.filter(|item| !item.is_remnant());
    let decision = match &operation.verb {
        Verb::Get(terms) if terms.leases => lease::get(terms, found, &options.leases, now),
        Verb::Get(terms) => get::get(terms, seen(), now),
        Verb::Store(terms) => store::store(terms, operation.key.bytes().len(), found, options, now),
        Verb::Delete(terms) => delete::delete(terms, found, now),
        Verb::Arithmetic(terms) => arithmetic::arithmetic(terms, seen(), now),
        Verb::Touch(ttl) => touch::touch(*ttl, seen(), now),
        Verb::Inspect => inspect::inspect(seen(), now),
    };
    debug_assert!(decision.is_possible(found.is_some()), "change, I2");
    decision
}
