//! Address space that the process may not have: limits of the process, as `ulimit` sets them.
//!
//! The server reserves the memory that `-m` needs. If that is refused, it says how much it wanted,
//! for which purpose, and which limit forbids it.

use kachel_testkit::{Ended, Launch, Server};

use crate::{ask, program};

/// The reply to a limit that is higher than the memory that is reserved.
const OUT_OF_BOUNDS: &str = "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust";

/// Starts a server with a limit: `-v` for address space, `-d` for data, in MiB.
fn start(limit: &str, mib: u32, options: &[&str]) -> Result<Server, Ended> {
    let script = format!("ulimit {limit} {} && exec \"$@\"", mib << 10);
    let under = &["sh", "-c", &script, "sh"];
    Launch { under, ..Launch::memcached(program(), options) }.try_start()
}

/// Stores and reads a value of 100 KiB.
fn serves(server: &Server) {
    let mut client = server.connect();
    client.set("k", &vec![b'v'; 100 << 10]);
    assert_eq!(ask(&mut client, "mg k s"), format!("HD s{}", 100 << 10));
}

/// The sentence of a server that did not start.
fn refusal(limit: &str, mib: u32, options: &[&str]) -> String {
    let Err(Ended { status, said }) = start(limit, mib, options) else {
        panic!("{mib} MiB suffice for {options:?}");
    };
    assert_eq!(status.code(), Some(71), "{mib} MiB for {options:?}: {said}");
    let sentences: Vec<&str> =
        said.lines().filter(|line| !line.contains("started by root")).collect();
    assert_eq!(sentences.len(), 1, "{said}");
    sentences[0].to_owned()
}

#[test]
fn a_server_reserves_what_its_memory_limit_needs() {
    for (limit, mib, options) in [
        ("-v", 1024, &["-m", "64", "-t", "1"][..]),
        ("-v", 1024, &["-m", "64", "-t", "4"]),
        ("-v", 1024, &["-m", "256", "-t", "2"]),
        ("-d", 512, &["-m", "64", "-t", "2"]),
    ] {
        let server = start(limit, mib, options);
        serves(&server.unwrap_or_else(|ended| panic!("{mib} MiB for {options:?}: {ended:?}")));
    }
}

#[test]
fn the_limit_on_memory_may_be_raised_where_address_space_is_free() {
    let raised = |server: Result<Server, Ended>| {
        ask(&mut server.expect("it listens").connect(), "cache_memlimit 128")
    };
    let options = ["-m", "64", "-t", "1"];
    assert_eq!(raised(start("-v", 1024, &options)), OUT_OF_BOUNDS);
    // A limit on core files is none on memory. This machine may bound address space by itself.
    let wanted = if kachel_host::is_address_space_free() { "OK" } else { OUT_OF_BOUNDS };
    assert_eq!(raised(start("-c", 0, &options)), wanted);
}

#[test]
fn a_server_that_may_not_reserve_its_memory_says_what_it_wanted() {
    let said = refusal("-v", 512, &["-m", "1024", "-t", "2"]);
    assert!(said.contains("MiB of address space for items"), "{said}");
    assert!(said.contains("512 MiB") && said.contains("RLIMIT_AS"), "{said}");
    let wanted: u32 = said
        .split_once(" MiB of address space")
        .and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok())
        .expect("a number of MiB");
    assert!((1024..1200).contains(&wanted), "{said}");
    let said = refusal("-d", 512, &["-m", "1024", "-t", "2"]);
    assert!(said.contains("512 MiB") && said.contains("RLIMIT_DATA"), "{said}");
}

/// Under every limit the server serves, or says why it does not start.
#[test]
fn a_server_starts_or_says_why_not_under_any_limit() {
    for threads in ["1", "2", "8"] {
        let options = ["-m", "64", "-t", threads];
        let (mut started, mut refused) = (0, 0);
        for mib in (80..320).step_by(20) {
            if let Ok(server) = start("-v", mib, &options) {
                serves(&server);
                started += 1;
            } else {
                assert_eq!(started, 0, "a lower limit sufficed, {mib} MiB do not");
                let said = refusal("-v", mib, &options);
                assert!(said.contains("RLIMIT_AS"), "{said}");
                // Between two indexes, a small allocation that is refused would end the process.
                assert!(!said.contains("for an index"), "{said}");
                refused += 1;
            }
        }
        assert!(started > 0 && refused > 0, "{started} started, {refused} refused");
    }
}
