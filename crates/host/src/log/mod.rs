//! Lines for the operator, on standard error.
//!
//! Upstream:   `kachel`, on all its threads; `tls`; `admin`.
//! Downstream: `form` makes a line of each; `queue` keeps it until the thread of the log writes it.
//!
//! ```text
//! any thread --> form --> queue --> the thread of the log --> standard error
//!                  |                                              ^
//!                  +-----------(before there is that thread)------+
//! ```
//!
//! Invariants:
//! - L1  From the moment when the thread of the log runs, no other thread waits for standard error:
//!   a full pipe, a stopped terminal or a slow disk stops no shard, and not the end of the process.
//! - L2  No line has a key of a client, or another part of what it stores.

use std::fmt;
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

mod form;
mod queue;

use form::Form;
use queue::{LineQueue, Subject, Taken};

/// The variable in which systemd names the device and the inode of its journal's stream.
const JOURNAL_ENV: &str = "JOURNAL_STREAM";

/// How long the end of the process waits until its last lines are written. A guess: a reader that
/// takes none for so long has stopped.
const END_TIME_MAX: Duration = Duration::from_secs(1);

/// The stack of the thread of the log, in bytes. It only writes.
const STACK_BYTES: usize = 128 << 10;

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The server ends, does not start, or loses data that it should keep.
    Error,
    /// Something is not as the operator wanted it, and the server goes on.
    Warning,
    /// An event of normal operation.
    Info,
    /// An event of a single connection.
    Debug,
    /// An event inside the server.
    Trace,
}

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }

    /// The number of the level in syslog.
    const fn number(self) -> u8 {
        match self {
            Self::Error => 3,
            Self::Warning => 4,
            Self::Info => 6,
            Self::Debug | Self::Trace => 7,
        }
    }

    /// How often `-v` must be given for lines about clients of this level.
    const fn verbosity(self) -> u8 {
        match self {
            Self::Error | Self::Warning => 0,
            Self::Info => 1,
            Self::Debug => 2,
            Self::Trace => 3,
        }
    }
}

/// How lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Time, level and sentence.
    #[default]
    Text,
    /// An object of JSON a line, which has the fields, too.
    Json,
}

/// A part of a sentence that a program may want to read. Only lines of JSON have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogField<'a> {
    name: &'static str,
    value: LogValue<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogValue<'a> {
    Text(&'a str),
    Number(u64),
}

impl<'a> LogField<'a> {
    /// A text, of any bytes that are UTF-8. The name has lower-case letters and underscores.
    pub const fn text(name: &'static str, text: &'a str) -> Self {
        Self { name, value: LogValue::Text(text) }
    }

    /// A number.
    pub const fn number(name: &'static str, number: u64) -> Self {
        Self { name, value: LogValue::Number(number) }
    }
}

/// The log of the process.
struct Log {
    is_json: AtomicBool,
    /// How often `-v` was given.
    verbosity: AtomicU8,
    /// Whether the thread of the log runs (L1).
    has_thread: AtomicBool,
    queue: LineQueue,
}

static LOG: Log = Log {
    is_json: AtomicBool::new(false),
    verbosity: AtomicU8::new(0),
    has_thread: AtomicBool::new(false),
    queue: LineQueue::new(),
};

/// Sets how lines are written from now on, and which lines about clients: those that `-v` shows if
/// it is given `verbosity` times.
pub fn set_log(format: LogFormat, verbosity: u32) {
    LOG.is_json.store(format == LogFormat::Json, Ordering::Relaxed);
    LOG.verbosity.store(u8::try_from(verbosity).unwrap_or(u8::MAX), Ordering::Relaxed);
}

/// Starts the thread of the log (L1). The signals of the process must be blocked, and the process
/// must not fork later.
///
/// Errors: there can be no further thread.
pub fn start_log() -> io::Result<()> {
    let builder = thread::Builder::new().name("log".into()).stack_size(STACK_BYTES);
    builder.spawn(|| write_always(&LOG.queue, rustix::stdio::stderr()))?;
    LOG.has_thread.store(true, Ordering::Release);
    Ok(())
}

/// Writes a line about the process. Before [`start_log`] it waits until standard error takes the
/// line; later it never waits, and a line is lost only if a thousand wait before it (L1).
pub fn log(level: Level, sentence: fmt::Arguments<'_>, fields: &[LogField<'_>]) {
    LOG.write(Subject::Process, level, sentence, fields);
}

/// Writes a line about a client, if `-v` asks for such lines and there were not too many of them in
/// this second. A line too many is counted, and a later one says how many were lost. It never waits
/// after [`start_log`] (L1).
///
/// Cost: a load, or a few allocations, and a system call if the thread of the log sleeps.
pub fn log_client(level: Level, sentence: fmt::Arguments<'_>, fields: &[LogField<'_>]) {
    if let Some(line) = admit_client_line(level) {
        line.write(sentence, fields);
    }
}

/// A line about a client that may be written.
#[derive(Debug)]
pub struct AdmittedLine(Level);

