//! The receive buffers: memory that the kernel fills, and that belongs to us while it is lent.
//!
//! Upstream:   a completed receive names a buffer: [`Buffers::take`].
//! Downstream: `Io::lent` reads the buffer; the next poll gives it back to the kernel through the
//!             ring of buffers: [`Buffers::give_back`].
//!
//! ```text
//! page 0: the ring of the connections: 64 entries of 16 bytes (address, length, buffer id); the
//!         last two bytes of the first entry are the tail
//! page 1: the ring of the datagrams: 8 such entries
//! then:   64 buffers of the connections, STRIDE_BYTES apart, then 8 of the datagrams
//! ```
//!
//! The buffers of the datagrams have no memory before [`Buffers::begin_datagrams`].
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Each buffer of a group that the kernel knows is either the kernel's (`KERNELS`, in the
//!   ring or being filled) or lent (then `lent_bytes` is the number of bytes in it), never both.
//! - I2  Memory of a buffer is read only while it is lent, and only by shared references that end
//!   before `give_back`, which takes `&mut self`.
//! - I3  The mapping lives as long as `Buffers`, and `Buffers` longer than any receive (`ring`,
//!   I1).

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::event::Lent;
use crate::limits::{DATAGRAMS_MAX, RECEIVE_BUFFER_BYTES, RECEIVE_BUFFERS};

/// Which receives use a buffer. The kernel knows each group by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Group {
    Connections = 0,
    Datagrams = 1,
}

/// The buffers of each group; a power of two, as the kernel demands.
const COUNTS: [usize; 2] = [RECEIVE_BUFFERS, DATAGRAMS_MAX];
const BUFFERS: usize = COUNTS[0] + COUNTS[1];
const RING_BYTES: usize = 4096;
/// Three cache lines more than a buffer. Short requests use mostly the beginnings of the buffers.
/// If the distance were a power of two, all beginnings would fall into one set of the cache.
const STRIDE_BYTES: usize = RECEIVE_BUFFER_BYTES + 192;
const RINGS_BYTES: usize = 2 * RING_BYTES;
/// Where the buffers of the datagrams begin: on a page of their own.
const DATAGRAMS_START: usize =
    (RINGS_BYTES + RECEIVE_BUFFERS * STRIDE_BYTES).next_multiple_of(RING_BYTES);
const MAPPING_BYTES: usize =
    (DATAGRAMS_START + DATAGRAMS_MAX * STRIDE_BYTES).next_multiple_of(RING_BYTES);
/// In `lent_bytes`: the buffer is the kernel's.
const KERNELS: u32 = u32::MAX;

const _: () = {
    assert!(size_of::<BufRingEntry>() == 16);
    assert!(BUFFERS * size_of::<BufRingEntry>() <= RING_BYTES);
    assert!(RECEIVE_BUFFERS.is_power_of_two() && DATAGRAMS_MAX.is_power_of_two());
    assert!(BUFFERS <= u16::MAX as usize && MAPPING_BYTES <= u32::MAX as usize);
};

/// The receive buffers and their ring; see the picture in the module's documentation.
pub(super) struct Buffers {
    mapping: NonNull<u8>,
    /// Our copies of the rings' tails.
    tails: [u16; 2],
    lent_bytes: [u32; BUFFERS],
    /// The lent buffers of each group.
    lent: [Vec<u16>; 2],
    /// Whether the mapping outlives `self`.
    is_leaked: bool,
}

impl Buffers {
    /// Never unmaps the memory, because the kernel may still write to it (I3).
    pub(super) const fn leak(&mut self) {
        self.is_leaked = true;
    }

    /// Maps the memory, registers the ring and hands all buffers to the kernel.
    pub(super) fn new(submitter: &Submitter<'_>) -> io::Result<Self> {
        // SAFETY:
        // - a null hint never replaces another mapping.
        let mapping = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                MAPPING_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let mapping = NonNull::new(mapping.cast()).expect("a mapping is never at 0");
        let mut buffers = Self {
            mapping,
            tails: [0; 2],
            lent_bytes: [0; BUFFERS],
            lent: [(0..RECEIVE_BUFFERS as u16).collect(), Vec::new()],
            is_leaked: false,
        };
        buffers.protect_datagrams(MprotectFlags::empty())?;
        buffers.register(Group::Connections, submitter)?;
        Ok(buffers)
    }

    /// Gives the buffers of the datagrams memory, and hands them to the kernel. Does nothing the
    /// second time.
    pub(super) fn begin_datagrams(&mut self, submitter: &Submitter<'_>) -> io::Result<()> {
        let lent = &mut self.lent[Group::Datagrams as usize];
        if lent.capacity() > 0 {
            return Ok(());
        }
        lent.extend(RECEIVE_BUFFERS as u16..BUFFERS as u16);
        self.protect_datagrams(MprotectFlags::READ | MprotectFlags::WRITE)?;
        self.register(Group::Datagrams, submitter)
    }

    /// Sets the access to the buffers of the datagrams. Without access they take no memory.
    fn protect_datagrams(&self, access: MprotectFlags) -> io::Result<()> {
        // SAFETY:
        // - inside the mapping: DATAGRAMS_START is less than its length.
        let start = unsafe { self.mapping.add(DATAGRAMS_START) };
        // SAFETY:
        // - whole pages, at the end of the mapping, which is ours.
        // - no reference into them lives, and the kernel does not use them: none of these buffers
        //   was handed to the kernel before.
        unsafe { mprotect(start.as_ptr().cast(), MAPPING_BYTES - DATAGRAMS_START, access) }?;
        Ok(())
    }

