//! `kachel verify` names each fault of a data directory and changes nothing. `kachel backup` copies
//! a directory, also while a server serves from it.
//!
//! Upstream:   `cargo test -p kachel --test upkeep`.
//! Downstream: the binary with `--engine flash`, and its commands.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use kachel_testkit::{Client, FakeRocksdb, Launch, Server};
use tempfile::TempDir;

/// The binary under test.
fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_kachel"))
}

fn start(data: &Path, more: &[&str]) -> Server {
    let data = data.to_str().expect("UTF-8");
    let options = ["serve", "--engine", "flash", "--data", data, "-t", "2", "--space", "96m"];
    let options = [&options, more].concat();
    Launch { called_as: "kachel", ..Launch::memcached(program(), &options) }.start()
}

fn kill(mut server: Server) {
    server.process.kill().expect("it runs");
    server.process.wait().expect("its end");
}

/// How a command ended, what it printed, and what it said on standard error.
fn kachel(command: &str, paths: &[&Path]) -> (i32, String, String) {
    let output = Command::new(program()).arg(command).args(paths).output().expect("it starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().expect("a status"), text(output.stdout), text(output.stderr))
}

fn set(client: &mut Client, key: &str, value: &str) {
    let request = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
    assert_eq!(client.ask(&request, "\r\n"), "STORED\r\n");
}

/// A directory that nobody serves from, with some items, a removal and a value in parts.
fn store() -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().expect("a folder");
    let data = place.path().join("data");
    let server = start(&data, &[]);
    let mut client = server.connect();
    for number in 0..100 {
        set(&mut client, &format!("key-{number}"), &format!("value {number}."));
    }
    set(&mut client, "large", &"large ".repeat(50_000));
    assert_eq!(client.ask("delete key-7\r\n", "\r\n"), "DELETED\r\n");
    kill(server);
    (place, data)
}

/// All files in a folder, with their contents.
fn image(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut image = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            image.extend(self::image(&path));
        } else {
            let content = fs::read(&path).expect("a file");
            image.insert(path, content);
        }
    }
    image
}

#[test]
fn a_sound_directory_has_no_fault_and_stays_as_it_is() {
    let (_place, data) = store();
    let before = image(&data);
    let (status, printed, said) = kachel("verify", &[&data]);
    assert_eq!((status, &*said), (0, ""), "{printed}");
    let line = format!("{}: no fault; ", data.display());
    assert!(
        printed.starts_with(&line) && printed.ends_with("101 stores, 1 removal\n"),
        "{printed}"
    );
    assert!(image(&data) == before, "it has changed");
}

#[test]
fn each_fault_of_a_directory_is_named_with_its_place() {
    let (_place, data) = store();
    let log = data.join("engine-0001/log");
    // Two values in the log of the second engine.
    let content = fs::read(&log).expect("a log");
    let value = |number: u64| {
        let wanted = format!("value {number}.");
        content.windows(wanted.len()).position(|window| window == wanted.as_bytes())
    };
    let places: Vec<u64> = (0..50).filter_map(value).map(|at| at as u64).take(2).collect();
    let [first, second] = places[..] else { panic!("{places:?}") };
    let file = fs::File::options().write(true).open(&log).expect("a log");
    for at in [first, second] {
        file.write_all_at(b"V", at).expect("written");
    }
    let flush = fs::read(data.join("kachel.flush")).expect("the flushes");
    fs::write(data.join("kachel.flush"), "nothing").expect("written");
    fs::rename(data.join("engine-0000/log"), data.join("aside")).expect("it is there");
    let before = image(&data);
    let (status, printed, _) = kachel("verify", &[&data]);
    assert_eq!(status, 1, "{printed}");
    let folder = data.display();
    let lines: Vec<&str> = printed.lines().collect();
    let (last, faults) = lines.split_last().expect("lines");
    assert!(faults.len() >= 4, "{printed}");
    let wanted = [
        format!("{folder}/kachel.flush: it is damaged"),
        format!("{folder}/engine-0000/log: the file is missing"),
        format!("{folder}/engine-0001/log, offset "),
        format!("{folder}/engine-0001/log, offset "),
    ];
    for (line, wanted) in faults.iter().zip(&wanted) {
        assert!(line.starts_with(wanted), "{line}: not {wanted}");
    }
    assert!(last.starts_with(&format!("{folder}: {} faults; ", faults.len())), "{last}");
    assert!(image(&data) == before, "it has changed");
    // A damaged store is not copied.
    fs::rename(data.join("aside"), data.join("engine-0000/log")).expect("it is there");
    fs::write(data.join("kachel.flush"), flush).expect("written");
    let to = data.with_file_name("copy");
    let (status, _, said) = kachel("backup", &[&data, &to]);
    let wanted = format!("kachel backup: {folder}/engine-0001/log, offset ");
    assert!(status == 1 && said.starts_with(&wanted), "{said}");
    assert!(!to.join("kachel.root").exists(), "a part of a copy is no store");
}

