//! Chooses the connections that other cores serve from now on.
//!
//! Upstream:   `tick`, before and after a core serves its clients.
//! Downstream: `policy` decides how many cores are awake; `accept` hands the chosen connections
//!             over.
//!
//! ```text
//! the number of awake cores    this core's connections
//! rises                        an equal part of them goes to the new cores
//! falls, this core sleeps      all go to the cores that are still awake
//! stays, this core has more    some go to the core with the least work
//! work than another one
//! ```
//!
//! A core chooses only among the connections that have input in this tick. So no core is woken to
//! move an idle connection: a core that should sleep serves the next request of the connection, and
//! then hands it over. Connections leave before they are served, with their input, only if the
//! number of awake cores rises and this core has a queue.
//!
//! Invariants:
//! - I1  A connection is chosen at most once in a round, so a round moves a bounded number of
//!   connections. A round ends when the number of awake cores changes, and after [`ROUND_NS`].
//! - I2  Only a core that is awake gets connections.
//! - I3  A connection whose endpoint forbids moving stays where it is. So does an exchange, which
//!   does not count as a connection.
//! - I4  A core publishes the numbers of a sample in one word. Other cores add them up at any time,
//!   and must not read numbers of two samples.

use std::cmp::Reverse;
use std::sync::Arc;

use kachel_engine::ReadValue;
use kachel_io::{Clock, SocketId, ThreadTime};
use kachel_net::{Connection, CoreIndex};
use kachel_observe::Counters;

use crate::clients::Clients;
use crate::connections::arrive::Arrivals;
use crate::context::Context;
use crate::cores::policy::{Change, SAMPLE_NS, Work};
use crate::cores::process::Shared;

/// The time of a round. A guess: long enough to measure the work of a core, and for the connections
/// of the round before to arrive.
const ROUND_NS: u64 = 50_000_000;
/// A core that took no sample for this time counts as asleep. No tick takes as long.
const STALE_NS: u64 = 20_000_000;
/// After the number of awake cores has changed, the work of a core is not compared for this number
/// of rounds: one in which connections move, and one that was begun before.
const UNSETTLED_ROUNDS: u32 = 2;
/// The busiest core gives connections to the least busy one if it is busy for this part of the
/// time, in thousandths, and the other core is less busy by that much.
const BUSY_PERMILLE_MIN: u64 = 500;
const LESS_BUSY_PERMILLE: u64 = 300;
/// From here on a core may have more work than it can do. Then a smaller difference is enough.
const FULL_PERMILLE: u64 = 950;
const LESS_THAN_FULL_PERMILLE: u64 = 50;

/// Ready connections are a queue if there are at least this many, and the core needs at least this
/// time to serve them. Guesses: fewer say little about the load, and a shorter wait is not worth a
/// move.
const READY_MIN: u32 = 32;
const WAIT_NS: u64 = 500_000;
/// The least number of connections with which a queue is compared. A guess: clients that send at
/// once, while the core serves the first of them, are no load that lasts.
const SERVED_MIN: u32 = 4;

/// Which connections are chosen in this round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Plan {
    #[default]
    None,
    /// All. They go to the cores below this number.
    All(u16),
    /// Of `to` connections, all but `from`. They go to the cores from `from` to `to`.
    Part { from: u16, to: u16 },
    /// This number of them. They go to this core.
    Some(u32, CoreIndex),
}

/// A moment, and what this core's thread had done until then.
#[derive(Clone, Copy, Debug, Default)]
struct Moment {
    now_ns: u64,
    thread: ThreadTime,
    /// The time of the thread that is no load (`prefixes`, W4).
    walked_ns: u64,
}

