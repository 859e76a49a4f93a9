//! A whole server in memory: any bytes of one client, in any pieces, with one or three shards.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kachel_fuzz::connection(data));
