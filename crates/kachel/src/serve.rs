//! Starts and ends the server, in this order:
//!
//! Upstream:   `main`, with the options.
//! Downstream: `host` for privileges and limits, `listeners` for sockets, `shards` for serving.
//!
//! ```text
//! limits -> certificates -> user -> users, token -> daemon -> memory lock -> signals -> listen
//!   -> admin address -> load -> files -> serve -> drain -> end
//! ```
//!
//! Invariants:
//! - I1  Root is given up before a socket, a file or a client is touched, with two exceptions.
//!   Certificates and keys are read before, because root alone may be able to. The program of the
//!   pipe is loaded before, which needs rights; it answers nothing until the shards run. These
//!   rights are given up as well, also by a server that stays root.
//! - I2  There is one thread until the signals are blocked; all later threads inherit the mask.
//! - I3  When the daemon, the port file or the PID file is ready, the server listens.
//! - I4  The memory file is removed last before clients are served. Each step that may fail comes
//!   before, so a start that fails leaves the items to the next one.
//! - I5  A panic ends the process, in every build. A build that unwinds would end only the thread
//!   that panicked: its engine stays locked, nobody serves its keys, and the end waits for it.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kachel_admin::{AdminAddress, AdminToken, DESCRIPTORS_MAX};
use kachel_host::{
    Cores, Daemon, LogField, Nodes, PageKind, Pidfile, ServiceState, Signal, Signals, Unpinned,
};
use kachel_net::{Mechanisms, Users};
use kachel_options::{
    CalledAs, KACHEL_VERSION, PORT_FILE_ENV, SASL_FILE_ENV, SaslChoice, ServeOptions,
    TEST_ENGINES_ENV, TEST_ROCKSDB_ENV, TEST_TIME_ENV,
};
use kachel_stdx::plural;

use crate::admin::{self, Progress, TokenFile};
use crate::caches::ServedEngines;
use crate::failure::{EXIT_FAILED, Failure};
use crate::listeners::{self, Open};
use crate::manager::tell;
use crate::obtained::Line;
use crate::pipe::SmartPipe;
use crate::reload::{Files, Reloader};
use crate::restart::Claim;
use crate::shards::{self, Admission, Running, Sockets};
use crate::tls::Encryption;
use crate::users::{LoginKind, UsersFile};

/// Files that the process opens in addition to one per connection: per shard, and in total.
const FILES_PER_SHARD: u64 = 8;
const FILES_OTHER: u64 = 64 + shards::SOCKETS_SPARE as u64;

/// How long shards may send the last replies when the server ends.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// Runs the server until a signal or a client ends it.
pub(crate) fn run<O: ServedEngines>(opener: &O, options: ServeOptions) -> ExitCode {
    abort_on_panic(); // I5
    kachel_host::ignore_signals_of_writes();
    for report in &options.reports {
        say!(Warning, "{report}");
    }
    let called_as = options.called_as;
    let is_checked = options.checks_only;
    let ended =
        if is_checked { check(opener, &options).map(|()| 0) } else { serve(opener, options) };
    let exit_code = match ended {
        Ok(exit_code) => ExitCode::from(exit_code),
        Err(failure) => refuse(&failure, called_as),
    };
    kachel_host::finish_log();
    exit_code
}

/// Says why the server does not start or has failed.
pub(crate) fn refuse(failure: &Failure, called_as: CalledAs) -> ExitCode {
    say!(Error, "{failure}");
    ExitCode::from(failure.exit_code(called_as))
}

/// Has a panic of any thread end the process after its message (I5). The message is a line of the
/// log, so the end does not wait for a reader of standard error that has stopped. With
/// `RUST_BACKTRACE` more lines follow.
fn abort_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        let fields = [LogField::text("thread", name)];
        say!(Error, fields: &fields, "a bug: thread {name} {panic}");
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            for line in backtrace.to_string().lines() {
                say!(Error, fields: &fields, "{line}");
            }
        }
        kachel_host::finish_log();
        std::process::abort();
    }));
}

