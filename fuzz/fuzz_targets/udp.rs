//! Requests over UDP: any datagrams, to a whole server in memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kachel_fuzz::udp(data));