impl Moment {
    /// Thousandths of the time since `before` in which the thread was busy, and of these the ones
    /// in which it waited for a processor.
    fn permille_since(self, before: Self) -> [u64; 2] {
        debug_assert!(before.now_ns <= self.now_ns, "the monotonic clock does not go back");
        let elapsed_ns = (self.now_ns - before.now_ns).max(1);
        let permille = |now: u64, before: u64| now.saturating_sub(before) * 1000 / elapsed_ns;
        let ran = permille(self.thread.ran_ns, before.thread.ran_ns);
        let waiting = permille(self.thread.waited_ns, before.thread.waited_ns).min(1000);
        let walked = permille(self.walked_ns, before.walked_ns);
        let busy = (ran + waiting).saturating_sub(walked).min(1000);
        [busy, waiting.min(busy)]
    }
}

/// Chooses connections for one core.
#[derive(Debug)]
pub(crate) struct Balance {
    shared: Arc<Shared>,
    plan: Plan,
    change: u32,
    /// The number of rounds until the work of this core is compared again.
    unsettled_rounds: u32,
    /// The number of this round. Connections that were seen in it carry the number.
    round: u32,
    round_began: Moment,
    sampled: Moment,
    /// Connections that were served in this round.
    active: u32,
    /// Counts the connections, so that they are dealt out evenly.
    dealt: u32,
    /// When the last tick began, and the connections that were ready then.
    looked_ns: u64,
    ready: u32,
    /// How many times a connection was ready since the last sample.
    served: u32,
    /// The time in which the thread ran for each of them, before the last sample.
    each_ns: u64,
}

impl Balance {
    /// Begins without a choice, at the start of the process.
    pub(crate) fn new(context: &Context) -> Self {
        Self {
            shared: Arc::clone(&context.shared),
            plan: Plan::None,
            change: context.shared.cores.change().number,
            unsettled_rounds: UNSETTLED_ROUNDS,
            round: 1,
            round_began: Moment::default(),
            sampled: Moment::default(),
            active: 0,
            dealt: u32::from(context.core.0),
            looked_ns: 0,
            ready: 0,
            served: 0,
            each_ns: 0,
        }
    }

    /// Takes a sample of this core's work if one is due, and begins a round if the number of awake
    /// cores has changed or the round is over. `walked_ns` is the time so far that is no load.
    ///
    /// Cost: a load; for a sample a system call, and a read of each core's counters.
    pub(crate) fn sample(
        &mut self,
        context: &Context,
        clock: &impl Clock,
        now_ns: u64,
        walked_ns: u64,
    ) {
        let Context { shared, counters, .. } = context;
        let cores = &shared.cores;
        if now_ns.saturating_sub(self.sampled.now_ns) >= SAMPLE_NS {
            let moment = Moment { now_ns, thread: clock.thread_time(), walked_ns };
            let before = std::mem::replace(&mut self.sampled, moment);
            let [busy, waiting] = moment.permille_since(before);
            let alone_ns = walked_ns.saturating_sub(before.walked_ns);
            let ran_ns = moment.thread.ran_ns.saturating_sub(before.thread.ran_ns + alone_ns);
            if let Some(each_ns) = ran_ns.checked_div(std::mem::take(&mut self.served).into()) {
                self.each_ns = each_ns;
            }
            counters.sampled_ns.set(now_ns);
            publish_work(counters, [busy, waiting]);
            cores.sample(now_ns, || work_of_all(shared, now_ns));
            if now_ns - self.round_began.now_ns >= ROUND_NS {
                self.end_round(context, moment);
            }
        }
        self.follow(context);
    }

    /// Begins a round if the number of awake cores has changed.
    fn follow(&mut self, context: &Context) {
        let change = context.shared.cores.change();
        debug_assert!(change.to > 0, "core 0 is always awake");
        if change.number != self.change {
            self.change = change.number;
            self.unsettled_rounds = UNSETTLED_ROUNDS;
            self.round_began = self.sampled;
            self.begin_round(Plan::after(change, context.core));
        }
    }

