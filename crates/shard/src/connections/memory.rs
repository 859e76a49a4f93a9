//! The memory that clients take: long input and wide outboxes are charged to `-m`, and pinned
//! values have a limit.
//!
//! Upstream:   `serve`, `carry_out`, `arrive`, `send` and `late`.
//! Downstream: the budget of the process; the engine, which frees memory of items.
//!
//! Invariants:
//! - I1  The charge of a connection is refunded when it needs less, and when it closes.
//! - I2  Charges of clients overdraw the budget by at most `OVERDRAFT_BYTES_PER_CORE` for each
//!   core.

use kachel_engine::{Common, Engine, ReadValue, Room};
use kachel_host::Budget;
use kachel_net::{ClientIndex, CloseReason, Connection, WIDENED_BYTES};
use kachel_wire::Reply;
use kachel_wire::request::RETRIEVE_LINE_BYTES_MAX;

use crate::clients::Clients;
use crate::context::Context;
use crate::waiting::engines::Engines;
use crate::waiting::held::HeldEngines;

/// Bytes for each core by which clients may overdraw the budget while room for them is on its way,
/// or while this core cannot take an engine that frees memory. A guess: half of the longest line,
/// so that one fits with two cores.
const OVERDRAFT_BYTES_PER_CORE: u64 = RETRIEVE_LINE_BYTES_MAX as u64 / 2;
/// How often room is made for one charge. Another core may charge what was freed.
const ROOM_ATTEMPTS_MAX: u32 = 2;

/// Charges `bytes` to the budget. If necessary, the engine frees memory of items first. Returns
/// `false`, and charges nothing, if there is not enough memory.
pub(crate) fn charge<E: Engine>(
    context: &Context,
    held: &mut HeldEngines<'_, E>,
    bytes: u64,
) -> bool {
    let budget = &context.shared.budget;
    let overdraft_bytes = OVERDRAFT_BYTES_PER_CORE * u64::from(context.cores());
    budget.charge(bytes)
        || charge_room(budget, bytes, overdraft_bytes, || {
            held.fullest().map(|engine| engine.make_room(bytes, &context.now()))
        })
}

/// Charges `bytes` after `make_room` has freed as much. It returns `None` if this core cannot take
/// an engine. Returns `false`, and charges nothing, if there is not enough memory.
#[cold]
fn charge_room(
    budget: &Budget,
    bytes: u64,
    overdraft_bytes: u64,
    mut make_room: impl FnMut() -> Option<Room>,
) -> bool {
    for _ in 0..ROOM_ATTEMPTS_MAX {
        match make_room() {
            Some(Room::Made) if budget.charge(bytes) => return true,
            Some(Room::Made) => {}
            Some(Room::Refused) => return false,
            Some(Room::OnTheWay) | None => break,
        }
    }
    // A client is not closed because another core has not ended its round yet, holds the engine, or
    // was faster. But a core that never has an engine makes no room at all (I2).
    let is_charged = budget.charge_overdrawing(bytes, overdraft_bytes);
    debug_assert!(!is_charged || budget.spent_bytes() >= bytes, "budget, I1");
    is_charged
}

/// Charges the kept input of a connection to the budget, or refunds the bytes that it no longer
/// needs. If there is no memory for a long line, the client gets an error and is closed. Cost: a
/// few loads, if nothing has changed.
#[inline]
pub(crate) fn charge_input<E: Engine>(
    context: &Context,
    engines: &Engines<E>,
    clients: &mut Clients<E::Pinned>,
    connection: ClientIndex,
) {
    let Some(open) = clients.connections.get_mut(connection) else { return };
    let (charged, wanted) = (open.input().charged_bytes(), open.input().chargeable_bytes());
    if wanted != charged {
        charge_changed_input(context, engines, clients, connection);
    }
}

