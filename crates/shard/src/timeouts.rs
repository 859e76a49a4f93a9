//! What is looked after once a second: late requests, idle clients, clients that do not read.
//!
//! Upstream:   `shard::tick`, when its second changes.
//! Downstream: connections are closed.

use kachel_net::ConnectionIndex;

use crate::core::Core;

/// Collects into `late` the connections whose time is up.
///
/// Cost: a walk over all connections of the shard, once a second.
pub(crate) fn collect_late(core: &Core, second: u32, late: &mut Vec<ConnectionIndex>) {
    let idle_timeout_s = core.shared.options.idle_timeout_s;
    let mut owed_bytes = 0;
    for index in core.connections.indices() {
        let Some(open) = core.connections.get(index) else { continue };
        owed_bytes += open.outbox.memory_bytes() as u64;
        let idle = idle_timeout_s != 0
            && open.outbox.is_empty()
            && second > open.active_second + idle_timeout_s;
        if idle {
            core.counters.idle_kicks.add(1);
        }
        if idle || open.is_late(second) || open.reads_too_slowly(second) {
            late.push(index);
        }
    }
    core.counters.owed_bytes.set(owed_bytes);
}
