//! Memory lent to a receiver of bytes, so that it writes them where they will stay.
//!
//! Upstream:   the owner of an arena lends pieces of it, under a name by which it recognizes them.
//! Downstream: the receiver writes into the pieces, or has the kernel write. Then the landing goes
//!             back or is dropped, and the lender has its pieces again.
//!
//! ```text
//! bytes that come:  | piece | piece | .. | spill, where the landing has one |
//! ```
//!
//! Invariants:
//! - I1  From `add` until `take_back`, `release` or the drop, only the landing touches its pieces.
//! - I2  Pieces and spill stay where they are while the landing is moved.
//! - I3  A landing that is lent names its pieces to its lender once: by `take_back` or `release`.

use std::fmt;
use std::io::IoSliceMut;
use std::ptr::NonNull;
use std::sync::Arc;

/// The most pieces of a landing. Adjoining pieces count as one.
pub const LANDING_PIECES_MAX: usize = 16;

/// Bytes that a landing with a spill takes behind its pieces. So the few bytes that follow the
/// awaited ones (an end mark, for example) arrive with them. A receiver that gets fewer bytes than
/// fit knows that no more are there. Not measured: any number above an end mark is enough.
pub const LANDING_SPILL_BYTES: usize = 64;

/// The most slices of a landing.
pub const LANDING_SLICES_MAX: usize = LANDING_PIECES_MAX + 1;

/// The owner of the memory.
pub trait Lender: Send + Sync {
    /// Takes back the pieces that were lent by this name. The landing did not come back, and no
    /// thread writes to them any more.
    fn release(&self, name: [u64; 2]);
}

/// A piece of a lender's memory on its way into a landing. Dropping the piece gives it up.
pub struct Piece {
    start: NonNull<u8>,
    bytes: usize,
}

impl Piece {
    /// `bytes` bytes from `start` on.
    ///
    /// # Safety
    /// The bytes are initialized, and valid for reads and writes by any thread. As long as the
    /// piece exists, here or in a landing, nothing else reads or writes them. Pieces of one landing
    /// that adjoin lie in one allocation, and `start` may reach all of it.
    pub unsafe fn new(start: NonNull<u8>, bytes: usize) -> Self {
        Self { start, bytes }
    }

    fn end(&self) -> *mut u8 {
        self.start.as_ptr().wrapping_add(self.bytes)
    }
}

// SAFETY:
// - it is the only way to its bytes, which any thread may touch: discharged by the caller of `new`.
unsafe impl Send for Piece {}

/// Pieces of memory, lent until this goes back to their owner or is dropped.
///
/// Made once and used again: it allocates where it is made and nowhere else.
pub struct Landing {
    place: Box<Place>,
}

/// The part of a landing that does not move (I2).
struct Place {
    lender: Arc<dyn Lender>,
    /// The name by which the lender knows the pieces; `None` while nothing is lent.
    name: Option<[u64; 2]>,
    pieces: [Option<Piece>; LANDING_PIECES_MAX],
    count: usize,
    /// Bytes of all pieces.
    bytes: usize,
    spills: bool,
    spill: [u8; LANDING_SPILL_BYTES],
}

impl Landing {
    /// An empty landing for memory of `lender`. Cost: one allocation of a few cache lines.
    pub fn new(lender: Arc<dyn Lender>) -> Self {
        Self {
            place: Box::new(Place {
                lender,
                name: None,
                pieces: [const { None }; LANDING_PIECES_MAX],
                count: 0,
                bytes: 0,
                spills: false,
                spill: [0; LANDING_SPILL_BYTES],
            }),
        }
    }

    /// Begins a loan that the lender knows by `name`, with or without a spill behind the pieces.
    ///
    /// Panics: if the landing is lent already.
    pub fn begin(&mut self, name: [u64; 2], spills: bool) {
        assert!(self.place.name.is_none() && self.place.count == 0, "I3: lent once at a time");
        self.place.name = Some(name);
        self.place.spills = spills;
    }

    /// Lends the next piece.
    ///
    /// Panics: before `begin`, or when there are too many pieces.
    pub fn add(&mut self, piece: Piece) {
        assert!(self.place.name.is_some(), "I3: pieces have a name");
        let place = &mut *self.place;
        place.bytes += piece.bytes;
        if let Some(last) = place.count.checked_sub(1).and_then(|at| place.pieces[at].as_mut())
            && last.end() == piece.start.as_ptr()
        {
            last.bytes += piece.bytes;
            return;
        }
        assert!(place.count < LANDING_PIECES_MAX, "a landing of too many pieces");
        place.pieces[place.count] = Some(piece);
        place.count += 1;
    }

    /// Bytes of the pieces, without the spill.
    pub fn piece_bytes(&self) -> usize {
        self.place.bytes
    }

