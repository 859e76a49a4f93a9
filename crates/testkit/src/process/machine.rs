//! The state of a server's process, as the kernel and `stats` report it.
//!
//! Upstream:   the tests.
//! Downstream: /proc, `client`.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::server::Server;
use super::waiting::wait_until;

impl Server {
    /// The number of the server's process.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Sends a signal to the server's process.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("our child takes signals");
    }

    /// Stops the process, and waits until each thread of it stands still. After the signal alone,
    /// the other threads run on until the one that takes it is scheduled.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        wait_until("each thread to stop", || self.is_stopped());
    }

    /// The file `name` of the process's folder in /proc.
    fn told(&self, name: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{name}", self.process.id())).expect("a living process")
    }

    /// A line of /proc/PID/status, such as `VmRSS:` or `VmHWM:`, in bytes.
    fn memory_bytes(&self, name: &str) -> u64 {
        let status = self.told("status");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("such a line");
        let kib = line.trim_matches(|c: char| !c.is_ascii_digit());
        kib.parse::<u64>().expect("a number of KiB") * 1024
    }

    /// Resident memory now, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.memory_bytes("VmRSS:")
    }

    /// The most resident memory that the process ever had, in bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.memory_bytes("VmHWM:")
    }

    /// Open files.
    pub fn files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.process.id())).expect("a process").count()
    }

    /// Whether every thread is stopped.
    fn is_stopped(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.process.id())).expect("a process");
        threads
            .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok())
            .all(|stat| stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T')))
    }

    /// The processor time used until now, by the process itself and by the kernel on its behalf.
    pub fn processor_time(&self) -> Duration {
        // In units of 1/100 s, on every machine (proc(5), USER_HZ).
        let stat = self.told("stat");
        // The fields from the third on follow the name, which may hold spaces.
        let fields: Vec<&str> =
            stat.rsplit_once(')').expect("a name").1.split_ascii_whitespace().collect();
        let ticks: u64 = [11, 12].iter().map(|&at| fields[at].parse::<u64>().expect("ticks")).sum();
        Duration::from_millis(ticks * 10)
    }

    /// Whether the process uses no processor time for a tenth of a second.
    pub fn is_at_rest(&self) -> bool {
        let before = self.processor_time();
        std::thread::sleep(Duration::from_millis(100));
        self.processor_time() == before
    }

    /// The replies to `stats` and to `stats kachel`, by name.
    pub fn stats(&self) -> HashMap<String, String> {
        self.connect().stats()
    }

    /// One number of `stats` or `stats kachel`.
    pub fn stat(&self, name: &str) -> u64 {
        self.connect().stat(name)
    }

    /// Waits until no other connection is open than the one that asks for `stats`.
    pub fn wait_until_alone(&self) {
        wait_until("the clients' end", || self.stat("curr_connections") == 1);
    }
}
