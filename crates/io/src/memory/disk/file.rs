//! One file of a disk in memory: the content that readers see, and the durable part of it.
//!
//! Upstream:   operations write, allocate and sync; `crash` decides which content survives.
//! Downstream: `media` has the durable content.
//!
//! ```text
//! a read sees:  pending, newest version > cached (not with direct I/O) > media > zeros
//!
//!              write               sync
//!   (none) -----------> pending ----------> media
//!                          |
//!                          +-- sync fails -> each on the media or not; the newest is cached
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A sector with content, pending or durable, lies in a block of the file.
//! - I2  `durable_bytes <= bytes`; both only grow between crashes.
//! - I3  A sector that was never durable reads as zeros, whatever its block held before. Only a
//!   crash may show that content.

use std::collections::BTreeMap;

use super::dice::Dice;
use super::media::{BLOCK_BYTES, BLOCK_SECTORS, BlockId, Media, SECTOR_BYTES, Sector};
use crate::files::{FileError, FileHandle};

/// The most versions of a sector that may reach the media in a crash; then the oldest is dropped.
const VERSIONS_MAX: usize = 4;

const ZEROS: Sector = [0; SECTOR_BYTES];

/// A block of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) block: BlockId,
    /// A bit for each sector that was durable once (I3).
    pub(super) written: u8,
}

/// A file. Its sectors and blocks are numbered from its beginning.
#[derive(Clone, Debug, Default)]
pub(super) struct DiskFile {
    pub(super) extents: BTreeMap<u64, Extent>,
    /// The content that was written and is not durable yet, oldest version first.
    pub(super) pending: BTreeMap<u64, Vec<Sector>>,
    /// The content that readers through the page cache see after a failed sync. No later sync
    /// writes it.
    pub(super) cached: BTreeMap<u64, Sector>,
    pub(super) bytes: u64,
    pub(super) durable_bytes: u64,
    /// The handles of this file that exist.
    pub(super) handles: Vec<FileHandle>,
}

const fn place(sector: u64) -> (u64, usize) {
    (sector / BLOCK_SECTORS as u64, (sector % BLOCK_SECTORS as u64) as usize)
}

impl DiskFile {
    /// Whether a process has the file open.
    pub(super) fn is_open(&self) -> bool {
        self.handles.iter().any(|handle| !handle.is_last())
    }

    /// Gives all blocks back.
    pub(super) fn free(&mut self, media: &mut Media) {
        assert!(!self.is_open(), "space of an open file is not free");
        self.extents.values().for_each(|extent| media.give_back(extent.block));
        *self = Self::default();
    }

    /// The durable content of a sector.
    pub(super) fn durable(&self, media: &Media, sector: u64) -> Sector {
        let (block, index) = place(sector);
        match self.extents.get(&block) {
            Some(extent) if extent.written >> index & 1 == 1 => *media.sector(extent.block, index),
            _ => ZEROS, // I3
        }
    }

    fn seen(&self, media: &Media, sector: u64, direct: bool) -> Sector {
        if let Some(versions) = self.pending.get(&sector) {
            return *versions.last().expect("a pending sector has a version");
        }
        match self.cached.get(&sector) {
            Some(cached) if !direct => *cached,
            _ => self.durable(media, sector),
        }
    }

    /// Reads from `offset` on; returns how many bytes there were.
    pub(super) fn read(&self, media: &Media, offset: u64, to: &mut [u8], direct: bool) -> usize {
        let end = self.bytes.min(offset + to.len() as u64);
        let mut at = offset;
        while at < end {
            let sector = self.seen(media, at / SECTOR_BYTES as u64, direct);
            let from = (at % SECTOR_BYTES as u64) as usize;
            let count = (SECTOR_BYTES - from).min((end - at) as usize);
            to[(at - offset) as usize..][..count].copy_from_slice(&sector[from..][..count]);
            at += count as u64;
        }
        (at - offset) as usize
    }

    /// Takes space for the sectors of a range. Returns the bytes of the range, from its beginning,
    /// that have space.
    fn take_space(&mut self, media: &mut Media, offset: u64, bytes: u64) -> u64 {
        let end = offset + bytes;
        for block in offset / BLOCK_BYTES as u64..end.div_ceil(BLOCK_BYTES as u64) {
            if self.extents.contains_key(&block) {
                continue;
            }
            let Some(id) = media.take() else {
                return (block * BLOCK_BYTES as u64).saturating_sub(offset);
            };
            self.extents.insert(block, Extent { block: id, written: 0 });
        }
        bytes
    }

    /// Writes bytes, which are not durable yet. Returns how many bytes had space.
    ///
    /// Errors: there is no space.
    pub(super) fn write(
        &mut self,
        media: &mut Media,
        offset: u64,
        from: &[u8],
        direct: bool,
    ) -> Result<usize, FileError> {
        if from.is_empty() {
            return Ok(0);
        }
        let room = self.take_space(media, offset, from.len() as u64) as usize;
        if room == 0 {
            return Err(FileError::NO_SPACE);
        }
        let mut done = 0;
        while done < room {
            let at = offset + done as u64;
            let (sector, start) = (at / SECTOR_BYTES as u64, (at % SECTOR_BYTES as u64) as usize);
            let count = (SECTOR_BYTES - start).min(room - done);
            let mut version = self.seen(media, sector, direct);
            version[start..start + count].copy_from_slice(&from[done..done + count]);
            self.add_version(sector, version);
            done += count;
        }
        self.bytes = self.bytes.max(offset + room as u64); // I2
        Ok(room)
    }

