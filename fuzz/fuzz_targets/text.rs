//! Lines of the classic protocol, and other bytes in place of a line.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kachel_fuzz::text(data));
