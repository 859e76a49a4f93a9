//! The cores that the process may use, and their quota.
//!
//! Upstream:   `kachel` gets the number of threads to start from here if there is no `-t`, and pins
//!             the threads.
//! Downstream: the affinity mask, the control groups' files under `/sys/fs/cgroup`, and the PID and
//!             network namespaces.
//!
//! Invariants:
//! - I1  A process may always use one core.
//! - I2  A thread is pinned only if it can have that core for itself: there is no quota, there are
//!   at least as many cores as threads, the process is in no container, and no other Kachel on the
//!   machine has pinned its threads. The claim is a name in the network namespace, so in containers
//!   several processes would not see each other, and each would take the first of the cores that
//!   they share. An affinity mask that leaves some cores out does not mean that the others are
//!   free.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::thread::CpuSet;

/// Cores that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores {
    /// Cores in the affinity mask; at least 1.
    pub allowed_count: u16,
    /// Thousandths of a core that the control groups grant; `None`: no quota.
    pub quota_millicores: Option<u64>,
    /// Whether there may be processes on the machine that this process does not see.
    pub contained: bool,
}

/// The number of the machine's first PID namespace (PROC_PID_INIT_INO in linux/proc_ns.h).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// A setting of the whole machine, which the kernel shows only in its first network namespace
/// (net/core/sysctl_net_core.c). The number of that namespace differs between machines.
const FIRST_NETWORK_SETTING: &str = "/proc/sys/net/core/dev_weight";

/// Why no thread is pinned (I2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpinned {
    /// A quota limits the process.
    Quota,
    /// There are more threads than cores.
    FewCores,
    /// Processes that this process does not see may use the cores.
    Contained,
    /// Another Kachel on the machine has pinned its threads.
    Claimed,
}

/// The right to pin threads. There is one on a machine. Dropping the claim gives it back.
#[derive(Debug)]
pub struct PinClaim {
    _socket: OwnedFd,
}

impl Cores {
    /// Asks the kernel. A quota that cannot be read counts as none; namespaces that cannot be read
    /// count as a container. Cost: a few small files.
    pub fn of_this_process() -> Self {
        let allowed_count = allowed_cores().len().clamp(1, usize::from(u16::MAX));
        let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let namespace = fs::metadata("/proc/self/ns/pid").map(|file| file.ino());
        let sees_all = namespace.is_ok_and(|number| number == FIRST_PID_NAMESPACE)
            && Path::new(FIRST_NETWORK_SETTING).exists();
        Self {
            allowed_count: u16::try_from(allowed_count).expect("clamped"),
            quota_millicores: quota_millicores(Path::new("/sys/fs/cgroup"), &membership),
            contained: !sees_all,
        }
    }

    /// The number of threads to start: one per core that may be used. A part of a core counts as a
    /// whole one (I1).
    pub fn thread_count(&self) -> u16 {
        match self.quota_millicores {
            None => self.allowed_count,
            Some(quota) => {
                let cores = u16::try_from(quota.div_ceil(1000)).unwrap_or(u16::MAX);
                self.allowed_count.min(cores).max(1)
            }
        }
    }

    /// The right to pin `threads` threads to cores of their own, or the reason against it (I2).
    pub fn claim_pins(&self, threads: u16) -> Result<PinClaim, Unpinned> {
        self.may_pin(threads)?;
        PinClaim::take(b"kachel: threads are pinned").ok_or(Unpinned::Claimed)
    }

    /// Checks I2, except the claim.
    fn may_pin(&self, threads: u16) -> Result<(), Unpinned> {
        if self.quota_millicores.is_some() {
            Err(Unpinned::Quota)
        } else if threads > self.allowed_count {
            Err(Unpinned::FewCores)
        } else if self.contained {
            Err(Unpinned::Contained)
        } else {
            Ok(())
        }
    }
}

impl Unpinned {
    /// The reason, for the operator.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Quota => "a quota limits the process",
            Self::FewCores => "there are more threads than cores",
            Self::Contained => "the process is in a container",
            Self::Claimed => "another Kachel has pinned its threads",
        }
    }
}

impl PinClaim {
    /// Binds the abstract name. The process that has bound it has the claim. The kernel removes the
    /// name when the process ends.
    fn take(name: &[u8]) -> Option<Self> {
        let address = SocketAddrUnix::new_abstract_name(name).ok()?;
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).ok()?;
        rustix::net::bind(&socket, &address).ok()?;
        Some(Self { _socket: socket })
    }
}

/// Pins the calling thread to core number `index` of its affinity mask, counted from 0 and modulo
/// the number of cores in the mask. Returns the number of that core in the machine.
///
/// Errors: the kernel refuses, because the mask has changed meanwhile.
pub fn pin_to_core_of(index: usize) -> io::Result<usize> {
    let allowed = allowed_cores();
    let Some(&core) = allowed.get(index % allowed.len().max(1)) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let mut mask = CpuSet::new();
    mask.set(core);
    rustix::thread::sched_setaffinity(None, &mask)?;
    Ok(core)
}

