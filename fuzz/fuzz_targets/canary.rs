//! Has a planted bug, and must be found: proof that coverage leads the fuzzer and that what it
//! finds is seen.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kachel_fuzz::canary(data));