#[test]
fn a_directory_that_is_served_is_not_verified() {
    let (_place, data) = store();
    let server = start(&data, &[]);
    let (status, printed, said) = kachel("verify", &[&data]);
    assert_eq!((status, &*printed), (1, ""));
    assert!(
        said.contains("a server has the directory open; stop it, or verify a backup"),
        "{said}"
    );
    kill(server);
}

#[test]
fn arguments_and_directories_that_are_wrong_are_named() {
    let (_place, data) = store();
    let (none, to) = (data.with_file_name("none"), data.with_file_name("copy"));
    let fake = FakeRocksdb::build(None);
    let library = format!("KACHEL_TEST_ROCKSDB={}", fake.path().display());
    let rocks = data.with_file_name("rocks");
    let options = ["serve", "-t", "1", "--engine", "rocksdb", "--data", rocks.to_str().expect("")];
    let under = ["env", &library];
    let launch = Launch::memcached(program(), &options);
    kill(Launch { called_as: "kachel", under: &under, ..launch }.start());
    for (command, paths, wanted) in [
        ("verify", vec![&none], "has no kachel.root, so there is no store"),
        ("backup", vec![&none, &to], "has no kachel.root, so there is no store"),
        ("verify", vec![&rocks], "is of another engine (rocksdb; asked for is flash); docs/pers"),
        ("backup", vec![&rocks, &to], "is of another engine (rocksdb; asked for is flash); docs"),
    ] {
        let paths: Vec<&Path> = paths.into_iter().map(PathBuf::as_path).collect();
        let (status, printed, said) = kachel(command, &paths);
        let line = format!("kachel {command}: {}: {wanted}", paths[0].display());
        assert!((status, &*printed) == (1, "") && said.starts_with(&line), "{line}: {said}");
    }
    assert!(!to.exists(), "nothing was made");
    for (command, paths) in [
        ("verify", &[][..]),
        ("verify", &[&*data, &*to]),
        ("backup", &[&*data]),
        ("backup", &[&*data, Path::new("--now")]),
    ] {
        let (status, printed, said) = kachel(command, paths);
        assert_eq!((status, &*printed), (64, ""), "{paths:?}");
        assert!(said.starts_with(&format!("usage: kachel {command} DIR")), "{said}");
    }
    for command in ["verify", "backup"] {
        let (status, printed, _) = kachel(command, &[Path::new("--help")]);
        assert!(status == 0 && printed.starts_with("usage: "), "{printed}");
    }
}

