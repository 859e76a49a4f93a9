//! A kernel that refuses to pin threads: the server serves without pinning.

use rustix::io::Errno;

use crate::kernel::{Refusal, refusing};
use crate::{noop, start};

/// Servers started until one may pin its threads: another one on this machine may have done so.
const STARTS_MAX: usize = 20;

#[test]
fn a_server_whose_threads_cannot_be_pinned_serves() {
    let unpinned =
        Refusal { call: libc::SYS_sched_setaffinity, argument: None, error: Errno::INVAL };
    for _ in 0..STARTS_MAX {
        let server = refusing(&[unpinned], || start(&["-t", "1"]));
        assert_eq!(noop(&server), "MN\r\n");
        if server.last_words().contains("shard 0 is not pinned to a core: Invalid argument") {
            return;
        }
    }
    println!("skip cores.pinned here no server may pin its threads");
}
