//! How busy a core, or all cores together, were: the processor time in `/proc/stat`.
//!
//! Upstream:   `run` for each core before the first step; `power` for the machine.
//! Downstream: none.

/// Processor time in ticks of the kernel, since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticks {
    busy: u64,
    all: u64,
}

impl Ticks {
    /// The times in a line of `/proc/stat`, without the name of its core. `None` if it is no such
    /// line.
    pub(crate) fn parse(numbers: &str) -> Option<Self> {
        // user, nice, system, idle, waiting for disks, irq, softirq, steal; then guests, which are
        // in user.
        let ticks: Option<Vec<u64>> =
            numbers.split_whitespace().take(8).map(|word| word.parse().ok()).collect();
        let ticks = ticks.filter(|ticks| ticks.len() >= 5)?;
        let all = ticks.iter().sum::<u64>();
        Some(Self { busy: all - ticks[3] - ticks[4], all })
    }

    /// The busy share of the time since an earlier reading; 0 if no time has passed.
    pub(crate) fn busy_share_since(self, earlier: Self) -> f64 {
        let all = self.all.saturating_sub(earlier.all).max(1);
        self.busy.saturating_sub(earlier.busy) as f64 / all as f64
    }
}
