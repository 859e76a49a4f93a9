//! Compares the names in `stats` with those of the peer; a list names the missing ones.
//!
//! Upstream:   `main` asks both servers.
//! Downstream: `ABSENT` lists the missing names; a name leaves it once the server reports it.

use crate::rules::PeerAge;

/// Keys of memcached's that are knowingly absent, and why.
const ABSENT: &[(&str, &[&str])] = &[("only 1.6.18 has it", &[OLDER])];

/// A key that 1.6.45 does not have any more.
const OLDER: &str = "slab_reassign_evictions_nomem";

/// Keys that 1.6.18 does not have.
const NEWER: [&str; 2] = ["slab_reassign_busy_nomem", "slab_reassign_last_busy_status"];

/// A key that memcached shows only where it is told to close idle connections.
const CONDITIONAL: &str = "idle_kicks";

/// The keys of an answer to `stats`, in order.
fn keys(answer: &str) -> Vec<&str> {
    let lines = answer.lines().filter_map(|line| line.strip_prefix("STAT "));
    lines.filter_map(|line| line.split(' ').next()).collect()
}

/// What is wrong with our answer to `stats` beside the peer's; empty if nothing is.
pub(crate) fn wrong(ours: &str, peer: &str, age: PeerAge) -> Vec<String> {
    let (ours, peer) = (keys(ours), keys(peer));
    let mut absent = ABSENT.iter().flat_map(|(_, keys)| *keys).copied();
    let is_absent = |key: &str| absent.clone().any(|absent| absent == key);
    let (ours_common, peer_common): (Vec<&str>, Vec<&str>) = (
        ours.iter().copied().filter(|key| peer.contains(key)).collect(),
        peer.iter().copied().filter(|key| ours.contains(key)).collect(),
    );
    let mut wrong = Vec::new();
    if ours_common != peer_common {
        wrong.push(format!("another order: {ours_common:?}, not {peer_common:?}"));
    }
    let unlisted = peer.iter().filter(|key| !ours.contains(key) && !is_absent(key));
    wrong.extend(unlisted.map(|key| format!("{key} is absent, and not listed")));
    let is_newer = |key: &str| age == PeerAge::Older && NEWER.contains(&key);
    let is_own = |key: &&str| key.starts_with("kachel_") || *key == CONDITIONAL || is_newer(key);
    let invented = ours.iter().filter(|key| !peer.contains(key) && !is_own(key));
    wrong.extend(invented.map(|key| format!("{key} is not memcached's")));
    let known = |key: &str| match age {
        PeerAge::Older => peer.contains(&key),
        PeerAge::Same => peer.contains(&key) || key == OLDER,
    };
    if let Some(key) = absent.find(|key| ours.contains(key) || !known(key)) {
        wrong.push(format!("{key} is listed, and shown or not memcached's"));
    }
    wrong
}
