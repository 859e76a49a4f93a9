//! The process of a server that is on this machine.
//!
//! Upstream:   `session`, for `--server-pid auto`, with the number that the server reports.
//! Downstream: `meter` watches the process.
//!
//! A server reports the number that it has on its own machine and in its own namespace of
//! processes. Another process may have that number here: the server in a container is its number 1,
//! which is this machine's init. So the process must listen at the server's address. If this user
//! may not see its sockets, it must at least be as old as the server says.

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};

use crate::address::Address;
use crate::server::Facts;

/// Ticks in a second of a process's start time (`USER_HZ`), the same on every Linux.
const TICKS_PER_S: f64 = 100.0;
/// The most that a process's age and the server's uptime may differ. memcached counts from 2, and a
/// server may need time before it counts. A guess.
const AGE_ERROR_S: f64 = 10.0;

/// The process that the server reports.
///
/// Errors: it is not found on this machine, as a message for the user.
pub(crate) fn of_server(facts: &Facts, address: &Address) -> Result<u32, String> {
    let pid = facts.pid.ok_or("--server-pid auto: the server's stats contain no pid")?;
    verify(Path::new("/proc"), pid, facts.uptime_s, address).map_err(|why| {
        format!("--server-pid auto: {why}; --server-pid PID measures the process that you name")
    })?;
    Ok(pid)
}

/// Errors: the process is not the server, or that cannot be told.
fn verify(
    proc_root: &Path,
    pid: u32,
    uptime_s: Option<u64>,
    address: &Address,
) -> Result<(), String> {
    if let Address::Tcp(at) = *address
        && !is_of_this_machine(at)
    {
        return Err(format!("{address} is not an address of this machine"));
    }
    let process = proc_root.join(pid.to_string());
    let fds = match fs::read_dir(process.join("fd")) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(format!("the server reports process {pid}, which is not on this machine"));
        }
        fds => fds,
    };
    if let Ok(fds) = fds {
        let listening = listening(&proc_root.join("thread-self/net"), address);
        let links = fds.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
        return match links.into_iter().any(|link| listening.iter().any(|one| link == **one)) {
            true => Ok(()),
            false => Err(format!(
                "the server reports process {pid}, but process {pid} of this machine does not \
                 listen at {address}"
            )),
        };
    }
    let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
    match (age_s(&stat), uptime_s) {
        (Some(age_s), Some(uptime_s)) if (age_s - uptime_s as f64).abs() <= AGE_ERROR_S => Ok(()),
        _ => Err(format!(
            "the server reports process {pid}, but process {pid} of this machine has another age, \
             and its sockets cannot be seen"
        )),
    }
}

/// Whether a socket can have this address, which the kernel allows for addresses of this machine.
fn is_of_this_machine(mut address: SocketAddr) -> bool {
    address.set_port(0);
    UdpSocket::bind(address).is_ok()
}

/// The links in `/proc/PID/fd` to the sockets that listen at the address's port or path.
fn listening(net: &Path, address: &Address) -> Vec<String> {
    let lines = |name: &str| fs::read_to_string(net.join(name)).unwrap_or_default();
    let inodes: Vec<String> = match address {
        Address::Tcp(at) => {
            let port = format!(":{:04X}", at.port());
            // sl local_address rem_address st tx:rx tr:when retransmits uid timeout inode ...
            let inode = |line: &str| {
                let fields: Vec<&str> = line.split_ascii_whitespace().collect();
                let is_wanted = fields.get(1)?.ends_with(&port) && *fields.get(3)? == "0A";
                fields.get(9).filter(|_| is_wanted).map(|inode| (*inode).to_owned())
            };
            [lines("tcp"), lines("tcp6")]
                .iter()
                .flat_map(|text| text.lines())
                .filter_map(inode)
                .collect()
        }
        Address::Unix(path) => {
            // Num RefCount Protocol Flags Type St Inode Path, which is as the server gave it.
            let inode = |line: &str| {
                let fields: Vec<&str> = line.split_ascii_whitespace().collect();
                let name = Path::new(fields.get(7)?).file_name();
                let is_wanted = name == path.file_name() && *fields.get(3)? == "00010000";
                fields.get(6).filter(|_| is_wanted).map(|inode| (*inode).to_owned())
            };
            lines("unix").lines().filter_map(inode).collect()
        }
    };
    inodes.into_iter().map(|inode| format!("socket:[{inode}]")).collect()
}

