//! The server under test: ours, or one that the environment names.

use std::path::{Path, PathBuf};

use kachel_testkit::{Launch, Server, rocksdb_library};

/// The variable that names another server.
const OTHER: &str = "KACHEL_CASES_SERVER";

/// How clients reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Unix,
}

/// Starts a server with more engines than threads (`kachel_options::TEST_ENGINES_ENV`).
const MORE_ENGINES: [&str; 2] = ["env", "KACHEL_TEST_ENGINES=5"];

/// Whether it is another server, not ours.
pub(crate) fn is_other() -> bool {
    std::env::var_os(OTHER).is_some()
}

/// Starts a server, called as `memcached`, and waits until it listens.
pub(crate) fn start(transport: Transport, io: &str) -> Server {
    let other = std::env::var_os(OTHER).map(PathBuf::from);
    let program = other.unwrap_or_else(|| env!("CARGO_BIN_EXE_kachel").into());
    let mut options = vec!["-m", "64", "-t", "2", "-U", "0"];
    if !is_other() {
        options.extend(["--io", io]);
    }
    let unix = transport == Transport::Unix;
    let under: &[&str] = if unix && io == "epoll" { &MORE_ENGINES } else { &[] };
    Launch { unix, under, ..Launch::memcached(&program, &options) }.start()
}

/// An engine with files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WithFiles {
    Flash,
    Rocksdb,
}

/// Starts a server over an engine whose files are in `data`.
pub(crate) fn start_over(engine: WithFiles, transport: Transport, io: &str, data: &Path) -> Server {
    let data = data.to_str().expect("UTF-8");
    let of_engine: &[&str] = match engine {
        WithFiles::Flash => &["--engine", "flash", "--space", "64m"],
        WithFiles::Rocksdb => &["--engine", "rocksdb"],
    };
    let options = ["-m", "64", "-t", "2", "-U", "0", "--io", io, "--data", data];
    let options = [&options, of_engine].concat();
    let unix = transport == Transport::Unix;
    let program = PathBuf::from(env!("CARGO_BIN_EXE_kachel"));
    let library = (engine == WithFiles::Rocksdb).then(rocksdb_library).flatten();
    let path = library.as_ref().map(|library| library.path().display().to_string());
    let variable = path.map(|path| format!("KACHEL_TEST_ROCKSDB={path}"));
    let under = variable.as_ref().map(|variable| ["env", variable]);
    let under = under.as_ref().map_or(&[][..], |under| &under[..]);
    Launch { unix, under, ..Launch::memcached(&program, &options) }.start()
}

/// Starts Debian's memcached, which `./test` installs.
pub(crate) fn start_debians() -> Server {
    Launch::memcached("/usr/bin/memcached".as_ref(), &["-m", "64", "-t", "2", "-U", "0"]).start()
}
