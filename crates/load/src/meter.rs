//! Measures the cost of a run for the server: processor time of its threads, and how its cores
//! spent their time.
//! Upstream:   `session` reads at the beginning and the end of the measured window.
//! Downstream: `report` divides by the requests answered between both readings.
//!
//! Task times are the scheduler's (`/proc/PID/task/*/schedstat`, ns). The report shows a core's
//! times (`/proc/stat`, ticks of 10 ms) beside them, because the kernel charges an interrupt to the
//! thread that it interrupted.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A cost is a difference of two readings of the same meter, the later minus the earlier.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::path::{Path, PathBuf};

use rustix::thread::CpuSet;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// `USER_HZ`: the length of a tick of `/proc/stat`, the same on every Linux.
const TICK_NS: u64 = 10_000_000;

/// The measured process and cores.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    proc_root: PathBuf,
    pid: Option<u32>,
    cpus: Vec<usize>,
}

/// One reading of all meters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    at_ns: u64,
    task_ns: u64,
    threads: usize,
    own_ns: u64,
    cores: Vec<Core>,
}

/// How one core spent its time: ticks in a reading, shares of the elapsed time in a cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Core {
    /// Number of the core.
    pub(crate) cpu: usize,
    /// User time, nice included.
    pub(crate) user: f64,
    /// System time.
    pub(crate) system: f64,
    /// Hard interrupts.
    pub(crate) irq: f64,
    /// Soft interrupts.
    pub(crate) softirq: f64,
    /// Time taken by the hypervisor.
    pub(crate) steal: f64,
    /// Idle time, including waits for disks.
    pub(crate) idle: f64,
}

impl Display for Core {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { cpu, user, system, irq, softirq, steal, idle } = self;
        write!(f, "core {cpu:<4} user {user:.3} system {system:.3} irq {irq:.3}")?;
        write!(f, " softirq {softirq:.3} steal {steal:.3} idle {idle:.3}")
    }
}

/// Cost of a window.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cost {
    /// Length of the window.
    pub(crate) elapsed_s: f64,
    /// Processor time of all threads of the server; absent if no process was named.
    pub(crate) server_cpu_s: Option<f64>,
    /// The server's processor time divided by the elapsed time: 1.0 is one core all the time.
    pub(crate) server_busy_cores: Option<f64>,
    /// Number of the server's threads at the end.
    pub(crate) server_threads: Option<usize>,
    /// The generator's processor time, divided by the elapsed time.
    pub(crate) generator_busy_cores: f64,
    /// The cores in the server's affinity mask.
    pub(crate) cores: Vec<Core>,
}

impl Meter {
    /// A meter for a process; it measures the cores of the process's affinity mask.
    ///
    /// Errors: the process does not exist, as a message for the user.
    pub(crate) fn new(pid: Option<u32>) -> Result<Self, String> {
        Self::at(Path::new("/proc"), pid)
    }

    fn at(proc_root: &Path, pid: Option<u32>) -> Result<Self, String> {
        let mut meter = Self { proc_root: proc_root.to_owned(), pid, cpus: Vec::new() };
        if let Some(pid) = pid {
            let path = proc_root.join(pid.to_string()).join("status");
            let status = fs::read_to_string(&path)
                .map_err(|error| format!("--server-pid {pid}: {}: {error}", path.display()))?;
            let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            meter.cpus =
                list.map_or_else(Vec::new, |list| cpu_list(list.trim()).unwrap_or_default());
        }
        Ok(meter)
    }

    /// Measures these cores, if there are any, in the place of the process's.
    pub(crate) fn with_cores(mut self, cpus: &[usize]) -> Self {
        if !cpus.is_empty() {
            self.cpus = cpus.to_vec();
        }
        self
    }

    /// Reads all meters.
    ///
    /// Cost: a few system calls for each thread of the server.
    pub(crate) fn read(&self, now_ns: u64) -> Reading {
        let (task_ns, threads) = self.pid.map_or((0, 0), |pid| self.tasks(&pid.to_string()));
        // The process's clock, because threads that have ended are missing in its list of tasks.
        let own = clock_gettime(ClockId::ProcessCPUTime);
        let own_ns = own.tv_sec as u64 * 1_000_000_000 + own.tv_nsec as u64;
        Reading { at_ns: now_ns, task_ns, threads, own_ns, cores: self.cores() }
    }