/// Serves until the end; returns the exit code.
fn serve<O: ServedEngines>(opener: &O, options: ServeOptions) -> Result<u8, Failure> {
    // Read before the working folder may change.
    let port_file = std::env::var_os(PORT_FILE_ENV).map(PathBuf::from);
    let cores = Cores::of_this_process();
    let threads = thread_count(opener, &options, &cores)?;
    let shard_ports = options.shard_ports(threads)?;
    let udp_shard_ports = options.udp_shard_ports(threads)?;

    let files = O::files_max(shards::engine_count(opener, &options, threads));
    raise_limits(&options, threads, files)?;
    let pipe = SmartPipe::load(&options);
    let read = read_files(&options, threads)?; // I1
    let Read { users_file, users, encryption, token_file, token } = read;
    warn_of_tests(opener, &options, threads);
    if !kachel_host::is_address_space_free() {
        kachel_host::share_one_arena(); // Before the first thread takes one of its own.
    }
    let memory_file = memory_file(&options)?;
    let daemon = leave_terminal(&options)?;
    lock_memory(&options);
    let signals = Signals::block() // I2
        .map_err(|error| Failure::system("cannot wait for signals", &error))?;
    kachel_host::start_log().map_err(|error| Failure::system("no thread for the log", &error))?;

    let ports = Ports { shard_ports, udp: udp_shard_ports };
    let mut opened = open_sockets(&options, threads, ports.clone())?;
    let progress = Progress::default();
    let admin = admin::start(&options, token, encryption.as_ref(), &progress)?;
    let admin = admin.map(|(admin, open)| opened.note_admin(admin, &open));
    let Opened { sockets, places, port_lines } = opened;
    let pins = cores.claim_pins(threads);
    let admission = Admission { users, encryption: encryption.clone(), pipe: pipe.clone() };
    // The port is this server's now, so no other one with the same options ends while it loads.
    let mut claim = memory_file.map(Claim::new).transpose()?;
    let found = claim.as_mut().map(Claim::find).transpose()?.flatten();
    let started = shards::start(opener, &options, threads, sockets, pins.is_ok(), admission, found)
        .map_err(|error| Failure::system("cannot start serving", &error))?;
    let Some(mut running) = started else { return Ok(0) };

    // I3: from here on, other programs can see that the server listens.
    let pidfile = write_pidfile(&options)?;
    claim.as_mut().map(Claim::remove_old).transpose()?; // I4
    write_port_file(port_file.as_deref(), &port_lines);
    say_that_it_listens(&options, threads, &places, ports, &running);
    if options.called_as == CalledAs::Kachel || options.verbosity > 0 {
        say_what_was_obtained(&options, &cores, pins.as_ref().err().copied(), &running);
    }
    if let Some(daemon) = daemon {
        kachel_host::finish_log(); // Its output may end here.
        daemon.ready();
    }
    running.begin();
    progress.serve(running.live(options.admin.shows_classes));
    tell(ServiceState::Ready);

    let (token, options_file) = (token_file.zip(admin), options.options_file.clone());
    let files = Files { users: users_file, encryption, token, options: options_file };
    let reloader = Reloader::new(files, running.admitting(), options.verbosity);
    let (mut signals, signal) = wait_for_the_end(signals, &options, &reloader);
    let signal = signal.map(|signal| drain(&mut signals, signal, &options, &progress));
    tell(ServiceState::Stopping);
    progress.end();
    pipe.iter().for_each(SmartPipe::end);
    running.stop();
    remove_pidfile(pidfile, &options);
    // Dropped, the claim leaves nothing behind.
    end(running, signals, claim.filter(|_| signal == Some(Signal::User1)))
}