    /// Looks at the connections that are ready, before they are served. Has more cores awake if
    /// this core cannot do its work. Returns whether some of the connections must leave before they
    /// are served, because they would wait too long.
    ///
    /// Cost: a few instructions.
    pub(crate) fn look_ahead(
        &mut self,
        context: &Context,
        now_ns: u64,
        arrivals: &Arrivals,
    ) -> bool {
        let ready = arrivals.ready.len() as u32;
        let before = std::mem::replace(&mut self.ready, ready);
        let took_ns = now_ns.saturating_sub(std::mem::replace(&mut self.looked_ns, now_ns));
        self.served = self.served.saturating_add(ready);
        debug_assert!(self.looked_ns == now_ns, "once a tick");
        if !is_queue(ready, self.each_ns) {
            return false;
        }
        if let Some(load) = load(ready, before, took_ns, self.each_ns) {
            context.shared.cores.spread(load);
        }
        self.follow(context);
        matches!(self.plan, Plan::Part { .. })
    }

    fn begin_round(&mut self, plan: Plan) {
        self.plan = plan;
        self.round = self.round.wrapping_add(1).max(1); // 0 is the mark of a new connection.
        self.active = 0;
    }

    /// Ends a round that took its time. Chooses connections for the next one if this core has more
    /// work than another core.
    fn end_round(&mut self, context: &Context, moment: Moment) {
        let [busy, _] = moment.permille_since(std::mem::replace(&mut self.round_began, moment));
        context.counters.round_permille.set(busy);
        let awake = context.shared.cores.change().to;
        debug_assert!(awake <= context.cores(), "P1");
        let plan = if context.core.0 >= awake {
            Plan::All(awake)
        } else if self.unsettled_rounds > 0 {
            self.unsettled_rounds -= 1;
            Plan::None
        } else {
            let counters = &context.shared.totals.cores;
            let busy = (0..awake).map(|core| counters[usize::from(core)].round_permille.value());
            Plan::of_awake(context.core, self.active, busy)
        };
        self.begin_round(plan);
    }

    /// Calls `hand_over` with each connection that another core must serve, and with that core.
    ///
    /// Cost: a comparison for each connection that was served in this tick.
    pub(crate) fn choose<P: ReadValue>(
        &mut self,
        clients: &mut Clients<P>,
        arrivals: &Arrivals,
        mut hand_over: impl FnMut(SocketId, CoreIndex),
    ) {
        for ready in arrivals.ready.iter().filter(|ready| !ready.is_gone) {
            let Some(connection) = ready.client.connection() else { continue }; // I3
            let Some(open) = clients.connections.get_mut(connection) else { continue };
            debug_assert!(open.ready().is_none(), "it was served");
            if let Some(core) = self.choose_one(open) {
                hand_over(open.socket(), core);
            }
        }
    }

    /// Calls `hand_over` with connections that another core must serve, and with that core, before
    /// they are served. This core then keeps their input, and it leaves with them. A connection
    /// whose request was incomplete before is served here.
    pub(crate) fn choose_ahead<P: ReadValue>(
        &mut self,
        clients: &mut Clients<P>,
        arrivals: &mut Arrivals,
        mut hand_over: impl FnMut(SocketId, CoreIndex),
    ) {
        debug_assert!(matches!(self.plan, Plan::Part { .. }), "the number of awake cores rises");
        for ready in arrivals.ready.iter_mut().filter(|ready| !ready.is_gone) {
            debug_assert!(ready.offset == 0 && !ready.ended, "it is not served yet");
            let Some(connection) = ready.client.connection() else { continue }; // I3
            let Some(open) = clients.connections.get_mut(connection) else { continue };
            if ready.lent.is_some()
                && open.may_leave()
                && let Some(core) = self.choose_one(open)
            {
                ready.ended = true;
                hand_over(open.socket(), core);
            }
        }
    }

    /// The core that must serve a connection from now on, if it is not this one.
    fn choose_one(&mut self, open: &mut Connection) -> Option<CoreIndex> {
        debug_assert!(self.round != 0, "I1: a new connection was seen in no round");
        if !open.note_round(self.round) {
            return None; // I1
        }
        self.active += 1;
        if self.shared.options.endpoints.get(open.endpoint()).stays {
            return None; // I3
        }
        self.plan.next(&mut self.dealt)
    }
}

