//! A start over flash names what is wrong with its directory, and leaves a directory as it is that
//! it cannot serve.
//!
//! Upstream:   `cargo test -p kachel --test directories`.
//! Downstream: the binary with `--engine flash`, and with `--engine rocksdb` over the library that
//!             stands in for RocksDB.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use kachel_testkit::{FakeRocksdb, Launch, Server, wait_until};
use tempfile::TempDir;

/// Starts a server over a folder.
///
/// Errors: what it says instead.
fn try_start(data: &Path, more: &[&str]) -> Result<Server, String> {
    let data = data.to_str().expect("UTF-8");
    let options = ["serve", "--engine", "flash", "--data", data];
    let space: &[&str] = if more.contains(&"--space") { &[] } else { &["--space", "96m"] };
    let threads: &[&str] = if more.contains(&"-t") { &[] } else { &["-t", "2"] };
    let options = [&options, space, threads, more].concat();
    let program = Path::new(env!("CARGO_BIN_EXE_kachel"));
    let launch = Launch::memcached(program, &options);
    Launch { called_as: "kachel", ..launch }.try_start().map_err(|end| end.said)
}

fn kill(mut server: Server) {
    server.process.kill().expect("it runs");
    server.process.wait().expect("its end");
}

/// A folder of a store with one item, which no server serves.
fn store() -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().expect("a folder");
    let data = place.path().join("data");
    let server = try_start(&data, &[]).unwrap_or_else(|said| panic!("{said}"));
    assert_eq!(server.connect().ask("set a 0 0 1\r\nx\r\n", "\r\n"), "STORED\r\n");
    kill(server);
    (place, data)
}

/// All files and folders in a folder, with their contents.
fn image(folder: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut image = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            image.extend(self::image(&path));
            image.insert(path, None);
        } else {
            let content = fs::read(&path).expect("a file");
            image.insert(path, Some(content));
        }
    }
    image
}

/// Checks that no server starts over a folder, for a reason that it names, and that the folder
/// stays as it is.
fn expect_refusal(data: &Path, more: &[&str], wanted: &str) {
    let before = image(data);
    let said = try_start(data, more).expect_err(wanted);
    assert!(said.contains(wanted), "wanted {wanted:?}: {said}");
    let after = image(data);
    let differs = |path: &&PathBuf| before.get(*path) != after.get(*path);
    let changed: Vec<_> = before.keys().chain(after.keys()).filter(differs).collect();
    assert!(changed.is_empty(), "{wanted:?} has changed {changed:?}");
}

#[test]
fn a_start_says_what_it_has_made_or_found() {
    let place = tempfile::tempdir().expect("a folder");
    let data = place.path().join("data");
    let server = try_start(&data, &[]).unwrap_or_else(|said| panic!("{said}"));
    let line = format!("--data {}: a new store of 2 engines is made", data.display());
    wait_until("the line of a new store", || server.log().contains(&line));
    for key in ["a", "b", "c"] {
        let reply = server.connect().ask(format!("set {key} 0 0 1\r\nx\r\n"), "\r\n");
        assert_eq!(reply, "STORED\r\n");
    }
    kill(server);
    let server = try_start(&data, &[]).unwrap_or_else(|said| panic!("{said}"));
    let line = format!("--data {}: found 3 items, which take 1 of ", data.display());
    wait_until("the line of a start", || server.log().contains(&line));
    assert!(!server.log().contains("a new store"), "{}", server.log());
    kill(server);
    let server =
        try_start(&place.path().join("other"), &[]).unwrap_or_else(|said| panic!("{said}"));
    wait_until("the line of a new store", || server.log().contains("listens on"));
    assert!(!server.log().contains("found 0 items"), "{}", server.log());
}