/// The age of a process, from its `/proc/PID/stat`.
fn age_s(stat: &str) -> Option<f64> {
    // The second field, a name in parentheses, may have any characters. The start is the 22nd.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: f64 = fields.split_ascii_whitespace().nth(19)?.parse().ok()?;
    Some(since_boot_s() - ticks / TICKS_PER_S)
}

fn since_boot_s() -> f64 {
    let since_boot = clock_gettime(ClockId::Boottime);
    since_boot.tv_sec as f64 + since_boot.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Process 7 listens at port 11211 and `run/k.sock`; process 8 has a connection to the port.
    /// The sockets of process 9, which is 100 s old, cannot be seen.
    fn proc_tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        let at = |path: &str| root.path().join(path);
        for folder in ["7/fd", "8/fd", "9", "thread-self/net"] {
            fs::create_dir_all(at(folder)).expect("made");
        }
        for (fd, to) in [
            ("7/fd/0", "/dev/null"),
            ("7/fd/5", "socket:[501]"),
            ("7/fd/6", "socket:[601]"),
            ("8/fd/5", "socket:[502]"),
            ("8/fd/6", "socket:[602]"),
        ] {
            std::os::unix::fs::symlink(to, at(fd)).expect("made");
        }
        fs::write(at("9/fd"), "").expect("written");
        let start = ((since_boot_s() - 100.0) * TICKS_PER_S) as i64;
        let stat = format!("9 (a ) b) S {} {start} 5 6\n", ["0"; 18].join(" "));
        fs::write(at("9/stat"), stat).expect("written");
        let row = |port: &str, state: &str, inode: u32| {
            format!("0: 0100007F:{port} 00000000:0000 {state} 0:0 00:0 0 0 0 {inode} 1 0\n")
        };
        let tcp = row("2BCB", "0A", 501) + &row("2BCB", "01", 502) + &row("2BCC", "0A", 502);
        fs::write(at("thread-self/net/tcp"), format!("sl local_address\n{tcp}")).expect("written");
        let unix = "Num\n0: 2 0 00010000 0001 01 601 run/k.sock\n0: 3 0 0 0001 03 602 run/k.sock\n";
        fs::write(at("thread-self/net/unix"), unix).expect("written");
        root
    }

    #[test]
    fn a_process_is_the_server_if_it_listens_there_or_else_has_its_age() {
        let root = proc_tree();
        let tcp = Address::Tcp(([127, 0, 0, 1], 11_211).into());
        let unix = Address::Unix("/srv/run/k.sock".into());
        let far = Address::Tcp(([192, 0, 2, 1], 11_211).into());
        for (pid, uptime_s, address, error) in [
            (7, None, &tcp, ""),
            (7, None, &unix, ""),
            (7, None, &far, "192.0.2.1:11211 is not an address of this machine"),
            (8, None, &tcp, "process 8 of this machine does not listen at 127.0.0.1:11211"),
            (8, None, &unix, "process 8 of this machine does not listen at /srv/run/k.sock"),
            (9, Some(102), &tcp, ""),
            (9, Some(120), &tcp, "process 9 of this machine has another age"),
            (9, Some(80), &tcp, "process 9 of this machine has another age"),
            (9, None, &tcp, "process 9 of this machine has another age"),
            (10, Some(100), &tcp, "process 10, which is not on this machine"),
        ] {
            match verify(root.path(), pid, uptime_s, address) {
                Ok(()) => assert_eq!(error, "", "{pid} {address}"),
                Err(words) => assert!(!error.is_empty() && words.contains(error), "{words}"),
            }
        }
    }
}
