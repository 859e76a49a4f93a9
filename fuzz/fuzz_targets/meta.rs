//! Lines of the meta protocol.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kachel_fuzz::meta(data));