/// The file of `-e`. Its whole path is written down before the daemon leaves its folder.
fn memory_file(options: &ServeOptions) -> Result<Option<PathBuf>, Failure> {
    let path = options.memory_file.as_deref().map(std::path::absolute).transpose();
    path.map_err(|error| Failure::system("-e: no working folder", &error))
}

/// Waits for the shards, which were asked to end, saves their items to the file of `claim`, and
/// returns the exit code.
fn end<O: ServedEngines>(
    running: Running<O>,
    signals: Signals,
    claim: Option<Claim>,
) -> Result<u8, Failure> {
    let failed = running.failed();
    match &claim {
        Some(_) => save_in_time(signals, running.give_up_clients()),
        None => end_in_time(signals, running.give_up_clients(), Arc::clone(&failed)),
    }
    let saved = running.join(claim);
    saved.map_err(Failure::failed)?;
    Ok(exit_code(&failed))
}

/// Prints which variables that only tests may set are there.
fn warn_of_tests<O: ServedEngines>(opener: &O, options: &ServeOptions, threads: u16) {
    if std::env::var_os(TEST_TIME_ENV).is_some() {
        say!(Warning, "{TEST_TIME_ENV}: clients can move the clock; this is for tests only");
    }
    if std::env::var_os(TEST_ENGINES_ENV).is_some() {
        let engines = shards::engine_count(opener, options, threads);
        say!(Warning, "{TEST_ENGINES_ENV}: {engines} engines; this is for tests only");
    }
    if std::env::var_os(TEST_ROCKSDB_ENV).is_some() {
        say!(Warning, "{TEST_ROCKSDB_ENV}: not RocksDB's own library; this is for tests only");
    }
}

/// The ports of the shards, for TCP and UDP.
#[derive(Clone)]
struct Ports {
    shard_ports: Option<RangeInclusive<u16>>,
    udp: Option<RangeInclusive<u16>>,
}

/// The sockets of the process, their addresses for the log, and the lines of the port file.
struct Opened {
    sockets: Sockets,
    places: Vec<String>,
    port_lines: String,
}

impl Opened {
    /// Adds the place of the admin address. Returns that address.
    fn note_admin(&mut self, admin: AdminAddress, open: &Open) -> AdminAddress {
        self.places.extend(open.places.iter().map(|place| format!("{place} (--admin)")));
        self.port_lines += &open.port_lines;
        admin
    }
}

/// Opens all sockets.
fn open_sockets(options: &ServeOptions, threads: u16, ports: Ports) -> Result<Opened, Failure> {
    let Open { sockets, protocols, tls, mut places, mut port_lines } =
        listeners::open(&options.listeners, options.backlog)?;
    let of_shards = match ports.shard_ports {
        Some(ports) => listeners::open_of_shards(options, ports)?,
        None => Vec::new(),
    };
    // Threads that only own keys serve no datagrams either.
    let with_clients = options.roles.map_or(threads, |roles| roles.net);
    let datagrams = listeners::open_datagrams(&options.listeners.udp, with_clients, ports.udp)?;
    places.extend(datagrams.places);
    port_lines += &datagrams.port_lines;
    let sockets = Sockets {
        of_all: sockets,
        protocols,
        tls,
        of_shards,
        datagrams: datagrams.of_shards,
        udp_ports: datagrams.ports,
    };
    Ok(Opened { sockets, places, port_lines })
}

/// Prints where the server listens, and that it has no huge pages if it wanted them.
fn say_that_it_listens(
    options: &ServeOptions,
    threads: u16,
    places: &[String],
    ports: Ports,
    running: &Running<impl ServedEngines>,
) {
    if options.huge_pages && running.obtained().pages == PageKind::Ordinary {
        say!(Warning, "-L: this machine has no huge pages to give; ordinary pages are used");
    }
    if options.called_as == CalledAs::Memcached && options.verbosity == 0 {
        return;
    }
    let places = if places.is_empty() { "nothing".into() } else { places.join(", ") };
    let show = |kind, ports: Option<RangeInclusive<u16>>| {
        ports.map_or_else(String::new, |ports| {
            format!("; each has a {kind} of its own, {} to {}", ports.start(), ports.end())
        })
    };
    let ports = show("port", ports.shard_ports) + &show("UDP port", ports.udp);
    let noun = plural(threads.into(), "thread", "threads");
    let fields = [
        LogField::text("version", KACHEL_VERSION),
        LogField::text("addresses", &places),
        LogField::number("threads", threads.into()),
    ];
    say!(
        Info,
        fields: &fields,
        "kachel {KACHEL_VERSION} listens on {places} with {threads} {noun}{ports}"
    );
}