impl Plan {
    /// The plan of core `own` after a change of the number of awake cores.
    const fn after(change: Change, CoreIndex(own): CoreIndex) -> Self {
        let Change { from, to, .. } = change;
        if own >= to {
            Self::All(to)
        } else if own < from && from < to {
            Self::Part { from, to }
        } else {
            Self::None
        }
    }

    /// The plan of core `own`, which has `active` connections. `busy` says for each awake core, by
    /// its number, how busy it is.
    ///
    /// Only the busiest core gives. If several gave, the least busy core would get too much.
    fn of_awake(own: CoreIndex, active: u32, busy: impl Iterator<Item = u64> + Clone) -> Self {
        let cores = || busy.clone().zip((0..).map(CoreIndex));
        let most = cores().max_by_key(|&(permille, core)| (permille, Reverse(core)));
        let (Some((most, busiest)), Some((least, core))) = (most, cores().min()) else {
            return Self::None;
        };
        debug_assert!(least <= most, "they are the least and the most of the same numbers");
        let less = if most >= FULL_PERMILLE { LESS_THAN_FULL_PERMILLE } else { LESS_BUSY_PERMILLE };
        if busiest != own || most < BUSY_PERMILLE_MIN || most - least < less {
            return Self::None;
        }
        // With half of the difference, both are equally busy. If that is less than the work of one
        // connection, nothing moves.
        match u64::from(active) * (most - least) / (2 * most) {
            0 => Self::None,
            count => Self::Some(count as u32, core),
        }
    }

    /// The core that serves the next connection from now on; `None` for this one.
    const fn next(&mut self, dealt: &mut u32) -> Option<CoreIndex> {
        *dealt = dealt.wrapping_add(1);
        match self {
            Self::None | Self::Some(0, _) => None,
            Self::All(awake) => Some(CoreIndex((*dealt % *awake as u32) as u16)),
            Self::Part { from, to } => {
                let core = (*dealt % *to as u32) as u16;
                if core < *from { None } else { Some(CoreIndex(core)) }
            }
            Self::Some(count, core) => {
                *count -= 1;
                Some(*core)
            }
        }
    }
}

/// Whether the last of `ready` connections waits long, if a core needs `each_ns` for each.
const fn is_queue(ready: u32, each_ns: u64) -> bool {
    ready >= READY_MIN && ready as u64 * each_ns >= WAIT_NS
}

/// How many times the work that a core can do comes to it. It has a queue of `ready` connections,
/// which became ready while it served `before` others, in `took_ns`. `None` if that is no sign of
/// too much work: the queue does not grow, or the core has slept, served a long request or waited
/// for a processor.
fn load(ready: u32, before: u32, took_ns: u64, each_ns: u64) -> Option<f64> {
    debug_assert!(is_queue(ready, each_ns), "connections wait");
    let grows = before >= SERVED_MIN && ready / 2 >= before;
    let has_grown_before = is_queue(before, each_ns) && ready > before;
    let is_as_usual = took_ns <= 2 * u64::from(before) * each_ns;
    ((grows || has_grown_before) && is_as_usual).then(|| f64::from(ready) / f64::from(before))
}

/// Publishes the thousandths of the time in which a core was busy, and of these the ones in which
/// it waited for a processor (I4).
fn publish_work(counters: &Counters, [busy, waiting]: [u64; 2]) {
    debug_assert!(waiting <= busy && busy <= 1000, "a core that waits is busy");
    counters.sampled_work.set(busy << 32 | waiting);
}

/// The numbers that a core has published last (I4).
fn published_work(counters: &Counters) -> [u64; 2] {
    let word = counters.sampled_work.value();
    [word >> 32, u64::from(word as u32)]
}