/// The calling thread's cores; empty when the kernel's mask is larger than ours.
fn allowed_cores() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(mask) => (0..CpuSet::MAX_CPU).filter(|&core| mask.is_set(core)).collect(),
        Err(_) => Vec::new(),
    }
}

/// The smallest quota from the process's group up to the root, of both versions of control groups.
/// `membership` is `/proc/self/cgroup`; `mount` is where the groups are mounted.
fn quota_millicores(mount: &Path, membership: &str) -> Option<u64> {
    membership
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, group) = (fields.next()?, fields.next()?);
            let group = group.trim_start_matches('/');
            if controllers.is_empty() {
                tightest(mount, group, &|folder| {
                    let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
                    let (quota, period) = text.trim().split_once(' ')?;
                    millicores(quota, period)
                })
            } else if controllers.split(',').any(|controller| controller == "cpu") {
                tightest(&mount.join(controllers), group, &|folder| {
                    let quota = fs::read_to_string(folder.join("cpu.cfs_quota_us")).ok()?;
                    let period = fs::read_to_string(folder.join("cpu.cfs_period_us")).ok()?;
                    millicores(quota.trim(), period.trim())
                })
            } else {
                None
            }
        })
        .min()
}

/// The smallest `quota_of` of `group` under `mount` and of every group above it. A group that the
/// process cannot see has no quota.
fn tightest(mount: &Path, group: &str, quota_of: &dyn Fn(&Path) -> Option<u64>) -> Option<u64> {
    let folder = mount.join(group);
    folder.ancestors().take_while(|above| above.starts_with(mount)).filter_map(quota_of).min()
}

/// The quota in thousandths of a core. `max` (version 2) and -1 (version 1) are no quota.
fn millicores(quota: &str, period: &str) -> Option<u64> {
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.parse().ok()?);
    quota.checked_mul(1000)?.checked_div(period)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;

    #[test]
    fn the_tightest_quota_on_the_way_up_counts() {
        let tree = Folder::new(
            "v2",
            &[
                ("a/b/cpu.max", "max 100000\n"),
                ("a/cpu.max", "150000 100000\n"),
                ("cpu.max", "400000 100000\n"),
            ],
        );
        assert_eq!(quota_millicores(tree.path(), "0::/a/b\n"), Some(1500));
        assert_eq!(quota_millicores(tree.path(), "0::/\n"), Some(4000));
        assert_eq!(quota_millicores(tree.path(), "0::/not/to/be/seen\n"), Some(4000));
        assert_eq!(quota_millicores(tree.path(), ""), None);
    }

    #[test]
    fn quotas_of_the_first_version_are_read_where_its_cpu_controller_is() {
        let tree = Folder::new(
            "v1",
            &[
                ("cpu,cpuacct/docker/cpu.cfs_quota_us", "250000\n"),
                ("cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n"),
                ("cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
                ("cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            ],
        );
        let membership = "5:memory:/docker\n4:cpu,cpuacct:/docker\n1:cpuset:/\n0::/docker\n";
        assert_eq!(quota_millicores(tree.path(), membership), Some(2500));
        assert_eq!(quota_millicores(tree.path(), "4:cpu,cpuacct:/\n"), None);
    }

    #[test]
    fn threads_are_as_many_as_cores_and_quota_allow_but_at_least_one() {
        let threads = |allowed_count, quota_millicores| {
            Cores { allowed_count, quota_millicores, contained: false }.thread_count()
        };
        assert_eq!(threads(8, None), 8);
        assert_eq!(threads(8, Some(2500)), 3);
        assert_eq!(threads(2, Some(64_000)), 2);
        assert_eq!(threads(2, Some(0)), 1);
        assert!(Cores::of_this_process().thread_count() >= 1);
    }

    #[test]
    fn a_claim_is_had_once_until_it_is_given_back() {
        let name = format!("kachel test {}", std::process::id());
        let first = PinClaim::take(name.as_bytes());
        assert!(first.is_some());
        assert!(PinClaim::take(name.as_bytes()).is_none());
        drop(first);
        assert!(PinClaim::take(name.as_bytes()).is_some());
    }

    #[test]
    fn a_quota_or_too_many_threads_or_a_container_forbid_pinning() {
        for (quota_millicores, threads, contained, may) in [
            (None, 4, false, Ok(())),
            (None, 5, false, Err(Unpinned::FewCores)),
            (Some(4000), 1, false, Err(Unpinned::Quota)),
            (None, 1, true, Err(Unpinned::Contained)),
        ] {
            let cores = Cores { allowed_count: 4, quota_millicores, contained };
            assert_eq!(cores.may_pin(threads), may, "{cores:?} and {threads} threads");
            assert!(may.is_ok() || cores.claim_pins(threads).map(drop) == may);
        }
    }

    #[test]
    fn a_pinned_thread_has_one_core() {
        let pinned = std::thread::spawn(|| {
            let core = pin_to_core_of(usize::MAX).expect("a core");
            (allowed_cores(), core)
        });
        let (allowed, core) = pinned.join().expect("no panic");
        assert_eq!(allowed, [core]);
        assert!(!allowed_cores().is_empty());
    }
}
