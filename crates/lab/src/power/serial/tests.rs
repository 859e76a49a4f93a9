//! Tests with instruments that a thread plays at the other end of a pseudo terminal.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use clap::Parser as _;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::super::energy::{Energy, Sample};
use super::super::sampler::{Sampled, unix_s};
use super::super::{MeterName, Options, measure, text};
use super::*;

/// The reaction of an instrument to a request.
enum Act {
    Answer(Vec<u8>),
    Silence,
    /// Its adapter is pulled out.
    Unplug,
}

/// A played instrument.
struct Played {
    device: String,
    /// The user's end. It keeps the line open between two users, as a cable does.
    line: File,
    /// The instrument's end.
    end: Option<File>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Played {
    /// Begins to play. `is_whole` says whether a request has ended.
    fn begin(is_whole: fn(&[u8]) -> bool, act: impl FnMut(&[u8]) -> Act + Send + 'static) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let end = openpt(flags).expect("a pseudo terminal");
        grantpt(&end).expect("granted");
        unlockpt(&end).expect("unlocked");
        let device = ptsname(&end, Vec::new()).expect("a name").into_string().expect("text");
        let flags = i32::try_from(OFlags::NOCTTY.bits()).expect("it fits");
        let line = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&device);
        let line = line.expect("the user's end");
        let end = File::from(end);
        let ended = Arc::<AtomicBool>::default();
        let (played, stop) = (end.try_clone().expect("a descriptor"), Arc::clone(&ended));
        let thread = Some(std::thread::spawn(move || play(played, is_whole, act, &stop)));
        Self { device, line, end: Some(end), ended, thread }
    }

    fn open(&self, instrument: &str) -> Result<Box<dyn Meter>, String> {
        let name = MeterName::parse(&format!("{instrument}:{}", self.device)).expect("a meter");
        Ok(name.open()?.expect("a meter with a thread"))
    }

    /// Sends bytes that nobody has requested, and waits until they have arrived.
    fn send(&mut self, bytes: &[u8]) {
        self.end.as_mut().expect("plugged").write_all(bytes).expect("sent");
        let limit = Timespec { tv_sec: 30, tv_nsec: 0 };
        let arrived = poll(&mut [PollFd::new(&self.line, PollFlags::IN)], Some(&limit));
        assert_eq!(arrived, Ok(1), "the bytes arrive");
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        let ended = self.thread.take().expect("joined once").join();
        assert!(ended.is_ok() || std::thread::panicking(), "the instrument has failed");
    }
}

fn play(
    mut end: File,
    is_whole: fn(&[u8]) -> bool,
    mut act: impl FnMut(&[u8]) -> Act,
    ended: &AtomicBool,
) {
    let nap = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    let mut request = Vec::new();
    while !ended.load(Relaxed) {
        if poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&nap)).expect("it polls") == 0 {
            continue;
        }
        let mut received = [0; 256];
        let count = end.read(&mut received).expect("the line is open");
        request.extend_from_slice(&received[..count]);
        if !is_whole(&request) {
            continue;
        }
        match act(&std::mem::take(&mut request)) {
            Act::Answer(bytes) => end.write_all(&bytes).expect("the line is open"),
            Act::Silence => {}
            Act::Unplug => return,
        }
    }
}

