//! A power cut: it decides which of the changes that are not durable survive.
//!
//! Upstream:   `Disk::crash`, with a seed.
//! Downstream: the files and folders of the next disk.
//!
//! Each pending sector has a fate of its own: it is dropped, kept (one of its versions), torn (a
//! part of a version) or garbled. Neighbors often share a fate, as the sectors of one write do;
//! otherwise a record of many sectors would almost never be whole. The length of a file, and each
//! change of a name, have fates of their own.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Durable content does not change, even at the end of a file that becomes shorter.

use super::dice::Dice;
use super::file::DiskFile;
use super::media::{BLOCK_BYTES, BLOCK_SECTORS, Media, SECTOR_BYTES, Sector};
use super::plan::DiskCounts;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Dropped,
    Kept,
    Torn,
    Garbled,
}

/// How alike the fates of a file's sectors are.
#[derive(Clone, Copy)]
enum Mood {
    /// All have this fate; if they are kept, in their last versions.
    All(Fate),
    /// Aligned runs of this number of sectors share a fate.
    Runs(u64),
}

const MOODS: [Mood; 6] = [
    Mood::All(Fate::Dropped),
    Mood::All(Fate::Kept),
    Mood::Runs(1),
    Mood::Runs(1),
    Mood::Runs(BLOCK_SECTORS as u64),
    Mood::Runs(8 * BLOCK_SECTORS as u64),
];
/// Dropped and kept are the most frequent fates.
const FATES: [Fate; 6] =
    [Fate::Dropped, Fate::Dropped, Fate::Kept, Fate::Kept, Fate::Torn, Fate::Garbled];

impl DiskFile {
    /// Loses what is not durable, or a part of it.
    pub(super) fn crash(&mut self, media: &mut Media, dice: &mut Dice, counts: &mut DiskCounts) {
        self.handles.clear();
        self.cached.clear();
        let mood = dice.one_of(&MOODS);
        let shows_stale = dice.chance(250);
        let mut run = None;
        for (sector, versions) in std::mem::take(&mut self.pending) {
            let fate = match (mood, run) {
                (Mood::All(fate), _) => fate,
                (Mood::Runs(length), Some((number, fate))) if number == sector / length => fate,
                (Mood::Runs(length), _) => {
                    let fate = dice.one_of(&FATES);
                    run = Some((sector / length, fate));
                    fate
                }
            };
            let old = self.durable(media, sector);
            let version = match mood {
                Mood::All(_) => *versions.last().expect("a pending sector has a version"),
                Mood::Runs(_) => dice.one_of(&versions),
            };
            match fate {
                Fate::Dropped => {
                    counts.sectors_dropped += 1;
                    counts.sectors_stale += u64::from(shows_stale && self.show_stale(sector));
                }
                Fate::Kept => {
                    self.make_durable(media, sector, &version);
                    counts.sectors_kept += 1;
                }
                Fate::Torn => {
                    self.make_durable(media, sector, &torn(&old, &version, dice));
                    counts.sectors_torn += 1;
                }
                Fate::Garbled => {
                    self.make_durable(media, sector, &garbled(&version, dice));
                    counts.sectors_garbled += 1;
                }
            }
        }
        self.lose_length(media, dice, counts);
    }

    /// Shows what the block of a sector that was never durable held before. Returns whether it did.
    fn show_stale(&mut self, sector: u64) -> bool {
        let extent = self.extents.get_mut(&(sector / BLOCK_SECTORS as u64));
        let extent = extent.expect("a pending sector has a block");
        let bit = 1 << (sector % BLOCK_SECTORS as u64);
        let is_stale = extent.written & bit == 0;
        extent.written |= bit;
        is_stale
    }

    /// Chooses a length between the durable one and the last one, and gives the space behind it
    /// back.
    fn lose_length(&mut self, media: &mut Media, dice: &mut Dice, counts: &mut DiskCounts) {
        assert!(self.durable_bytes <= self.bytes, "I1");
        let between = self.durable_bytes + dice.below(self.bytes - self.durable_bytes + 1);
        let between = (between - between % SECTOR_BYTES as u64).max(self.durable_bytes);
        let bytes = dice.one_of(&[self.durable_bytes, self.bytes, self.bytes, between]);
        counts.lengths_lost += u64::from(bytes < self.bytes);
        let behind = self.extents.split_off(&bytes.div_ceil(BLOCK_BYTES as u64));
        behind.values().for_each(|extent| media.give_back(extent.block));
        // Content behind the end does not come back when the file grows again.
        for sector in bytes / SECTOR_BYTES as u64
            ..bytes.next_multiple_of(BLOCK_BYTES as u64) / SECTOR_BYTES as u64
        {
            let from =
                (bytes.saturating_sub(sector * SECTOR_BYTES as u64) as usize).min(SECTOR_BYTES);
            let mut content = self.durable(media, sector);
            if content[from..].iter().any(|&byte| byte != 0) {
                content[from..].fill(0);
                self.make_durable(media, sector, &content);
            }
        }
        (self.bytes, self.durable_bytes) = (bytes, bytes);
    }
}

/// The beginning of one version and the end of the other one.
fn torn(old: &Sector, new: &Sector, dice: &mut Dice) -> Sector {
    let cut = 1 + dice.below(SECTOR_BYTES as u64 - 1) as usize;
    let (first, last) = if dice.chance(500) { (new, old) } else { (old, new) };
    let mut sector = *first;
    sector[cut..].copy_from_slice(&last[cut..]);
    sector
}

/// A version with some bytes changed, at least one.
fn garbled(version: &Sector, dice: &mut Dice) -> Sector {
    let mut sector = *version;
    let most = dice.one_of(&[1, 8, SECTOR_BYTES as u64]);
    for _ in 0..most {
        let at = dice.below(SECTOR_BYTES as u64) as usize;
        sector[at] ^= 1 << dice.below(8);
    }
    if sector == *version {
        sector[0] ^= 1;
    }
    sector
}
