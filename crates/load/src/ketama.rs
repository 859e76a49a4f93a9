//! Chooses the server of a key by consistent hashing, as clients with ketama do.
//!
//! Upstream:   `transport` names the servers.
//! Downstream: `steady` looks up the server of each request.
//!
//! The points are those of libmemcached's weighted ketama with equal weights, and of spymemcached
//! with its formatter for libmemcached: 40 MD5 hashes a server of `HOST:PORT-INDEX`, with four
//! points each. Port 11211 is left out of the name.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  The points are in order, so the server of a key is that of the next point.

use md5::{Digest, Md5};

/// Hashes of one server.
const HASHES_PER_SERVER: u32 = 40;
/// The port that names leave out.
const DEFAULT_PORT: &str = ":11211";

/// The points of all servers.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    /// Points and the servers that they belong to (I1).
    points: Vec<(u32, usize)>,
}

impl Ring {
    /// The points of these servers, each `HOST:PORT` or `HOST`.
    pub(crate) fn new(servers: &[String]) -> Self {
        assert!(!servers.is_empty(), "there is a server");
        let mut points = Vec::new();
        for (index, server) in servers.iter().enumerate() {
            let name = server.strip_suffix(DEFAULT_PORT).unwrap_or(server);
            for number in 0..HASHES_PER_SERVER {
                let hash = Md5::digest(format!("{name}-{number}"));
                points.extend(hash.chunks_exact(4).map(|bytes| (point(bytes), index)));
            }
        }
        points.sort_unstable(); // I1
        Self { points }
    }

    /// The index of the server of a key.
    ///
    /// Cost: an MD5 hash and a binary search.
    pub(crate) fn server(&self, key: &[u8]) -> usize {
        let wanted = point(&Md5::digest(key));
        let place = self.points.partition_point(|&(point, _)| point < wanted); // I1
        let (_, server) = self.points.get(place).unwrap_or(&self.points[0]);
        *server
    }
}

/// The first four bytes of a hash, the lowest first.
fn point(hash: &[u8]) -> u32 {
    let bytes = hash.first_chunk().expect("a part of a hash has four bytes");
    u32::from_le_bytes(*bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from pylibmc 1.6.3 (libmemcached 1.0.16) with the behavior `ketama_weighted`: each
    /// key was set, and then found by asking each memcached.
    const THREE: &str = "\
        22001112020021021021010120212211212101200101112201201001020211200220121222002100\
        11210201010120011021210121012100222202121220000102100110110010202221010200200010\
        22010221221100212122120112110211121010221221210011212200100002110001102011122202";
    const TWO: &str = "\
        10100001010111111111100001101100001101100010000101010111110111001010010000000111\
        11001010001011000110111011010101010000011101101111010000010001101011101010100001\
        11100101101000000011111111111000110110100110010111110111011110101000110111101010";

    /// The server of each of the keys k00..00 to k00..239, 30 bytes long.
    fn servers(names: &[&str]) -> String {
        let ring = Ring::new(&names.iter().map(|&name| name.into()).collect::<Vec<_>>());
        let digits = (0..240).map(|number| ring.server(format!("k{number:029}").as_bytes()));
        digits.map(|digit| digit.to_string()).collect()
    }

    #[test]
    fn keys_go_to_the_servers_that_libmemcached_chooses() {
        assert_eq!(servers(&["127.0.0.1:21711", "127.0.0.1:21712", "127.0.0.1:21713"]), THREE);
        assert_eq!(servers(&["localhost:11211", "localhost:21742"]), TWO);
        assert_eq!(servers(&["localhost", "localhost:21742"]), TWO, "the default port");
    }

    #[test]
    fn a_server_that_leaves_moves_only_its_keys() {
        let all = servers(&["a:1", "b:1", "c:1"]);
        let rest = servers(&["a:1", "b:1"]);
        for (before, after) in all.chars().zip(rest.chars()) {
            assert!(before == after || before == '2', "{before} {after}");
        }
        assert!(all.contains('2'));
    }
}