    /// Resident memory of the process.
    pub(crate) fn rss_bytes(&self) -> Option<u64> {
        let path = self.proc_root.join(self.pid?.to_string()).join("status");
        let status = fs::read_to_string(path).ok()?;
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = rss.trim().strip_suffix(" kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    }

    fn tasks(&self, process: &str) -> (u64, usize) {
        let Ok(tasks) = fs::read_dir(self.proc_root.join(process).join("task")) else {
            return (0, 0);
        };
        tasks.flatten().fold((0, 0), |(sum_ns, threads), task| {
            let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let run_ns = text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok());
            (sum_ns + run_ns.unwrap_or(0), threads + 1)
        })
    }

    fn cores(&self) -> Vec<Core> {
        let stat = fs::read_to_string(self.proc_root.join("stat")).unwrap_or_default();
        stat.lines().filter_map(core).filter(|core| self.cpus.contains(&core.cpu)).collect()
    }

    /// The difference of two readings (I1).
    pub(crate) fn cost(&self, earlier: &Reading, later: &Reading) -> Cost {
        assert!(later.at_ns >= earlier.at_ns, "I1");
        let elapsed_ns = (later.at_ns - earlier.at_ns).max(1) as f64;
        let task_ns = later.task_ns.saturating_sub(earlier.task_ns) as f64;
        let own_ns = later.own_ns.saturating_sub(earlier.own_ns) as f64;
        let cores = earlier.cores.iter().zip(&later.cores);
        let of_server = self.pid.map(|_| ());
        Cost {
            elapsed_s: elapsed_ns / 1e9,
            server_cpu_s: of_server.map(|()| task_ns / 1e9),
            server_busy_cores: of_server.map(|()| task_ns / elapsed_ns),
            server_threads: of_server.map(|()| later.threads),
            generator_busy_cores: own_ns / elapsed_ns,
            cores: cores.map(|(earlier, later)| shares(earlier, later, elapsed_ns)).collect(),
        }
    }
}

fn shares(earlier: &Core, later: &Core, elapsed_ns: f64) -> Core {
    assert!(earlier.cpu == later.cpu, "I1: the same core");
    let share = |earlier: f64, later: f64| (later - earlier) * TICK_NS as f64 / elapsed_ns;
    Core {
        cpu: later.cpu,
        user: share(earlier.user, later.user),
        system: share(earlier.system, later.system),
        irq: share(earlier.irq, later.irq),
        softirq: share(earlier.softirq, later.softirq),
        steal: share(earlier.steal, later.steal),
        idle: share(earlier.idle, later.idle),
    }
}

/// Reads `cpu3 user nice system idle iowait irq softirq steal ...`, in ticks.
fn core(line: &str) -> Option<Core> {
    let mut fields = line.strip_prefix("cpu")?.split_ascii_whitespace();
    let cpu = fields.next()?.parse().ok()?;
    let ticks: Vec<f64> = fields.map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = ticks[..] else {
        return None;
    };
    // The sum line, "cpu  1 2 3", has a count in place of a core's number, and one field less.
    Some(Core { cpu, user: user + nice, system, irq, softirq, steal, idle: idle + iowait })
        .filter(|_| !line.starts_with("cpu "))
}

/// Parses the kernel's list form: `0-2,5`.
///
/// Errors: any other form, as a message for the user.
pub(crate) fn cpu_list(text: &str) -> Result<Vec<usize>, String> {
    let wrong = || format!("'{text}' is not a list of cores; an example is 0-2,5");
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: usize = first.parse().map_err(|_| wrong())?;
        let last: usize = last.parse().map_err(|_| wrong())?;
        if first > last {
            return Err(wrong());
        }
        if last >= CpuSet::MAX_CPU {
            return Err(format!("'{text}': a core has a number below {}", CpuSet::MAX_CPU));
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proc_tree(task_ns: u64, softirq: u64) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        let at = |path: &str| root.path().join(path);
        fs::create_dir_all(at("7/task/7")).expect("made");
        fs::create_dir_all(at("7/task/8")).expect("made");
        fs::write(at("7/status"), "Name:\tx\nVmRSS:\t    1234 kB\nCpus_allowed_list:\t1\n")
            .expect("written");
        fs::write(at("7/task/7/schedstat"), format!("{task_ns} 5 6\n")).expect("written");
        fs::write(at("7/task/8/schedstat"), "1000 5 6\n").expect("written");
        let stat = format!(
            "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n\
             cpu1 10 5 20 100 3 1 {softirq} 2 0 0\nintr 5\n"
        );
        fs::write(at("stat"), stat).expect("written");
        root
    }

    #[test]
    fn a_window_costs_what_all_threads_and_the_servers_core_spent() {
        let (before, after) = (proc_tree(5_000, 40), proc_tree(500_005_000, 65));
        let meter = Meter::at(before.path(), Some(7)).expect("a process");
        assert_eq!(meter.rss_bytes(), Some(1234 * 1024));
        let earlier = meter.read(0);
        let later = Meter::at(after.path(), Some(7)).expect("a process").read(1_000_000_000);
        let cost = meter.cost(&earlier, &later);
        assert_eq!((cost.server_cpu_s, cost.server_busy_cores), (Some(0.5), Some(0.5)));
        assert_eq!(cost.server_threads, Some(2));
        assert_eq!(cost.cores.len(), 1, "only the core the server may run on");
        assert_eq!((cost.cores[0].cpu, cost.cores[0].user), (1, 0.0));
        assert!((cost.cores[0].softirq - 0.25).abs() < 1e-9);
    }

    #[test]
    fn a_process_that_is_not_there_is_named() {
        let root = proc_tree(0, 0);
        let error = Meter::at(root.path(), Some(8)).expect_err("no such process");
        assert!(error.contains("--server-pid 8"), "{error}");
    }

    #[test]
    fn lists_of_cores_are_read_and_refused() {
        assert_eq!(cpu_list("0-2,5"), Ok(vec![0, 1, 2, 5]));
        assert!(cpu_list("2-0").is_err() && cpu_list("").is_err() && cpu_list("a").is_err());
        // The kernel's sets have a bit for each core.
        let last = CpuSet::MAX_CPU - 1;
        let cpus = cpu_list(&format!("0,{last}")).expect("cores");
        cpus.iter().for_each(|&cpu| CpuSet::new().set(cpu));
        for text in [format!("0,{}", last + 1), format!("0-{}", usize::MAX), "2000".into()] {
            let error = cpu_list(&text).expect_err("too much");
            assert!(error.contains("below 1024"), "{error}");
        }
    }
}