fn work_of_all(shared: &Shared, now_ns: u64) -> Work {
    let mut work = Work::default();
    for counters in &shared.totals.cores {
        work.requests += counters.requests.value();
        if now_ns.saturating_sub(counters.sampled_ns.value()) < STALE_NS {
            let [busy, waiting] = published_work(counters);
            work.busy_permille += busy;
            work.waiting_permille += waiting;
        }
    }
    debug_assert!(work.waiting_permille <= work.busy_permille, "I4: of one sample each");
    work
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn deal(mut plan: Plan, connections: u32) -> Vec<(Option<u16>, u32)> {
        let mut dealt = 5;
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..connections {
            *counts.entry(plan.next(&mut dealt).map(|core| core.0)).or_insert(0) += 1;
        }
        counts.into_iter().collect()
    }

    /// The fault: a core that added up the work of all cores read one number of a sample and
    /// another one of the sample after it. In a debug build that ended the server.
    #[test]
    fn the_work_of_a_core_is_read_as_it_was_sampled() {
        let counters = Counters::default();
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !has_ended.load(Ordering::Relaxed) {
                    publish_work(&counters, [1000, 1000]);
                    publish_work(&counters, [0, 0]);
                }
            });
            let torn = (0..200_000).map(|_| published_work(&counters));
            let torn = torn.filter(|[busy, waiting]| busy != waiting).count();
            has_ended.store(true, Ordering::Relaxed);
            assert_eq!(torn, 0, "I4");
        });
    }

    #[test]
    fn a_queue_that_grows_is_too_much_work() {
        const EACH_NS: u64 = 20_000;
        assert!(is_queue(32, EACH_NS) && !is_queue(31, 1_000_000) && !is_queue(100, 4_000));
        let loaded = |ready, before: u32| load(ready, before, before as u64 * 22_000, EACH_NS);
        assert_eq!(loaded(58, 8), Some(7.25), "many come");
        assert_eq!(loaded(50, 40), Some(1.25), "some waited before");
        for (ready, before) in [(50, 30), (50, 50), (40, 200), (50, 3), (50, 1), (50, 0)] {
            assert_eq!(loaded(ready, before), None, "{ready} after {before}");
        }
        assert_eq!(load(100, 8, 2_000_000, EACH_NS), None, "a long request, or a sleep");
    }

    #[test]
    fn more_cores_get_an_equal_part() {
        let change = Change { number: 1, from: 2, to: 5 };
        let parts = [(None, 40), (Some(2), 20), (Some(3), 20), (Some(4), 20)];
        for own in [0, 1] {
            assert_eq!(deal(Plan::after(change, CoreIndex(own)), 100), parts, "core {own}");
        }
        for own in [2, 4] {
            assert_eq!(Plan::after(change, CoreIndex(own)), Plan::None, "core {own} is new");
        }
    }

    #[test]
    fn a_core_that_is_to_sleep_gives_all_away() {
        let change = Change { number: 1, from: 4, to: 2 };
        assert_eq!(deal(Plan::after(change, CoreIndex(3)), 100), [(Some(0), 50), (Some(1), 50)]);
        assert_eq!(Plan::after(change, CoreIndex(1)), Plan::None);
    }

    #[test]
    fn the_busiest_core_gives_half_of_the_difference_to_the_least_busy_one() {
        let plan = |own, active, busy: &[u64]| {
            Plan::of_awake(CoreIndex(own), active, busy.iter().copied())
        };
        assert_eq!(deal(plan(1, 90, &[200, 900, 100]), 100), [(None, 60), (Some(2), 40)]);
        assert_eq!(plan(1, 2, &[0, 900]), Plan::Some(1, CoreIndex(0)));
        assert_eq!(
            plan(0, 100, &[1000, 900, 1000]),
            Plan::Some(5, CoreIndex(1)),
            "it may have too much"
        );
        for (own, active, busy) in [
            (0, 90, &[200, 900, 100][..]),
            (2, 90, &[200, 900, 100]),
            (2, 100, &[1000, 900, 1000]),
            (1, 1, &[100, 900]),
            (0, 90, &[700, 500]),
            (0, 90, &[400, 0]),
            (0, 90, &[0, 0]),
            (0, 90, &[900]),
        ] {
            assert_eq!(plan(own, active, busy), Plan::None, "core {own} of {busy:?}");
        }
    }
}
