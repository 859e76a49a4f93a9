//! The commands of the binary beside its server: `kachel load` and `kachel probe`.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use kachel_testkit::Launch;
use rustix::net::{self, AddressFamily, SocketType};
use rustix::process::Signal;

/// The binary under test.
fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_kachel"))
}

/// A folder with the binary itself, not a link to it, and this program as its `kachel-lab`.
fn folder_with_lab(lab: Option<&str>) -> tempfile::TempDir {
    // Beside the binary, because a hard link does not leave a file system. A copy would be open for
    // writing while another test starts a process, which then keeps it from being executed.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    fs::hard_link(env!("CARGO_BIN_EXE_kachel"), folder.path().join("kachel")).expect("a link");
    if let Some(lab) = lab {
        symlink(lab, folder.path().join("kachel-lab")).expect("a link");
    }
    folder
}

fn load(folder: &tempfile::TempDir, args: &[&str]) -> Output {
    let mut command = Command::new(folder.path().join("kachel"));
    command.arg("load").args(args).output().expect("the binary starts")
}

#[test]
fn load_without_the_lab_beside_says_how_to_build_it() {
    let output = load(&folder_with_lab(None), &["--help"]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(output.stdout.is_empty());
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(said.contains("`cargo build --release -p kachel-lab`"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    // A folder is there and cannot be executed.
    let output = load(&folder_with_lab(Some("/")), &[]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(said.contains("kachel-lab cannot be executed"), "{said}");
}

#[test]
fn load_becomes_the_lab_beside_with_all_its_arguments() {
    let folder = folder_with_lab(Some("/bin/echo"));
    let output = load(&folder, &["--help", "-c", "4", "replay file"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "load --help -c 4 replay file\n");
    // Called by a link elsewhere, it is beside the file that the link leads to.
    let elsewhere = tempfile::tempdir().expect("a folder");
    symlink(folder.path().join("kachel"), elsewhere.path().join("kachel")).expect("a link");
    let output = load(&elsewhere, &["-x"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "load -x\n");
    assert_eq!(load(&folder_with_lab(Some("/bin/false")), &[]).status.code(), Some(1));
}

/// The answer of `kachel probe` about a server.
fn probed(words: &[&str]) -> Output {
    Command::new(program()).arg("probe").args(words).output().expect("the binary starts")
}

/// A TCP socket that has a port of its own and does not listen, and its address.
fn deaf_socket() -> (OwnedFd, String) {
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = SocketAddr::try_from(net::getsockname(&socket).expect("bound")).expect("IPv4");
    (socket, address.to_string())
}

#[test]
fn a_probe_tells_a_server_that_answers_from_one_that_does_not() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(&file, "user:password\n").expect("written");
    let users = file.path().to_str().expect("text");
    for (options, unix) in [
        (&[][..], false),
        (&[], true),
        (&["-B", "binary"], false),
        (&["-B", "ascii"], false),
        (&["-c", "1"], false),
        (&["-Y", users], false),
    ] {
        let mut server = Launch { unix, ..Launch::memcached(program(), options) }.start();
        // With -c 1, this is the one.
        let _client = server.connect();
        let place = server.place();
        let address = if unix { place } else { format!("127.0.0.1:{place}") };
        let answer = probed(&[&address]);
        assert!(answer.status.success() && answer.stderr.is_empty(), "{options:?}: {answer:?}");
        server.stop();
        let answer = probed(&["--timeout-s", "1", &address]);
        let said = String::from_utf8(answer.stderr).expect("text");
        assert_eq!(answer.status.code(), Some(1), "{said}");
        assert!(said.ends_with("no answer within 1 s\n") && said.contains(&address), "{said}");
        server.signal(Signal::CONT);
        server.process.kill().expect("our child");
        server.process.wait().expect("our child");
        // Another server may have its port by now.
        assert!(!unix || probed(&[&address]).status.code() == Some(1), "nobody listens");
    }
    let (_socket, address) = deaf_socket();
    assert_eq!(probed(&[&address]).status.code(), Some(1), "nobody listens");
    assert_eq!(probed(&["--no-such"]).status.code(), Some(64));
    assert!(probed(&["--help"]).stdout.starts_with(b"usage: kachel probe"));
}
