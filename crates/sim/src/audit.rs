//! Audits memory and counters at the end of a run. No client is connected and everything was
//! flushed, so all memory must be given back.
//!
//! Upstream:   `run`, when every shard sleeps.
//! Downstream: an error that describes the difference.

use kachel_engine::Common as _;

use crate::server::Server;
use crate::subject::Subject;

/// Whether no shard holds an item.
pub(crate) fn is_empty<E: Subject>(server: &Server<E>) -> bool {
    let is_empty = server.world.holdings().all(|held| E::COUNTS_DEAD || held.items == 0);
    // A value that is being read for a client that has left stays for some seconds.
    is_empty && (!E::COUNTS_DEAD || E::audit_empty(&server.world).is_ok())
}

/// Checks that nothing of a client is left.
///
/// Errors: something is left over.
pub(crate) fn audit_clients<E: Subject>(server: &Server<E>) -> Result<(), String> {
    let counters = &server.world.shared.totals.cores;
    for (number, (held, counters)) in server.world.holdings().zip(counters).enumerate() {
        let left = [
            ("connections", held.connections),
            ("connections counted as open", counters.connections.value()),
            ("reply slots", held.reply_slots),
            ("uploads", held.uploads),
            ("delayed requests", held.delayed),
            ("stalled connections", held.stalled),
            ("bytes of input", held.input_bytes),
        ];
        for (what, count) in left {
            if count != 0 {
                return Err(format!("shard {number} still has {count} {what}: {held:?}"));
            }
        }
    }
    for index in server.world.shared.homes.all() {
        let tickets = server.world.engines.inspect(index, |engine| engine.delays().tickets);
        if tickets != 0 {
            return Err(format!("engine {index} still has {tickets} tickets"));
        }
    }
    Ok(())
}

/// Checks that no memory is in use. `reads`: the number of keys that clients read, without a hit,
/// since the counters were reset.
///
/// Errors: something is left over, or a sum is wrong.
pub(crate) fn audit<E: Subject>(server: &Server<E>, reads: u16) -> Result<(), String> {
    audit_clients(server)?;
    for held in server.world.holdings() {
        let items = if E::COUNTS_DEAD { 0 } else { held.index_items + held.items };
        if items + held.blocks != 0 {
            return Err(format!("a shard still has items: {held:?}"));
        }
    }
    let spent = server.world.shared.budget.spent_bytes();
    let waiting = server.world.shared.waiting_bytes();
    let charged = server.fixed_bytes + E::charged_bytes(&server.world) + waiting;
    if spent != charged {
        return Err(format!("{spent} bytes are spent, {charged} are accounted for"));
    }
    E::audit_empty(&server.world)?;
    let pinned = server.world.engines.common().pinned_bytes();
    if pinned != 0 {
        return Err(format!("{pinned} bytes are still pinned"));
    }
    let shared = &server.world.shared;
    let (hits, misses) = (shared.totals.sum(|c| &c.get_hits), shared.totals.sum(|c| &c.get_misses));
    if (hits, misses) != (0, reads.into()) {
        let counted = format!("{hits} hits and {misses} misses are counted");
        return Err(format!("{counted}, but {reads} reads since the reset should all have missed"));
    }
    Ok(())
}
