//! The planted bug.
//!
//! Upstream:   the canary target.
//! Downstream: a panic on lines that only a coverage-guided fuzzer finds within seconds.

use kachel_wire::request::Request;
use kachel_wire::{Parsed, parse};

/// Panics on a `delete` of a three-byte key that begins with `ca`.
pub fn canary(data: &[u8]) {
    let Parsed::Request { request: Request::Delete { key, .. }, .. } = parse(data, 0) else {
        return;
    };
    if key.len() == 3 && key[0] == b'c' && key[1] == b'a' {
        panic!("the planted bug was found");
    }
}
