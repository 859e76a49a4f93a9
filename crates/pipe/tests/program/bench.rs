//! A program in the kernel with a table, for tests.
//!
//! Upstream:   the tests.
//! Downstream: `kachel_pipe`.

use std::net::SocketAddr;

use kachel_engine::{CopiedItem, Copies as _, FlushStamp, KeyHasher, Seeds};
use kachel_pipe::{Pipe, PipeNetwork, PipeOptions, Place, Program, Speaks, Trial};

use crate::packet::{Packet, SERVER_MAC};

const HASH_KEYS: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfeed_beef_dead_cafe];
const MEMORY_BYTES: u64 = 1 << 20;

/// A program with a table.
pub(crate) struct Bench {
    pub(crate) program: Program,
    pub(crate) pipe: Pipe,
    pub(crate) hasher: KeyHasher,
}

/// The network of the server's interface, on a host with another one.
pub(crate) fn network() -> PipeNetwork {
    let parse = |text: &&str| text.parse().expect("an address");
    let closed = ["10.9.0.0", "10.9.0.255", "192.168.7.1", "192.168.7.255", "fd00::", "fd07::1"];
    PipeNetwork {
        mac: Some(SERVER_MAC),
        addresses: ["10.9.0.2", "fd00::2"].iter().map(parse).collect(),
        closed: closed.iter().map(parse).collect(),
    }
}

/// The time of the monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Bench {
    /// `None`, and a line that says why, if this process may not load programs.
    pub(crate) fn new() -> Option<Self> {
        Self::at(0, 0)
    }

    /// The table of a server that began this number of nanoseconds ago.
    pub(crate) fn started_before(ns: u64) -> Option<Self> {
        Self::at(ns, 0)
    }

    /// The table of a server that was last heard this number of nanoseconds ago.
    pub(crate) fn silent_for(ns: u64) -> Option<Self> {
        Self::at(0, ns)
    }

    /// The table of a server that began and was last heard these numbers of nanoseconds ago.
    pub(crate) fn at(started_before_ns: u64, silent_ns: u64) -> Option<Self> {
        let (program, pipe) = match Program::load(MEMORY_BYTES) {
            Ok(loaded) => loaded,
            Err(error) => {
                kachel_testkit::skip("pipe.program", &error.to_string());
                return None;
            }
        };
        let place = |address: &str| Place {
            address: address.parse::<SocketAddr>().expect("an address"),
            speaks: Speaks::Both,
        };
        let options = PipeOptions {
            hash_keys: HASH_KEYS,
            start_ns: now_ns().wrapping_sub(started_before_ns),
            now_ns: now_ns().wrapping_sub(silent_ns),
            reply_times: 3,
            places: vec![place("10.9.0.2:11311"), place("[fd00::2]:11311")],
            network: network(),
        };
        pipe.begin(&options, |port| [0, 7, 53, 11311].contains(&port));
        pipe.tick(2, now_ns().wrapping_sub(silent_ns));
        let hasher = KeyHasher::new(Seeds { hash_keys: HASH_KEYS }, 1);
        Some(Self { program, pipe, hasher })
    }

    pub(crate) fn publish(&self, key: &[u8], value: &[u8]) {
        self.publish_until(key, value, 0);
    }

    pub(crate) fn publish_stamped(&self, stamp: FlushStamp, key: &[u8], value: &[u8]) {
        let key = self.hasher.key(key);
        let item = CopiedItem { key, value, client_flags: 42, cas: 977, expiry: 0 };
        self.pipe.publish(stamp, &item);
    }

    pub(crate) fn publish_until(&self, key: &[u8], value: &[u8], expiry: u32) {
        let stamp = self.pipe.stamp().expect("no flush is under way");
        let key = self.hasher.key(key);
        let item = CopiedItem { key, value, client_flags: 42, cas: 977, expiry };
        self.pipe.publish(stamp, &item);
    }

    pub(crate) fn drop_copy(&self, key: &[u8]) {
        self.pipe.drop_copy(self.hasher.key(key).secret_hash());
    }

    /// How often the copy of a key was read since the last call.
    pub(crate) fn take_reads(&self, key: &[u8]) -> Option<u64> {
        self.pipe.take_reads(self.hasher.key(key).secret_hash()).map(|reads| reads.count)
    }

    pub(crate) fn run(&mut self, packet: &[u8]) -> Trial {
        self.program.try_packet(packet).expect("the kernel runs it")
    }

    /// Checks that the request is answered with this text.
    pub(crate) fn answers(&mut self, request: &Packet, text: &[u8]) {
        let Trial::Answered(reply) = self.run(&request.bytes()) else {
            panic!("{request:?} is answered: {:?}", self.pipe.counts());
        };
        assert_eq!(Packet::read(&reply), request.reply(text), "{request:?}");
    }

    /// Checks that the bytes go on unchanged, for this reason.
    pub(crate) fn passes(&mut self, bytes: &[u8], reason: &str) {
        let before = self.pipe.counts().passed(reason);
        assert_eq!(self.run(bytes), Trial::Passed(bytes.to_vec()), "{reason}");
        let counts = self.pipe.counts();
        assert_eq!(counts.passed(reason), before + 1, "{reason}: {counts:?}");
    }
}
