//! Reads one byte behind a heap block: what AddressSanitizer must report, or it is not on.
//!
//! `overrun 7` reads the last byte of eight and prints it; any larger number lies outside.

fn main() {
    let bytes: Box<[u8]> = (1..=8).collect();
    let at: usize = std::env::args().nth(1).and_then(|at| at.parse().ok()).expect("overrun PLACE");
    // SAFETY:
    // - valid for a read: it is not, beyond 7; that is the point. No check stands before it.
    let byte = unsafe { bytes.as_ptr().add(at).read_volatile() };
    println!("{byte}");
}
