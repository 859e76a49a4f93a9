//! `-S`: a server whose clients must log in by SASL, and the file of users that
//! `MEMCACHED_SASL_PWDB` names.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use kachel_testkit::{
    Client, Launch, PATIENCE, Server, is_usable, scram_first, scram_proof, wait_until,
};
use rustix::process::Signal;

const HEADER_BYTES: usize = 24;
const AUTH: u8 = 0x21;
const STEP: u8 = 0x22;
const SCRAM: &str = "SCRAM-SHA-256";

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_kachel"))
}

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

    fn variable(&self) -> String {
        format!("MEMCACHED_SASL_PWDB={}", self.path().display())
    }

    /// Replaces the file, as an operator's tool does: whole or not at all.
    fn write(&self, text: &str) {
        let new = self.folder.path().join("new");
        fs::write(&new, text).expect("written");
        fs::rename(new, self.path()).expect("renamed");
    }

    /// A server of two threads with these options too, whose clients must be among the users.
    fn start(&self, unix: bool, options: &[&str]) -> Server {
        let variable = self.variable();
        let options = [&["-t", "2", "-S"], options].concat();
        let under = ["env", &variable];
        Launch { unix, under: &under, ..Launch::memcached(program(), &options) }.start()
    }
}

fn request(opcode: u8, key: &str, value: &[u8]) -> Vec<u8> {
    let mut request = vec![0x80, opcode];
    request.extend_from_slice(&(key.len() as u16).to_be_bytes());
    request.extend_from_slice(&[0; 4]);
    request.extend_from_slice(&((key.len() + value.len()) as u32).to_be_bytes());
    request.extend_from_slice(&[0; 12]);
    [&request, key.as_bytes(), value].concat()
}

/// The status and the key and value of the next reply.
fn read_reply(client: &mut Client) -> (u16, Vec<u8>) {
    let mut header = [0; HEADER_BYTES];
    assert_eq!(client.read_whole(&mut header).len(), HEADER_BYTES, "a whole header");
    let body_bytes = u32::from_be_bytes(*header[8..].first_chunk().expect("a length"));
    let mut body = vec![0; body_bytes as usize];
    assert_eq!(client.read_whole(&mut body).len(), body.len(), "a whole body");
    let status = u16::from_be_bytes(*header[6..].first_chunk().expect("a status"));
    (status, body.split_off(usize::from(header[4])))
}

fn ask(client: &mut Client, request: impl AsRef<[u8]>) -> (u16, Vec<u8>) {
    client.send(request);
    read_reply(client)
}

/// Whether the reply to a login says that it has succeeded.
fn is_known(reply: &(u16, Vec<u8>)) -> bool {
    match (reply.0, &*reply.1) {
        (0, b"Authenticated") => true,
        (0x20, b"Auth failure.") => false,
        (status, body) => panic!("no reply to a login: {status:#x} {}", body.escape_ascii()),
    }
}

fn plain(client: &mut Client, user: &str, password: &str) -> bool {
    let message = format!("\0{user}\0{password}");
    is_known(&ask(client, request(AUTH, "PLAIN", message.as_bytes())))
}

fn scram(client: &mut Client, user: &str, password: &str) -> bool {
    let (status, server_first) = ask(client, request(AUTH, SCRAM, &scram_first(user)));
    assert_eq!(status, 0x21, "known and unknown users get a challenge");
    let proof = scram_proof(user, password, &server_first);
    let told = ask(client, request(STEP, SCRAM, &proof));
    if told.0 != 0x21 {
        return is_known(&told);
    }
    is_known(&ask(client, request(STEP, SCRAM, b"")))
}

fn lets_in(server: &Server, user: &str, password: &str) -> bool {
    let by_plain = plain(&mut server.connect(), user, password);
    assert_eq!(scram(&mut server.connect(), user, password), by_plain, "{user}");
    by_plain
}

fn get() -> Vec<u8> {
    request(0x00, "a", b"")
}

fn is_miss(client: &mut Client) -> bool {
    ask(client, get()) == (1, b"Not found".to_vec())
}

/// The value of a statistic of this topic.
fn stat(client: &mut Client, topic: &str, name: &str) -> String {
    client.send(request(0x10, topic, b""));
    let mut found = None;
    loop {
        let (status, line) = read_reply(client);
        assert_eq!(status, 0);
        if line.is_empty() {
            return found.expect(name);
        }
        if let Some(value) = line.strip_prefix(name.as_bytes()) {
            found.get_or_insert(String::from_utf8(value.to_vec()).expect("text"));
        }
    }
}

