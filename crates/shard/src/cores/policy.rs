//! Decides how many cores serve clients.
//!
//! Upstream:   `balance` samples the work of all cores every 2 ms, and tells of a core that has a
//!             growing queue.
//! Downstream: nothing. [`Policy`] is a function of the samples and their times.
//!
//! Cores follow load. At low load the connections gather on few cores and the other cores sleep, so
//! that a request seldom wakes a core, and a tick serves more requests. As load rises the
//! connections spread.
//!
//! ```text
//!               the awake cores are busy
//!   few cores -------------------------------> more cores
//!             <-------------------------------
//!               for 100 ms their work fits on fewer cores, with a third to spare
//! ```
//!
//! A core is busy while it runs, and while it waits for a processor. If cores wait often, other
//! programs use the processors. More cores may then take processor time from one another and from
//! the clients, and serve no more requests. So the policy changes the number of cores as a trial,
//! and measures whether the change pays.
//!
//! Invariants:
//! - P1  At least one core is awake, and never more than `most`, which is at most the number of
//!   processors that the process may use.
//! - P2  Core 0 is always awake, because it has the listeners. The awake cores are those with the
//!   lowest numbers.
//!
//! Source: Ousterhout and others, "Shenango", NSDI 2019, grants a core as soon as work has waited
//! for it in two checks in a row, and gives it back when it has no work.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use kachel_stdx::Counter;

/// The time between two samples. Shenango checks every 5 us, but from a core of its own. A sample
/// costs each awake core 2 us, a thousandth of this time.
pub(crate) const SAMPLE_NS: u64 = 2_000_000;
/// Cores that are busy for this part of the time are full.
const FULL: f64 = 0.95;
/// If cores are full for this time, work has waited for them. A guess: a large value or a step of
/// upkeep takes less.
const FULL_NS: u64 = 3_000_000;
/// If work has waited, this many times the cores are awake: it may be much more than the cores can
/// do, and a second change while connections still move would deal them out unequally.
const WAITED_TIMES: u16 = 4;
/// Cores that are busy for this part of the time on average leave no room for bursts.
const BUSY: f64 = 0.8;
/// Work fits on a number of cores that are busy for this part of the time.
const FITS: f64 = 0.65;
/// The time constant of the averages of busy and of waiting cores, in nanoseconds.
const AVERAGE_NS: f64 = 8e6;
/// The time constant of the average rate of requests, in nanoseconds.
const RATE_NS: f64 = 20e6;
/// Work must fit on fewer cores for this time. So cores do not follow waves of load that are faster
/// than ten a second.
const HOLD_NS: u64 = 100_000_000;
/// Processors are contended if cores wait for them in this part of their busy time. Two cores
/// waited for 0.28 of it when clients on the same two processors kept them full, and served half as
/// many requests as one core did.
const CONTENDED: f64 = 0.15;
/// A trial takes this time: five time constants of the rate.
const TRIAL_NS: u64 = 100_000_000;
/// More cores must serve this many times the requests to be worth their processor time. If they are
/// not saturated any more, it is enough that they serve as many.
const GAIN: f64 = 1.1;
const SAME: f64 = 0.98;
/// Fewer cores may serve this many times the requests.
const LOSS: f64 = 0.95;
/// The time from one trial to the next. Doubled as long as the load is about the same.
const BACKOFF_NS: u64 = 1_000_000_000;
/// The longest such time.
const BACKOFF_NS_MAX: u64 = 16_000_000_000;
/// The load is another one if the rate of requests is this many times higher or lower.
const OTHER_LOAD: f64 = 1.5;
/// Twice the cores serve at most this many times twice the requests. If a trial seems to show more,
/// the load has risen meanwhile.
const IMPLAUSIBLE: f64 = 1.25;

/// The load of all cores together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// Thousandths of a core that are busy, summed over all cores.
    pub(crate) busy_permille: u64,
    /// The part of these in which they wait for a processor.
    pub(crate) waiting_permille: u64,
    /// Requests that they have executed since the start.
    pub(crate) requests: u64,
}

/// A change of the number of cores whose gain is being measured.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// The number of awake cores before.
    from: u16,
    /// Requests per second before.
    rate: f64,
    ends_ns: u64,
}

