//! Loads the programs that watch a process, and reads what they record.
//!
//! Upstream:   the kernel, through `aya`; `bpf/breakdown.c` has the layouts.
//! Downstream: `measure`.
//!
//! Invariants:
//! - I1  Nothing is pinned, so programs, maps and events go when the probe is dropped, or the
//!   process ends in any way.
//! - I2  The order of words in maps and records is that of `bpf/breakdown.c`.

use std::error::Error;
use std::io::ErrorKind;

use aya::maps::{Array, HashMap, MapData, RingBuf};
use aya::programs::perf_event::{
    HardwareEvent, PerfEvent, PerfEventConfig, PerfEventScope, SamplePolicy, SoftwareEvent,
};
use aya::programs::{ProgramError, TracePoint};
use aya::util::online_cpus;
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};

use super::cpu::{Counted, Sample};
use super::spans::Span;
use super::wall::{Call, State, Thread, Times};

/// The programs, as `bpf/build` has made them.
static OBJECT: &[u8] = include_bytes_aligned!("../../../../bpf/breakdown.o");

/// The periods of the clocks that take the samples, relative to each other. A loop of the process
/// that runs in step with one of them is sampled at the same place again and again, so there are
/// several.
const CLOCKS: [f64; 4] = [1.0, 1.0618, 1.1459, 1.2361];

/// Bytes of a ring: thirty thousand samples, or a million calls.
const RING_BYTES: u32 = 32 << 20;
/// A ring that is not used.
const RING_BYTES_MIN: u32 = 4096;

const RIGHTS: &str = "no right to watch processes: run it as root, or with the capabilities CAP_BPF, \
                      CAP_PERFMON, CAP_SYS_PTRACE and CAP_SYSLOG";

/// An event that is counted: its name, the program that counts it, its kind, and how often that
/// runs.
type Event = (&'static str, &'static str, PerfEventConfig, u64);

/// In the order of the map (I2). The intervals of hardware events are guesses: some thousand runs
/// of a program a second.
const EVENTS: [Event; 5] = [
    ("cycles", "cycles", PerfEventConfig::Hardware(HardwareEvent::CpuCycles), 1_000_000),
    (
        "instructions",
        "instructions",
        PerfEventConfig::Hardware(HardwareEvent::Instructions),
        1_000_000,
    ),
    ("cache misses", "cache_misses", PerfEventConfig::Hardware(HardwareEvent::CacheMisses), 10_000),
    (
        "branch misses",
        "branch_misses",
        PerfEventConfig::Hardware(HardwareEvent::BranchMisses),
        10_000,
    ),
    ("page faults", "page_faults", PerfEventConfig::Software(SoftwareEvent::PageFaults), 1),
];

/// The events that were lost, by kind.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lost {
    Samples,
    Calls,
    Threads,
}

/// The view that a probe serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Samples,
    Calls,
}

/// The programs in the kernel, loaded and attached (I1).
pub(super) struct Probe {
    object: Ebpf,
    ring: RingBuf<MapData>,
    counted: Vec<Counted>,
}

