//! Time by the clock: system calls with their overlap merged, and the waits of threads.
//!
//! Upstream:   `measure`, with the calls of a window and the threads at its end.
//! Downstream: `print`, and the file of `--json`.
//!
//! Invariants:
//! - I1  No span reaches beyond the window.
//! - I2  A thread is in one state at a time: it runs, is runnable (it waits for a core), or blocks.

use std::collections::BTreeMap;

use serde::Serialize;

use super::calls::CallNames;
use super::cpu::percent;
use super::parts::{Part, Rules};
use super::spans::{Span, covered_ns};

/// A system call that ended within the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) span: Span,
    pub(super) number: u32,
    /// Whether its thread slept in it.
    pub(super) has_slept: bool,
}

/// The state of a thread, as in `bpf/breakdown.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running,
    Runnable,
    Blocked,
    Gone,
}

/// A thread at the end of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thread {
    /// The state, and since when.
    pub(super) state: State,
    pub(super) since_ns: u64,
    /// The call that it is in, and since when.
    pub(super) call: Option<(u32, u64)>,
    /// Whether it has slept in the call.
    pub(super) has_slept: bool,
}

/// The times of all threads in one call, or in none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Times {
    pub(super) running_ns: u64,
    pub(super) runnable_ns: u64,
    pub(super) blocked_ns: u64,
    /// How often a thread went to sleep.
    pub(super) blocked_count: u64,
    /// How often a thread that could go on lost its core.
    pub(super) preempted_count: u64,
}

impl Times {
    fn add(&mut self, other: &Self) {
        self.running_ns += other.running_ns;
        self.runnable_ns += other.runnable_ns;
        self.blocked_ns += other.blocked_ns;
        self.blocked_count += other.blocked_count;
        self.preempted_count += other.preempted_count;
    }
}

/// The calls of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Covered {
    /// Calls that were open at any time of the window.
    pub(super) calls: u64,
    /// Those of them in which the thread slept.
    pub(super) slept: u64,
    /// The times of all calls, added up.
    pub(super) sum_ns: u64,
    /// The time in which at least one call was open.
    pub(super) covered_ns: u64,
    /// The same, of the window.
    pub(super) covered_percent: f64,
}

/// A part: its calls together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct PartRow {
    /// The name of the part, or [`WAITS`].
    pub(super) name: &'static str,
    #[serde(flatten)]
    pub(super) covered: Covered,
}

/// One system call.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct CallRow {
    pub(super) name: String,
    pub(super) part: Part,
    #[serde(flatten)]
    pub(super) covered: Covered,
    /// The times of the threads in these calls.
    pub(super) threads: Times,
}

/// Where the time by the clock went.
#[derive(Clone, Debug, Serialize)]
pub(super) struct WallView {
    pub(super) seconds: f64,
    /// Threads that were seen.
    pub(super) threads: u64,
    pub(super) calls_lost: u64,
    pub(super) threads_lost: u64,
    /// All threads, in calls and outside of them.
    pub(super) all: Times,
    /// All threads while they are in no call.
    pub(super) outside: Times,
    /// Waits of threads that sleep in a futex, in a wait for work, and in anything else.
    pub(super) blocked_futex_ns: u64,
    pub(super) blocked_for_work_ns: u64,
    pub(super) blocked_other_ns: u64,
    /// By part. A call that slept for work is in a row of its own.
    pub(super) parts: Vec<PartRow>,
    /// By system call, the longest first.
    pub(super) calls: Vec<CallRow>,
}

/// The records of a window.
#[derive(Debug, Default)]
pub(super) struct Window {
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
    pub(super) calls: Vec<Call>,
    pub(super) threads: Vec<Thread>,
    /// By the number of the call, and 1; 0: in no call.
    pub(super) times: Vec<Times>,
    pub(super) calls_lost: u64,
    pub(super) threads_lost: u64,
}

/// The row of calls in which a thread slept until work came: those of the network, and those that
/// the table of parts names.
const WAITS: &str = "waits for work";

impl Window {
    /// The part of a span that is within the window (I1).
    fn within(&self, begin_ns: u64, end_ns: u64) -> Span {
        Span::new(begin_ns.clamp(self.begin_ns, self.end_ns), end_ns.min(self.end_ns))
    }