#[test]
fn a_copy_is_made_only_where_there_is_nothing_else() {
    let (_place, data) = store();
    let to = data.with_file_name("copy");
    fs::create_dir(&to).expect("a folder");
    fs::write(to.join("precious"), "x").expect("a file");
    let (status, _, said) = kachel("backup", &[&data, &to]);
    assert!(status == 1 && said.contains("has precious; a copy needs a directory"), "{said}");
    fs::remove_file(to.join("precious")).expect("it is there");
    // As a backup that was killed leaves it.
    fs::create_dir(to.join("engine-0000")).expect("a folder");
    fs::write(to.join("engine-0000/log.new"), "x").expect("a file");
    let (status, printed, said) = kachel("backup", &[&data, &to]);
    assert_eq!((status, &*said), (0, ""), "{printed}");
    assert!(printed.starts_with(&format!("{}: 2 engines, ", to.display())), "{printed}");
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&to.join("engine-0000/log")), 0o600);
    let (status, _, said) = kachel("backup", &[&data, &to]);
    assert!(status == 1 && said.contains("copy: has a store already"), "{said}");
    let (status, _, said) = kachel("backup", &[&data, &data.join("engine-0000/copy")]);
    assert!(status == 1 && said.contains("is in the directory that is to be copied"), "{said}");
    assert!(!data.join("engine-0000/copy").exists());
    let made = fs::metadata(to.join("kachel.root")).expect("it is there");
    assert!(made.len() > 0 && mode(&to) & 0o077 != 0, "its mode is the operator's");
}

/// The number that a key has.
fn number_of(client: &mut Client, key: &str) -> Option<u64> {
    let reply = client.ask(format!("get {key}\r\n"), "END\r\n");
    reply.lines().nth(1).map(|value| value.trim_start_matches('0').parse().unwrap_or(0))
}

/// The client sets keys again and again, so garbage is collected all the time. The copy of a key
/// has a number that was acknowledged before the backup began, or a later one that was set before
/// it ended.
#[test]
fn a_copy_beside_traffic_has_what_was_acknowledged_and_nothing_that_was_removed() {
    const KEYS: u64 = 40;
    let place = tempfile::tempdir().expect("a folder");
    let data = place.path().join("data");
    let server = start(&data, &[]);
    let mut client = server.connect();
    set(&mut client, "removed", "x");
    assert_eq!(client.ask("delete removed\r\n", "\r\n"), "DELETED\r\n");
    let (acknowledged, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    for round in 0..3 {
        let to = place.path().join(format!("copy-{round}"));
        is_over.store(false, Ordering::Relaxed);
        let (before, after) = thread::scope(|scope| {
            let (acknowledged, is_over) = (&acknowledged, &is_over);
            let mut writer = server.connect();
            let write = move || {
                let first = acknowledged.load(Ordering::Relaxed);
                let mut next = first;
                while !is_over.load(Ordering::Relaxed) || next < first + 2 * KEYS {
                    next += 1;
                    set(&mut writer, &format!("key-{}", next % KEYS), &format!("{next:060000}"));
                    acknowledged.store(next, Ordering::Relaxed);
                }
            };
            scope.spawn(write);
            let begun = acknowledged.load(Ordering::Relaxed) + KEYS;
            while acknowledged.load(Ordering::Relaxed) < begun {
                thread::yield_now();
            }
            let before = acknowledged.load(Ordering::Relaxed);
            let (status, printed, said) = kachel("backup", &[&data, &to]);
            let after = acknowledged.load(Ordering::Relaxed) + 1;
            is_over.store(true, Ordering::Relaxed);
            assert_eq!((status, &*said), (0, ""), "{printed}");
            (before, after)
        });
        let (status, printed, _) = kachel("verify", &[&to]);
        assert_eq!(status, 0, "{printed}");
        let copy = start(&to, &[]);
        let mut client = copy.connect();
        assert_eq!(number_of(&mut client, "removed"), None);
        for key in 0..KEYS {
            let found = number_of(&mut client, &format!("key-{key}")).expect("it was set");
            let last = (before - KEYS + 1..=before).find(|number| number % KEYS == key);
            let least = last.expect("one of so many");
            let is_right = found % KEYS == key && (least..=after).contains(&found);
            assert!(is_right, "key {key}: {found}, not {least} to {after}");
        }
        kill(copy);
    }
    // The server has not noticed.
    set(&mut client, "after", "x");
    kill(server);
}
