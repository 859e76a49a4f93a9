//! The process that is watched, as the kernel shows it in `/proc`.
//!
//! Upstream:   the files under `/proc/PID`.
//! Downstream: `measure` and `symbols`.

use std::fs;
use std::path::PathBuf;

/// The number of the first namespace of processes, in which the programs count.
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

/// A process of this machine.
#[derive(Debug)]
pub(super) struct Process {
    pid: u32,
    /// When it began, in ticks; another process with the same number began at another time.
    began: u64,
    /// The file name of its program.
    pub(super) program: String,
}

/// A piece of its memory that has code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) begin: u64,
    pub(super) end: u64,
    /// Of `begin` in the file.
    pub(super) offset: u64,
    /// The path of the file, or a name such as `[vdso]`, or nothing.
    pub(super) path: String,
}

/// State and start of a process or thread, from the text of its `stat`.
fn state_and_start(stat: &str) -> Option<(char, u64)> {
    // The name before it may contain anything, also brackets.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// The mappings with code in the text of a `maps`.
fn code_in(maps: &str) -> Vec<Mapping> {
    let mapping = |line: &str| {
        let mut words = line.splitn(6, ' ');
        let (begin, end) = words.next()?.split_once('-')?;
        let number = |word| u64::from_str_radix(word, 16).ok();
        words.next()?.contains('x').then_some(())?;
        let offset = number(words.next()?)?;
        let path = words.nth(2).unwrap_or_default().trim().to_owned();
        Some(Mapping { begin: number(begin)?, end: number(end)?, offset, path })
    };
    maps.lines().filter_map(mapping).collect()
}

/// The number of the process that a thread belongs to, from the text of its `status`.
fn process_in(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// The number of the system call in the text of a `syscall`, if the thread is in one.
fn call_in(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

impl Process {
    /// The process with this number.
    ///
    /// Errors: there is none, or it has ended.
    pub(super) fn open(pid: u32) -> Result<Self, String> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        let stat = stat.map_err(|error| format!("--pid {pid}: {error}"))?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        if let Some(process) = process_in(&status).filter(|process| *process != pid) {
            return Err(format!("--pid {pid}: it is a thread of process {process}"));
        }
        let (_, began) = state_and_start(&stat).ok_or(format!("--pid {pid}: no such process"))?;
        let name = || fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        // The link is empty for threads of the kernel, and not readable without rights.
        let program = fs::read_link(format!("/proc/{pid}/exe")).ok();
        let program = program.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
        let program = program.unwrap_or_else(|| name().trim().to_owned());
        let process = Self { pid, began, program };
        if process.is_alive() { Ok(process) } else { Err(format!("--pid {pid}: it has ended")) }
    }

    /// Its number.
    pub(super) const fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it still runs.
    pub(super) fn is_alive(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        state_and_start(&stat)
            .is_some_and(|(state, began)| began == self.began && !matches!(state, 'Z' | 'X'))
    }

    /// The numbers of its threads.
    pub(super) fn threads(&self) -> Vec<u32> {
        let entries = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten();
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// The system call in which a thread sleeps now.
    pub(super) fn call_of(&self, thread: u32) -> Option<u64> {
        call_in(&fs::read_to_string(format!("/proc/{}/task/{thread}/syscall", self.pid)).ok()?)
    }

    /// Whether a thread runs or wants to run.
    pub(super) fn is_runnable(&self, thread: u32) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/task/{thread}/stat", self.pid));
        state_and_start(&stat.unwrap_or_default()).is_some_and(|(state, _)| state == 'R')
    }

    /// Its code.
    pub(super) fn code(&self) -> Vec<Mapping> {
        code_in(&fs::read_to_string(format!("/proc/{}/maps", self.pid)).unwrap_or_default())
    }

    /// Where the file of a mapping may be read: first the file itself, which may have been deleted
    /// or replaced since, then its path as the process sees it.
    pub(super) fn files_of(&self, mapping: &Mapping) -> [PathBuf; 2] {
        let Mapping { begin, end, path, .. } = mapping;
        let folder = format!("/proc/{}", self.pid);
        [
            format!("{folder}/map_files/{begin:x}-{end:x}").into(),
            format!("{folder}/root{path}").into(),
        ]
    }
}

/// Whether this process sees the numbers by which the kernel itself knows processes.
pub(super) fn sees_first_namespace() -> bool {
    let link = fs::read_link("/proc/self/ns/pid");
    link.is_ok_and(|link| link.to_str() == Some(FIRST_NAMESPACE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_hides_no_field() {
        let stat = "7 (a) b) (c) S 1 7 7 0 -1 0 0 0 0 0 1 2 0 0 20 0 4 0 4711 99 0";
        assert_eq!(state_and_start(stat), Some(('S', 4711)));
        assert_eq!(state_and_start("7 (cut"), None);
    }

    #[test]
    fn code_is_found_with_its_file() {
        let maps = "\
55d0-55d1 r--p 00000000 fe:00 12                         /usr/bin/a b
55d1-55d9 r-xp 00001000 fe:00 12                         /usr/bin/a b
7ff0-7ff1 r-xp 00000000 00:00 0                          [vdso]
7ff2-7ff3 rwxp 00000000 00:00 0 \n";
        let found = code_in(maps);
        let wanted =
            |begin, end, offset, path: &str| Mapping { begin, end, offset, path: path.into() };
        let program = wanted(0x55d1, 0x55d9, 0x1000, "/usr/bin/a b");
        assert_eq!(found[0], program);
        assert_eq!(
            found[1..],
            [wanted(0x7ff0, 0x7ff1, 0, "[vdso]"), wanted(0x7ff2, 0x7ff3, 0, "")]
        );
    }

    #[test]
    fn a_thread_that_runs_is_in_no_known_call() {
        assert_eq!(call_in("232 0x4 0x7f 0x1\n"), Some(232));
        assert_eq!(call_in("running\n"), None);
        assert_eq!(call_in("-1 0x7ffc 0x7f\n"), None);
    }

    #[test]
    fn this_process_is_alive_and_another_is_not() {
        let process = Process::open(std::process::id()).expect("it runs");
        assert!(process.is_alive() && !process.threads().is_empty() && !process.code().is_empty());
        assert!(Process::open(u32::MAX).is_err());
        let in_thread = || {
            let own = fs::read_link("/proc/thread-self").expect("a link");
            let own = own.file_name().and_then(|name| name.to_str()?.parse().ok());
            Process::open(own.expect("a number"))
        };
        let refused = std::thread::spawn(in_thread).join().expect("it ends");
        assert!(refused.is_err_and(|error| error.contains("a thread of process")));
        assert!(!Process { began: process.began + 1, ..process }.is_alive());
    }
}