/// How many cores are awake, and why.
#[derive(Debug)]
pub(crate) struct Policy {
    /// P1.
    most: u16,
    awake: u16,
    /// The requests at the time of the last sample.
    requests: u64,
    sampled_ns: u64,
    /// Averages: cores that are busy, and cores that wait for a processor.
    busy: f64,
    waiting: f64,
    /// The average of requests per second.
    rate: f64,
    /// For how long all awake cores have been full.
    full_ns: u64,
    /// Busy cores in the last sample.
    last: f64,
    /// Since when the peaks were observed.
    peaks_since_ns: u64,
    /// The highest average of busy cores.
    peak: f64,
    /// The most cores that were busy in two samples in a row. Fewer cores would be full.
    burst: f64,
    trial: Option<Trial>,
    /// The rate of requests at which a trial has shown that more cores do not pay.
    settled: Option<f64>,
    next_trial_ns: u64,
    backoff_ns: u64,
    /// When the last trial ended.
    judged_ns: u64,
    /// The higher rate of requests of the last trial.
    tried_rate: f64,
}

impl Policy {
    /// Begins with one awake core of `most` (P1).
    pub(crate) fn new(most: u16) -> Self {
        assert!(most > 0, "P1");
        Self {
            most,
            awake: 1,
            requests: 0,
            sampled_ns: 0,
            busy: 0.0,
            waiting: 0.0,
            rate: 0.0,
            full_ns: 0,
            last: 0.0,
            peaks_since_ns: 0,
            peak: 0.0,
            burst: 0.0,
            trial: None,
            settled: None,
            next_trial_ns: 0,
            backoff_ns: BACKOFF_NS,
            judged_ns: 0,
            tried_rate: 0.0,
        }
    }

    /// Takes a sample at `now_ns`. Returns how many cores must be awake from now on. Does nothing
    /// if the last sample was a moment ago.
    pub(crate) fn sample(&mut self, now_ns: u64, work: Work) -> u16 {
        let elapsed_ns = now_ns.saturating_sub(self.sampled_ns);
        if elapsed_ns < SAMPLE_NS {
            return self.awake;
        }
        self.note(now_ns, elapsed_ns as f64, work);
        let awake = self.wanted(now_ns);
        self.change_to(awake)
    }

    /// Takes note that work waits for a core, and that `load` times what the core can do comes to
    /// it. Returns how many cores must be awake from now on.
    fn spread(&mut self, load: f64) -> u16 {
        debug_assert!(load > 1.0, "less work is done by the core");
        if self.trial.is_some() || self.is_contended() || self.is_settled() {
            return self.awake;
        }
        let needed = f64::from(self.awake) * (load / FITS).max(f64::from(WAITED_TIMES));
        debug_assert!(needed > f64::from(self.awake), "the number rises");
        let awake = self.grow(needed.ceil().min(f64::from(self.most)) as u16);
        self.change_to(awake)
    }

    fn change_to(&mut self, awake: u16) -> u16 {
        debug_assert!((1..=self.most).contains(&awake), "P1");
        if awake != self.awake {
            self.awake = awake;
            self.full_ns = 0;
            self.begin_peaks();
        }
        awake
    }

    /// Adds a sample to the averages.
    fn note(&mut self, now_ns: u64, elapsed_ns: f64, work: Work) {
        debug_assert!(elapsed_ns > 0.0 && self.requests <= work.requests, "time goes on");
        let busy = (work.busy_permille as f64 / 1000.0).min(f64::from(self.most));
        let waiting = work.waiting_permille as f64 / 1000.0;
        let rate = work.requests.saturating_sub(self.requests) as f64 / elapsed_ns * 1e9;
        (self.requests, self.sampled_ns) = (work.requests, now_ns);
        let is_full = busy >= FULL * f64::from(self.awake);
        self.full_ns = if is_full { self.full_ns + elapsed_ns as u64 } else { 0 };
        let average = |before: f64, now: f64, constant_ns: f64| {
            before + (now - before) * elapsed_ns / (elapsed_ns + constant_ns)
        };
        self.busy = average(self.busy, busy, AVERAGE_NS);
        self.waiting = average(self.waiting, waiting.min(busy), AVERAGE_NS);
        self.rate = average(self.rate, rate, RATE_NS);
        self.peak = self.peak.max(self.busy);
        self.burst = self.burst.max(busy.min(self.last));
        self.last = busy;
    }

