//! Options: any file of options, and any words of a command line.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kachel_fuzz::options(data));