/// Admits a line about a client as [`log_client`] does, before its text is made. Cost: a load if
/// `-v` does not ask for such lines.
#[must_use]
pub fn admit_client_line(level: Level) -> Option<AdmittedLine> {
    let is_wanted = level.verbosity() <= LOG.verbosity.load(Ordering::Relaxed);
    (is_wanted && LOG.queue.admits_client(Instant::now())).then_some(AdmittedLine(level))
}

impl AdmittedLine {
    /// Writes the line. The parameters are those of [`log_client`].
    pub fn write(self, sentence: fmt::Arguments<'_>, fields: &[LogField<'_>]) {
        LOG.write(Subject::Client, self.0, sentence, fields);
    }
}

/// The lines that were lost since the start of the process.
pub fn lost_log_lines() -> u64 {
    LOG.queue.lost()
}

/// Waits until the lines so far are written, for at most a second. Without it the end of the
/// process, or of its standard error, may lose the last ones.
pub fn finish_log() {
    if LOG.has_thread.load(Ordering::Acquire) {
        LOG.queue.finish(END_TIME_MAX);
    }
}

impl Log {
    fn write(
        &self,
        subject: Subject,
        level: Level,
        sentence: fmt::Arguments<'_>,
        fields: &[LogField<'_>],
    ) {
        let line = self.line(level, sentence, fields);
        if self.has_thread.load(Ordering::Acquire) {
            return self.queue.offer(subject, line, Instant::now());
        }
        // Nobody is left who could be told that standard error is closed.
        let _lost = io::stderr().write_all(line.as_bytes());
    }

    fn line(&self, level: Level, sentence: fmt::Arguments<'_>, fields: &[LogField<'_>]) -> String {
        static IS_FOR_JOURNAL: OnceLock<bool> = OnceLock::new();
        let is_json = self.is_json.load(Ordering::Relaxed);
        let format = if is_json { LogFormat::Json } else { LogFormat::Text };
        let form = Form { format, is_for_journal: *IS_FOR_JOURNAL.get_or_init(is_journal) };
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        form.line(since_1970, level, sentence, fields)
    }
}

/// The thread of the log: writes the lines of a queue until the process ends.
fn write_always(queue: &LineQueue, out: impl AsFd) {
    loop {
        let line = match queue.take() {
            Taken::Line(line) => line,
            Taken::Lost(count) => {
                let fields = [LogField::number("lost", count)];
                LOG.line(
                    Level::Warning,
                    format_args!("{count} lines of the log were lost"),
                    &fields,
                )
            }
        };
        if write_whole(&out, line.as_bytes()).is_err() {
            queue.note_unwritten();
        }
    }
}

/// Writes all bytes, also to a file that another process has set to not wait.
fn write_whole(out: impl AsFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(&out, bytes) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let _any = poll(&mut [PollFd::new(&out, PollFlags::OUT)], None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether standard error is the stream that systemd has opened to its journal.
fn is_journal() -> bool {
    let Ok(file) = rustix::fs::fstat(rustix::stdio::stderr()) else { return false };
    let own = format!("{}:{}", file.st_dev, file.st_ino);
    std::env::var_os(JOURNAL_ENV).is_some_and(|named| named == own.as_str())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// L1. The fault: a line waited until standard error took it.
    #[test]
    fn a_reader_that_has_stopped_stops_no_thread_that_logs() {
        static QUEUE: LineQueue = LineQueue::new();
        let (mut reader, writer) = io::pipe().expect("a pipe");
        thread::spawn(move || write_always(&QUEUE, writer));
        let line = "x".repeat(1000) + "\n";
        // A pipe takes 64 lines.
        for _ in 0..2 * queue::LINES_MAX {
            QUEUE.offer(Subject::Process, line.clone(), Instant::now());
        }
        assert!(QUEUE.lost() > 0, "they do not fit");
        let kept = 2 * queue::LINES_MAX - usize::try_from(QUEUE.lost()).expect("some");
        let mut read = vec![0; kept * line.len()];
        reader.read_exact(&mut read).expect("all that were kept");
        assert!(read.chunks(line.len()).all(|read| read == line.as_bytes()));
        let mut told = [0; 128];
        let count = reader.read(&mut told).expect("the line about the others");
        let told = String::from_utf8_lossy(&told[..count]).into_owned();
        let expected = format!(" {} lines of the log were lost\n", QUEUE.lost());
        assert!(told.ends_with(&expected), "{told}");
        drop(reader);
        // Closed standard error: the lines are counted, and the thread goes on.
        let before = QUEUE.lost();
        QUEUE.offer(Subject::Process, line.clone(), Instant::now());
        QUEUE.finish(Duration::from_secs(60));
        assert_eq!(QUEUE.lost(), before + 1);
    }

    #[test]
    fn a_file_that_does_not_wait_gets_whole_lines() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        rustix::io::ioctl_fionbio(&writer, true).expect("set");
        let long = vec![b'x'; 1 << 20];
        thread::scope(|scope| {
            scope.spawn(|| write_whole(writer, &long).expect("written"));
            let mut read = Vec::new();
            reader.read_to_end(&mut read).expect("read");
            assert!(read == long);
        });
    }
}
