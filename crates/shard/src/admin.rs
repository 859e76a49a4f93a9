//! Requests that are not about one key.
//!
//! Upstream:   `serve`, when nothing of the connection is staged.
//! Downstream: the flush word (`flush_all`), all shards (dumps, `stats reset`), `stats`, the
//!             process's switches.
//!
//! Invariants:
//! - I1  What flushes or counts what all shards hold waits until other shards have answered what
//!   its connection asked of them before. So the requests of a connection take effect in order.

use kachel_net::{AnswerRoom, ConnectionIndex};
use kachel_wire::request::{Admin, DumpForm, Request, Ttl};
use kachel_wire::{Reply, StatsTopic, stats_topic};

use crate::core::Core;
use crate::hop::MailboxFull;
use crate::hop::{Hop, REQUEST_HEAD_BYTES, ReplyTo};
use crate::stats;

/// Why an administrative request cannot be carried out yet. Nothing was done.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) enum NotYet {
    /// A mailbox has no room now.
    Full(MailboxFull),
    /// Other shards have not carried out all that the connection asked for before.
    Awaits,
}

impl From<MailboxFull> for NotYet {
    fn from(full: MailboxFull) -> Self {
        Self::Full(full)
    }
}

/// Megabytes below which `cache_memlimit` refuses.
const MEMLIMIT_MEGABYTES_MIN: u32 = 8;
/// Megabytes from which `cache_memlimit` takes the number for bytes.
const MEMLIMIT_MEGABYTES_MAX: u32 = 1_000_000_000;

/// Carries out `mn` or an administrative request.
///
/// Errors: it must wait, and nothing is done.
pub(crate) fn admin(
    core: &mut Core,
    connection: ConnectionIndex,
    request: &Request<'_>,
) -> Result<(), NotYet> {
    let admin = match request {
        Request::MetaNoop => {
            core.text(connection, Reply::Mn.bytes());
            return Ok(());
        }
        Request::Admin(admin) => admin,
        other => unreachable!("{other:?} is about a key"),
    };
    let (reply, noreply) = match *admin {
        Admin::FlushAll { delay, noreply } => {
            settle_before(core, connection)?;
            (flush_all(core, delay), noreply)
        }
        Admin::Version => {
            let version = core.shared.options.version;
            core.text(connection, b"VERSION ");
            core.text(connection, version.as_bytes());
            core.text(connection, b"\r\n");
            return Ok(());
        }
        Admin::Verbosity { noreply, .. } => (Reply::Ok, noreply),
        Admin::Quit => {
            core.drain(connection);
            return Ok(());
        }
        Admin::Shutdown { .. } if !core.shared.options.shutdown_allowed => {
            (Reply::ShutdownNotEnabled, false)
        }
        Admin::Shutdown { .. } => {
            core.shared.ask_for_shutdown();
            core.drain(connection);
            return Ok(());
        }
        Admin::CacheMemlimit { megabytes, noreply } => (set_limit(core, megabytes), noreply),
        Admin::Dump { form } => (dump(core, connection, form), false),
        Admin::Stats { topic } if stats_topic(topic) == StatsTopic::Reset => {
            has_room_everywhere(core)?;
            core.reset_stats();
            tell_all(core, connection, Hop::ResetStats, Reply::Reset.bytes());
            return Ok(());
        }
        Admin::Stats { topic } => {
            settle_before(core, connection)?;
            stats::stats(core, connection, topic);
            return Ok(());
        }
        Admin::Settled { reply: Reply::WatchNotAllowed, .. } if is_pipelined(core, connection) => {
            (Reply::WatchPipelined, false)
        }
        Admin::Settled { reply: Reply::InvalidShutdownMode, .. }
            if !core.shared.options.shutdown_allowed =>
        {
            (Reply::ShutdownNotEnabled, false)
        }
        Admin::Settled { reply, noreply } => (reply, noreply),
    };
    if !noreply {
        core.text(connection, reply.bytes());
    }
    Ok(())
}

/// Has a request about all shards wait for those that its connection made before it.
///
/// Errors: some of them are not answered.
fn settle_before(core: &Core, connection: ConnectionIndex) -> Result<(), NotYet> {
    let open = core.connections.get(connection);
    if open.is_some_and(|open| open.outbox.awaits_answers()) { Err(NotYet::Awaits) } else { Ok(()) }
}

/// Kills all items stored so far, of all shards, now or in a later second.
fn flush_all(core: &mut Core, delay: Ttl) -> Reply {
    core.counters.cmd_flush.add(1);
    if !core.shared.options.flush_allowed {
        return Reply::FlushNotAllowed;
    }
    let (now, due) = (core.now, core.now.expiry(delay));
    if delay.0 > 0 && due > now.second + 1 {
        // As memcached: in the second before, so that nothing stored until then outlives `due`.
        core.cache.flush_in(due - 1, &now);
    } else {
        core.cache.flush(&now);
    }
    Reply::Ok
}

/// Whether each other shard can be sent a hop now.
fn has_room_everywhere(core: &mut Core) -> Result<(), MailboxFull> {
    let mut others = (0..core.shared.options.shards).filter(|shard| *shard != core.id);
    others.try_for_each(|shard| core.mail.has_room(shard, REQUEST_HEAD_BYTES))
}

/// Has all other shards do something, and answers when all have. There is room for it.
fn tell_all(core: &mut Core, connection: ConnectionIndex, hop: Hop, reply: &[u8]) {
    let shards = core.shared.options.shards;
    let awaited = u32::from(shards) - 1;
    let slot = (awaited > 0).then(|| core.keep_slot(connection, (awaited, AnswerRoom::default())));
    let own = core.id;
    for shard in (0..shards).filter(|shard| *shard != own) {
        core.push_hop(shard, hop, ReplyTo { slot, value_bytes: 0 }, b"");
    }
    match slot {
        Some(slot) => core.text_into(connection, slot, reply),
        None => core.text(connection, reply),
    }
}

fn set_limit(core: &mut Core, megabytes: u32) -> Reply {
    if megabytes < MEMLIMIT_MEGABYTES_MIN {
        return Reply::MemlimitTooSmall;
    }
    if megabytes > MEMLIMIT_MEGABYTES_MAX {
        return Reply::MemlimitNotMegabytes;
    }
    let bytes = u64::from(megabytes) << 20;
    if bytes > core.cache.bytes_max() {
        return Reply::MemlimitFailed;
    }
    core.shared.budget.set_limit_bytes(bytes);
    Reply::Ok
}

fn dump(core: &mut Core, connection: ConnectionIndex, form: DumpForm) -> Reply {
    let keys_only = form == DumpForm::Mgdump;
    if !core.shared.options.dumps_allowed {
        return if keys_only { Reply::MgdumpNotAllowed } else { Reply::MetadumpNotAllowed };
    }
    if is_pipelined(core, connection) {
        return if keys_only { Reply::MgdumpPipelined } else { Reply::MetadumpPipelined };
    }
    if let Some(open) = core.connections.get_mut(connection) {
        open.dumping = true;
    }
    // `OK` and the first lines come with the tick's step.
    core.dumps.begin(connection, keys_only);
    Reply::Nothing
}

/// Whether replies to requests before this one are still to be sent.
fn is_pipelined(core: &Core, connection: ConnectionIndex) -> bool {
    core.connections
        .get(connection)
        .is_some_and(|open| open.outbox.has_unsent() || open.outbox.slots_in_use() > 0)
}