/// The causes of an error, and whether one of them is a missing right.
fn refusal(what: &str, error: &(dyn Error + 'static)) -> String {
    let causes: Vec<_> = std::iter::successors(Some(error), |error| (*error).source()).collect();
    let is_right = |error: &&(dyn Error + 'static)| {
        let io = error.downcast_ref::<std::io::Error>();
        io.is_some_and(|error| error.kind() == ErrorKind::PermissionDenied)
    };
    let mut text = if causes.iter().any(is_right) {
        format!("{RIGHTS} ({what}:")
    } else {
        format!("the kernel cannot watch the process ({what}:")
    };
    // The log of the verifier has many lines.
    for cause in causes {
        let cause = cause.to_string();
        let line = cause.lines().next().unwrap_or_default();
        if !text.contains(line) {
            text = format!("{text} {line}");
        }
    }
    text + ")"
}

/// A little-endian word of a record.
fn word(record: &[u8], index: usize) -> u64 {
    let bytes = record[index * 8..index * 8 + 8].try_into().expect("eight bytes");
    u64::from_le_bytes(bytes)
}

impl Probe {
    /// Loads and attaches the programs for one view. They record nothing until [`Self::begin`].
    ///
    /// Errors: this process has not the right, or the kernel lacks something; one sentence.
    pub(super) fn attach(purpose: Purpose, sample_ns: u64) -> Result<Self, String> {
        if !cfg!(target_arch = "x86_64") {
            return Err("breakdown is for x86-64 only".to_owned());
        }
        if purpose == Purpose::Calls {
            kachel_host::provide_tracing_files().map_err(|error| without_files(&error))?;
        }
        let bytes = |used| if purpose == used { RING_BYTES } else { RING_BYTES_MIN };
        let mut object = EbpfLoader::new()
            .map_max_entries("samples", bytes(Purpose::Samples))
            .map_max_entries("calls", bytes(Purpose::Calls))
            .load(OBJECT)
            .map_err(|error| refusal("load", &error))?;
        let counted = match purpose {
            Purpose::Samples => {
                let config = PerfEventConfig::Software(SoftwareEvent::CpuClock);
                attach_event(&mut object, "sample", config, &periods(sample_ns))
                    .map_err(|error| refusal("cpu-clock", &error))?;
                EVENTS.iter().map(|event| count(&mut object, event)).collect()
            }
            Purpose::Calls => {
                trace(&mut object)?;
                Vec::new()
            }
        };
        let name = if purpose == Purpose::Samples { "samples" } else { "calls" };
        let ring = object.take_map(name).expect("the object has both rings");
        let ring = RingBuf::try_from(ring).map_err(|error| refusal("ring", &error))?;
        Ok(Self { object, ring, counted })
    }

    /// Tells of a thread that exists before the beginning, and of the call that it sleeps in.
    pub(super) fn know_thread(&mut self, thread: u32, call: Option<u64>) {
        let call = call.map_or(0, |number| number + 1);
        let has_slept = u64::from(call > 0);
        let mut threads: HashMap<_, u32, [u64; 6]> = self.map("threads");
        // If the map is full, the program counts the thread as lost at its first event.
        let _ = threads.insert(thread, [0, 0, 1, 0, call, has_slept], 0);
    }

    /// From now on, events of this process are recorded that happen between these times.
    pub(super) fn begin(&mut self, process: u32, begin_ns: u64, end_ns: u64) -> Result<(), String> {
        self.set([1, u64::from(process), begin_ns, end_ns])
    }

    /// From now on, nothing is recorded.
    pub(super) fn end(&mut self) -> Result<(), String> {
        self.set([0; 4])
    }

    fn set(&mut self, settings: [u64; 4]) -> Result<(), String> {
        let mut map: Array<_, [u64; 4]> = self.map("settings");
        map.set(0, settings, 0).map_err(|error| refusal("settings", &error))
    }

    fn map<'p, M>(&'p mut self, name: &str) -> M
    where
        M: TryFrom<&'p mut aya::maps::Map, Error = aya::maps::MapError>,
    {
        let map = self.object.map_mut(name).expect("the object has the map");
        M::try_from(map).expect("I2: the map has this layout")
    }

    /// Hands on the samples since the last call.
    pub(super) fn take_samples(&mut self, mut each: impl FnMut(Sample)) {
        while let Some(record) = self.ring.next() {
            let frames = (2..record.len() / 8).map(|index| word(&record, index));
            let mut frames = frames.take_while(|frame| *frame != 0);
            each(match word(&record, 0) {
                1 => Sample::User(frames.next().unwrap_or_default()),
                _ => Sample::Kernel { call: word(&record, 1), stack: frames.collect() },
            });
        }
    }

    /// Hands on the system calls that have ended since the last call.
    pub(super) fn take_calls(&mut self, mut each: impl FnMut(Call)) {
        while let Some(record) = self.ring.next() {
            let span = Span::new(word(&record, 0), word(&record, 1));
            let last = word(&record, 2);
            each(Call { span, number: (last >> 32) as u32, has_slept: last as u32 == 1 });
        }
    }

    /// How many events found no room.
    pub(super) fn lost(&mut self, kind: Lost) -> u64 {
        let map: Array<_, u64> = self.map("lost");
        map.get(&(kind as u32), 0).unwrap_or_default()
    }

    /// The events that were counted beside the samples.
    pub(super) fn events(&mut self) -> Vec<Counted> {
        let mut counted = self.counted.clone();
        let map: Array<_, u64> = self.map("events");
        for (index, event) in counted.iter_mut().enumerate() {
            let runs = map.get(&(index as u32), 0).unwrap_or_default();
            event.count = event.missing.is_none().then_some(runs * event.every);
        }
        counted
    }

    /// The times of all threads, by the number of the call and 1.
    pub(super) fn times(&mut self) -> Vec<Times> {
        let map: Array<_, [u64; 5]> = self.map("times");
        let times = |row: [u64; 5]| Times {
            running_ns: row[0],
            runnable_ns: row[1],
            blocked_ns: row[2],
            blocked_count: row[3],
            preempted_count: row[4],
        };
        map.iter().map(|row| times(row.unwrap_or_default())).collect()
    }

    /// The threads at the end. `is_runnable` tells of a thread to which nothing has happened.
    pub(super) fn threads(&mut self, is_runnable: impl Fn(u32) -> bool) -> Vec<Thread> {
        let map: HashMap<_, u32, [u64; 6]> = self.map("threads");
        let thread = |(number, row): (u32, [u64; 6])| {
            let [since_ns, state, _, call_ns, call, has_slept] = row;
            Thread {
                state: match state {
                    0 if is_runnable(number) => State::Running,
                    0 | 3 => State::Blocked,
                    1 => State::Running,
                    2 => State::Runnable,
                    _ => State::Gone,
                },
                since_ns,
                call: (call as u32).checked_sub(1).map(|number| (number, call_ns)),
                has_slept: has_slept == 1,
            }
        };
        map.iter().flatten().map(thread).collect()
    }
}

