//! The line at the start that says what the machine gave to the server.
//!
//! Upstream:   `serve` prints it once the server listens; `shards` knows most of it.
//! Downstream: standard error.

use std::fmt;

use kachel_host::{Cores, PageKind, Unpinned};
use kachel_stdx::plural;

/// The pages, the I/O backend and the cores that the threads of the shards obtained.
#[derive(Clone, Debug)]
pub(crate) struct Obtained {
    /// The pages of the items.
    pub(crate) pages: PageKind,
    /// The I/O backend.
    pub(crate) io: &'static str,
    /// The cores of the threads that have one of their own.
    pub(crate) pinned: Vec<usize>,
}

/// The line.
pub(crate) struct Line<'a> {
    pub(crate) cores: &'a Cores,
    /// The reason, if no thread may be pinned.
    pub(crate) unpinned: Option<Unpinned>,
    pub(crate) memory_bytes: u64,
    pub(crate) obtained: &'a Obtained,
    /// For each NUMA node, how many threads are pinned to cores of it.
    pub(crate) pinned_by_node: Vec<usize>,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Obtained { pages, io, pinned } = self.obtained;
        debug_assert!(self.unpinned.is_none() || pinned.is_empty(), "pinned threads may be");
        write!(to, "cores: {}", self.cores.allowed_count)?;
        match self.unpinned {
            Some(reason) => write!(to, ", no thread pinned ({})", reason.words())?,
            None => {
                let count = pinned.len();
                write!(to, ", {count} {} pinned", plural(count as u64, "thread", "threads"))?;
            }
        }
        match self.cores.quota_millicores {
            Some(quota) => write!(to, "; quota: {}.{:03} cores", quota / 1000, quota % 1000)?,
            None => write!(to, "; quota: none")?,
        }
        write!(to, "; memory: {} MiB in {}", self.memory_bytes >> 20, pages.words())?;
        write!(to, "; I/O: {io}; NUMA nodes: {}", self.pinned_by_node.len().max(1))?;
        if self.pinned_by_node.len() > 1 && !pinned.is_empty() {
            let counts: Vec<String> = self.pinned_by_node.iter().map(usize::to_string).collect();
            write!(to, ", with {} pinned threads", counts.join(" and "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_was_obtained_and_why_no_more() {
        let free = Cores { allowed_count: 8, quota_millicores: None, contained: false };
        let line = Line {
            cores: &free,
            unpinned: None,
            memory_bytes: 64 << 20,
            obtained: &Obtained { pages: PageKind::Ordinary, io: "uring", pinned: vec![0, 1, 4] },
            pinned_by_node: vec![2, 1],
        };
        let said = "cores: 8, 3 threads pinned; quota: none; memory: 64 MiB in ordinary pages; \
                    I/O: uring; NUMA nodes: 2, with 2 and 1 pinned threads";
        assert_eq!(line.to_string(), said);
        let one = &Obtained { pinned: vec![0], ..line.obtained.clone() };
        let said = Line { obtained: one, pinned_by_node: vec![1], ..line }.to_string();
        assert!(said.contains(", 1 thread pinned; "), "{said}");
        let limited = Cores { quota_millicores: Some(1500), ..free.clone() };
        let line = Line {
            cores: &limited,
            unpinned: Some(Unpinned::Quota),
            memory_bytes: 64 << 20,
            obtained: &Obtained { pages: PageKind::Reserved, io: "epoll", pinned: vec![] },
            pinned_by_node: vec![0],
        };
        let said = "cores: 8, no thread pinned (a quota limits the process); quota: 1.500 cores; \
                    memory: 64 MiB in reserved huge pages; I/O: epoll; NUMA nodes: 1";
        assert_eq!(line.to_string(), said);
    }
}
