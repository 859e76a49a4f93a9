//! Lines for the operator: their form, and lines from threads that must not wait.
//!
//! Upstream:   `kachel`, on all its threads; `tls`.
//! Downstream: standard error.
//!
//! ```text
//! 2026-11-26T22:44:54.123Z info: kachel 0.1.0 listens on 127.0.0.1:11211 with 2 threads
//! <6>kachel 0.1.0 listens on 127.0.0.1:11211 with 2 threads       to systemd's journal
//! ```
//!
//! The time is UTC. The journal notes its own time, and takes the level from the number
//! (`sd-daemon(3)`).
//!
//! Invariants:
//! - I1  A line of [`log_line`] is no longer than a pipe takes as one piece, so a pipe with room
//!   takes all of it without waiting.

use std::fmt;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::sync::{Mutex, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Bytes of a line, its end included: PIPE_BUF of Linux (I1).
const LINE_BYTES_MAX: usize = 4096;

/// The variable in which systemd names the device and the inode of its journal's stream.
const JOURNAL_ENV: &str = "JOURNAL_STREAM";

const DAY_SECONDS: u64 = 24 * 60 * 60;

/// Only one thread writes a line at a time, because a ready pipe may have room for only one.
static ONE: Mutex<()> = Mutex::new(());

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The server ends, does not start, or loses data that it should keep.
    Error,
    /// Something is not as the operator wanted it, and the server goes on.
    Warning,
    /// An event of normal operation.
    Info,
}

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }

    /// The number of the level in syslog.
    const fn number(self) -> u8 {
        match self {
            Self::Error => 3,
            Self::Warning => 4,
            Self::Info => 6,
        }
    }
}

/// Writes a line to standard error. It waits until standard error takes it, and [`log_line`] does
/// not wait for it meanwhile.
pub fn log(level: Level, text: fmt::Arguments<'_>) {
    let line = line(level, text);
    // Nobody is left who could be told that standard error is closed.
    let _lost = std::io::stderr().write_all(line.as_bytes());
}

/// Writes a line to standard error, or drops it if standard error cannot take it now: a full pipe,
/// or a terminal that is stopped. Cost: two system calls.
///
/// It may still wait if another process fills the same pipe at that moment.
pub fn log_line(level: Level, text: &str) {
    debug_assert!(!text.ends_with('\n'), "the end of the line comes here");
    let _dropped = write_if_taken(rustix::stdio::stderr(), &line(level, format_args!("{text}")));
}

/// The line with its end, in the form for whatever reads standard error.
fn line(level: Level, text: fmt::Arguments<'_>) -> String {
    static FOR_JOURNAL: OnceLock<bool> = OnceLock::new();
    if *FOR_JOURNAL.get_or_init(is_journal) {
        return format!("<{}>{text}\n", level.number());
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{} {}: {text}\n", Stamp(now.as_millis()), level.name())
}

/// Whether standard error is the stream that systemd has opened to its journal.
fn is_journal() -> bool {
    let Ok(file) = rustix::fs::fstat(rustix::stdio::stderr()) else { return false };
    let own = format!("{}:{}", file.st_dev, file.st_ino);
    std::env::var_os(JOURNAL_ENV).is_some_and(|named| named == own.as_str())
}

/// Milliseconds since 1970, shown by RFC 3339.
struct Stamp(u128);

impl fmt::Display for Stamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = u64::try_from(self.0 / 1000).unwrap_or(0);
        let (year, month, day) = date(seconds / DAY_SECONDS);
        let (hour, minute) = (seconds % DAY_SECONDS / 3600, seconds / 60 % 60);
        let (second, millisecond) = (seconds % 60, self.0 % 1000);
        write!(
            formatter,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z"
        )
    }
}

/// The year, month and day of a day that is counted from 1970-01-01.
///
/// Years are counted from March, so that the day of a leap year is the last one. Four hundred
/// years have 146,097 days.
fn date(day: u64) -> (u64, u64, u64) {
    const DAYS_BEFORE_1970: u64 = 719_468; // Since 0000-03-01.
    let day = day + DAYS_BEFORE_1970;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153; // 0 is March.
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let is_next_year = month >= 10;
    let month = if is_next_year { month - 9 } else { month + 3 };
    (400 * era + year + u64::from(is_next_year), month, day_of_month)
}

/// Writes `line`, which has its end, if that does not wait. Returns `false` if it would wait, or
/// failed.
fn write_if_taken(file: impl AsFd, line: &str) -> bool {
    debug_assert!(line.ends_with('\n'), "a line has an end");
    let mut bytes = [0; LINE_BYTES_MAX];
    let count = line.len().min(LINE_BYTES_MAX); // I1
    bytes[..count].copy_from_slice(&line.as_bytes()[..count]);
    bytes[count - 1] = b'\n';
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut asked = [PollFd::new(&file, PollFlags::OUT)];
    let has_room = poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    let is_ready = has_room == Ok(1) && asked[0].revents().contains(PollFlags::OUT);
    is_ready && rustix::io::write(&file, &bytes[..count]) == Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn lines_that_a_pipe_has_no_room_for_are_dropped() {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let line = "x".repeat(1_000) + "\n";
        let taken = (0..10_000).take_while(|_| write_if_taken(&writer, &line)).count();
        assert!((1..10_000).contains(&taken), "{taken} lines");
        let mut read = vec![0; 1_001 * taken];
        reader.read_exact(&mut read).expect("all of them");
        assert!(read.chunks(1_001).all(|read| read == line.as_bytes()));
        assert!(write_if_taken(&writer, "again\n"), "there is room");
        let long = "long".repeat(LINE_BYTES_MAX) + "\n";
        assert!(write_if_taken(&writer, &long), "it is cut");
        drop(writer);
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).expect("the rest");
        assert_eq!(rest.len(), "again\n".len() + LINE_BYTES_MAX);
        assert!(rest.ends_with(b"n\n"));
    }

    #[test]
    fn a_line_has_a_time_and_a_level() {
        let line = line(Level::Warning, format_args!("-k: {}", "not locked"));
        let (stamp, text) = line.split_once(' ').expect("a time");
        assert_eq!(text, "warning: -k: not locked\n");
        assert!(stamp.len() == 24 && stamp.starts_with("20") && stamp.ends_with('Z'), "{stamp}");
    }

    /// The dates are those of `date -u -d @SECONDS`.
    #[test]
    fn a_time_is_shown_as_other_programs_show_it() {
        for (seconds, shown) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_210_096, "2024-02-29T12:34:56.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (1_795_732_800, "2026-11-26T22:40:00.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(Stamp(seconds * 1000).to_string(), shown, "{seconds}");
        }
        assert_eq!(Stamp(1_789).to_string(), "1970-01-01T00:00:01.789Z");
    }
}