/// Prints one line about the cores, the memory and the I/O backend of the server.
fn say_what_was_obtained(
    options: &ServeOptions,
    cores: &Cores,
    unpinned: Option<Unpinned>,
    running: &Running<impl ServedEngines>,
) {
    let line = Line {
        cores,
        unpinned,
        memory_bytes: options.memory_bytes,
        obtained: running.obtained(),
        pinned_by_node: Nodes::of_this_machine().spread(&running.obtained().pinned),
    };
    say!(Info, "{line}");
}

/// The number of threads: `-t`, or one per core, but no more than fit into `-m`.
fn thread_count<O: ServedEngines>(
    opener: &O,
    options: &ServeOptions,
    cores: &Cores,
) -> Result<u16, Failure> {
    let bytes_min = |threads| O::budget_bytes_min(shards::engine_count(opener, options, threads));
    let fits = |threads| bytes_min(threads) <= options.memory_bytes;
    let refused = |threads| {
        let least = bytes_min(threads).div_ceil(1 << 20);
        let noun = plural(u64::from(threads), "thread needs", "threads need");
        let sentence = format!(
            "-m {} is too little: {threads} {noun} at least -m {least}",
            options.memory_bytes >> 20
        );
        Err(Failure::options(sentence))
    };
    match options.threads {
        Some(threads) if fits(threads) => Ok(threads),
        Some(threads) => refused(threads),
        None => {
            let fitting = (1..=cores.thread_count()).rev().find(|&threads| fits(threads));
            fitting.map_or_else(|| refused(1), Ok)
        }
    }
}

/// The exit code; `failed` is true if a shard has failed.
fn exit_code(failed: &AtomicBool) -> u8 {
    if failed.load(Ordering::Relaxed) { EXIT_FAILED } else { 0 }
}

/// Raises limits before root is given up, because raising them may require root. `of_engines` is
/// the most files that the engines have open.
fn raise_limits(options: &ServeOptions, threads: u16, of_engines: u64) -> Result<(), Failure> {
    if options.core_dumps && !kachel_host::allow_core_files() {
        return Err(Failure::machine("-r: the limit on core files is 0 and cannot be raised"));
    }
    let connections = u64::from(options.connections_max);
    // A shard has a listener for each address of its ports, often one for each version of IP.
    let own_listeners =
        if options.has_shard_ports { 2 * options.listeners.tcp.len() as u64 } else { 0 };
    let udp_sockets = 2 * options.listeners.udp.len() as u64;
    let udp_sockets = udp_sockets << u32::from(options.udp.has_shard_ports);
    let of_shards = u64::from(threads) * (FILES_PER_SHARD + own_listeners + udp_sockets);
    let of_handshakes = if options.tls.enabled { Encryption::files(threads) } else { 0 };
    let of_admin = options.admin.listen.as_ref().map_or(0, |_| DESCRIPTORS_MAX);
    let wanted = connections + of_shards + of_handshakes + of_admin + of_engines + FILES_OTHER;
    let limit = kachel_host::raise_open_files(wanted);
    if limit < connections {
        return Err(Failure::machine(format!(
            "-c {connections}: the limit on open files is {limit} and cannot be raised; start as root, \
             or use a smaller -c"
        )));
    }
    if limit < wanted {
        let short = wanted - limit;
        let noun = plural(short, "connection", "connections");
        say!(
            Warning,
            "-c {connections}: the limit on open files allows about {short} fewer {noun}"
        );
    }
    if options.lock_memory && !kachel_host::allow_locked_memory() {
        say!(Warning, "-k: the limit on locked memory cannot be raised; memory is not locked");
    }
    Ok(())
}