fn is_closed(client: &mut Client) -> bool {
    client.set_patience(PATIENCE);
    client.read_to_end().is_empty()
}

#[test]
fn clients_log_in_and_the_file_of_users_is_read_again() {
    let file = UsersFile::new("# users\nalice:secret\n");
    let server = file.start(true, &[]);
    let mut client = server.connect();
    assert_eq!(ask(&mut client, request(0x0b, "", b"")), (0, b"1.6.45".to_vec()));
    let mechanisms = ask(&mut client, request(0x20, "", b""));
    assert_eq!(mechanisms, (0, b"PLAIN SCRAM-SHA-256".to_vec()));
    assert!(!plain(&mut client, "alice", "wrong") && plain(&mut client, "alice", "secret"));
    assert!(is_miss(&mut client) && scram(&mut client, "alice", "secret"));
    assert_eq!(stat(&mut client, "", "auth_cmds"), "3");
    assert_eq!(stat(&mut client, "", "auth_errors"), "1");
    for (name, value) in
        [("binding_protocol", "binary"), ("auth_enabled_sasl", "yes"), ("auth_enabled_ascii", "no")]
    {
        assert_eq!(stat(&mut client, "settings", name), value);
    }

    file.write("alice:changed\nbob:pw\n");
    server.signal(Signal::HUP);
    // By one mechanism only: the file may be read between the logins of `lets_in`.
    wait_until("the new users", || plain(&mut server.connect(), "bob", "pw"));
    assert!(lets_in(&server, "bob", "pw"));
    assert!(!lets_in(&server, "alice", "secret") && lets_in(&server, "alice", "changed"));
    assert!(is_miss(&mut client), "it had logged in");

    // A file without a user changes nothing.
    file.write("no colon\n");
    server.signal(Signal::HUP);
    wait_until("a complaint", || server.last_words().contains("there is no user"));
    assert!(lets_in(&server, "bob", "pw"));
}

#[test]
fn a_client_that_has_not_logged_in_gets_nothing_else() {
    let file = UsersFile::new("alice:secret\n");
    for (unix, backend) in [(true, "epoll"), (false, "epoll"), (true, "uring"), (false, "uring")] {
        if !is_usable(backend) {
            continue;
        }
        let server = file.start(unix, &["-B", "binary", &format!("--io={backend}")]);
        let mut client = server.connect();
        assert_eq!(ask(&mut client, get()), (0x20, b"Auth failure.".to_vec()));
        assert!(is_closed(&mut client));
        let mut client = server.connect();
        client.send(b"get a\r\n");
        assert!(is_closed(&mut client), "a client that speaks text");
        let mut client = server.connect();
        assert!(scram(&mut client, "alice", "secret") && is_miss(&mut client));
    }
}

/// While the file is swapped, a user that is in every version is never refused, and one that is in
/// none is never let in.
#[test]
fn no_login_is_wrong_while_the_file_is_swapped() {
    let file = UsersFile::new("alice:secret\n");
    let server = file.start(true, &[]);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients = [("alice", true), ("mallory", false)].map(|(user, known)| {
            let (server, over) = (&server, &over);
            scope.spawn(move || {
                let mut logins = 0;
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(lets_in(server, user, "secret"), known, "{user}");
                    logins += 1;
                }
                logins
            })
        });
        for swap in 0..1_000 {
            let others: String = (0..swap % 5).map(|n| format!("user{n}:{swap}\n")).collect();
            file.write(&format!("{others}alice:secret\n"));
            server.signal(Signal::HUP);
        }
        over.store(true, Ordering::Relaxed);
        for client in clients {
            assert!(client.join().expect("no login was wrong") > 0);
        }
    });
}

/// The key of the configuration file is the long name of the option.
#[test]
fn the_file_of_options_asks_for_logins_too() {
    let users = UsersFile::new("alice:secret\n");
    let config = users.folder.path().join("kachel.toml");
    fs::write(&config, "enable-sasl = true\nthreads = 1\n").expect("written");
    let variable = users.variable();
    let options = ["--config", config.to_str().expect("UTF-8")];
    let under = ["env", &variable];
    let server =
        Launch { unix: true, under: &under, ..Launch::memcached(program(), &options) }.start();
    let mut client = server.connect();
    assert!(plain(&mut client, "alice", "secret") && is_miss(&mut client));
    assert_eq!(ask(&mut server.connect(), get()).0, 0x20);
}