    /// Bytes that the landing takes in all, the spill included.
    pub fn room(&self) -> usize {
        self.place.bytes + if self.place.spills { LANDING_SPILL_BYTES } else { 0 }
    }

    /// Where the bytes go, in order, and how many of the slices there are; the others are empty.
    pub fn slices(&mut self) -> ([IoSliceMut<'_>; LANDING_SLICES_MAX], usize) {
        let mut slices = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let Place { pieces, count, spills, spill, .. } = &mut *self.place;
        for (slice, piece) in slices.iter_mut().zip(pieces.iter().flatten()) {
            // SAFETY:
            // - valid, initialized and used by nothing else while the piece exists: `Piece::new`.
            // - one slice of each piece at a time: `self` is borrowed for as long.
            let bytes =
                unsafe { std::slice::from_raw_parts_mut(piece.start.as_ptr(), piece.bytes) };
            *slice = IoSliceMut::new(bytes);
        }
        if *spills {
            slices[*count] = IoSliceMut::new(spill);
        }
        (slices, *count + usize::from(*spills))
    }

    /// The bytes in the spill, when `bytes` bytes have arrived in all.
    ///
    /// Panics: if `bytes` is more than the landing takes.
    pub fn spilled(&self, bytes: usize) -> &[u8] {
        assert!(bytes <= self.room(), "more came than there was room for");
        &self.place.spill[..bytes.saturating_sub(self.place.bytes)]
    }

    /// Ends the loan and returns its name, for the owner of the pieces. The landing is then empty.
    ///
    /// Panics: if nothing is lent.
    pub fn take_back(&mut self) -> [u64; 2] {
        self.forget_pieces().expect("I3: what is taken back was lent")
    }

    /// Ends the loan, if there is one, and tells the lender. The landing is then empty.
    pub fn release(&mut self) {
        if let Some(name) = self.forget_pieces() {
            self.place.lender.release(name);
        }
    }

    fn forget_pieces(&mut self) -> Option<[u64; 2]> {
        let place = &mut *self.place;
        place.pieces[..place.count].fill_with(|| None);
        (place.count, place.bytes, place.spills) = (0, 0, false);
        place.name.take()
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.release();
    }
}

impl fmt::Debug for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Landing({} bytes in {} pieces)", self.place.bytes, self.place.count)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Released(Mutex<Vec<[u64; 2]>>);

    impl Lender for Released {
        fn release(&self, name: [u64; 2]) {
            self.0.lock().unwrap().push(name);
        }
    }

    fn piece(bytes: &mut [u8]) -> Piece {
        let start = NonNull::from(&mut *bytes).cast();
        // SAFETY:
        // - the tests touch these bytes again only when the landing is empty or gone.
        unsafe { Piece::new(start, bytes.len()) }
    }

    #[test]
    fn bytes_fill_the_pieces_in_order_and_then_the_spill() {
        let mut memory = [0; 12];
        let lender = Arc::new(Released::default());
        let mut landing = Landing::new(lender.clone());
        let (first, second) = memory.split_at_mut(8);
        landing.begin([1, 2], true);
        landing.add(piece(&mut second[1..]));
        landing.add(piece(&mut first[..2]));
        landing.add(piece(&mut first[2..4]));
        assert_eq!((landing.piece_bytes(), landing.room()), (7, 7 + LANDING_SPILL_BYTES));
        let (mut slices, count) = landing.slices();
        assert_eq!(count, 3, "pieces that adjoin are one");
        slices[0].copy_from_slice(b"abc");
        slices[1].copy_from_slice(b"defg");
        slices[2][..2].copy_from_slice(b"\r\n");
        assert_eq!(landing.spilled(9), b"\r\n");
        assert_eq!(landing.spilled(6), b"");
        assert_eq!(landing.take_back(), [1, 2]);
        assert_eq!((landing.room(), landing.slices().1), (0, 0));
        drop(landing);
        assert!(lender.0.lock().unwrap().is_empty(), "it came back");
        assert_eq!(&memory, b"defg\0\0\0\0\0abc");
    }

    #[test]
    fn a_landing_that_does_not_come_back_is_released_once() {
        let mut memory = [0; 4];
        let lender = Arc::new(Released::default());
        let mut landing = Landing::new(lender.clone());
        landing.begin([3, 4], false);
        landing.add(piece(&mut memory));
        landing.release();
        landing.release();
        assert_eq!(*lender.0.lock().unwrap(), [[3, 4]]);
        landing.begin([5, 6], false);
        drop(landing);
        assert_eq!(*lender.0.lock().unwrap(), [[3, 4], [5, 6]]);
    }

    #[test]
    #[should_panic(expected = "I3")]
    fn a_landing_is_lent_to_one_at_a_time() {
        let mut landing = Landing::new(Arc::new(Released::default()));
        landing.begin([1, 1], false);
        landing.begin([2, 2], false);
    }
}
