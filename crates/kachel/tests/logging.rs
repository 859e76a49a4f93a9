//! The log of the server on standard error: its lines as text and as JSON, and what happens if
//! nobody takes them.
//!
//! Invariants:
//! - I1  No test waits for a fixed time. A line is waited for until it is there.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use kachel_testkit::{Client, Launch, Server, Unheard, user, wait_until};
use rustix::process::Signal;
use serde_json::Value;

/// The binary under test.
fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_kachel"))
}

fn start(options: &[&str]) -> Server {
    let options = [&["serve", "-t", "1"], options].concat();
    Launch { called_as: "kachel", ..Launch::memcached(program(), &options) }.start()
}

/// Waits until the log has a line that `wanted` accepts. Returns all lines.
fn lines_with(server: &Server, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let mut lines = Vec::new();
    wait_until("a line of the log", || {
        lines = server.log().lines().map(str::to_owned).collect();
        lines.iter().any(|line| wanted(line))
    });
    lines
}

/// The objects of a log in JSON, with this event, or this part of their message.
fn found(lines: &[String], word: &str) -> Vec<Value> {
    let objects = lines.iter().map(|line| {
        let object: Value = serde_json::from_str(line).unwrap_or_else(|error| {
            panic!("{line}: {error}");
        });
        let time = object["time"].as_str().expect("a time");
        assert!(time.len() == 24 && time.starts_with("20") && time.ends_with('Z'), "{line}");
        assert!(object["message"].is_string(), "{line}");
        object
    });
    let is_it = |object: &Value| {
        object["event"] == word || object["message"].as_str().is_some_and(|m| m.contains(word))
    };
    objects.filter(is_it).collect()
}

/// Connects, has the server answer and close the connection, and returns the client's address.
fn visit(server: &Server) -> String {
    let stream = std::net::TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
    let name = stream.local_addr().expect("an address").to_string();
    let mut client = Client::new(OwnedFd::from(stream));
    client.send("version\r\nquit\r\n");
    assert_eq!(client.read_to_end(), b"VERSION 1.6.45\r\n");
    name
}

#[test]
fn a_log_in_json_has_an_object_for_each_event() {
    let mut server = start(&["-vv", "--log-format=json", "-c", "2"]);
    let name = visit(&server);
    lines_with(&server, |line| line.contains("\"event\":\"closed\"") && line.contains(&name));
    let (_one, _two) = (server.connect().ask("version\r\n", "\n"), server.connect());
    let held: Vec<Client> = (0..2).map(|_| server.connect()).collect();
    let lines = lines_with(&server, |line| line.contains("\"event\":\"refused\""));
    drop(held);
    let listens = found(&lines, " listens on ");
    assert_eq!((listens.len(), &listens[0]["threads"]), (1, &Value::from(1)));
    assert_eq!(listens[0]["addresses"], format!("127.0.0.1:{}", server.port()));
    let refused = &found(&lines, "refused")[0];
    assert_eq!(refused["level"], "info");
    let of_name = |event| found(&lines, event).into_iter().find(|one| one["client"] == name);
    let (opened, closed) = (of_name("opened").expect("it"), of_name("closed").expect("it"));
    assert_eq!((&opened["level"], &opened["fd"]), (&Value::from("debug"), &closed["fd"]));
    assert_eq!(closed["reason"], "normal");
    server.signal(Signal::TERM);
    assert!(server.process.wait().expect("an end").success());
    let lines: Vec<String> = server.log().lines().map(str::to_owned).collect();
    assert_eq!(found(&lines, "ending: ")[0]["signal"], "SIGTERM");
}

#[test]
fn each_v_adds_lines() {
    for (options, has_refusals, has_connections) in [
        (&["-c", "1"][..], false, false),
        (&["-v", "-c", "1"], true, false),
        (&["-vv"], true, true),
    ] {
        let mut server = start(options);
        let holder = server.connect();
        let _refused = server.connect().try_send("version\r\n");
        drop(holder);
        wait_until("an answer", || {
            let mut client = server.connect();
            client.try_send("version\r\nquit\r\n") && client.read_to_end().starts_with(b"VERSION")
        });
        server.signal(Signal::TERM);
        assert!(server.process.wait().expect("an end").success());
        let log = server.log();
        assert_eq!(log.contains(" debug: "), has_connections, "{options:?}: {log}");
        let limited = options.contains(&"-c");
        assert_eq!(log.contains(": refused 127."), has_refusals && limited, "{options:?}: {log}");
        assert!(log.contains(" info: kachel "), "{log}");
    }
}

#[test]
fn lines_about_many_clients_are_bounded_and_counted() {
    const CLIENTS: usize = 500;
    let mut server = start(&["-vv"]);
    (0..CLIENTS).for_each(|_| _ = visit(&server));
    wait_until("all connections are closed", || server.connect().stat("curr_connections") == 1);
    server.signal(Signal::TERM);
    assert!(server.process.wait().expect("an end").success());
    let log = server.log();
    let written = log.lines().filter(|line| line.contains(" debug: ")).count();
    let told = log.lines().filter_map(|line| {
        let (words, _) = line.split_once(" lines of the log were lost")?;
        words.rsplit(' ').next()?.parse::<usize>().ok()
    });
    let lost: usize = told.sum();
    assert!(written + lost >= 2 * CLIENTS, "{written} lines, {lost} lost");
    assert!(lost > 0 || written >= 2 * CLIENTS, "{written} lines");
}

/// The fault: the main thread waited for standard error, so a server whose log nobody took could
/// not be ended.
#[test]
fn a_log_that_nobody_takes_stops_neither_a_client_nor_the_end() {
    let mut command = Command::new(program());
    command.args(["serve", "-vv", "-t", "1", "-p", "-1"]).args(user());
    let mut server = Unheard::start(command);
    let port = server.port;
    wait_until("lines are lost", || {
        let mut client = Client::at(port);
        client.stat("kachel_log_lines_lost") > 0
    });
    assert_eq!(Client::at(port).ask("version\r\n", "\n"), "VERSION 1.6.45\r\n");
    let id = rustix::process::Pid::from_child(&server.process);
    rustix::process::kill_process(id, Signal::TERM).expect("a signal");
    assert!(server.process.wait().expect("an end").success());
    let rest = server.log();
    assert!(rest.chars().filter(|c| *c != '\n').count() < 4096, "{rest}");
}