/// The files that are read before the server listens.
struct Read {
    users_file: Option<UsersFile>,
    users: Option<Users>,
    encryption: Option<Encryption>,
    token_file: Option<TokenFile>,
    token: Option<AdminToken>,
}

/// Reads the certificates, gives up rights, and reads the users and the token.
///
/// As in memcached, a key may be one that only root can read, and users must be those that the
/// user of `-u` can read.
fn read_files(options: &ServeOptions, threads: u16) -> Result<Read, Failure> {
    let encryption = Encryption::new(options, threads);
    let encryption = encryption.map_err(|file| Failure::certificates(&file))?;
    give_up_rights(options)?; // I1
    if let Some(Err(sentence)) = encryption.as_ref().map(Encryption::check_access) {
        say!(Warning, "{sentence}; SIGHUP and refresh_certs will not read it again");
    }
    let users_file = users_file(options)?;
    let users = users_file.as_ref().map(|file| file.read(&|| false)).transpose();
    let users = users.map_err(|file| Failure::users(&file))?;
    let token_file = TokenFile::of(options)?;
    let token = token_file.as_ref().map(TokenFile::read).transpose();
    let token = token.map_err(|file| admin::no_token(&file))?;
    Ok(Read { users_file, users, encryption, token_file, token })
}

/// Checks what a start with these options would read, and does not listen.
///
/// Errors: those of the start, all of them as wrong usage.
fn check<O: ServedEngines>(opener: &O, options: &ServeOptions) -> Result<(), Failure> {
    let cores = Cores::of_this_process();
    let checked = thread_count(opener, options, &cores).and_then(|threads| {
        options.shard_ports(threads)?;
        options.udp_shard_ports(threads)?;
        check_folder("-e", options.memory_file.as_deref())?;
        check_folder("-P", options.pidfile.as_deref())?;
        read_files(options, threads)
    });
    checked.map_err(Failure::of_check)?;
    println!("the options, and the files that they name, can be used");
    Ok(())
}

/// Checks that the folder of a file that is written later is there.
fn check_folder(option: &str, path: Option<&Path>) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    let of = |error: &dyn std::fmt::Display| {
        Failure::options(format!("{option} {}: {error}", path.display()))
    };
    let path = std::path::absolute(path).map_err(|error| of(&error))?;
    match path.parent() {
        Some(folder) if folder.is_dir() => Ok(()),
        _ => Err(of(&"there is no such folder")),
    }
}

/// Gives up the rights that the start needs.
fn give_up_rights(options: &ServeOptions) -> Result<(), Failure> {
    switch_user(options)?;
    if options.pipe.interface.is_none() {
        return Ok(());
    }
    kachel_host::give_up_loading()
        .map_err(|error| Failure::system("--pipe: cannot give up its rights", &error))
}

/// Switches to the user of `-u`, if started by root.
fn switch_user(options: &ServeOptions) -> Result<(), Failure> {
    if !kachel_host::is_root() {
        return Ok(());
    }
    let Some(name) = options.user.as_deref() else {
        if options.called_as == CalledAs::Memcached {
            let sentence = "started by root: give a user with -u, or -u root to stay root";
            return Err(Failure::options(sentence));
        }
        say!(Warning, "started by root: runs as root; give another user with -u");
        return Ok(());
    };
    let user = kachel_host::find_user(name).map_err(|error| {
        Failure::system(format_args!("-u {name}: cannot read the list of users"), &error)
    })?;
    let Some(user) = user else {
        return Err(Failure::no_user(format!("-u {name}: no such user")));
    };
    let what = format_args!("-u {name}: cannot switch to that user");
    kachel_host::become_user(user).map_err(|error| Failure::system(what, &error))
}

