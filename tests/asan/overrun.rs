//! Reads one byte behind a heap block. AddressSanitizer reports that, unless it is off.
//!
//! `overrun 7` reads the last byte of eight and prints it; any larger index is out of bounds.

fn main() {
    let bytes: Box<[u8]> = (1..=8).collect();
    let at: usize = std::env::args().nth(1).and_then(|at| at.parse().ok()).expect("overrun PLACE");
    // SAFETY:
    // - valid for a read: not for `at` beyond 7, on purpose. No bounds check comes before it.
    let byte = unsafe { bytes.as_ptr().add(at).read_volatile() };
    println!("{byte}");
}