    const fn begin_peaks(&mut self) {
        self.peaks_since_ns = self.sampled_ns;
        (self.peak, self.burst) = (self.busy, 0.0);
    }

    fn wanted(&mut self, now_ns: u64) -> u16 {
        if let Some(trial) = self.trial {
            return if now_ns < trial.ends_ns { self.awake } else { self.judge(trial, now_ns) };
        }
        debug_assert!(self.peaks_since_ns <= now_ns, "the monotonic clock does not go back");
        let is_contended = self.is_contended();
        self.settled = self.settled.filter(|rate| self.rate > rate / 2.0);
        let is_saturated = self.is_saturated();
        let may_grow = !is_contended && !self.is_settled();
        if is_contended && self.awake > 1 || is_saturated && !may_grow {
            let other = self.try_other(now_ns);
            if is_saturated || other != self.awake {
                return other;
            }
        } else if is_saturated {
            let times = if self.full_ns >= FULL_NS { WAITED_TIMES } else { 2 };
            return self.grow(self.awake.saturating_mul(times).min(self.most));
        }
        if now_ns - self.peaks_since_ns < HOLD_NS {
            return self.awake;
        }
        let needed = (self.peak / FITS).max(self.burst / FULL).ceil() as u16;
        self.begin_peaks();
        needed.clamp(1, self.awake) // P1
    }

    /// Has more cores awake without a trial. If they turn out to take processors from one another,
    /// the trial of fewer cores need not wait as long as between two trials of one load.
    fn grow(&mut self, awake: u16) -> u16 {
        debug_assert!(awake >= self.awake, "it is no gathering");
        if awake > self.awake {
            self.backoff_ns = BACKOFF_NS;
            self.next_trial_ns = self.next_trial_ns.min(self.judged_ns + BACKOFF_NS);
        }
        awake
    }

    fn is_contended(&self) -> bool {
        self.waiting >= CONTENDED * self.busy
    }

    fn is_saturated(&self) -> bool {
        self.full_ns >= FULL_NS || self.busy >= BUSY * f64::from(self.awake)
    }

    const fn is_settled(&self) -> bool {
        self.settled.is_some()
    }

    /// Begins a trial, if it is time for one: of more cores if they are saturated, and fewer have
    /// proved enough or there are no fewer; otherwise of fewer.
    fn try_other(&mut self, now_ns: u64) -> u16 {
        if now_ns < self.next_trial_ns {
            return self.awake;
        }
        let other = if self.is_saturated() && (self.is_settled() || self.awake == 1) {
            (self.awake + self.awake.div_ceil(2)).min(self.most)
        } else {
            (self.awake / 2).max(1)
        };
        debug_assert!((1..=self.most).contains(&other), "P1");
        if other != self.awake {
            let ends_ns = now_ns + TRIAL_NS;
            self.trial = Some(Trial { from: self.awake, rate: self.rate, ends_ns });
        }
        other
    }

    /// Ends a trial: keeps the number of cores, or returns to the one before.
    fn judge(&mut self, trial: Trial, now_ns: u64) -> u16 {
        debug_assert!(trial.from != self.awake && trial.ends_ns <= now_ns, "a trial has two sides");
        (self.trial, self.judged_ns) = (None, now_ns);
        let gain = self.rate / trial.rate;
        let is_more = self.awake > trial.from;
        let (more, fewer) = (self.awake.max(trial.from), self.awake.min(trial.from));
        if gain > IMPLAUSIBLE * f64::from(more) / f64::from(fewer) {
            // The trial shows nothing. The next one comes when the average is that of the new load.
            self.next_trial_ns = now_ns + TRIAL_NS;
            return more;
        }
        let more_pay = match self.is_saturated() {
            true if is_more => gain >= GAIN,
            true => gain < LOSS,
            false => is_more && gain >= SAME,
        };
        let is_kept = is_more == more_pay;
        let rate = self.rate.max(trial.rate);
        self.settled = (!more_pay).then_some(rate);
        let change = rate / std::mem::replace(&mut self.tried_rate, rate);
        let is_same_load = (1.0 / OTHER_LOAD..OTHER_LOAD).contains(&change);
        let backoff_ns = if is_same_load { 2 * self.backoff_ns } else { BACKOFF_NS };
        self.backoff_ns = backoff_ns.min(BACKOFF_NS_MAX);
        self.next_trial_ns = now_ns + self.backoff_ns;
        if is_kept { self.awake } else { trial.from }
    }
}