#[test]
fn an_option_selects_the_mechanisms() {
    let file = UsersFile::new("alice:secret\n");
    for (option, names, by_plain) in [
        ("--sasl-mechanisms=all", "PLAIN SCRAM-SHA-256", true),
        ("--sasl-mechanisms=plain", "PLAIN", true),
        ("--sasl-mechanisms=scram-sha-256", "SCRAM-SHA-256", false),
    ] {
        let server = file.start(true, &[option]);
        let mut client = server.connect();
        assert_eq!(ask(&mut client, request(0x20, "", b"")), (0, names.as_bytes().to_vec()));
        assert_eq!(plain(&mut client, "alice", "secret"), by_plain, "{option}");
        let told = ask(&mut client, request(AUTH, SCRAM, &scram_first("alice")));
        assert_eq!(told.0 == 0x21, names.contains(SCRAM), "{option}");
    }
}

#[test]
fn a_server_without_users_does_not_start() {
    let refused = |file: Option<&Path>, words: &[&str], code, sentence: &str| {
        let mut command = Command::new(program());
        command.args(["serve", "-l", "127.0.0.1:0", "-S"]).args(words);
        command.env_remove("MEMCACHED_SASL_PWDB");
        if let Some(file) = file {
            command.env("MEMCACHED_SASL_PWDB", file);
        }
        let output = command.stdin(Stdio::null()).output().expect("it starts");
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(sentence), "{said}");
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (missing, unmounted) = (folder.path().join("missing"), folder.path().join("none/users"));
    refused(None, &[], 64, "-S: MEMCACHED_SASL_PWDB is not set");
    refused(Some(Path::new("")), &[], 64, "MEMCACHED_SASL_PWDB: ");
    refused(Some(&missing), &[], 64, "No such file");
    refused(Some(&unmounted), &[], 71, "No such file");
    refused(Some(&unmounted), &["--check"], 64, "No such file");
    refused(Some(&UsersFile::new("alice\n").path()), &[], 64, "there is no user");
    let good = UsersFile::new("alice:secret\n");
    refused(Some(&good.path()), &["-B", "ascii"], 64, "-S: the text protocol has no such login");
    refused(Some(&good.path()), &["-Y", "file"], 64, "a server has one kind of login");
}

/// Whether a thread of the server reads files again.
fn is_reading(server: &Server) -> bool {
    let threads = format!("/proc/{}/task", server.process.id());
    let mut threads = fs::read_dir(threads).expect("a process").flatten();
    threads.any(|thread| {
        let name = fs::read_to_string(thread.path().join("comm"));
        name.is_ok_and(|name| name.trim() == "reload")
    })
}

/// Twenty thousand users take many seconds. The end does not wait for them.
#[test]
fn a_signal_that_ends_the_server_does_not_wait_for_a_file_of_users() {
    let file = UsersFile::new("alice:secret\n");
    for signal in [Signal::TERM, Signal::USR1, Signal::INT] {
        file.write("alice:secret\n");
        let mut server = file.start(true, &[]);
        assert!(plain(&mut server.connect(), "alice", "secret"));
        let lines: Vec<String> = (0..20_000).map(|n| format!("user{n}:pw\n")).collect();
        file.write(&lines.concat());
        server.signal(Signal::HUP);
        wait_until("a thread that reads", || is_reading(&server));
        assert!(plain(&mut server.connect(), "alice", "secret"), "the users of before");
        server.signal(signal);
        let mut status = None;
        wait_until("the end", || {
            status = server.process.try_wait().expect("the state of a child");
            status.is_some()
        });
        assert!(status.is_some_and(|status| status.success()), "{status:?}");
        let said = server.last_words();
        assert!(!said.contains("read again") && !said.contains("stay as they were"), "{said}");
    }
}

/// Nobody writes to the FIFO, so a server that waited for it would wait for ever.
#[test]
fn a_file_of_users_that_is_a_fifo_is_refused_at_once() {
    let file = UsersFile::new("alice:secret\n");
    let server = file.start(true, &[]);
    let put_fifo = || {
        fs::remove_file(file.path()).expect("removed");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, file.path(), fifo, mode, 0).expect("a FIFO");
    };
    put_fifo();
    server.signal(Signal::HUP);
    wait_until("a complaint", || server.last_words().contains("not a regular file"));
    assert!(plain(&mut server.connect(), "alice", "secret"), "the users of before");
    let users = file.path();
    let start = |options: &[&str]| {
        let mut command = Command::new(program());
        command.arg("serve").args(options).stdin(Stdio::null());
        command.env("MEMCACHED_SASL_PWDB", &users).output().expect("it starts")
    };
    let path = users.to_str().expect("text");
    for options in [&["-S"][..], &["-Y", path], &["--config", path]] {
        let output = start(options);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("not a regular file"), "{said}");
    }
}
