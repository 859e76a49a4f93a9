//! A whole server in memory: the same bytes in any cut, over any number of shards.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kachel_fuzz::connection(data));