#[test]
fn two_servers_never_share_a_directory() {
    let (_place, data) = store();
    let server = try_start(&data, &[]).unwrap_or_else(|said| panic!("{said}"));
    let said = try_start(&data, &[]).expect_err("it does not start");
    assert!(said.contains("another server has the directory open"), "{said}");
    assert_eq!(server.connect().ask("get a\r\n", "END\r\n"), "VALUE a 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn engines_refuse_directories_of_each_other() {
    let place = tempfile::tempdir().expect("a folder");
    let (rocks, flash) = (place.path().join("rocks"), place.path().join("flash"));
    let fake = FakeRocksdb::build(None);
    let library = format!("KACHEL_TEST_ROCKSDB={}", fake.path().display());
    let start_rocks = |data: &Path| {
        let data = data.to_str().expect("UTF-8");
        let options = ["serve", "-t", "2", "--engine", "rocksdb", "--data", data];
        let program = Path::new(env!("CARGO_BIN_EXE_kachel"));
        let under = ["env", &library];
        let launch = Launch::memcached(program, &options);
        Launch { called_as: "kachel", under: &under, ..launch }.try_start().map_err(|end| end.said)
    };
    kill(start_rocks(&rocks).unwrap_or_else(|said| panic!("{said}")));
    expect_refusal(&rocks, &[], "is of another engine (rocksdb; asked for is flash)");
    kill(try_start(&flash, &[]).unwrap_or_else(|said| panic!("{said}")));
    let before = image(&flash);
    let said = start_rocks(&flash).expect_err("it does not start");
    assert!(said.contains("is of another engine (asked for is rocksdb)"), "{said}");
    assert!(before == image(&flash), "the directory has changed");
}

#[test]
fn a_directory_that_lacks_a_part_is_refused() {
    let (_place, data) = store();
    let folder = data.join("engine-0001");
    let aside = data.with_file_name("aside");
    for (path, wanted) in [
        (data.join("kachel.flush"), "kachel.flush is missing"),
        (folder.clone(), "engine-0001"),
        (folder.join("log"), "engine-0001"),
    ] {
        fs::rename(&path, &aside).expect("it is there");
        expect_refusal(&data, &[], wanted);
        fs::rename(&aside, &path).expect("it is back");
    }
    let root = data.join("kachel.root");
    fs::rename(&root, &aside).expect("it is there");
    fs::write(data.join("precious"), "x").expect("a file");
    expect_refusal(&data, &[], "has precious and no kachel.root");
    fs::rename(&aside, &root).expect("it is back");
    // Beside a root file, files of others are left alone.
    kill(try_start(&data, &[]).unwrap_or_else(|said| panic!("{said}")));
    assert_eq!(fs::read(data.join("precious")).expect("a file"), b"x");
}

#[test]
fn a_damaged_file_of_the_directory_is_refused() {
    let (_place, data) = store();
    for (name, wanted) in
        [("kachel.root", "kachel.root"), ("kachel.flush", "kachel.flush is damaged")]
    {
        let path = data.join(name);
        let whole = fs::read(&path).expect("it is there");
        // A digit becomes another digit: only a checksum tells that.
        for damage in [0, whole.len() / 2, whole.len() - 2, whole.len() - 1] {
            let mut damaged = whole.clone();
            damaged[damage] ^= 1;
            fs::write(&path, damaged).expect("a file");
            expect_refusal(&data, &[], wanted);
        }
        fs::write(&path, &whole[..whole.len() / 2]).expect("a file");
        expect_refusal(&data, &[], wanted);
        fs::write(&path, whole).expect("a file");
    }
    kill(try_start(&data, &[]).unwrap_or_else(|said| panic!("{said}")));
}

#[test]
fn a_directory_is_served_by_any_number_of_threads_with_more_or_less_space() {
    let (_place, data) = store();
    for more in [["-t", "1"], ["-t", "4"], ["--space", "128m"], ["--space", "64m"]] {
        let server = try_start(&data, &more).unwrap_or_else(|said| panic!("{more:?}: {said}"));
        let reply = server.connect().ask("get a\r\n", "END\r\n");
        assert_eq!(reply, "VALUE a 0 1\r\nx\r\nEND\r\n", "{more:?}");
        kill(server);
    }
}

#[test]
fn too_little_space_is_refused() {
    let place = tempfile::tempdir().expect("a folder");
    let data = place.path().join("data");
    for (space, wanted) in
        [("8m", "at least 16m for each engine"), ("31m", "2 engines need at least 16m each")]
    {
        let said = try_start(&data, &["--space", space]).expect_err("refused");
        assert!(said.contains(wanted), "{space}: {said}");
        assert!(!data.exists(), "{space}: nothing was made");
    }
}

#[test]
fn less_space_than_some_segments_of_each_engine_is_refused() {
    let place = tempfile::tempdir().expect("a folder");
    let data = place.path().join("data");
    // Segments of 8 MiB, which stay.
    kill(try_start(&data, &["--space", "1g"]).unwrap_or_else(|said| panic!("{said}")));
    let wanted = "--space: 2 engines need at least 128m in all, because their segments have 8 MiB";
    expect_refusal(&data, &["--space", "32m"], wanted);
    expect_refusal(&data, &["--space", "127m"], wanted);
    let server = try_start(&data, &["--space", "128m"]).unwrap_or_else(|said| panic!("{said}"));
    assert_eq!(server.connect().ask("set a 0 0 1\r\nx\r\n", "\r\n"), "STORED\r\n");
    kill(server);
}

/// A limit on the length of files stands for a file system that is full.
#[test]
fn a_file_system_without_space_for_the_log_is_told() {
    let place = tempfile::tempdir().expect("a folder");
    let data = place.path().join("data");
    let data = data.to_str().expect("UTF-8");
    let options = ["serve", "--engine", "flash", "--data", data, "--space", "96m", "-t", "1"];
    // 12 MiB, in blocks of 512 bytes.
    let under = ["sh", "-c", "ulimit -f 24576 && exec \"$@\"", "sh"];
    let launch = Launch::memcached(Path::new(env!("CARGO_BIN_EXE_kachel")), &options);
    let server = Launch { called_as: "kachel", under: &under, ..launch }.start();
    let (mut client, value) = (server.connect(), "x".repeat(60_000));
    let refused = (0..1_000).map(|key| {
        let reply = client.ask(format!("set {key} 0 0 {}\r\n{value}\r\n", value.len()), "\r\n");
        reply.starts_with("SERVER_ERROR out of memory")
    });
    let refused = refused.filter(|refused| *refused).count();
    assert!(refused > 0 && refused < 1_000, "{refused}");
    let line = "engine 0: the file system has no space for more of its log";
    wait_until("the line of a full disk", || server.log().contains(line));
    assert_eq!(client.ask("delete 0\r\n", "\r\n"), "DELETED\r\n");
    kill(server);
}
