//! The receive buffers: memory that the kernel fills, and that belongs to us while it is lent.
//!
//! Upstream:   a completed receive names a buffer: [`Buffers::take`].
//! Downstream: `Io::lent` reads the buffer; the next poll gives it back to the kernel through the
//!             ring of buffers: [`Buffers::give_back`].
//!
//! ```text
//! page 0: the ring: 64 entries of 16 bytes (address, length, buffer id); the last two bytes of
//!         the first entry are the tail
//! then:   64 buffers, STRIDE_BYTES apart
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Each buffer is either the kernel's (`KERNELS`, in the ring or being filled) or lent (then
//!   `lent_bytes` is the number of bytes in it), never both.
//! - I2  Memory of a buffer is read only while it is lent, and only by shared references that end
//!   before `give_back`, which takes `&mut self`.
//! - I3  The mapping lives as long as `Buffers`, and `Buffers` longer than any receive (`ring`,
//!   I1).

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::event::Lent;
use crate::limits::{RECEIVE_BUFFER_BYTES, RECEIVE_BUFFERS};

/// The only buffer group.
pub(super) const BUFFER_GROUP: u16 = 0;

const RING_BYTES: usize = 4096;
/// Three cache lines more than a buffer. Short requests use mostly the beginnings of the buffers.
/// If the distance were a power of two, all beginnings would fall into one set of the cache.
const STRIDE_BYTES: usize = RECEIVE_BUFFER_BYTES + 192;
const MAPPING_BYTES: usize = RING_BYTES + RECEIVE_BUFFERS * STRIDE_BYTES;
/// In `lent_bytes`: the buffer is the kernel's.
const KERNELS: u32 = u32::MAX;

const _: () = {
    assert!(size_of::<BufRingEntry>() == 16);
    assert!(RECEIVE_BUFFERS * size_of::<BufRingEntry>() <= RING_BYTES);
    assert!(RECEIVE_BUFFERS <= u16::MAX as usize && MAPPING_BYTES <= u32::MAX as usize);
};

/// The receive buffers and their ring; see the picture in the module's documentation.
pub(super) struct Buffers {
    mapping: NonNull<u8>,
    /// Our copy of the ring's tail.
    tail: u16,
    lent_bytes: [u32; RECEIVE_BUFFERS],
    lent: Vec<u16>,
}

impl Buffers {
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
            tail: 0,
            lent_bytes: [0; RECEIVE_BUFFERS],
            lent: (0..RECEIVE_BUFFERS as u16).collect(),
        };
        let address = mapping.as_ptr() as u64;
        // SAFETY:
        // - the ring's memory is valid, page-aligned and large enough: mapped and asserted above.
        // - it stays so until the io_uring is gone: I3.
        unsafe {
            submitter.register_buf_ring_with_flags(address, RECEIVE_BUFFERS as u16, BUFFER_GROUP, 0)
        }?;
        buffers.give_back();
        Ok(buffers)
    }

    /// Notes that the kernel has put `bytes` bytes into a buffer and handed it over.
    pub(super) fn take(&mut self, buffer: u16, bytes: u32, tick: u32) -> Lent {
        assert!(self.lent_bytes[usize::from(buffer)] == KERNELS, "I1");
        assert!(bytes as usize <= RECEIVE_BUFFER_BYTES, "I1");
        self.lent_bytes[usize::from(buffer)] = bytes;
        self.lent.push(buffer);
        Lent { tick, start: start_of(buffer) as u32, bytes }
    }

    /// Lent bytes.
    ///
    /// Panics: if they are not lent any more.
    #[inline]
    pub(super) fn bytes(&self, lent: Lent) -> &[u8] {
        let buffer = (lent.start as usize - RING_BYTES) / STRIDE_BYTES;
        let filled_bytes = self.lent_bytes[buffer];
        assert!(filled_bytes != KERNELS && lent.bytes <= filled_bytes, "lent by an earlier poll");
        assert!(lent.start as usize == start_of(buffer as u16), "not ours");
        // SAFETY:
        // - inside the mapping: start_of() of an existing buffer, by the index above.
        let start = unsafe { self.mapping.add(lent.start as usize) };
        // SAFETY:
        // - that many bytes exist and were written (by mmap and by the kernel): `take`, asserted.
        // - no thread writes while the slice lives: the buffer is lent (asserted), and it returns
        //   to the kernel only in `give_back`, which takes `&mut self`: I1, I2.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), lent.bytes as usize) }
    }

    /// Hands all lent buffers to the kernel.
    pub(super) fn give_back(&mut self) {
        if self.lent.is_empty() {
            return;
        }
        while let Some(buffer) = self.lent.pop() {
            self.lent_bytes[usize::from(buffer)] = KERNELS; // I1
            self.write_entry(buffer);
            self.tail = self.tail.wrapping_add(1);
        }
        let ring = self.mapping.cast::<BufRingEntry>();
        // SAFETY:
        // - `ring` is the first entry of the registered ring.
        let tail = unsafe { BufRingEntry::tail(ring.as_ptr()) };
        // SAFETY:
        // - valid, aligned (entry + 14 bytes) and alive as long as `self`: I3.
        // - the kernel only reads it, and we write it by this atomic only.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        // Released after the entries: the kernel loads the tail with acquire.
        tail.store(self.tail, Ordering::Release);
    }

    /// Writes the entry at the tail, which the kernel does not read yet.
    fn write_entry(&mut self, buffer: u16) {
        let position = usize::from(self.tail) % RECEIVE_BUFFERS;
        let ring = self.mapping.cast::<BufRingEntry>();
        // SAFETY:
        // - inside the mapping: `position` is below RECEIVE_BUFFERS, and that many entries fit.
        let mut entry = unsafe { ring.add(position) };
        // SAFETY:
        // - valid, aligned (the mapping is a page's, entries are 16 bytes) and zeroed by mmap.
        // - exclusive: the kernel reads entries between its head and the tail only, and this one is
        //   outside because no more than RECEIVE_BUFFERS are ever in the ring: I1.
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

fn start_of(buffer: u16) -> usize {
    RING_BYTES + usize::from(buffer) * STRIDE_BYTES
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY:
        // - exactly the mapped range.
        // - no reference into it lives: they borrow `self`.
        // - the kernel does not use it any more: the ring has cancelled all ops (`ring`, I1), and
        //   it keeps pages of the buffer ring alive by itself.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), MAPPING_BYTES) };
    }
}
