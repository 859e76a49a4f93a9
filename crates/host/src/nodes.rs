//! The nodes of the machine: cores, and the memory that is near them (NUMA).
//!
//! Upstream:   `kachel` says at the start how many there are, and how the threads lie on them.
//! Downstream: the kernel's files under `/sys/devices/system/node`.

use std::fs;
use std::path::Path;

/// The nodes of a machine that have memory, in the order of their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes(Vec<Node>);

/// A node: the numbers of its cores.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    cores: Vec<usize>,
}

impl Nodes {
    /// Asks the kernel. None if its files cannot be read. Cost: a small file a node.
    pub fn of_this_machine() -> Self {
        Self::read(Path::new("/sys/devices/system/node"))
    }

    fn read(folder: &Path) -> Self {
        let list =
            |path: &str| fs::read_to_string(folder.join(path)).ok().and_then(|l| numbers(&l));
        let with_memory = list("has_memory").or_else(|| list("online")).unwrap_or_default();
        let nodes = with_memory.into_iter().map(|number| {
            let cores = list(&format!("node{number}/cpulist")).unwrap_or_default();
            Node { cores }
        });
        Self(nodes.collect())
    }

    /// For each node, in their order, how many of `cores` are its own.
    pub fn spread(&self, cores: &[usize]) -> Vec<usize> {
        let of_node = |node: &Node| cores.iter().filter(|core| node.cores.contains(core)).count();
        let counts: Vec<usize> = self.0.iter().map(of_node).collect();
        debug_assert!(counts.iter().sum::<usize>() <= cores.len(), "a core has one node");
        counts
    }
}

/// The numbers of a list as the kernel writes it, such as `0-3,8`; `None` if it is no such list.
fn numbers(list: &str) -> Option<Vec<usize>> {
    /// No machine has more cores or nodes. A list that says otherwise is not believed.
    const COUNT_MAX: usize = 1 << 16;
    let mut numbers = Vec::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= COUNT_MAX {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;

    #[test]
    fn a_core_belongs_to_the_node_that_lists_it() {
        let folder = Folder::new(
            "nodes",
            &[
                ("has_memory", "0,2\n"),
                ("online", "0-2\n"),
                ("node0/cpulist", "0-1,4\n"),
                ("node1/cpulist", "6\n"),
                ("node2/cpulist", "2-3,5\n"),
            ],
        );
        let nodes = Nodes::read(folder.path());
        // Node 1 has no memory.
        for (cores, counts) in [
            (&[][..], [0, 0]),
            (&[0, 1], [2, 0]),
            (&[0, 1, 2, 3, 4, 5, 6, 7], [3, 3]),
            (&[5, 7, 6], [0, 1]),
        ] {
            assert_eq!(nodes.spread(cores), counts, "{cores:?}");
        }
    }

    #[test]
    fn a_machine_that_says_nothing_has_no_nodes() {
        let one = Folder::new("node", &[("online", "0\n"), ("node0/cpulist", "0-7\n")]);
        assert_eq!(Nodes::read(one.path()).spread(&[0, 7]), [2]);
        assert!(Nodes::read(Path::new("/nowhere")).spread(&[0, 7]).is_empty());
        assert!(Nodes::of_this_machine().spread(&[]).iter().all(|count| *count == 0));
    }

    #[test]
    fn lists_that_the_kernel_does_not_write_are_not_believed() {
        assert_eq!(numbers("0-2,7,9-9\n"), Some(vec![0, 1, 2, 7, 9]));
        assert_eq!(numbers("\n"), Some(vec![]));
        for list in ["a", "1-", "-1", "1-b", "0-4294967295"] {
            assert_eq!(numbers(list), None, "{list}");
        }
    }
}