/// The last change of the number of awake cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The number of changes so far, modulo 2^32.
    pub(crate) number: u32,
    pub(crate) from: u16,
    /// The cores that are awake now.
    pub(crate) to: u16,
}

/// The number of awake cores, as all cores see it.
#[derive(Debug)]
pub(crate) struct Cores {
    /// [`Change`] in one word.
    word: AtomicU64,
    /// `None` if the number never changes.
    policy: Option<Mutex<Policy>>,
    /// Changes to more cores, and to fewer. The holder of the policy counts them.
    pub(crate) spreads: Counter,
    pub(crate) gathers: Counter,
    /// The changes of these that began or ended a trial.
    pub(crate) trials: Counter,
}

impl Cores {
    /// `cores` cores that may serve clients. At most `most` of them do, and fewer at low load.
    /// `None` means that all of them do at any load.
    pub(crate) fn new(cores: u16, most: Option<u16>) -> Self {
        let most = most.map(|most| most.clamp(1, cores));
        let awake = if most.is_some() { 1 } else { cores };
        let policy = most.filter(|most| *most > 1).map(Policy::new);
        debug_assert!(policy.as_ref().is_none_or(|policy| policy.awake == awake), "P1");
        let change = Change { number: 0, from: awake, to: awake };
        Self {
            word: AtomicU64::new(pack(change)),
            policy: policy.map(Mutex::new),
            spreads: Counter::default(),
            gathers: Counter::default(),
            trials: Counter::default(),
        }
    }

    /// Whether the number of awake cores never changes.
    #[inline]
    pub(crate) const fn are_fixed(&self) -> bool {
        self.policy.is_none()
    }

    /// The last change of the number of awake cores. Cost: a load.
    #[inline]
    pub(crate) fn change(&self) -> Change {
        unpack(self.word.load(Ordering::Relaxed))
    }

    /// Has the policy take a sample. If another core does this now, nothing is done.
    pub(crate) fn sample(&self, now_ns: u64, work: impl FnOnce() -> Work) {
        self.ask(|policy| policy.sample(now_ns, work()));
    }

    /// Tells the policy that work waits for a core, and that `load` times what the core can do
    /// comes to it. If another core uses the policy now, nothing is done.
    #[cold]
    pub(crate) fn spread(&self, load: f64) {
        self.ask(|policy| policy.spread(load));
    }

    /// Has the policy decide how many cores must be awake.
    fn ask(&self, decide: impl FnOnce(&mut Policy) -> u16) {
        let Some(Ok(mut policy)) = self.policy.as_ref().map(Mutex::try_lock) else { return };
        let change = self.change();
        debug_assert!(change.to == policy.awake, "only the holder of the policy changes the word");
        let was_trial = policy.trial.is_some();
        let awake = decide(&mut policy);
        if awake != change.to {
            debug_assert!(awake > 0, "P1");
            let counter = if awake > change.to { &self.spreads } else { &self.gathers };
            counter.add(1);
            self.trials.add(u64::from(was_trial || policy.trial.is_some()));
            let number = change.number.wrapping_add(1);
            let next = Change { number, from: change.to, to: awake };
            self.word.store(pack(next), Ordering::Relaxed);
        }
    }
}

const fn pack(change: Change) -> u64 {
    (change.number as u64) << 32 | (change.from as u64) << 16 | change.to as u64
}

