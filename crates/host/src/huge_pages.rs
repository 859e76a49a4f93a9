//! Which huge pages the machine has.
//!
//! Upstream:   `region` asks before it takes transparent pages; `kachel` asks how many reserved
//!             pages are free.
//! Downstream: the kernel's settings under `/sys/kernel/mm`.
//!
//! There are two kinds. The administrator sets *reserved* pages apart (`vm.nr_hugepages`); a
//! process that takes them keeps them. *Transparent* pages need no preparation: the kernel backs a
//! mapping with them when it has whole pieces of 2 MiB to give.

use std::fs;
use std::path::Path;

/// Bytes of a huge page.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Where the kernel keeps these settings.
pub(crate) const SETTINGS: &str = "/sys/kernel/mm";

/// The pages that back a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Pages of 4 KiB, unless the kernel uses transparent huge pages everywhere.
    Ordinary,
    /// Transparent huge pages, as far as the kernel has them.
    Transparent,
    /// Reserved huge pages. All of them are taken from the start on.
    Reserved,
}

impl PageKind {
    /// The words for the operator.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Ordinary => "ordinary pages",
            Self::Transparent => "transparent huge pages",
            Self::Reserved => "reserved huge pages",
        }
    }
}

/// Bytes of reserved huge pages that no process has taken. Cost: two small files.
pub fn free_reserved_bytes() -> u64 {
    free_reserved_bytes_in(Path::new(SETTINGS))
}

fn free_reserved_bytes_in(settings: &Path) -> u64 {
    let folder = settings.join("hugepages/hugepages-2048kB");
    let count = |name| {
        let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
        text.trim().parse::<u64>().unwrap_or(0)
    };
    // Free pages include those that were promised to mappings which have not touched them yet.
    let free = count("free_hugepages").saturating_sub(count("resv_hugepages"));
    free.saturating_mul(HUGE_PAGE_BYTES as u64)
}

/// Whether the kernel gives transparent huge pages to mappings that ask for them. The setting for
/// pages of 2 MiB, where the kernel has one, decides before the general setting.
pub(crate) fn has_transparent(settings: &Path) -> bool {
    let folder = settings.join("transparent_hugepage");
    let selected = |name: &str| {
        let text = fs::read_to_string(folder.join(name)).ok()?;
        let (_, selected) = text.split_once('[')?;
        selected.split_once(']').map(|(word, _)| word.to_string())
    };
    let own = selected("hugepages-2048kB/enabled").filter(|word| word != "inherit");
    own.or_else(|| selected("enabled")).is_some_and(|word| word == "always" || word == "madvise")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;

    #[test]
    fn free_pages_that_are_promised_are_not_free() {
        let folder = Folder::new(
            "hugepages",
            &[
                ("hugepages/hugepages-2048kB/free_hugepages", "40\n"),
                ("hugepages/hugepages-2048kB/resv_hugepages", "8\n"),
            ],
        );
        assert_eq!(free_reserved_bytes_in(folder.path()), 32 * (2 << 20));
        assert_eq!(free_reserved_bytes_in(Path::new("/nowhere")), 0);
    }

    #[test]
    fn transparent_pages_are_had_unless_a_setting_forbids_them() {
        for (general, own, has) in [
            ("always [madvise] never\n", None, true),
            ("[always] madvise never\n", Some("always [inherit] madvise never\n"), true),
            ("always madvise [never]\n", None, false),
            ("always madvise [never]\n", Some("always inherit [madvise] never\n"), true),
            ("[always] madvise never\n", Some("always inherit madvise [never]\n"), false),
        ] {
            let mut files = vec![("transparent_hugepage/enabled", general)];
            files.extend(own.map(|own| ("transparent_hugepage/hugepages-2048kB/enabled", own)));
            let folder = Folder::new("transparent", &files);
            assert_eq!(has_transparent(folder.path()), has, "{files:?}");
        }
        assert!(!has_transparent(Path::new("/nowhere")), "a kernel without them");
    }
}