/// The file of `-Y` or `-S`. It is read by the user that the server runs as, so that it can be read
/// again.
fn users_file(options: &ServeOptions) -> Result<Option<UsersFile>, Failure> {
    let (option, path, kind) = if let Some(path) = &options.auth_file {
        ("-Y", path.clone(), LoginKind::Text)
    } else if options.sasl {
        let Some(path) = std::env::var_os(SASL_FILE_ENV) else {
            let sentence = format!(
                "-S: {SASL_FILE_ENV} is not set; it names the file of users, with a line \
                 USER:PASSWORD for each"
            );
            return Err(Failure::options(sentence));
        };
        let mechanisms = match options.sasl_mechanisms {
            SaslChoice::All => Mechanisms::All,
            SaslChoice::Plain => Mechanisms::Plain,
            SaslChoice::ScramSha256 => Mechanisms::ScramSha256,
        };
        (SASL_FILE_ENV, PathBuf::from(path), LoginKind::Sasl(mechanisms))
    } else {
        return Ok(None);
    };
    let file = UsersFile::at(&path, kind);
    file.map(Some).map_err(|error| Failure::system(option, &error))
}

fn leave_terminal(options: &ServeOptions) -> Result<Option<Daemon>, Failure> {
    if !options.daemon {
        return Ok(None);
    }
    kachel_host::leave_terminal(options.core_dumps, options.verbosity > 0)
        .map(Some)
        .map_err(|error| Failure::system("-d", &error))
}

/// Locks memory, after the fork of the daemon, because a lock does not survive a fork. A failure is
/// a warning, as in memcached.
fn lock_memory(options: &ServeOptions) {
    if options.lock_memory
        && let Err(error) = kachel_host::lock_memory()
    {
        say!(Warning, "-k: memory is not locked: {error}");
    }
}

/// Writes the port file. If it cannot be written, it warns, because the file is not an option.
fn write_port_file(path: Option<&Path>, lines: &str) {
    if let Some(path) = path
        && let Err(error) = kachel_host::write_whole(path, lines)
    {
        say!(Warning, "{PORT_FILE_ENV}: cannot write {}: {error}", path.display());
    }
}

/// Writes the file of `-P`.
fn write_pidfile(options: &ServeOptions) -> Result<Option<Pidfile>, Failure> {
    let Some(path) = options.pidfile.as_deref() else { return Ok(None) };
    if let Some(other) = Pidfile::living(path).filter(|other| *other != std::process::id()) {
        say!(
            Warning,
            "-P {}: the file names process {other}, which is still running",
            path.display()
        );
    }
    match Pidfile::write(path) {
        Ok(pidfile) => Ok(Some(pidfile)),
        Err(error) => Err(Failure::system(format_args!("-P {}", path.display()), &error)),
    }
}

/// Waits for a signal that ends the process, and returns it. At SIGHUP files are read again.
fn wait_for_the_end(
    mut signals: Signals,
    options: &ServeOptions,
    reloader: &Reloader,
) -> (Signals, Option<Signal>) {
    let signal = loop {
        match signals.wait() {
            Ok(Signal::HangUp) => reloader.ask(),
            Ok(signal) => break strongest(&mut signals, signal),
            Err(error) => {
                say!(Error, "ending: cannot wait for signals: {error}");
                return (signals, None);
            }
        }
    };
    reloader.end();
    if options.verbosity > 0 {
        let name = signal.to_string();
        say!(Info, fields: &[LogField::text("signal", &name)], "ending: {signal}");
    }
    (signals, Some(signal))
}