#[cold]
fn charge_changed_input<E: Engine>(
    context: &Context,
    engines: &Engines<E>,
    clients: &mut Clients<E::Pinned>,
    connection: ClientIndex,
) {
    let Some(open) = clients.connections.get_mut(connection) else { return };
    let budget = &context.shared.budget;
    let charged = open.input().charged_bytes();
    let mut wanted = open.input().chargeable_bytes();
    debug_assert!(charged <= budget.spent_bytes(), "I1: it is part of what is spent");
    let mut held = HeldEngines::new(engines, context);
    if wanted > charged && !charge(context, &mut held, wanted - charged) {
        // The memory of the input may be larger than its bytes, so it is shrunk first.
        open.input_mut().shrink_to(0);
        wanted = open.input().chargeable_bytes();
        if wanted > charged && !budget.charge(wanted - charged) {
            open.input_mut().clear();
            budget.refund(open.input_mut().set_charged_bytes(0));
            clients.text(connection, Reply::OutOfMemoryReading.bytes());
            return clients.drain(connection, CloseReason::Error);
        }
    }
    budget.refund(charged.saturating_sub(wanted));
    open.input_mut().set_charged_bytes(wanted);
}

/// Lets a connection with a full outbox owe more, and charges that to `-m`. `kept_bytes` is the
/// size of its kept requests. Returns `false` if the outbox stays full, so that the connection must
/// wait.
#[cold]
pub(crate) fn widen<E: Engine>(
    context: &Context,
    held: &mut HeldEngines<'_, E>,
    clients: &mut Clients<E::Pinned>,
    connection: ClientIndex,
    kept_bytes: usize,
) -> bool {
    let Some(open) = clients.connections.get_mut(connection) else { return false };
    debug_assert!(open.outbox().is_full(kept_bytes), "only a full outbox is widened");
    if !open.outbox().would_widen(kept_bytes) {
        return !open.outbox().is_full(kept_bytes);
    }
    if charge(context, held, WIDENED_BYTES) {
        open.outbox_mut().widen();
    }
    open.outbox().is_wide()
}

/// Refunds the charge of [`widen`], once the connection owes little again.
pub(crate) fn narrow<P: ReadValue>(
    context: &Context,
    clients: &mut Clients<P>,
    connection: impl Into<ClientIndex>,
) {
    if let Some(open) = clients.connections.get_mut(connection)
        && open.outbox_mut().narrow()
    {
        debug_assert!(!open.outbox().is_wide(), "I1: it is refunded once");
        context.shared.budget.refund(WIDENED_BYTES);
    }
}

/// Refunds the whole charge of a connection that closes (I1).
pub(crate) fn refund_all(context: &Context, closed: &Connection) {
    let widened = if closed.outbox().is_wide() { WIDENED_BYTES } else { 0 };
    context.shared.budget.refund(widened + closed.input().charged_bytes());
}

/// Whether the clients of all shards together pin more memory than `--pinned-percent` allows.
pub(crate) fn is_too_much_pinned(context: &Context, common: &impl Common) -> bool {
    let percent = u64::from(context.shared.options.plain.pinned_percent);
    let limit_bytes = context.shared.budget.limit_bytes();
    let allowed_bytes = limit_bytes / 100 * percent + limit_bytes % 100 * percent / 100;
    debug_assert!(percent > 100 || allowed_bytes <= limit_bytes, "a part of the budget");
    percent != 0 && common.pinned_bytes() > allowed_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_that_another_core_takes_is_made_again() {
        // `taken` counts how often another core takes the 10 bytes that were freed.
        for (taken, overdraft_bytes, is_charged) in
            [(0, 0, true), (1, 0, true), (2, 0, false), (2, 9, false), (2, 10, true)]
        {
            let budget = Budget::new(100);
            assert!(budget.charge(100));
            let mut rounds = 0;
            let charged = charge_room(&budget, 10, overdraft_bytes, || {
                budget.refund(10);
                rounds += 1;
                assert!(rounds > taken || budget.charge(10), "it was free");
                Some(Room::Made)
            });
            assert_eq!(charged, is_charged, "{taken} taken, {overdraft_bytes}");
            assert_eq!(budget.overdrawn_bytes(), if taken == 2 && charged { 10 } else { 0 });
        }
    }

    #[test]
    fn the_overdraft_is_bounded_while_no_room_can_be_made() {
        for room in [None, Some(Room::OnTheWay)] {
            let budget = Budget::new(100);
            let charges = (0..100).filter(|_| charge_room(&budget, 10, 50, || room)).count();
            assert_eq!((charges, budget.overdrawn_bytes()), (15, 50));
            assert!(!charge_room(&budget, 1, 1_000, || Some(Room::Refused)), "there is none");
        }
    }
}