const fn unpack(word: u64) -> Change {
    Change { number: (word >> 32) as u32, from: (word >> 16) as u16, to: word as u16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS_NS: u64 = 1_000_000;

    /// Cores that serve whatever the policy says.
    struct Machine {
        policy: Policy,
        now_ns: u64,
        work: Work,
        changes: u32,
    }

    impl Machine {
        fn new(most: u16) -> Self {
            let policy = Policy::new(most);
            Self { policy, now_ns: 0, work: Work::default(), changes: 0 }
        }

        /// For some milliseconds, `does` says from the number of awake cores how many run, how many
        /// wait for a processor, and how many requests a second are served.
        fn run(&mut self, ms: u64, does: impl Fn(f64) -> [f64; 3]) -> u16 {
            for _ in 0..ms / 2 {
                let [run, wait, rate] = does(f64::from(self.policy.awake));
                self.now_ns += SAMPLE_NS;
                self.work.busy_permille = ((run + wait) * 1000.0) as u64;
                self.work.waiting_permille = (wait * 1000.0) as u64;
                self.work.requests += (rate * SAMPLE_NS as f64 / 1e9) as u64;
                let before = self.policy.awake;
                let after = self.policy.sample(self.now_ns, self.work);
                self.changes += u32::from(after != before);
            }
            self.policy.awake
        }

        /// An open loop with processors to spare: `cores` of work, as far as cores are awake.
        fn offer(&mut self, ms: u64, cores: f64) -> u16 {
            self.run(ms, |awake| [cores.min(awake), 0.0, cores.min(awake) * 1e5])
        }
    }

    #[test]
    fn cores_follow_the_load() {
        let mut machine = Machine::new(8);
        for (cores, least, most) in
            [(0.1, 1, 1), (0.6, 1, 1), (0.9, 2, 2), (2.5, 4, 4), (7.2, 8, 8), (0.8, 1, 2)]
        {
            let awake = machine.offer(1000, cores);
            assert!((least..=most).contains(&awake), "{cores} cores of work: {awake} awake");
        }
    }

    #[test]
    fn work_that_waits_has_all_cores_within_ten_milliseconds() {
        let mut machine = Machine::new(8);
        machine.offer(1000, 0.8);
        assert_eq!(machine.offer(10, 7.2), 8);
        assert_eq!(machine.offer(90, 0.8), 8, "they are held for a while");
        assert!(machine.offer(200, 0.8) <= 2);
    }

    #[test]
    fn a_queue_has_cores_awake_at_once_unless_processors_are_contended() {
        for (load, awake) in [(1.1, 4), (7.2, 12), (99.0, 16)] {
            let mut machine = Machine::new(16);
            machine.offer(1000, 0.4);
            assert_eq!(machine.policy.spread(load), awake, "{load}");
            assert_eq!(machine.offer(90, 0.4), awake, "they are held for a while");
            assert_eq!(machine.offer(200, 0.4), 1);
        }
        let mut machine = Machine::new(16);
        machine.policy.next_trial_ns = u64::MAX;
        machine.run(1000, |_| [0.2, 0.2, 1e4]);
        assert_eq!(machine.policy.spread(7.2), 1);
    }

    #[test]
    fn cores_do_not_follow_fast_waves() {
        for (hertz, changes_max) in [(1, 40), (10, 40), (100, 4), (250, 4)] {
            let mut machine = Machine::new(8);
            for _ in 0..10 * hertz {
                machine.offer(500 / hertz, 0.4);
                machine.offer(500 / hertz, 7.0);
            }
            let changes = machine.changes;
            assert!(changes <= changes_max, "{hertz} Hz: {changes} changes in ten seconds");
        }
    }

    #[test]
    fn load_that_hardly_changes_moves_nothing() {
        let mut machine = Machine::new(4);
        machine.offer(1000, 1.4);
        let before = machine.changes;
        for step in 0..100 {
            machine.offer(100, 1.4 + f64::from(step % 7) / 20.0);
        }
        assert_eq!(machine.changes, before);
    }

    #[test]
    fn contended_processors_are_tried_and_the_rate_decides() {
        // Two processors, on which the clients run too. A second core takes more of them, and
        // serves no more requests.
        let vain = |awake: f64| if awake < 2.0 { [0.6, 0.4, 1e5] } else { [1.0, 0.9, 1.02e5] };
        let mut machine = Machine::new(2);
        machine.run(20_000, vain);
        let changes = machine.changes;
        assert!((2..=10).contains(&changes), "{changes} changes");
        assert_eq!(machine.run(1000, vain), 1);
        // Measured with clients that use the processors as much as the server does.
        let lost = |awake: f64| if awake < 2.0 { [1.0, 0.0, 2e5] } else { [0.9, 0.25, 1.1e5] };
        let mut machine = Machine::new(2);
        machine.run(1000, lost);
        assert_eq!(machine.run(3000, lost), 1);
        // A neighbour has half of one processor, and there are others.
        let pays = |awake: f64| [0.6 * awake, 0.4 * awake, 1e5 * awake];
        let mut machine = Machine::new(2);
        assert_eq!(machine.run(1000, pays), 2);
        machine.run(20_000, pays);
        let changes = machine.changes;
        assert!(changes <= 12 && machine.run(1000, pays) == 2, "{changes} changes");
    }

    #[test]
    fn a_trial_in_which_the_load_rises_is_tried_again_soon() {
        // As above. The load begins anew before the next regular trial.
        let vain = |awake: f64| if awake < 2.0 { [0.6, 0.4, 1e5] } else { [0.9, 0.9, 1.02e5] };
        let mut machine = Machine::new(2);
        for round in 0..10 {
            machine.run(600, vain);
            assert_eq!(machine.run(400, vain), 1, "round {round}");
            machine.run(300, |_| [0.1, 0.05, 1e4]);
        }
    }

    #[test]
    fn a_load_that_comes_again_is_tried_again_soon() {
        // As above: a second core serves no more requests.
        let vain = |awake: f64| if awake < 2.0 { [1.0, 0.0, 1e5] } else { [1.0, 0.9, 0.8e5] };
        let mut machine = Machine::new(2);
        for _ in 0..20 {
            machine.run(3000, vain);
            assert_eq!(machine.run(10, vain), 1, "after 3 s");
            machine.offer(500, 0.01);
        }
    }

    #[test]
    fn a_low_load_gathers_although_processors_are_contended() {
        let mut machine = Machine::new(4);
        machine.offer(1000, 2.5);
        // The next trial is far away.
        machine.policy.next_trial_ns = u64::MAX;
        assert_eq!(machine.run(500, |_| [0.2, 0.2, 1e4]), 1);
    }

    #[test]
    fn cores_that_lost_their_gain_are_given_up() {
        let mut machine = Machine::new(2);
        machine.run(1000, |awake| [0.6 * awake, 0.4 * awake, 1e5 * awake]);
        let vain = |awake: f64| if awake < 2.0 { [0.6, 0.4, 1e5] } else { [1.0, 0.9, 1.02e5] };
        assert_eq!(machine.run(3000, vain), 1);
    }

    #[test]
    fn a_moment_is_no_sample_and_a_long_sleep_is_one() {
        let mut policy = Policy::new(4);
        let work = Work { busy_permille: 1000, ..Work::default() };
        assert_eq!((policy.sample(MS_NS, work), policy.sampled_ns), (1, 0));
        policy.sample(5_000 * MS_NS, work);
        assert!(policy.busy > 0.99, "{}", policy.busy);
    }

    #[test]
    fn a_change_is_one_word() {
        let change = Change { number: u32::MAX, from: 1, to: 300 };
        assert_eq!(unpack(pack(change)), change);
        let cores = Cores::new(4, None);
        assert!(cores.are_fixed() && cores.change().to == 4);
        for (shards, most) in [(1, 4), (4, 1)] {
            let cores = Cores::new(shards, Some(most));
            assert!(cores.are_fixed() && cores.change().to == 1, "{most} of {shards}");
        }
        let cores = Cores::new(4, Some(9));
        assert!(!cores.are_fixed() && cores.change().to == 1);
        for sample in 1..10 {
            let work = Work { busy_permille: 1000, ..Work::default() };
            cores.sample(sample * SAMPLE_NS, || work);
        }
        assert_eq!(cores.change(), Change { number: 1, from: 1, to: 4 });
    }
}