/// The periods of [`CLOCKS`], which together take a sample each `sample_ns`.
fn periods(sample_ns: u64) -> [u64; CLOCKS.len()] {
    let rate: f64 = CLOCKS.iter().map(|period| 1.0 / period).sum();
    CLOCKS.map(|period| (sample_ns as f64 * period * rate) as u64)
}

/// Loads a program and attaches it to an event of all processes, on each core, once for each
/// period.
fn attach_event(
    object: &mut Ebpf,
    name: &str,
    config: PerfEventConfig,
    periods: &[u64],
) -> Result<(), ProgramError> {
    let program = object.program_mut(name).expect("the object has the program");
    let program: &mut PerfEvent = program.try_into()?;
    program.load()?;
    for cpu in online_cpus().map_err(|(_, error)| ProgramError::IOError(error))? {
        let scope = PerfEventScope::AllProcessesOneCpu { cpu };
        for period in periods {
            program.attach(config, scope, SamplePolicy::Period(*period), false)?;
        }
    }
    Ok(())
}

/// Counts an event, if this machine does.
fn count(object: &mut Ebpf, (name, program, config, every): &Event) -> Counted {
    let missing = attach_event(object, program, *config, &[*every]).err();
    let missing = missing.map(|error| {
        let cause = error.source().map_or_else(|| error.to_string(), |cause| cause.to_string());
        cause.lines().next().unwrap_or_default().to_owned()
    });
    Counted { name, count: None, every: *every, missing }
}

/// The refusal of the view that needs the kernel's files about tracepoints, if they cannot be
/// mounted.
fn without_files(error: &std::io::Error) -> String {
    format!(
        "the view of system calls needs the files of tracefs, and they cannot be mounted ({error}): run \
         `mount -t tracefs tracefs /sys/kernel/tracing` as root, or use --view cpu"
    )
}

/// Attaches to system calls and the scheduler. The end of calls comes first, so that no call is
/// left open.
fn trace(object: &mut Ebpf) -> Result<(), String> {
    for (name, category, event) in [
        ("leave", "raw_syscalls", "sys_exit"),
        ("enter", "raw_syscalls", "sys_enter"),
        ("wake", "sched", "sched_wakeup"),
        ("change", "sched", "sched_switch"),
    ] {
        let program = object.program_mut(name).expect("the object has the program");
        let program: &mut TracePoint = program.try_into().expect("it is for a tracepoint");
        program.load().map_err(|error| refusal(name, &error))?;
        program.attach(category, event).map_err(|error| refusal(event, &error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_right_is_named_and_other_causes_are_told() {
        let denied = std::io::Error::from(ErrorKind::PermissionDenied);
        let said = refusal("load", &denied);
        assert!(said.contains("CAP_PERFMON") && said.contains("load"), "{said}");
        let other = std::io::Error::other("no such thing\nand a log");
        let said = refusal("load", &other);
        assert!(said.ends_with("no such thing)") && !said.contains("CAP_PERFMON"), "{said}");
    }

    #[test]
    fn the_clocks_together_have_the_rate() {
        let rate: f64 = periods(500_000).iter().map(|period| 1e9 / *period as f64).sum();
        assert!((rate - 2000.0).abs() < 0.1, "{rate}");
    }

    #[test]
    fn words_of_records_are_little_endian() {
        assert_eq!(word(&[1, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0], 1), 258);
    }
}
