//! A planted bug that the fuzzer must find. It shows that coverage guides the fuzzer and that a
//! finding is reported.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kachel_fuzz::canary(data));
