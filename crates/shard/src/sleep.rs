//! What a shard looks at after it has raised its sleeping flag, and how long it may sleep.
//!
//! Upstream:   `tick`, before it polls.
//! Downstream: the mailboxes, `engines`, `homes`, `clients`.
//!
//! Whatever wakes the shard changes what is looked at here, and then looks at the flag. So the
//! shard finds the change, or is woken (`mailboxes`, M1; `engines`, E4; `calls`, K2; `fences`, F2).
//! This file cites the invariants of `tick`, too.

use kachel_engine::{Engine, EngineIndex};
use kachel_io::Wait;

use crate::clients::Clients;
use crate::connections::late::LateClients;
use crate::context::Context;
use crate::control::prefixes::PrefixWalking;
use crate::cores::throttle::NEVER_NS;
use crate::waiting::engines::Engines;
use crate::waiting::homes::HomeEngines;
use crate::waiting::records::Records;

/// How long a shard may sleep in one poll, if a client may be late.
const SLEEP_NS_MAX: u64 = 100_000_000;
/// How long the timekeeper may sleep if no client can be late (I3), and a core that keeps records
/// which it may free (`records`, R2).
const SLEEP_NS_QUIET: u64 = 1_000_000_000;
/// How long a shard may sleep once the process stops. Nothing wakes the shard when another shard
/// closes the last connection, and no other server can listen until this shard ends.
const SLEEP_NS_STOPPING: u64 = 2_000_000;

/// The parts of a shard that has nothing to do.
#[derive(Clone, Copy)]
pub(crate) struct Resting<'a, E: Engine> {
    pub(crate) context: &'a Context,
    pub(crate) engines: &'a Engines<E>,
    pub(crate) clients: &'a Clients<E::Pinned>,
    pub(crate) homes: &'a HomeEngines,
    pub(crate) late: &'a LateClients,
    pub(crate) records: &'a Records<E>,
    pub(crate) walking: &'a PrefixWalking,
}

impl<E: Engine> Resting<'_, E> {
    /// Whether other cores have brought something to this one. Cost: a few loads.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        let Self { engines, context, .. } = self;
        debug_assert!(!context.owes_wakes(), "mailboxes, M2");
        !engines.mailboxes().is_empty(context.core)
            || context.log.is_on() && context.shared.watchers.have_come(context.core)
    }

    /// Whether other cores have brought something, or left requests with a home engine. Cost: a few
    /// loads.
    #[inline]
    pub(crate) fn has_visitors(&self) -> bool {
        self.has_mail() || self.homes.have_visitors(self.engines)
    }

    /// How long the shard may sleep (I3): at most until it has to resume a login that waits
    /// (`logins`, T1), until a home engine wants to be entered, or until it counts items by prefix
    /// again (`prefixes`, W3). [`Wait::Now`] if there is
    /// something to do in a home engine ([`HomeEngines::sleep_until_ns`]).
    #[inline]
    pub(crate) fn longest_sleep(&self) -> Wait {
        let Self { context, engines, clients, homes, late, records, walking } = self;
        let Some(engines_ns) = homes.sleep_until_ns(context, engines) else { return Wait::Now };
        let wait = match context.core.0 {
            _ if context.shared.is_stopping() => Wait::AtMostNs(SLEEP_NS_STOPPING),
            _ if !late.is_quiet() || !engines.are_open_to_all() => Wait::AtMostNs(SLEEP_NS_MAX),
            0 => Wait::AtMostNs(SLEEP_NS_QUIET),
            _ if records.are_kept() => Wait::AtMostNs(SLEEP_NS_QUIET),
            _ => Wait::Forever,
        };
        match clients.next_login_ns(context).min(engines_ns).min(walking.next_ns()) {
            NEVER_NS => wait,
            next_ns => wait.at_most_ns(next_ns.saturating_sub(context.now_ns())),
        }
    }

    /// Has each engine that holds back replies of this core wake it when more of the engine's
    /// changes are durable. Returns whether such a reply need not wait any more (`fences`, F2).
    /// Cost: a load, if there is none.
    #[inline]
    pub(crate) fn await_fences(&self) -> bool {
        let Self { engines, context, clients, .. } = self;
        !clients.fences.is_empty()
            && clients.fences.lowest().fold(false, |is_reached, fence| {
                engines.await_advance(EngineIndex(fence.engine), context.core);
                is_reached | engines.is_reached(fence) | engines.is_lost(fence) // Each is awaited.
            })
    }
}
