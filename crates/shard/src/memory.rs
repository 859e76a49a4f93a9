//! The memory that clients take, charged to `-m`: long input, wide outboxes, pinned values.
//!
//! Upstream:   `serve`, `arrive`, `send` and `late`.
//! Downstream: the budget of the process; the engine, which makes room.
//!
//! Invariants:
//! - I1  What a connection is charged with is refunded when it needs less, and when it closes.

use kachel_engine::{Engine, ReadValue};
use kachel_net::{Connection, ConnectionIndex, WIDENED_BYTES};
use kachel_wire::Reply;

use crate::clients::Clients;
use crate::context::Context;

/// Charges `bytes` to the budget, at the cost of items where that is necessary. `false`: nothing is
/// left, and nothing was charged.
fn charge<E: Engine>(context: &Context, engine: &mut E, bytes: u64) -> bool {
    let budget = &context.shared.budget;
    budget.charge(bytes) || engine.make_room(bytes, &context.now) && budget.charge(bytes)
}

/// Charges a connection's kept input to the budget, or refunds what it no longer needs. If there
/// is no memory for a long line, the client gets an error and is closed.
pub(crate) fn charge_input<E: Engine>(
    context: &Context,
    engine: &mut E,
    clients: &mut Clients<E::Pinned>,
    connection: ConnectionIndex,
) {
    let Some(open) = clients.connections.get_mut(connection) else { return };
    let budget = &context.shared.budget;
    let charged = open.input().charged_bytes();
    let mut wanted = open.input().chargeable_bytes();
    debug_assert!(
        charged <= context.shared.budget.spent_bytes(),
        "I1: it is part of what is spent"
    );
    if wanted > charged && !charge(context, engine, wanted - charged) {
        // Its memory may be larger than its content.
        open.input_mut().shrink_to(0);
        wanted = open.input().chargeable_bytes();
        if wanted > charged && !budget.charge(wanted - charged) {
            open.input_mut().clear();
            budget.refund(open.input_mut().set_charged_bytes(0));
            clients.text(connection, Reply::OutOfMemoryReading.bytes());
            return clients.drain(connection);
        }
    }
    budget.refund(charged.saturating_sub(wanted));
    open.input_mut().set_charged_bytes(wanted);
}

/// Lets a connection that owes its own share owe more, at the cost of `-m`. `false`: it must wait
/// until its client has read, with `kept_bytes` of requests kept meanwhile.
#[cold]
pub(crate) fn widen<E: Engine>(
    context: &Context,
    engine: &mut E,
    clients: &mut Clients<E::Pinned>,
    connection: ConnectionIndex,
    kept_bytes: usize,
) -> bool {
    let Some(open) = clients.connections.get_mut(connection) else { return false };
    debug_assert!(open.outbox().is_full(kept_bytes), "only a full outbox is widened");
    if !open.outbox().would_widen(kept_bytes) {
        return !open.outbox().is_full(kept_bytes);
    }
    if charge(context, engine, WIDENED_BYTES) {
        open.outbox_mut().widen();
    }
    open.outbox().is_wide()
}

/// Gives back what [`widen`] took, once a connection owes little again.
pub(crate) fn narrow<P: ReadValue>(
    context: &Context,
    clients: &mut Clients<P>,
    connection: ConnectionIndex,
) {
    if let Some(open) = clients.connections.get_mut(connection)
        && open.outbox_mut().narrow()
    {
        debug_assert!(!open.outbox().is_wide(), "I1: it is refunded once");
        context.shared.budget.refund(WIDENED_BYTES);
    }
}

/// Gives back all that a connection that closes was charged with (I1).
pub(crate) fn refund_all(context: &Context, closed: &Connection) {
    let widened = if closed.outbox().is_wide() { WIDENED_BYTES } else { 0 };
    context.shared.budget.refund(widened + closed.input().charged_bytes());
}

/// Whether more is pinned than may be (`--pinned-percent`), for clients of all shards.
pub(crate) fn is_too_much_pinned<E: Engine>(context: &Context, engine: &E) -> bool {
    let percent = u64::from(context.shared.options.pinned_percent);
    let limit_bytes = context.shared.budget.limit_bytes();
    let allowed_bytes = limit_bytes / 100 * percent + limit_bytes % 100 * percent / 100;
    debug_assert!(percent > 100 || allowed_bytes <= limit_bytes, "a part of the budget");
    percent != 0 && engine.pinned_bytes() > allowed_bytes
}
