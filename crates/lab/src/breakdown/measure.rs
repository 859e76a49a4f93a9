//! Watches a process for a window of time, once for each view.
//!
//! Upstream:   `mod`, with the options.
//! Downstream: `cpu` and `wall` add up what was recorded; `probe` records it.
//!
//! The views take turns. Tracing makes each system call longer, so it would change the shares of
//! the samples.
//!
//! ```text
//!   samples, at most N s    calls, at most N s
//!   |--------------------|  |--------------------|
//!   ends early when the process does
//! ```

use std::path::PathBuf;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::calls::CallNames;
use super::cpu::{self, CpuView, Names, Samples};
use super::parts::{Rules, TABLE};
use super::probe::{Lost, Probe, Purpose};
use super::process::{Process, sees_first_namespace};
use super::symbols::{KernelSymbols, UserSymbols};
use super::wall::{WallView, Window};
use super::{Options, View};

/// The time between two looks at a ring. A ring has room for a million calls.
const NAP: Duration = Duration::from_millis(10);

/// Distinct samples that are kept: hundreds of megabytes at most.
const SAMPLES_MAX: usize = 500_000;
/// System calls that are kept: 400 MB.
const CALLS_MAX: usize = 16_000_000;

const NANOSECONDS: u64 = 1_000_000_000;

/// What `kachel-lab breakdown` finds.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The version of the fields.
    pub(super) version: u32,
    pub(super) pid: u32,
    pub(super) program: String,
    pub(super) kernel: String,
    /// The table that sorted the names, if it is not the built-in one.
    pub(super) parts_file: Option<PathBuf>,
    /// `false`: the kernel hides the addresses of its functions from this user.
    pub(super) has_kernel_symbols: bool,
    pub(super) cpu: Option<CpuView>,
    pub(super) wall: Option<WallView>,
}

/// The time of the clock that the programs read.
fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * NANOSECONDS + time.tv_nsec as u64
}

/// Watches the process.
///
/// Errors: there is no such process, or no right to watch it; a table of parts that cannot be read.
pub(super) fn measure(options: &Options) -> Result<Report, String> {
    let process = Process::open(options.pid)?;
    let table = match &options.parts {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| format!("--parts {}: {error}", path.display()))?,
        None => TABLE.to_owned(),
    };
    let rules =
        Rules::read(&table, &process.program).map_err(|error| format!("--parts: {error}"))?;
    if !sees_first_namespace() {
        return Err("breakdown must run outside of containers: the kernel knows processes by \
                    numbers that are not seen in this one"
            .to_owned());
    }
    let kernel = KernelSymbols::read();
    let mut report = Report {
        version: 1,
        pid: options.pid,
        program: process.program.clone(),
        kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")
            .unwrap_or_default()
            .trim()
            .into(),
        parts_file: options.parts.clone(),
        has_kernel_symbols: !kernel.is_empty(),
        cpu: None,
        wall: None,
    };
    if options.view != View::Wall {
        report.cpu = Some(on_cpu(options, &process, &rules, &kernel)?);
    }
    if options.view != View::Cpu {
        report.wall = Some(by_clock(options, &process, &rules)?);
    }
    Ok(report)
}

/// Calls `look` until the window or the process is over, and once more. Returns the time of the
/// end.
fn watch(process: &Process, end_ns: u64, mut look: impl FnMut()) -> u64 {
    loop {
        let now = now_ns();
        if now >= end_ns || !process.is_alive() {
            look();
            return now.min(end_ns);
        }
        look();
        std::thread::sleep(NAP.min(Duration::from_nanos(end_ns - now)));
    }
}

/// The view of time on a core.
fn on_cpu(
    options: &Options,
    process: &Process,
    rules: &Rules,
    kernel: &KernelSymbols,
) -> Result<CpuView, String> {
    let sample_ns = NANOSECONDS / options.hz;
    let mut symbols = UserSymbols::default();
    let mut probe = Probe::attach(Purpose::Samples, sample_ns)?;
    symbols.look(process);
    let mut samples = Samples::default();
    let mut dropped = 0;
    let begin_ns = now_ns();
    let end_ns = begin_ns + options.duration_s * NANOSECONDS;
    probe.begin(process.pid(), begin_ns, end_ns)?;
    eprintln!("breakdown: samples, at most {} s", options.duration_s);
    let end_ns = watch(process, end_ns, || {
        probe.take_samples(|sample| {
            if samples.len() >= SAMPLES_MAX {
                dropped += 1;
            } else {
                *samples.entry(sample).or_default() += 1;
            }
        });
    });
    probe.end()?;
    // Code that was loaded meanwhile.
    symbols.look(process);
    let names =
        Names { rules, kernel, calls: &CallNames::new(), place: |address| symbols.place(address) };
    let mut view = cpu::view(&samples, sample_ns, &names, options.top);
    view.seconds = (end_ns - begin_ns) as f64 / 1e9;
    view.samples_lost = probe.lost(Lost::Samples) + dropped;
    view.events = probe.events();
    Ok(view)
}

/// The view of time by the clock.
fn by_clock(options: &Options, process: &Process, rules: &Rules) -> Result<WallView, String> {
    let mut probe = Probe::attach(Purpose::Calls, 0)?;
    for thread in process.threads() {
        probe.know_thread(thread, process.call_of(thread));
    }
    let mut window = Window { begin_ns: now_ns(), ..Window::default() };
    let end_ns = window.begin_ns + options.duration_s * NANOSECONDS;
    probe.begin(process.pid(), window.begin_ns, end_ns)?;
    eprintln!("breakdown: system calls, at most {} s", options.duration_s);
    let mut dropped = 0;
    window.end_ns = watch(process, end_ns, || {
        probe.take_calls(|call| {
            if window.calls.len() < CALLS_MAX {
                window.calls.push(call);
            } else {
                dropped += 1;
            }
        });
    });
    probe.end()?;
    window.threads = probe.threads(|thread| process.is_runnable(thread));
    // The process may have gone on after `watch` read the clock, and before it was seen to be gone.
    let last_ns = window.threads.iter().map(|thread| thread.since_ns).max().unwrap_or_default();
    window.end_ns = window.end_ns.max(last_ns);
    assert!(window.end_ns <= end_ns, "the programs count only until then");
    window.times = probe.times();
    window.calls_lost = probe.lost(Lost::Calls) + dropped;
    window.threads_lost = probe.lost(Lost::Threads);
    Ok(window.view(rules, &CallNames::new()))
}
