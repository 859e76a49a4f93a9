//! A door that the kernel shuts: the shard behind it cannot go on, and so neither can the server.

use std::io::{Read as _, Write as _};

use rustix::io::Errno;

use crate::kernel::{Refusal, refusing};
use crate::{Client, start};

/// Bytes of a request that give a shard more to read than it does in one tick.
const LONG_BYTES: usize = 16 << 20;

#[test]
fn a_server_whose_door_fails_says_why_and_ends_as_failed() {
    // A shard that has more to do does not sleep when it asks for events, and is refused.
    let without_sleep =
        Refusal { call: libc::SYS_epoll_pwait, argument: Some((3, 0)), error: Errno::PERM };
    let options = ["--io=epoll", "-m", "64", "-t", "2", "-I", "32m"];
    let mut server = refusing(&[without_sleep], || start(&options));
    let mut client = Client::new(&server);
    assert_eq!(client.ask("mn"), "MN", "who asks little is served");
    let stream = client.replies.get_mut();
    // Broken off when the server ends.
    let _sent = stream.write_all(format!("set k 0 0 {LONG_BYTES}\r\n").as_bytes());
    let _sent = stream.write_all(&vec![b'v'; LONG_BYTES]);
    let _ended = stream.read(&mut [0; 16]);
    let status = server.process.wait().expect("an end");
    let said = server.last_words();
    assert_eq!(status.code(), Some(1), "{status}: {said}");
    assert!(said.contains("Operation not permitted"), "{said}");
}