    /// Adds what threads were doing when the window ended: their open calls, and their states.
    fn close(&mut self) {
        for thread in std::mem::take(&mut self.threads) {
            let in_state = self.within(thread.since_ns, self.end_ns).ns();
            let index = thread.call.map_or(0, |(number, _)| number as usize + 1);
            if let Some(times) = self.times.get_mut(index) {
                match thread.state {
                    State::Running => times.running_ns += in_state,
                    State::Runnable => times.runnable_ns += in_state,
                    State::Blocked => times.blocked_ns += in_state,
                    State::Gone => {}
                }
            }
            if let Some((number, begin_ns)) = thread.call {
                let is_gone = thread.state == State::Gone;
                let end_ns = if is_gone { thread.since_ns } else { self.end_ns };
                let span = self.within(begin_ns, end_ns);
                self.calls.push(Call { span, number, has_slept: thread.has_slept });
            }
        }
    }

    /// Adds some calls up.
    fn covered<'c>(&self, calls: impl Iterator<Item = &'c Call>) -> Covered {
        let (mut spans, mut slept) = (Vec::new(), 0);
        for call in calls {
            slept += u64::from(call.has_slept);
            spans.push(self.within(call.span.begin_ns, call.span.end_ns));
        }
        let covered_ns = covered_ns(&mut spans);
        Covered {
            calls: spans.len() as u64,
            slept,
            sum_ns: spans.iter().map(|span| span.ns()).sum(),
            covered_ns,
            covered_percent: percent(covered_ns, self.end_ns - self.begin_ns),
        }
    }

    /// Adds the window up.
    pub(super) fn view(mut self, rules: &Rules, names: &CallNames) -> WallView {
        assert!(self.begin_ns < self.end_ns, "a window has a length");
        let seen = self.threads.len() as u64;
        self.close();
        let mut by_call: BTreeMap<u32, Vec<Call>> = BTreeMap::new();
        for call in std::mem::take(&mut self.calls) {
            by_call.entry(call.number).or_default().push(call);
        }
        // A call of which no end was seen may still have slept.
        for (index, times) in self.times.iter().enumerate().skip(1) {
            if *times != Times::default() {
                by_call.entry(index as u32 - 1).or_default();
            }
        }
        let times_of = |index: usize| self.times.get(index).copied().unwrap_or_default();
        let mut parts: BTreeMap<Option<Part>, Vec<Call>> = BTreeMap::new();
        let mut rows = Vec::new();
        let (mut all, mut futex_ns, mut work_ns) = (times_of(0), 0, 0);
        for (number, calls) in by_call {
            let name = names.name(number).into_owned();
            let part = rules.of_call(&name);
            let may_wait = part == Part::Network || rules.is_wait(&name);
            let threads = times_of(number as usize + 1);
            all.add(&threads);
            if name.starts_with("futex") {
                futex_ns += threads.blocked_ns;
            } else if may_wait {
                work_ns += threads.blocked_ns;
            }
            let covered = self.covered(calls.iter());
            rows.push(CallRow { name, part, covered, threads });
            for call in calls {
                let is_wait = may_wait && call.has_slept;
                parts.entry((!is_wait).then_some(part)).or_default().push(call);
            }
        }
        rows.sort_by_key(|row| std::cmp::Reverse((row.covered.covered_ns, row.covered.calls)));
        let part_row = |(part, calls): (Option<Part>, Vec<Call>)| PartRow {
            name: part.map_or(WAITS, Part::name),
            covered: self.covered(calls.iter()),
        };
        WallView {
            seconds: (self.end_ns - self.begin_ns) as f64 / 1e9,
            threads: seen,
            calls_lost: self.calls_lost,
            threads_lost: self.threads_lost,
            outside: times_of(0),
            blocked_futex_ns: futex_ns,
            blocked_for_work_ns: work_ns,
            blocked_other_ns: all.blocked_ns - futex_ns - work_ns,
            all,
            parts: parts.into_iter().map(part_row).collect(),
            calls: rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parts::TABLE;
    use super::*;

    const MMAP: u32 = 9;
    const SENDTO: u32 = 44;
    const RECVFROM: u32 = 45;
    const FUTEX: u32 = 202;
    const EPOLL_WAIT: u32 = 232;

    fn view(window: Window) -> WallView {
        window.view(&Rules::read(TABLE, "any").expect("the table"), &CallNames::new())
    }

    fn call(number: u32, begin_ns: u64, end_ns: u64) -> Call {
        Call { span: Span::new(begin_ns, end_ns), number, has_slept: false }
    }

    fn named<'v>(view: &'v WallView, name: &str) -> &'v Covered {
        let calls = view.calls.iter().map(|row| (&row.name[..], &row.covered));
        let mut rows = calls.chain(view.parts.iter().map(|row| (row.name, &row.covered)));
        rows.find(|row| row.0 == name).unwrap_or_else(|| panic!("no {name}: {view:?}")).1
    }

    /// Calls of two threads overlap within a call, within a part, and not across parts.
    #[test]
    fn calls_are_counted_summed_and_merged() {
        let calls = vec![
            call(SENDTO, 1100, 1200),
            call(SENDTO, 1150, 1250),
            call(RECVFROM, 1240, 1300),
            call(MMAP, 1200, 1400),
            call(FUTEX, 1900, 2500),
        ];
        let window = Window { begin_ns: 1000, end_ns: 2000, calls, ..Window::default() };
        let view = view(window);
        let sends = named(&view, "sendto");
        assert_eq!((sends.calls, sends.sum_ns, sends.covered_ns), (2, 200, 150));
        let network = named(&view, "network");
        assert_eq!((network.calls, network.sum_ns, network.covered_ns), (3, 260, 200));
        assert_eq!(network.covered_percent, 20.0);
        let memory = named(&view, "memory management");
        assert_eq!((memory.calls, memory.covered_ns), (1, 200));
        let futex = named(&view, "concurrency control");
        assert_eq!((futex.calls, futex.covered_ns), (1, 100), "it ends with the window");
    }

    #[test]
    fn a_call_that_slept_for_work_is_a_wait_and_another_is_not() {
        let asleep = |call: Call| Call { has_slept: true, ..call };
        let calls = vec![
            call(EPOLL_WAIT, 1000, 1100),
            asleep(call(EPOLL_WAIT, 1200, 1500)),
            asleep(call(RECVFROM, 1400, 1600)),
            asleep(call(FUTEX, 1700, 1800)),
        ];
        let window = Window { begin_ns: 1000, end_ns: 2000, calls, ..Window::default() };
        let view = view(window);
        assert_eq!((named(&view, WAITS).calls, named(&view, WAITS).covered_ns), (2, 400));
        assert_eq!(named(&view, "network").covered_ns, 100);
        assert_eq!(named(&view, "concurrency control").covered_ns, 100);
        let epoll = named(&view, "epoll_wait");
        assert_eq!((epoll.calls, epoll.slept, epoll.covered_ns), (2, 1, 400));
    }

    #[test]
    fn threads_that_still_wait_are_counted_until_the_end() {
        let thread = |state, since_ns, call: Option<(u32, u64)>| Thread {
            state,
            since_ns,
            call,
            has_slept: call.is_some(),
        };
        let mut times = vec![Times::default(); 300];
        times[FUTEX as usize + 1].blocked_ns = 5;
        let window = Window {
            begin_ns: 1000,
            end_ns: 2000,
            threads: vec![
                thread(State::Blocked, 0, Some((EPOLL_WAIT, 0))),
                thread(State::Blocked, 1700, Some((FUTEX, 1600))),
                thread(State::Running, 1900, None),
                thread(State::Runnable, 1950, None),
                thread(State::Gone, 1200, None),
            ],
            times,
            ..Window::default()
        };
        let view = view(window);
        assert_eq!(view.blocked_for_work_ns, 1000);
        assert_eq!(view.blocked_futex_ns, 305);
        assert_eq!((view.outside.running_ns, view.outside.runnable_ns), (100, 50));
        assert_eq!(view.all.blocked_ns, 1305);
        assert_eq!((view.blocked_other_ns, view.threads), (0, 5));
        let wait = named(&view, WAITS);
        assert_eq!((wait.calls, wait.covered_ns, wait.covered_percent), (1, 1000, 100.0));
        assert_eq!(named(&view, "futex").covered_ns, 400, "open since 1600");
    }
}
