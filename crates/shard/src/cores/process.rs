//! The state that all cores of a process share: limits, flags, and the counters of all cores and
//! of all engines.
//!
//! Upstream:   `kachel` makes one at the start.
//! Downstream: every shard reads it. For each request, a shard writes only its own counters.

use std::borrow::Cow;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, PoisonError, RwLock};

use kachel_engine::{ClockOrigin, Common, Now};
use kachel_host::Budget;
use kachel_net::{SenderBudget, Users};
use kachel_observe::{
    HottestKeys, Metrics, MissCurve, Moment, ObservedPrefixes, Observers, ProcessFacts, Reading,
    Totals, Watchers, engine_rows, general, own,
};

use crate::cores::buffers::WaitingMemory;
use crate::cores::crawler::Crawler;
use crate::cores::homes::Homes;
use crate::cores::options::SharedOptions;
use crate::cores::policy::Cores;
use crate::cores::refreshes::Refreshes;
use crate::cores::throttle::LoginThrottle;

/// The most seconds by which clients can move the clock on: ten years.
const MOVED_S_MAX: u32 = 10 * 365 * 24 * 60 * 60;

/// How a client wants the process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// `shutdown`: as at SIGTERM.
    Plain,
    /// `shutdown graceful`: items are saved first, as at SIGUSR1.
    Graceful,
}

/// The state that all shards of a process share.
#[derive(Debug)]
pub struct Shared {
    /// The options of the process.
    pub options: SharedOptions,
    /// The home cores of the engines.
    pub homes: Homes,
    /// The counters of all cores and of all engines.
    pub totals: Totals,
    /// The memory budget of the process (`-m`).
    pub budget: Arc<Budget>,
    /// The memory of requests that wait.
    pub(crate) waiting: WaitingMemory,
    /// The users who may log in. Without any, nobody can.
    users: RwLock<Option<Users>>,
    /// The logins that fail or wait.
    pub(crate) throttle: LoginThrottle,
    /// The datagrams that each sender may still have answered in this second.
    pub(crate) sender_budget: SenderBudget,
    /// Messages of logins by SASL so far.
    messages: AtomicU64,
    /// The run of the crawler.
    pub(crate) crawler: Crawler,
    /// The clients that watch the log.
    pub(crate) watchers: Watchers,
    /// The observers of requests (`--observe`).
    pub observers: Observers,
    /// The cores that serve clients.
    pub(crate) cores: Cores,
    /// The latest second that any shard has reached.
    second: AtomicU32,
    /// Seconds by which clients have moved the clock on.
    moved_s: AtomicU32,
    /// Connections open in the whole process.
    connections: AtomicU32,
    /// Set when the process must end: shards stop accepting, send all replies that they owe, and
    /// return.
    stopping: AtomicBool,
    /// Shards that have stopped accepting.
    closed: AtomicU32,
    /// Whether requests are counted by prefix (`stats detail`).
    detailed: AtomicBool,
    /// The readings of certificates that clients asked for.
    pub(crate) refreshes: Refreshes,
    /// Set when the clients that are left must be closed.
    gives_up: AtomicBool,
    /// Whether a client that was given up was owed replies.
    replies_lost: AtomicBool,
    /// Set when a client asked for `shutdown`.
    shutdown: AtomicBool,
    /// Whether that client asked for `shutdown graceful`.
    saves: AtomicBool,
    /// Set when the process must end, or when one thread has claimed the task to end it.
    end_claimed: AtomicBool,
}

impl Shared {
    /// Makes the state of a process that starts.
    pub fn new(options: SharedOptions, budget: Arc<Budget>) -> Self {
        let homes = options.homes();
        let detailed = AtomicBool::new(options.plain.detail_at_start);
        Self {
            cores: Cores::new(
                options.plain.net_cores.unwrap_or(options.shards),
                options.plain.cores_max,
            ),
            crawler: Crawler::new(options.plain.crawler_on),
            watchers: Watchers::new(options.shards),
            observers: Observers::new(
                options.shards,
                homes.engines(),
                options.plain.observers,
                options.prefix_names(),
            ),
            sender_budget: SenderBudget::new(options.udp.sender_datagrams_max),
            throttle: LoginThrottle::new(options.shards, options.plain.connections_max),
            options,
            homes,
            totals: Totals::new(homes.cores(), homes.engines()),
            waiting: WaitingMemory::new(Arc::clone(&budget), homes.cores()),
            budget,
            users: RwLock::new(None),
            messages: AtomicU64::new(0),
            second: AtomicU32::new(0),
            moved_s: AtomicU32::new(0),
            connections: AtomicU32::new(0),
            stopping: AtomicBool::new(false),
            closed: AtomicU32::new(0),
            detailed,
            refreshes: Refreshes::default(),
            gives_up: AtomicBool::new(false),
            replies_lost: AtomicBool::new(false),
            shutdown: AtomicBool::new(false),
            saves: AtomicBool::new(false),
            end_claimed: AtomicBool::new(false),
        }
    }

