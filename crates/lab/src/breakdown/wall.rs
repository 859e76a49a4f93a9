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

/// One system call, or a part with all its calls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct CallRow {
    /// The name of the call; that of the part if the row is for a part.
    pub(super) name: String,
    pub(super) part: Part,
    /// Whether a thread that sleeps in it waits for work.
    pub(super) is_wait: bool,
    /// Calls that were open at any time of the window.
    pub(super) calls: u64,
    /// The times of all calls, added up.
    pub(super) sum_ns: u64,
    /// The time in which at least one call was open.
    pub(super) covered_ns: u64,
    /// The same, of the window.
    pub(super) covered_percent: f64,
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
    /// By part; waits for work are a row of their own.
    pub(super) parts: Vec<CallRow>,
    /// By system call, the longest first.
    pub(super) calls: Vec<CallRow>,
}

/// What a window recorded.
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

/// The row of a part for calls that wait for work.
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
                self.calls.push(Call { span, number });
            }
        }
    }

    /// The row of some calls.
    fn row(
        &self,
        name: String,
        part: Part,
        is_wait: bool,
        mut spans: Vec<Span>,
        threads: Times,
    ) -> CallRow {
        let covered_ns = covered_ns(&mut spans);
        CallRow {
            name,
            part,
            is_wait,
            calls: spans.len() as u64,
            sum_ns: spans.iter().map(|span| span.ns()).sum(),
            covered_ns,
            covered_percent: percent(covered_ns, self.end_ns - self.begin_ns),
            threads,
        }
    }

    /// Adds the window up.
    pub(super) fn view(mut self, rules: &Rules, names: &CallNames) -> WallView {
        assert!(self.begin_ns < self.end_ns, "a window has a length");
        let seen = self.threads.len() as u64;
        self.close();
        let mut by_call: BTreeMap<u32, Vec<Span>> = BTreeMap::new();
        for call in &self.calls {
            let span = self.within(call.span.begin_ns, call.span.end_ns);
            by_call.entry(call.number).or_default().push(span);
        }
        // A call of which no end was seen may still have slept.
        for (index, times) in self.times.iter().enumerate().skip(1) {
            if *times != Times::default() {
                by_call.entry(index as u32 - 1).or_default();
            }
        }
        let times_of = |index: usize| self.times.get(index).copied().unwrap_or_default();
        let mut parts: BTreeMap<(bool, Part), (Vec<Span>, Times)> = BTreeMap::new();
        let mut rows = Vec::new();
        let (mut all, mut futex_ns, mut work_ns) = (times_of(0), 0, 0);
        for (number, spans) in by_call {
            let name = names.name(number).into_owned();
            let (part, is_wait) = (rules.of_call(&name), rules.is_wait(&name));
            let times = times_of(number as usize + 1);
            all.add(&times);
            if name.starts_with("futex") {
                futex_ns += times.blocked_ns;
            } else if is_wait {
                work_ns += times.blocked_ns;
            }
            // Waits are one row, whatever they wait for.
            let key = (is_wait, if is_wait { Part::Other } else { part });
            let (of_part, times_of_part) = parts.entry(key).or_default();
            of_part.extend_from_slice(&spans);
            times_of_part.add(&times);
            rows.push(self.row(name, part, is_wait, spans, times));
        }
        rows.sort_by_key(|row| std::cmp::Reverse((row.covered_ns, row.calls)));
        let named = |((is_wait, part), (spans, times))| {
            let name = if is_wait { WAITS } else { Part::name(part) };
            self.row(name.to_owned(), part, is_wait, spans, times)
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
            parts: parts.into_iter().map(named).collect(),
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
        Call { span: Span::new(begin_ns, end_ns), number }
    }

    fn row<'v>(rows: &'v [CallRow], name: &str) -> &'v CallRow {
        rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no {name}: {rows:?}"))
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
        let sends = row(&view.calls, "sendto");
        assert_eq!((sends.calls, sends.sum_ns, sends.covered_ns), (2, 200, 150));
        let network = row(&view.parts, "network");
        assert_eq!((network.calls, network.sum_ns, network.covered_ns), (3, 260, 200));
        assert_eq!(network.covered_percent, 20.0);
        let memory = row(&view.parts, "memory management");
        assert_eq!((memory.calls, memory.covered_ns), (1, 200));
        let futex = row(&view.parts, "concurrency control");
        assert_eq!((futex.calls, futex.covered_ns), (1, 100), "it ends with the window");
    }

    #[test]
    fn threads_that_still_wait_are_counted_until_the_end() {
        let thread = |state, since_ns, call| Thread { state, since_ns, call };
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
        let wait = row(&view.parts, WAITS);
        assert_eq!((wait.calls, wait.covered_ns, wait.covered_percent), (1, 1000, 100.0));
        assert_eq!(row(&view.calls, "futex").covered_ns, 400, "open since 1600");
    }
}
