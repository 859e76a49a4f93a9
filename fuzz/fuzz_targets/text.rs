//! Lines of the classic protocol, and anything else that stands where a line should.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kachel_fuzz::text(data));