/// Waits for what a thread does in a moment.
fn wait_until(is_done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_done() {
        assert!(Instant::now() < deadline, "it does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a request to Microchip's monitor has ended.
fn is_frame(request: &[u8]) -> bool {
    request.len() >= 2 && request.len() >= usize::from(request[1])
}

/// Whether a message to Yokogawa's meter has ended.
fn is_line(request: &[u8]) -> bool {
    request.ends_with(b"\n")
}

/// The monitor's reply with active power in units of 10 mW.
fn reading(centiwatts: u32) -> Vec<u8> {
    let mut reply = [&[0x06, 0x07], &centiwatts.to_le_bytes()[..]].concat();
    reply.push(mcp39f511::sum(&reply));
    reply
}

/// A monitor whose answer to the request with this index, from 0 on, is `act`.
fn monitor(mut act: impl FnMut(usize) -> Act + Send + 'static) -> Played {
    let mut index = 0;
    Played::begin(is_frame, move |request| {
        assert_eq!(request, mcp39f511::read_request(0x0012, 4), "the read of active power");
        index += 1;
        act(index - 1)
    })
}

/// The state of Yokogawa's meter.
#[derive(Default)]
struct Panel {
    /// The items of its responses. It is delivered with voltage, current and power.
    items: BTreeSet<String>,
    is_remote: bool,
    /// Without a header, the response to a query has data only.
    is_bare: bool,
    errors: Vec<&'static str>,
}

impl Panel {
    fn command(&mut self, command: &str) -> Option<String> {
        let (header, data) = command.split_once(' ').unwrap_or((command, ""));
        match (header, data) {
            ("*CLS", _) => self.errors.clear(),
            (":COMMUNICATE:REMOTE", _) => self.is_remote = data == "ON",
            (":COMMUNICATE:HEADER", _) if self.is_remote => self.is_bare = data == "OFF",
            (":STATUS:ERROR?", _) => {
                return Some(self.errors.pop().unwrap_or("0,\"NO ERROR\"").to_owned());
            }
            (":MEASURE:NORMAL:VALUE?", _) => {
                let known = [("V", "230.12E+00"), ("A", "0.1772E+00"), ("W", "40.25E+00")];
                let is_on = |name: &str| self.items.contains(name);
                let values = known.into_iter().filter(|(name, _)| is_on(name));
                let values: Vec<&str> = values.map(|(_, value)| value).collect();
                let header = if self.is_bare { "" } else { ":MEASURE:NORMAL:VALUE " };
                return Some(format!("{header}{}", values.join(",")));
            }
            _ => match (header.strip_prefix(":MEASURE:ITEM:"), data) {
                (Some(item), "ON") if self.is_remote => {
                    self.items.insert(item.to_owned());
                }
                (Some(item), "OFF") if self.is_remote => {
                    self.items.remove(item);
                }
                _ => self.errors.push("113,\"Undefined header\""),
            },
        }
        None
    }
}

/// A meter as it is delivered, and the messages that it has received.
fn power_meter() -> (Played, Arc<Mutex<Vec<String>>>) {
    let items = ["V", "A", "W"].map(str::to_owned).into();
    let mut panel = Panel { items, ..Panel::default() };
    let received = Arc::<Mutex<Vec<String>>>::default();
    let messages = Arc::clone(&received);
    let played = Played::begin(is_line, move |request| {
        let message = std::str::from_utf8(request).expect("text").trim_end();
        messages.lock().expect("not poisoned").push(message.to_owned());
        let answers = message.split(';').filter_map(|command| panel.command(command));
        match answers.collect::<Vec<String>>().join(";") {
            none if none.is_empty() => Act::Silence,
            answer => Act::Answer(format!("{answer}\r\n").into_bytes()),
        }
    });
    (played, received)
}

#[test]
fn the_line_is_raw_and_has_the_rate_of_the_user() {
    // The bytes are those that a terminal in its usual mode would act on: ^C, CR, ^S, ^D.
    let played = monitor(|_| Act::Answer(reading(u32::from_le_bytes([3, 13, 19, 4]))));
    let name = MeterName::parse(&format!("mcp39f511:{},9600", played.device)).expect("a meter");
    let mut meter = name.open().expect("it answers").expect("it samples");
    assert_eq!(meter.sample(), Ok(Sample::Watts(683_573.79)));
    let modes = tcgetattr(&played.line).expect("a terminal");
    assert_eq!((modes.input_speed(), modes.output_speed()), (9_600, 9_600));
    let eight_n_one = ControlModes::CS8 | ControlModes::CLOCAL | ControlModes::CREAD;
    let rest = ControlModes::PARENB | ControlModes::CSTOPB | ControlModes::CRTSCTS;
    assert_eq!(modes.control_modes & (eight_n_one | rest), eight_n_one);
    let error = Line::open(Path::new("/dev/null"), 9_600).err().expect("no terminal");
    assert!(error.contains("/dev/null"), "{error}");
}

#[test]
fn lost_and_damaged_frames_cost_one_sample_each() {
    let mut damaged = reading(4_000);
    damaged[2] ^= 0x10;
    let half = reading(4_000)[..4].to_vec();
    let damages = [(damaged, "wrong checksum"), (half, "incomplete answer of 4 bytes")];
    let (bytes, names): (Vec<_>, Vec<_>) = damages.into_iter().unzip();
    let mut played = monitor(move |index| match index {
        1 | 2 => Act::Answer(bytes[index - 1].clone()),
        3 => Act::Silence,
        _ => Act::Answer(reading(4_000)),
    });
    let mut meter = played.open("mcp39f511").expect("it answers");
    for named in [names[0], names[1], "no answer"] {
        let error = meter.sample().unwrap_err();
        assert!(error.contains(named) && error.contains(&played.device), "{named}: {error}");
    }
    // The late answer to the request before is not taken for the one to the next.
    played.send(&reading(9_999));
    assert_eq!(meter.sample(), Ok(Sample::Watts(40.0)));
    assert_eq!(meter.sample(), Ok(Sample::Watts(40.0)));
}

#[test]
fn an_answer_without_an_end_is_given_up() {
    let played = Played::begin(is_line, |_| Act::Answer(vec![b'1'; 1_000]));
    let error = played.open("wt210").err().expect("no error message");
    assert!(error.contains("without an end"), "{error}");
}

#[test]
fn the_power_meter_sends_active_power_only() {
    let (played, received) = power_meter();
    let mut meter = played.open("wt210").expect("it confirms each setting");
    assert_eq!(meter.sample(), Ok(Sample::Watts(40.25)));
    let messages = received.lock().expect("not poisoned").len();
    assert_eq!(messages, wt210::SETTINGS.len() + 1);
    // Its user switches voltage on.
    let mut other = Line::open(Path::new(&played.device), 9_600).expect("a line");
    let message = b":MEASURE:ITEM:V ON;:STATUS:ERROR?\n";
    let whole = |reply: &[u8]| Ok(reply.ends_with(b"\n").then_some(()));
    assert_eq!(other.exchange(message, whole), Ok(()));
    let error = meter.sample().unwrap_err();
    assert!(error.contains("other items") && error.contains("230.12E+00,40.25E+00"), "{error}");
    drop(meter);
    let is_local = |last: &String| last == ":COMMUNICATE:REMOTE OFF";
    wait_until(|| received.lock().expect("not poisoned").last().is_some_and(is_local));
}

#[test]
fn a_power_meter_that_refuses_or_is_silent_is_named_before_the_run() {
    for (answer, named) in [
        (Some(&b"113,\"Undefined header\"\n"[..]), "reports \"113,"),
        (Some(b"\xff\n"), "no text"),
        (None, "no answer"),
    ] {
        let played = Played::begin(is_line, move |_| {
            answer.map_or(Act::Silence, |answer| Act::Answer(answer.to_vec()))
        });
        let error = played.open("wt210").err().expect("no meter");
        for part in [named, "*CLS", "488.2", &played.device] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}

/// The clock of an instrument may be slow, and its answers come later each time: a sample has the
/// time at which it arrives, so readings and times stay together.
#[test]
fn samples_are_in_step_with_an_instrument_whose_clock_drifts() {
    const READINGS: usize = 8;
    // When a request arrived, and when its answer left.
    let times = Arc::<Mutex<Vec<(f64, f64)>>>::default();
    let all = Arc::clone(&times);
    let played = monitor(move |index| {
        let begin_s = unix_s();
        std::thread::sleep(Duration::from_millis(5 * index as u64));
        all.lock().expect("not poisoned").push((begin_s, unix_s()));
        Act::Answer(reading(1_000 * u32::try_from(index).expect("small")))
    });
    let meter = played.open("mcp39f511").expect("it answers");
    let ended = Arc::<AtomicBool>::default();
    let sampled = Sampled::begin(meter, Duration::from_millis(1), &ended);
    wait_until(|| times.lock().expect("not poisoned").len() >= READINGS);
    ended.store(true, Relaxed);
    let taken = sampled.end();
    assert_eq!(taken.error, None);
    let times = times.lock().expect("not poisoned");
    assert!(taken.samples.len() + 1 == times.len(), "the first reading opened the meter");
    let mut joules = 0.0;
    for (index, (at_s, sample)) in taken.samples.iter().enumerate() {
        let index = index + 1;
        assert_eq!(*sample, Sample::Watts(10.0 * index as f64));
        let next_s = times.get(index + 1).map_or(f64::INFINITY, |(begin_s, _)| *begin_s);
        assert!(times[index].1 <= *at_s && *at_s <= next_s, "sample {index} at {at_s}");
        if let Some((next_s, _)) = taken.samples.get(index) {
            joules += (next_s - at_s) * 10.0 * (index as f64 + 0.5);
        }
    }
    let (begin_s, end_s) = (taken.samples[0].0, taken.samples.last().expect("some").0);
    let power = Energy::of(&taken.samples, 60.0).power(begin_s, end_s).expect("covered");
    assert!((power.watts * (end_s - begin_s) - joules).abs() < 1e-6, "{power:?}");
}

/// The command of the run ends only after the meter has died. Only `energy` tests the share that
/// such a meter covers, because this test runs on a clock.
#[test]
fn a_meter_that_dies_does_not_end_the_run_and_the_report_says_so() {
    for (is_unplugged, named) in [(false, "no answer"), (true, "Input/output error")] {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("dead");
        let command = format!("until test -e {}; do sleep 0.02; done; exit 3", file.display());
        let mut played = monitor(move |index| match index {
            0..4 => Act::Answer(reading(4_000)),
            _ => {
                std::fs::write(&file, "").expect("written");
                if is_unplugged { Act::Unplug } else { Act::Silence }
            }
        });
        let healthy = monitor(|_| Act::Answer(reading(4_000)));
        if is_unplugged {
            played.end = None;
        }
        let (dead, other) = (&played.device, &healthy.device);
        let meters = [dead, other].map(|device| format!("--meter=mcp39f511:{device}"));
        let words = ["power", "--idle-s=0", "--every-ms=10", &meters[0], &meters[1]];
        let words = words.into_iter().chain(["--", "sh", "-c", &command]);
        let (report, exit_code) = measure(&Options::parse_from(words)).expect("the run goes on");
        assert_eq!(exit_code, 3, "the exit code of the command");
        let [died, lived] = &report.meters[..] else { panic!("{report:?}") };
        assert!(died.covered < 1.0 && died.joules.is_none(), "{died:?}");
        assert!(died.error.as_ref().expect("a reason").contains(named), "{died:?}");
        assert_eq!(lived.error, None, "{lived:?}");
        let text = text(&report);
        for part in [
            &format!("missing    {dead}: {named}"),
            &format!("meter      mcp39f511:{other},115200"),
            "energy     unknown",
            "covered    ",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