    fn add_version(&mut self, sector: u64, version: Sector) {
        assert!(self.extents.contains_key(&place(sector).0), "I1");
        self.cached.remove(&sector);
        let versions = self.pending.entry(sector).or_default();
        if versions.len() == VERSIONS_MAX {
            versions.remove(0);
        }
        versions.push(version);
    }

    /// Takes space, and makes the file as long as that.
    ///
    /// Errors: there is too little space. The space that was found stays allocated.
    pub(super) fn allocate(
        &mut self,
        media: &mut Media,
        offset: u64,
        bytes: u64,
    ) -> Result<(), FileError> {
        if self.take_space(media, offset, bytes) < bytes {
            return Err(FileError::NO_SPACE);
        }
        self.bytes = self.bytes.max(offset + bytes); // I2
        Ok(())
    }

    /// Puts content on the media, for good.
    pub(super) fn make_durable(&mut self, media: &mut Media, sector: u64, content: &Sector) {
        let (block, index) = place(sector);
        let extent = self.extents.get_mut(&block).expect("I1: a sector with content has a block");
        *media.sector_mut(extent.block, index) = *content;
        extent.written |= 1 << index;
    }

    /// Changes a bit of a sector on the media. Returns whether there was one to change.
    pub(super) fn rot(&mut self, media: &mut Media, sector: u64, bits: u64) -> bool {
        let (block, index) = place(sector);
        let Some(extent) = self.extents.get(&block) else { return false };
        if extent.written >> index & 1 == 0 {
            return false;
        }
        let content = media.sector_mut(extent.block, index);
        content[bits as usize / 8 % SECTOR_BYTES] ^= 1 << (bits % 8);
        true
    }

    /// The end of a range in the file, and the pending sectors of the range. A range behind the end
    /// has none.
    fn pending_in(&self, offset: u64, bytes: u64) -> (u64, Vec<u64>) {
        let end = offset.saturating_add(bytes).min(self.bytes);
        let first = offset / SECTOR_BYTES as u64;
        let behind = end.div_ceil(SECTOR_BYTES as u64).max(first);
        (end, self.pending.range(first..behind).map(|(sector, _)| *sector).collect())
    }

    /// Makes the sectors of a range durable, and the length if it ends there.
    pub(super) fn sync(&mut self, media: &mut Media, offset: u64, bytes: u64) {
        let (end, synced) = self.pending_in(offset, bytes);
        for sector in synced {
            let versions = self.pending.remove(&sector).expect("it was found");
            self.make_durable(media, sector, versions.last().expect("a pending sector has one"));
        }
        self.durable_bytes = self.durable_bytes.max(end);
        assert!(self.durable_bytes <= self.bytes, "I2");
    }

    /// Executes a sync that fails. Each pending sector of a range becomes durable or is lost. None
    /// is pending afterwards, so the next sync succeeds and does nothing for them.
    pub(super) fn fail_sync(
        &mut self,
        media: &mut Media,
        offset: u64,
        bytes: u64,
        dice: &mut Dice,
    ) {
        let (end, failed) = self.pending_in(offset, bytes);
        for sector in failed {
            let versions = self.pending.remove(&sector).expect("it was found");
            let version = versions.last().expect("a pending sector has one");
            if dice.chance(500) {
                self.make_durable(media, sector, version);
            } else {
                self.cached.insert(sector, *version);
            }
        }
        if dice.chance(500) {
            self.durable_bytes = self.durable_bytes.max(end);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_recycled_block_reads_as_zeros() {
        let mut media = Media::new(4);
        let mut first = DiskFile::default();
        first.write(&mut media, 0, &[7; BLOCK_BYTES], false).unwrap();
        first.sync(&mut media, 0, u64::MAX);
        first.free(&mut media);
        let mut second = DiskFile::default();
        second.allocate(&mut media, 0, BLOCK_BYTES as u64).unwrap();
        let mut seen = [1; BLOCK_BYTES];
        assert_eq!(second.read(&media, 0, &mut seen, true), BLOCK_BYTES);
        assert_eq!(seen, [0; BLOCK_BYTES], "I3");
        assert_eq!(media.used_blocks(), 1);
    }

    #[test]
    fn what_a_failed_sync_lost_is_seen_only_through_the_page_cache() {
        let mut media = Media::new(64);
        let mut file = DiskFile::default();
        file.write(&mut media, 0, &[7; 64 * SECTOR_BYTES], false).unwrap();
        file.fail_sync(&mut media, 0, u64::MAX, &mut Dice::new(1));
        let mut seen = [0; 64 * SECTOR_BYTES];
        file.read(&media, 0, &mut seen, false);
        assert_eq!(seen, [7; 64 * SECTOR_BYTES]);
        file.read(&media, 0, &mut seen, true);
        let lost = seen.iter().filter(|&&byte| byte == 0).count();
        assert!(lost > 0 && lost < seen.len(), "some sectors are durable and some are lost");
        file.sync(&mut media, 0, u64::MAX);
        let mut again = [0; 64 * SECTOR_BYTES];
        file.read(&media, 0, &mut again, true);
        assert_eq!(again, seen, "the next sync does nothing for them");
    }
}