    /// Makes the ring of a group known to the kernel, with all buffers in it.
    fn register(&mut self, group: Group, submitter: &Submitter<'_>) -> io::Result<()> {
        let address = self.mapping.as_ptr() as u64 + group as u64 * RING_BYTES as u64;
        let count = COUNTS[group as usize] as u16;
        // SAFETY:
        // - the ring's memory is valid, page-aligned and large enough: mapped and asserted above.
        // - it stays so until the io_uring is gone: I3.
        unsafe { submitter.register_buf_ring_with_flags(address, count, group as u16, 0) }?;
        self.give_back(group);
        Ok(())
    }

    /// Notes that the kernel has put `bytes` bytes into a buffer and handed it over.
    pub(super) fn take(&mut self, buffer: u16, bytes: u32, tick: u32) -> Lent {
        assert!(self.lent_bytes[usize::from(buffer)] == KERNELS, "I1");
        assert!(bytes as usize <= RECEIVE_BUFFER_BYTES, "I1");
        self.lent_bytes[usize::from(buffer)] = bytes;
        self.lent[usize::from(usize::from(buffer) >= RECEIVE_BUFFERS)].push(buffer);
        Lent { tick, start: start_of(buffer) as u32, bytes }
    }

    /// Lent bytes.
    ///
    /// Panics: if they are not lent any more.
    #[inline]
    pub(super) fn bytes(&self, lent: Lent) -> &[u8] {
        let buffer = buffer_at(lent.start as usize);
        let filled_bytes = self.lent_bytes[buffer];
        let end = lent.start as usize - start_of(buffer as u16) + lent.bytes as usize;
        assert!(filled_bytes != KERNELS && end <= filled_bytes as usize, "lent by an earlier poll");
        // SAFETY:
        // - inside the mapping: in an existing buffer, by the index above.
        let start = unsafe { self.mapping.add(lent.start as usize) };
        // SAFETY:
        // - that many bytes exist and were written (by mmap and by the kernel): `take`, and
        //   asserted above.
        // - no thread writes while the slice lives: the buffer is lent (asserted), and it returns
        //   to the kernel only in `give_back`, which takes `&mut self`: I1, I2.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), lent.bytes as usize) }
    }

    /// Hands all lent buffers of a group to the kernel.
    pub(super) fn give_back(&mut self, group: Group) {
        let number = group as usize;
        if self.lent[number].is_empty() {
            return;
        }
        while let Some(buffer) = self.lent[number].pop() {
            self.lent_bytes[usize::from(buffer)] = KERNELS; // I1
            self.write_entry(buffer, number);
            self.tails[number] = self.tails[number].wrapping_add(1);
        }
        let ring = self.ring(number);
        // SAFETY:
        // - `ring` is the first entry of the registered ring.
        let tail = unsafe { BufRingEntry::tail(ring.as_ptr()) };
        // SAFETY:
        // - valid, aligned (entry + 14 bytes) and alive as long as `self`: I3.
        // - the kernel only reads it, and we write it by this atomic only.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        // Released after the entries: the kernel loads the tail with acquire.
        tail.store(self.tails[number], Ordering::Release);
    }

    /// The first entry of a group's ring.
    fn ring(&self, number: usize) -> NonNull<BufRingEntry> {
        debug_assert!(number < 2, "there are two groups");
        // SAFETY:
        // - inside the mapping, which begins with the pages of the two rings.
        unsafe { self.mapping.add(number * RING_BYTES) }.cast()
    }

    /// Writes the entry at the tail, which the kernel does not read yet.
    fn write_entry(&mut self, buffer: u16, number: usize) {
        let position = usize::from(self.tails[number]) % COUNTS[number];
        let ring = self.ring(number);
        // SAFETY:
        // - inside the mapping: `position` is below the group's count, and that many entries fit.
        let mut entry = unsafe { ring.add(position) };
        // SAFETY:
        // - valid, aligned (the mapping is a page's, entries are 16 bytes) and zeroed by mmap.
        // - exclusive: the kernel reads entries between its head and the tail only, and this one is
        //   outside because no more than the group's buffers are ever in its ring: I1.
        let entry = unsafe { entry.as_mut() };
        // SAFETY:
        // - inside the mapping: start_of() of an existing buffer.
        let start = unsafe { self.mapping.add(start_of(buffer)) };
        // The setters leave the entry's last two bytes alone: in the first one they are the tail.
        entry.set_addr(start.as_ptr() as u64);
        entry.set_len(RECEIVE_BUFFER_BYTES as u32);
        entry.set_bid(buffer);
    }
}

/// Where a buffer begins.
fn start_of(buffer: u16) -> usize {
    let buffer = usize::from(buffer);
    match buffer.checked_sub(RECEIVE_BUFFERS) {
        None => RINGS_BYTES + buffer * STRIDE_BYTES,
        Some(buffer) => DATAGRAMS_START + buffer * STRIDE_BYTES,
    }
}

/// The buffer that an offset in the mapping lies in.
fn buffer_at(offset: usize) -> usize {
    match offset.checked_sub(DATAGRAMS_START) {
        None => (offset - RINGS_BYTES) / STRIDE_BYTES,
        Some(offset) => RECEIVE_BUFFERS + offset / STRIDE_BYTES,
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        if self.is_leaked {
            return;
        }
        // SAFETY:
        // - exactly the mapped range.
        // - no reference into it lives: they borrow `self`.
        // - the kernel does not use it any more: all ops have ended, or `leak` was called (`ring`,
        //   I1). The kernel keeps the pages of the buffer rings alive by itself.
        let unmapped = unsafe { munmap(self.mapping.as_ptr().cast(), MAPPING_BYTES) };
        debug_assert!(unmapped.is_ok(), "the mapping is ours");
    }
}
