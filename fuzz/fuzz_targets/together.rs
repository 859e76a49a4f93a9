//! Clients of each kind, watchers, logins, datagrams and changes of users at once.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kachel_fuzz::together(data));
