//! `-Y`: a server whose clients must log in, and its file of users.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kachel_testkit::{Client, Launch, Look, Server, wait_until, within};
use rustix::net::{AddressFamily, Shutdown, SocketType, bind, connect, shutdown, socket};
use rustix::process::Signal;

/// A folder with a file of users.
struct UsersFile {
    folder: tempfile::TempDir,
}

impl UsersFile {
    fn new(text: &str) -> Self {
        let file = Self { folder: tempfile::tempdir().expect("a folder") };
        file.write(text);
        file
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("users")
    }

    /// Replaces the file, as an operator's tool does: whole or not at all.
    fn write(&self, text: &str) {
        let new = self.folder.path().join("new");
        fs::write(&new, text).expect("written");
        fs::rename(new, self.path()).expect("renamed");
    }

    /// A server of two threads whose clients must be among the users. It listens on a unix socket,
    /// because there a login that has failed delays no other one.
    fn start(&self) -> Server {
        let path = self.path();
        let options = ["-t", "2", "-Y", path.to_str().expect("UTF-8")];
        Launch { unix: true, ..Launch::memcached(program(), &options) }.start()
    }
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_kachel"))
}

/// The reply to a login.
fn log_in(client: &mut Client, token: &str) -> String {
    client.ask(format!("set x 0 0 {}\r\n{token}\r\n", token.len()), "\n")
}

fn lets_in(server: &Server, token: &str) -> bool {
    match &*log_in(&mut server.connect(), token) {
        "STORED\r\n" => true,
        "CLIENT_ERROR authentication failure\r\n" => false,
        other => panic!("no reply to a login: {other:?}"),
    }
}

#[test]
fn clients_log_in_and_the_file_of_users_is_read_again() {
    let file = UsersFile::new("alice:secret\n");
    let server = file.start();
    let mut client = server.connect();
    assert_eq!(client.ask("version\r\n", "\n"), "CLIENT_ERROR unauthenticated\r\n");
    assert_eq!(log_in(&mut client, "alice secret"), "STORED\r\n");
    assert_eq!(client.ask("version\r\n", "\n"), "VERSION 1.6.45\r\n");
    assert_eq!(client.ask("stats settings\r\n", "END\r\n").matches("ascii yes\r\n").count(), 1);

    file.write("alice:changed\nbob:pw\n");
    server.signal(Signal::HUP);
    wait_until("the new users", || lets_in(&server, "bob pw"));
    assert!(!lets_in(&server, "alice secret") && lets_in(&server, "alice changed"));
    assert_eq!(client.ask("version\r\n", "\n"), "VERSION 1.6.45\r\n", "it had logged in");

    // A bad file changes nothing.
    file.write("alice:new\nno colon\n");
    server.signal(Signal::HUP);
    wait_until("a complaint", || server.last_words().contains("line 2 is not USER:PASSWORD"));
    assert!(!lets_in(&server, "alice new") && lets_in(&server, "bob pw"));
    file.write("carol:pw\n");
    server.signal(Signal::HUP);
    wait_until("the last users", || lets_in(&server, "carol pw"));
    assert!(!lets_in(&server, "alice new") && !lets_in(&server, "alice changed"));
}

/// While the file is swapped, a user that is in every version is never refused, and one that is in
/// none is never let in.
#[test]
fn no_login_is_wrong_while_the_file_is_swapped() {
    let file = UsersFile::new("alice:secret\n");
    let server = file.start();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients = [("alice secret", true), ("mallory secret", false)].map(|(token, known)| {
            let (server, over) = (&server, &over);
            scope.spawn(move || {
                let mut logins = 0;
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(lets_in(server, token), known, "{token}");
                    logins += 1;
                }
                logins
            })
        });
        for swap in 0..1_000 {
            let others: String = (0..swap % 50).map(|n| format!("user{n}:{swap}\n")).collect();
            file.write(&format!("{others}alice:secret\n"));
            server.signal(Signal::HUP);
        }
        over.store(true, Ordering::Relaxed);
        for client in clients {
            assert!(client.join().expect("no login was wrong") > 0);
        }
    });
}

/// A connection from 127.0.0.`last` to a port of 127.0.0.1.
fn stream_from(last: u8, port: u16) -> OwnedFd {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    let own = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, last), 0);
    bind(&socket, &own).expect("an address of this machine");
    connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).expect("it listens");
    socket
}

/// 1,100 connections of eight addresses send a wrong password each, and close the connection or
/// their sending side. Once the server has noticed that, a client of a ninth address logs in.
/// Otherwise each login that waits for a check would keep its place for a minute.
#[test]
fn guessers_that_are_gone_leave_room_for_others() {
    const GUESS: &str = "set x 0 0 11\r\nalice guess\r\n";
    const LOGIN: &str = "set x 0 0 12\r\nalice secret\r\n";
    const HANG: Duration = Duration::from_secs(30);
    let file = UsersFile::new("alice:secret\n");
    let path = file.path();
    for io in ["--io=epoll", "--io=auto"] {
        let options = ["-t", "2", "-c", "1024", io, "-Y", path.to_str().expect("UTF-8")];
        let server = Launch::memcached(program(), &options).start();
        for half_closes in [false, true] {
            let mut open = Vec::new();
            for number in 0..1_100 {
                let mut guesser = Client::new(stream_from(1 + number as u8 % 8, server.port()));
                // Where the server is full, it has closed it before.
                let is_sent = guesser.try_send(GUESS);
                if half_closes && is_sent {
                    let _is_closed = shutdown(guesser.socket(), Shutdown::Write);
                    open.push(guesser);
                }
            }
            let lets_in = within(HANG, || {
                let mut client = Client::new(stream_from(9, server.port()));
                let mut buffer = [0; 64];
                client.try_send(LOGIN)
                    && matches!(client.look(&mut buffer), Look::Bytes(count)
                        if buffer[..count] == *b"STORED\r\n")
            });
            assert!(lets_in, "{io}, they half-close: {half_closes}");
        }
    }
}

#[test]
fn a_bad_file_of_users_is_refused_at_the_start() {
    // A file in a folder that is not there may come with it (`starting`).
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing");
    let refused = |path: &Path, sentence: &str| {
        let mut command = Command::new(program());
        command.args(["serve", "-l", "127.0.0.1:0", "-Y"]).arg(path);
        let output = command.stdin(Stdio::null()).output().expect("it starts");
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(64), "{said}");
        assert!(said.contains("-Y ") && said.contains(sentence), "{said}");
    };
    refused(&missing, "No such file");
    refused(&UsersFile::new("alice:secret\nbob\n").path(), "line 2 is not USER:PASSWORD");
    refused(&UsersFile::new("\n").path(), "there is no user");
}
