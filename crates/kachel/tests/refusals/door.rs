//! The kernel refuses the system calls of an I/O backend: its shard fails, and the server ends.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};

use kachel_testkit::{Client, PATIENCE, Server, Unheard, user, within};
use rustix::io::Errno;

use crate::kernel::{Refusal, refusing};
use crate::{program, start};

/// Bytes of a request that give a shard more to read than it does in one tick.
const LONG_BYTES: usize = 16 << 20;

/// Servers to be tried: two shards that have something to tell each other, a client to hand over,
/// may ask without sleeping, too; their server then ends before anybody asks much.
const TRIES: usize = 20;

#[test]
fn a_server_whose_door_fails_says_why_and_ends_as_failed() {
    assert!((0..TRIES).any(|_| serves_until_its_door_fails()), "who asks little is served");
}

/// Starts a server whose I/O backend will fail. Checks that it prints the reason and ends as
/// failed; returns whether it served a client with few requests before that.
fn serves_until_its_door_fails() -> bool {
    // A shard that has more to do does not sleep when it asks for events, and is refused.
    let without_sleep =
        Refusal { call: libc::SYS_epoll_pwait, argument: Some((3, 0)), error: Errno::PERM };
    let options = ["--io=epoll", "-m", "64", "-t", "2", "-I", "32m"];
    let mut server = refusing(&[without_sleep], || start(&options));
    let served = ask_little_then_much(&server);
    let is_late = served.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    assert!(!is_late, "a reply in time");
    let status = server.process.wait().expect("an end");
    let said = server.last_words();
    assert_eq!(status.code(), Some(1), "{status}: {said}");
    assert!(said.contains("Operation not permitted"), "{said}");
    served.is_ok()
}

/// Errors: it is gone before it has answered the little.
fn ask_little_then_much(server: &Server) -> std::io::Result<()> {
    let mut stream = TcpStream::from(server.stream()?);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"mn\r\n")?;
    let mut reply = [0; 4];
    stream.read_exact(&mut reply)?;
    assert_eq!(&reply, b"MN\r\n");
    // Broken off when the server ends.
    let _sent = stream.write_all(format!("set k 0 0 {LONG_BYTES}\r\n").as_bytes());
    let _sent = stream.write_all(&vec![b'v'; LONG_BYTES]);
    let _ended = stream.read(&mut [0; 16]);
    Ok(())
}

/// The fault: in a build that unwinds, only the thread of the shard ended. The others went on, and
/// waited for an engine that stayed locked.
#[test]
fn a_thread_that_panics_ends_the_server() {
    // A kernel that watches a socket refuses to watch it in another way: that is a bug of the
    // backend.
    let no_change = Refusal {
        call: libc::SYS_epoll_ctl,
        argument: Some((1, libc::EPOLL_CTL_MOD as u32)),
        error: Errno::INVAL,
    };
    let options = ["--io=epoll", "-m", "64", "-t", "2"];
    let mut server = refusing(&[no_change], || start(&options));
    let status = end_by_a_panic(server.connect(), &mut server.process);
    let said = server.last_words();
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{status}: {said}");
    assert!(said.contains("panicked") && said.contains("a live socket is watched"), "{said}");
    let log = server.log();
    assert!(log.contains(" error: a bug: thread shard "), "a line of the log: {log}");

    // The fault: the message waited until standard error took it, and the process with it.
    let mut server = refusing(&[no_change], || {
        let mut command = Command::new(program());
        command.arg("serve").args(options).args(["-p", "-1"]).args(user());
        Unheard::start(command)
    });
    let status = end_by_a_panic(Client::at(server.port), &mut server.process);
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{status}");
}

/// Has a thread of a server panic that refuses to watch a socket in another way. Waits until the
/// server has ended.
fn end_by_a_panic(mut client: Client, server: &mut Child) -> ExitStatus {
    client.set("k", &[b'v'; 1_000_000]);
    // More than fits into the buffers of a client that reads nothing.
    client.try_send("get k\r\n".repeat(32));
    let mut status = None;
    within(PATIENCE, || {
        status = server.try_wait().expect("a child");
        status.is_some()
    });
    status.expect("the server ends")
}