/// Serves clients for the time of `--drain`, while the admin address says that the server is not
/// ready. A second signal ends this. Returns the signal that says how the process ends.
fn drain(
    signals: &mut Signals,
    signal: Signal,
    options: &ServeOptions,
    progress: &Progress,
) -> Signal {
    let time = Duration::from_secs(options.drain_s.into());
    if time.is_zero() || !progress.begin_drain() {
        return signal;
    }
    tell(ServiceState::Draining(time));
    say!(Info, "draining: clients are served for {} s more", time.as_secs());
    match wait_at_most(signals, time) {
        Some(Signal::User1) => Signal::User1, // As in `strongest`.
        _ => signal,
    }
}

/// The signal that says how the process ends, of `first` and those that have come with it: the one
/// that saves the items, because the kernel does not tell which of several came first.
fn strongest(signals: &mut Signals, first: Signal) -> Signal {
    // Each of them waits at most once.
    for _ in 0..Signal::COUNT {
        match signals.wait_at_most(Duration::ZERO) {
            Ok(Some(Signal::User1)) => return Signal::User1,
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => break,
        }
    }
    first
}

/// Removes the PID file. Without `-d` it stays, as in memcached.
fn remove_pidfile(pidfile: Option<Pidfile>, options: &ServeOptions) {
    if options.daemon
        && let Some(pidfile) = pidfile
        && let Err(error) = pidfile.remove()
    {
        say!(Warning, "-P: cannot remove the file: {error}");
    }
}

/// Waits until a second signal comes, which it returns, or the clients have had their time to take
/// their replies.
fn wait_for_clients(signals: &mut Signals) -> Option<Signal> {
    wait_at_most(signals, END_TIME_MAX)
}

/// Waits for at most `time` until a signal comes that ends the process, which it returns.
fn wait_at_most(signals: &mut Signals, time: Duration) -> Option<Signal> {
    let deadline = Instant::now() + time;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match signals.wait_at_most(left) {
            Ok(Some(Signal::HangUp)) if !left.is_zero() => {} // Not a request to end.
            Ok(signal) => return signal.filter(|signal| *signal != Signal::HangUp),
            Err(_) => return None,
        }
    }
}

/// Closes the clients at a second signal, or when they have not taken their replies in time, so
/// that the items can be saved. Only SIGINT ends the process before they are saved, at any time: a
/// service manager often sends SIGTERM after the signal that it was told to send.
fn save_in_time(mut signals: Signals, give_up_clients: impl FnOnce() + Send + 'static) {
    let body = move || {
        let mut is_interrupted = wait_for_clients(&mut signals) == Some(Signal::Interrupt);
        if !is_interrupted {
            give_up_clients();
        }
        while !is_interrupted {
            match signals.wait() {
                Ok(Signal::Interrupt) => is_interrupted = true,
                Ok(Signal::HangUp) => {}
                Ok(signal) => say!(Info, "-e: {signal} is ignored while items are saved"),
                Err(_) => return,
            }
        }
        say!(Error, "-e: ended before all items were saved; there is no file");
        kachel_host::finish_log();
        std::process::exit(EXIT_FAILED.into());
    };
    let spawned = std::thread::Builder::new().name("save in time".into()).spawn(body);
    if let Err(error) = spawned {
        say!(Warning, "waits for clients without a time limit: {error}");
    }
}

/// Closes the clients at a second signal, or when they have not taken their replies in time. Then
/// the process ends; if its threads do not, a third signal ends it, or as much time again.
fn end_in_time(
    mut signals: Signals,
    give_up_clients: impl FnOnce() + Send + 'static,
    failed: Arc<AtomicBool>,
) {
    let body = move || {
        wait_for_clients(&mut signals);
        give_up_clients();
        wait_for_clients(&mut signals);
        say!(Warning, "ended while its threads were at work");
        kachel_host::finish_log();
        std::process::exit(exit_code(&failed).into());
    };
    let spawned = std::thread::Builder::new().name("end in time".into()).spawn(body);
    if let Err(error) = spawned {
        say!(Warning, "waits for clients without a time limit: {error}");
    }
}
