//! Cases about resources of the machine: descriptors, memory, signals.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kachel_testkit::{
    Client, Ended, Launch, Look, PATIENCE, Server, set_request, wait_until, within,
};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, prlimit};

use crate::subject::{Door, program, start};
use crate::suite::is_full;

/// X09.
pub(crate) fn no_descriptors(door: Door) -> String {
    const MORE: usize = 8;
    const CLIENTS: usize = 40;
    let rounds = if is_full() { 3 } else { 1 };
    const WATCHED: Duration = Duration::from_secs(2);
    let server = start(door, &["-m", "64", "-t", "2"]);
    let (mut busiest, mut fastest) = (0.0f64, Duration::MAX);
    for _ in 0..rounds {
        server.wait_until_alone();
        let mut served = server.connect();
        served.set("k", b"v");
        let room = (server.files() + MORE) as u64;
        let few = Rlimit { current: Some(room), maximum: getrlimit(Resource::Nofile).maximum };
        let before = prlimit(Some(server.pid()), Resource::Nofile, few).expect("our child");
        let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.connect()).collect();
        let (used, began) = (server.processor_time(), Instant::now());
        served.set_patience(WATCHED);
        assert_eq!(served.look(&mut [0; 8]), Look::Nothing, "nothing is asked");
        let share = (server.processor_time() - used).as_secs_f64() / began.elapsed().as_secs_f64();
        busiest = busiest.max(share);
        served.set_patience(PATIENCE);
        assert!(served.get("k").is_some(), "who is in is served");
        for client in &mut clients {
            client.send("mn\r\n");
            client.set_patience(Duration::from_millis(2));
        }
        let mut buffer = [0; 8];
        let lucky = clients.iter_mut().map(|client| client.look(&mut buffer));
        let lucky = lucky.filter(|look| *look == Look::Bytes(4)).count();
        // The limit is on numbers of descriptors, of which some lower ones may be free.
        assert!(lucky <= 2 * MORE, "{lucky} clients were let in: the limit does not bite");
        let began = Instant::now();
        prlimit(Some(server.pid()), Resource::Nofile, before).expect("our child");
        let mut answered = lucky;
        let all = within(PATIENCE, || {
            let looks = clients.iter_mut().map(|client| client.look(&mut buffer));
            answered += looks.filter(|look| *look == Look::Bytes(4)).count();
            answered == CLIENTS
        });
        assert!(all, "{answered} of {CLIENTS} are answered");
        // Each check of a client without an answer took up to 2 ms of this time.
        fastest = fastest.min(began.elapsed());
    }
    if is_full() {
        assert!(busiest <= 0.05, "{:.1} % of a processor while descriptors lack", busiest * 100.0);
        assert!(fastest <= Duration::from_millis(100), "accepts {fastest:?} afterwards");
    }
    format!(
        "{:.1} % of a processor at most; all let in {fastest:.0?} after there were descriptors",
        busiest * 100.0
    )
}

/// A group of processes whose memory is limited; removed at the end.
struct Group {
    folder: PathBuf,
}

impl Group {
    /// `None` where this machine does not let us make one.
    fn new(bytes: u64, io: &str) -> Option<Self> {
        let name = format!("kachel-abuse-{}-{io}-{bytes}", std::process::id());
        for (root, limit) in [
            ("/sys/fs/cgroup", "memory.max"),
            ("/sys/fs/cgroup/unified", "memory.max"),
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ] {
            let group = Self { folder: Path::new(root).join(&name) };
            let made = fs::create_dir(&group.folder).is_ok();
            // In a plain folder or without the memory controller there is no such file.
            let file = group.folder.join(limit);
            if made && file.exists() && fs::write(file, bytes.to_string()).is_ok() {
                return Some(group);
            }
        }
        None
    }

    fn take_in(&self, server: &Server) {
        let number = server.process.id().to_string();
        fs::write(self.folder.join("cgroup.procs"), number).expect("root moves its child");
    }

    /// Times that the kernel ended a process of the group.
    fn kills(&self) -> u64 {
        let told = ["memory.events", "memory.oom_control"].map(|name| self.folder.join(name));
        let told = told.iter().find_map(|path| fs::read_to_string(path).ok()).expect("events");
        let line = told.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.expect("a count").parse().expect("a number")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Empty once the server is gone; what stays is an empty folder of the kernel's.
        let _gone = within(Duration::from_secs(5), || fs::remove_dir(&self.folder).is_ok());
    }
}