    /// The bytes of the budget that are charged for requests that wait, and for buffers that such
    /// requests have used.
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting.bytes()
    }

    /// The facts about the process for `stats`, at the time `now`. `io_kind` is the kind of the
    /// backends, and `common` what the engines share.
    pub fn facts<'f>(
        &'f self,
        now: Now,
        io_kind: &'f str,
        common: &impl Common,
    ) -> ProcessFacts<'f> {
        let options = &self.options;
        let usage = (options.usage)();
        ProcessFacts {
            pid: options.pid,
            uptime_s: now.second,
            unix_s: u64::try_from(now.unix(now.second)).unwrap_or(0),
            version: options.version,
            own_version: options.own_version,
            io_kind,
            user_us: usage.user_us,
            system_us: usage.system_us,
            connections_max: options.plain.connections_max,
            connections: self.open_connections(),
            limit_bytes: self.budget.limit_bytes(),
            spent_bytes: self.budget.spent_bytes(),
            pinned_bytes: common.pinned_bytes(),
            flushed_prefixes: common.live_prefixes() as u64,
            is_accepting: !self.is_stopping(),
            threads: options.shards,
            awake_cores: self.awake_cores(),
            spreads: self.cores.spreads.value(),
            gathers: self.cores.gathers.value(),
            core_trials: self.cores.trials.value(),
        }
    }

    /// The names and values of `stats settings`. Commands have changed some since the start.
    pub(crate) fn settings(&self) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
        let yes_no = |is_so: bool| Cow::Borrowed(if is_so { "yes" } else { "no" });
        self.options.settings.iter().map(move |(name, value)| {
            let value = match name.as_str() {
                "maxbytes" => Cow::Owned(self.budget.limit_bytes().to_string()),
                "detail_enabled" => yes_no(self.is_detailed()),
                "lru_crawler" => yes_no(self.crawler.is_on()),
                "kachel_observe" => Cow::Owned(self.observers.on().to_string()),
                _ => Cow::Borrowed(&value[..]),
            };
            (&name[..], value)
        })
    }

    /// The statistics of the process in Prometheus' text format, at the time `now`. Any thread may
    /// ask. The other arguments are those of [`Self::facts`].
    pub fn metrics(&self, now: Now, io_kind: &str, common: &impl Common) -> String {
        let (totals, facts) = (&self.totals, self.facts(now, io_kind, common));
        let mut metrics = Metrics::default();
        general(totals, &facts, &self.options.other_rows(false), &mut |row| metrics.take(row));
        own(totals, &facts, &self.options.other_rows(true), &mut |row| metrics.take(row));
        let report = common.file_report();
        report.iter().flat_map(engine_rows).for_each(|row| metrics.take(&row));
        metrics.take_totals(totals);
        metrics.text(self.settings())
    }

    /// The miss-ratio curve of the process. `None` while this observer is off, or if the engines do
    /// not evict. Any thread may ask. Cost: as [`Observers::miss_curve`].
    pub fn miss_curve(&self) -> Option<MissCurve> {
        self.observers.miss_curve(self.budget.limit_bytes())
    }

    /// The state of the process for its observers, in its second `second`.
    #[inline]
    pub(crate) fn moment(&self, second: u32) -> Moment<'_> {
        Moment { totals: &self.totals, limit_bytes: self.budget.limit_bytes(), second }
    }

    /// The hottest keys of the process, at `now_ns` of the monotonic clock: at most `count` of each
    /// list. Their bytes are there if keys may be listed. `None` while this observer is off. Any
    /// thread may ask. Cost: as [`Observers::hottest_keys`].
    pub fn hottest_keys(&self, count: usize, now_ns: u64) -> Option<HottestKeys> {
        self.observers.hottest_keys(count, self.options.plain.dumps_allowed, now_ns)
    }

    /// What prefixes have, at `now_ns` of the monotonic clock: at most `count` of those with the
    /// most bytes. Their names are there if keys may be listed, or an option names them. `None`
    /// while this observer is off. Any thread may ask. Cost: as [`Observers::prefixes`].
    pub fn prefixes(&self, count: usize, now_ns: u64) -> Option<ObservedPrefixes> {
        self.observers.prefixes(count, self.options.plain.dumps_allowed, now_ns)
    }

    /// The state of all counters, at `at_ns` of the monotonic clock. Any thread may ask. The other
    /// arguments are those of [`Self::facts`].
    pub fn reading(&self, at_ns: u64, now: Now, io_kind: &str, common: &impl Common) -> Reading {
        let (facts, others) = (self.facts(now, io_kind, common), self.options.other_rows(true));
        Reading::take(at_ns, &self.totals, &facts, self.waiting_bytes(), &others)
    }

    /// Replaces the users who may log in. A login under way sees the old ones or the new ones.
    pub fn set_users(&self, users: Users) {
        let mut place = self.users.write().unwrap_or_else(PoisonError::into_inner);
        *place = Some(users);
    }

    /// Calls `ask` with the users who may log in. `None` if there are none.
    pub(crate) fn with_users<T>(&self, ask: impl FnOnce(&Users) -> T) -> Option<T> {
        let users = self.users.read().unwrap_or_else(PoisonError::into_inner);
        users.as_ref().map(ask)
    }

    /// A number that no other message of a login in this process has.
    pub(crate) fn number_of_message(&self) -> u64 {
        self.messages.fetch_add(1, Relaxed)
    }

    /// Whether requests are counted by prefix.
    pub(crate) fn is_detailed(&self) -> bool {
        self.detailed.load(Relaxed)
    }

    /// Begins to count requests by prefix, or stops it (`stats detail`).
    pub(crate) fn set_detailed(&self, detailed: bool) {
        self.detailed.store(detailed, Relaxed);
    }

    /// Asks all shards to finish. The caller must wake them afterwards. From now on,
    /// [`Self::claim_end`] returns `false`.
    pub fn stop(&self) {
        self.end_claimed.store(true, Relaxed);
        self.stopping.store(true, Relaxed);
    }

    /// The later one of `now` and the second that another shard has reached. So an item that has
    /// expired on one core is not live on another one afterwards. Cost: a load; a write once a
    /// second.
    pub(crate) fn latest(&self, now: Now) -> Now {
        let reached = self.second.load(Acquire);
        if now.second > reached {
            self.second.fetch_max(now.second, AcqRel);
        }
        now.no_earlier_than(reached)
    }

    /// Moves the clock of the process on. Each core follows in its next tick, or when it takes an
    /// engine.
    pub(crate) fn move_time(&self, seconds: u32) {
        assert!(self.options.plain.time_moves, "only a test moves time");
        let moved = |before: u32| Some(before.saturating_add(seconds).min(MOVED_S_MAX));
        let _before = self.moved_s.fetch_update(Relaxed, Relaxed, moved);
    }

    /// Seconds by which clients have moved the clock on.
    #[inline]
    pub(crate) fn moved_s(&self) -> u32 {
        self.moved_s.load(Relaxed)
    }

    /// Whether the shards must finish.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// Returns `true` to the first caller only. That caller must ask the process to end. A process
    /// that is asked twice ends at once.
    pub fn claim_end(&self) -> bool {
        !self.end_claimed.swap(true, AcqRel)
    }

    /// Lets [`Self::claim_end`] return `true` to one more caller: the process was asked to end, and
    /// serves clients for a while. Afterwards the caller sees what any thread wrote before it
    /// called `claim_end` in vain.
    pub fn allow_end(&self) {
        assert!(!self.is_stopping(), "a process that ends is not asked again");
        // A client may have asked twice before, which is one question.
        self.shutdown.store(false, Relaxed);
        let _was_claimed = self.end_claimed.swap(false, AcqRel);
    }

    /// How many cores serve clients now. Clients of other cores are moved to them.
    pub fn awake_cores(&self) -> u16 {
        self.cores.change().to
    }

    /// Asks all shards to close the clients that have not taken their replies. [`Self::stop`] must
    /// have been called before, and the caller must wake the shards afterwards.
    pub fn give_up_clients(&self) {
        assert!(self.is_stopping(), "clients are given time to take their replies");
        self.gives_up.store(true, Relaxed);
    }

    /// Notes that a client which is given up was owed replies.
    pub(crate) fn note_replies_lost(&self) {
        debug_assert!(self.are_clients_given_up(), "otherwise it has time to take them");
        self.replies_lost.store(true, Relaxed);
    }

    /// Whether a client was owed replies when it was given up.
    pub fn are_replies_lost(&self) -> bool {
        self.replies_lost.load(Relaxed)
    }

    /// Whether the clients that are left must be closed.
    pub(crate) fn are_clients_given_up(&self) -> bool {
        self.gives_up.load(Relaxed)
    }

    /// Notes that a client asked for `shutdown`.
    pub(crate) fn ask_for_shutdown(&self, graceful: bool) {
        self.saves.fetch_or(graceful, Relaxed);
        self.shutdown.store(true, Release);
    }

    /// How the caller must ask the process to end, if a client asked for `shutdown`.
    pub fn take_shutdown(&self) -> Option<Shutdown> {
        // The loads come first, because this function is called after every tick.
        let is_asked = self.shutdown.load(Acquire) && !self.end_claimed.load(Relaxed);
        let saves = || if self.saves.load(Relaxed) { Shutdown::Graceful } else { Shutdown::Plain };
        let is_first = is_asked && self.claim_end();
        if is_first {
            // A client may ask again, if the process may be asked again.
            self.shutdown.store(false, Relaxed);
        }
        is_first.then(saves)
    }

    /// The time at `since_boot_ns` of the monotonic clock, or the second that a shard has reached.
    pub fn now(&self, origin: &ClockOrigin, since_boot_ns: u64) -> Now {
        self.latest(origin.at(since_boot_ns).later_by(self.moved_s()))
    }

    /// Whether a client sent `refresh_certs` and the caller must ask the process to read the
    /// certificates again. Only one caller gets `true` for a request.
    pub fn take_refresh(&self) -> bool {
        self.refreshes.take_announcement()
    }

    /// The number of the last `refresh_certs`, if the certificates were not read since. The process
    /// must read them, and call [`Self::note_refreshed`] with this number.
    pub fn refresh_asked(&self) -> Option<u64> {
        self.refreshes.asked()
    }

    /// Notes that the certificates were read after `refresh_certs` number `asked`. The caller must
    /// wake the shards afterwards. `result` may be a sentence about a file.
    pub fn note_refreshed(&self, asked: u64, result: Result<(), String>) {
        self.refreshes.note_done(asked, result);
    }

    /// Notes that a shard accepts no more clients, and that its exchanges have ended. Each shard
    /// calls this once, after it has counted all clients that it accepted.
    pub(crate) fn note_closed(&self) {
        self.closed.fetch_add(1, Release);
    }

    /// Whether no shard has a connection or an exchange, or will get one. Until all shards have
    /// stopped accepting, a shard that still accepts may hand a connection over to any other shard.
    /// After this returns `true`, the caller sees all that each core did for its clients and
    /// exchanges.
    pub(crate) fn is_over(&self) -> bool {
        self.closed.load(Acquire) == u32::from(self.options.shards)
            && self.connections.load(Acquire) == 0
    }

    /// Counts a new connection. At the limit it returns `false` and counts nothing.
    pub(crate) fn admit(&self) -> bool {
        self.connections
            .fetch_update(Relaxed, Relaxed, |open| {
                (open < self.options.plain.connections_max).then_some(open + 1)
            })
            .is_ok()
    }

    /// Connections open in the whole process.
    pub(crate) fn open_connections(&self) -> u32 {
        self.connections.load(Relaxed)
    }

    /// Counts a connection that has closed.
    pub(crate) fn dismiss(&self) {
        let before = self.connections.fetch_sub(1, Release);
        assert!(before > 0, "a connection is dismissed once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(shards: u16) -> Shared {
        let options = SharedOptions { shards, ..SharedOptions::default() };
        Shared::new(options, Arc::new(Budget::new(1 << 20)))
    }

    #[test]
    fn the_end_is_asked_for_once_whoever_wants_it() {
        let by_client = |shared: &Shared| {
            shared.ask_for_shutdown(false);
            shared.take_shutdown().is_some()
        };
        let by_failure = Shared::claim_end;
        for first in ["a client", "a failure", "a signal"] {
            let shared = shared(2);
            match first {
                "a client" => assert!(by_client(&shared)),
                "a failure" => assert!(by_failure(&shared)),
                _ => shared.stop(),
            }
            assert!(!by_client(&shared) && !by_failure(&shared), "{first} came first");
        }
    }

    #[test]
    fn a_process_that_drains_may_be_asked_once_more() {
        let shared = shared(2);
        for round in 0..2 {
            shared.ask_for_shutdown(false);
            assert!(shared.take_shutdown().is_some(), "in round {round}");
            assert!(shared.take_shutdown().is_none(), "one question is answered once");
            assert!(!shared.claim_end(), "it is claimed");
            shared.allow_end();
            assert!(shared.take_shutdown().is_none(), "nobody has asked again");
        }
        assert!(shared.claim_end(), "a failure ends the drain, too");
        shared.allow_end();
        shared.ask_for_shutdown(true);
        assert_eq!(shared.take_shutdown(), Some(Shutdown::Graceful));
    }

    #[test]
    fn it_is_over_when_all_have_closed_and_nobody_is_left() {
        let shared = shared(2);
        shared.note_closed();
        assert!(!shared.is_over(), "the other one may accept");
        assert!(shared.admit());
        shared.note_closed();
        assert!(!shared.is_over(), "somebody is left");
        shared.dismiss();
        assert!(shared.is_over());
    }
}