/// X14.
pub(crate) fn memory_group(door: Door) -> String {
    const MEMORY: u64 = 64 << 20;
    let limit = MEMORY + MEMORY / 4 + (64 << 20);
    let group = Group::new(limit, door.io);
    let mut server = start(door, &["-m", "64", "-t", "2"]);
    if let Some(group) = &group {
        group.take_in(&server);
    }
    let mut client = server.connect();
    let mut slow: Vec<Client> = Vec::new();
    // Sizes that change, readers that do not read, values that do not end.
    for (round, bytes) in [100, 10_000, 900_000, 3_000, 300_000, 30].into_iter().enumerate() {
        let value = vec![b'g'; bytes];
        let count = usize::try_from(2 * MEMORY).expect("64 bits") / bytes;
        crate::memory::fill(&mut client, &format!("r{round}."), count.min(200_000), &value);
        client.try_set("large", &[b'l'; 900_000]);
        for number in 0..20 {
            let mut reader = server.connect();
            reader.send(["get large large large\r\n", "set u 0 0 900000\r\n"][number % 2]);
            reader.try_send(vec![b'u'; (number % 2) * 500_000]);
            slow.push(reader);
        }
    }
    server.assert_alive();
    let peak = server.peak_bytes();
    assert!(peak <= limit, "{peak} bytes resident at the most, not {limit}");
    drop((client, slow));
    assert_eq!(server.connect().ask("mn\r\n", "\n"), "MN\r\n");
    let peak =
        format!("{:.0} MiB resident at the most of {}", peak as f64 / 1048576.0, limit >> 20);
    let Some(group) = group else {
        kachel_testkit::skip("x14.group", "no memory group to be had here");
        return format!("{peak}; no memory group to be had here");
    };
    let kills = group.kills();
    drop(server);
    assert_eq!(kills, 0, "the kernel ended it");
    format!("{peak}, in a memory group of that size")
}

/// Runs the server with limited address space. Errors: its last words, if it does not start.
fn run_within(door: Door, bytes: u64) -> Result<(), String> {
    let program = program();
    let options = ["-m", "64", "-t", "2", "--io", door.io];
    let limit = format!("--as={bytes}");
    let under = &["prlimit", &limit, "--"];
    match (Launch { under, ..Launch::memcached(&program, &options) }).try_start() {
        Ok(server) => {
            let mut client = server.connect();
            client.set("k", b"v");
            client.set("large", &[b'l'; 900_000]);
            assert!(client.get("large").is_some());
            Ok(())
        }
        Err(Ended { status, said }) => {
            // With the first few MiB the program is not even loaded, and the loader says so.
            // If it has just enough for that, there is none for the stack of a thread.
            let sentences = ["emory", "no thread for"];
            let is_said = sentences.iter().any(|sentence| said.contains(sentence));
            let in_words = status.code().is_some_and(|code| code != 0) && is_said;
            assert!(in_words, "with {bytes} bytes of address space: {status}: {said}");
            let line = said.lines().last().unwrap_or_default();
            // Without its time, which is another one in each line.
            Err(line.split_once("Z error: ").map_or(line, |(_, sentence)| sentence).to_owned())
        }
    }
}

/// X15, of arenas.
pub(crate) fn no_address_space(door: Door) -> String {
    let (mut refused, mut sentences, mut served) = (0, Vec::new(), None);
    let mut bytes = 16 << 20;
    while served.is_none() {
        match run_within(door, bytes) {
            Ok(()) => served = Some(bytes),
            Err(said) => {
                refused += 1;
                if !sentences.contains(&said) {
                    sentences.push(said);
                }
                bytes += bytes / 4;
            }
        }
        assert!(bytes < 1 << 44, "it never serves");
    }
    assert!(refused > 0, "no limit was tried that is too low");
    let served = served.unwrap_or_default() >> 20;
    format!(
        "{refused} limits refused, each with a sentence ({}); serves with {served} MiB",
        sentences.join("; ")
    )
}

/// X22.
pub(crate) fn signals(door: Door) -> String {
    const TIMES: usize = 10_000;
    let mut server = start(door, &["-m", "64", "-t", "2"]);
    let mut client = server.connect();
    client.set("k", b"v");
    for number in 0..TIMES {
        server.signal(Signal::HUP);
        server.signal(Signal::PIPE);
        if number % 100 == 0 {
            assert!(client.get("k").is_some());
        }
    }
    server.assert_alive();
    client.send(set_request("after", 0, b"storm"));
    assert_eq!(client.read_until(b"\r\n"), b"STORED\r\n");
    server.signal(Signal::USR1);
    let mut status = None;
    wait_until("the end by SIGUSR1", || {
        status = server.process.try_wait().expect("our child");
        status.is_some()
    });
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
    format!("{TIMES} SIGHUP and SIGPIPE each: served on; SIGUSR1: ended with 0")
}
