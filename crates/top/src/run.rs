//! Shows a server until the user has seen enough.
//!
//! Upstream:   `kachel`, with the arguments after `top`.
//! Downstream: `asker`, on a thread of its own; `view` and `frame`; `screen` or standard output.
//!
//! ```text
//! asker ---+
//! keys  ---+--> events --> one loop: take, draw, or end
//! signals -+
//! ```
//!
//! The loop sleeps until an event comes, or it is time to say that none does. The threads end with
//! the process: each waits in the kernel for something that may never come.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use kachel_host::{Signal, Signals};

use crate::arguments::{Arguments, Target, USAGE};
use crate::asker::{ASK_TIME_MAX, Asker};
use crate::frame::{Size, frame};
use crate::numbers::Numbers;
use crate::reading::Reading;
use crate::screen::Screen;
use crate::view::View;

/// `EX_USAGE` of sysexits.h.
const EXIT_USAGE: u8 = 64;
/// The time from one question to the next.
const PERIOD: Duration = Duration::from_secs(1);
/// Without an event for so long, a frame is drawn that shows the wait. A server that answers makes
/// an event each [`PERIOD`].
const QUIET_TIME_MAX: Duration = Duration::from_millis(1500);
/// Events that wait. More keys are read later.
const EVENTS_MAX: usize = 16;
/// The size of a frame on standard output.
const SIZE_OF_PRINT: Size = Size { columns: 80, lines: 24 };
/// For how long `--once` waits for both of its answers. A name may take long to resolve.
const ONCE_TIME_MAX: Duration = Duration::from_secs(2 * ASK_TIME_MAX.as_secs() + 4);
/// Ctrl-C, where the kernel makes no signal of it, and the end of input (Ctrl-D).
const CONTROL_C: u8 = 3;
const CONTROL_D: u8 = 4;

enum Event {
    Answer(Result<Numbers, String>),
    /// Show the last answer again.
    Redraw,
    /// The user has seen enough.
    End,
}

/// Shows the server that `words` name. Ends with status 0, with 1 if there is no answer or no
/// terminal, and with 64 if the arguments are wrong.
pub fn top(words: &[OsString]) -> ExitCode {
    if words.iter().any(|word| word == "-h" || word == "--help") {
        return ended(print(USAGE));
    }
    let Some(Arguments { target, address, is_once }) = Arguments::read(words) else {
        let _ = io::stderr().write_all(USAGE.as_bytes());
        return ExitCode::from(EXIT_USAGE);
    };
    let view = View::new(address);
    ended(if is_once { once(view, target) } else { live(view, target) })
}

fn ended(result: io::Result<()>) -> ExitCode {
    match result {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let _ = writeln!(io::stderr(), "kachel top: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

fn print(text: &str) -> io::Result<()> {
    io::stdout().write_all(text.as_bytes())
}

/// Prints the state once. Two answers are needed, for the rates.
fn once(mut view: View, target: Target) -> io::Result<()> {
    let (tell, told) = sync_channel(EVENTS_MAX);
    ask_always(target, tell)?;
    take_two(&mut view, &told, ONCE_TIME_MAX)?;
    let lines = frame(&view, SIZE_OF_PRINT).into_iter().map(|line| line.text + "\n");
    print(&lines.collect::<String>())
}

/// Gives two answers to the view.
///
/// Errors: they do not come within `most`, or one of them is an error. The error names the address.
fn take_two(view: &mut View, told: &Receiver<Event>, most: Duration) -> io::Result<()> {
    let start = Instant::now();
    for _ in 0..2 {
        let answer = match told.recv_timeout(most.saturating_sub(start.elapsed())) {
            Ok(Event::Answer(answer)) => answer,
            Ok(Event::Redraw | Event::End) => unreachable!("only answers are told here"),
            Err(_) => Err(format!("no answer within {} s", most.as_secs())),
        };
        let of_server = |why| io::Error::other(format!("{}: {why}", view.address));
        let reading = read(answer).map_err(of_server)?;
        view.take(start.elapsed().as_secs_f64(), Ok(reading));
    }
    Ok(())
}

/// Shows the state in the terminal until the user ends it.
fn live(mut view: View, target: Target) -> io::Result<()> {
    // Before the first thread, so that every thread has them blocked.
    let signals = Signals::block()?;
    let screen = Screen::take().map_err(|error| {
        let why = format!("no terminal ({error}); --once prints the state once");
        io::Error::new(error.kind(), why)
    })?;
    let (tell, told) = sync_channel(EVENTS_MAX);
    ask_always(target, tell.clone())?;
    wait_for_signals(signals, tell.clone())?;
    read_keys(tell)?;
    screen.draw(&frame(&view, screen.size()))?;
    show(&mut view, &screen, &told)
}

/// Draws a frame for each event. The asker may hang: the resolution of a name has no time limit,
/// nor has a unix socket whose queue is full. So a frame shows the wait if there is no event.
fn show(view: &mut View, screen: &Screen, told: &Receiver<Event>) -> io::Result<()> {
    let start = Instant::now();
    loop {
        let event = told.recv_timeout(QUIET_TIME_MAX);
        let now_s = start.elapsed().as_secs_f64();
        match event {
            Ok(Event::Answer(answer)) => view.take(now_s, read(answer)),
            Ok(Event::Redraw) | Err(RecvTimeoutError::Timeout) => view.wait(now_s),
            Ok(Event::End) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        screen.draw(&frame(view, screen.size()))?;
    }
}

fn read(answer: Result<Numbers, String>) -> Result<Reading, String> {
    Reading::of(&answer?)
}

/// Asks the server once a second.
fn ask_always(target: Target, tell: SyncSender<Event>) -> io::Result<()> {
    let mut asker = Asker::new(target);
    let body = move || {
        loop {
            let asked = Instant::now();
            if tell.send(Event::Answer(asker.ask())).is_err() {
                return;
            }
            thread::sleep(PERIOD.saturating_sub(asked.elapsed()));
        }
    };
    thread::Builder::new().name("asker".into()).spawn(body).map(drop)
}

/// Ends at the signals that end a process. SIGHUP means that the terminal is gone.
fn wait_for_signals(mut signals: Signals, tell: SyncSender<Event>) -> io::Result<()> {
    let body = move || {
        // Its only error is one of the descriptor, without which nobody could wait.
        let _any: io::Result<Signal> = signals.wait();
        let _ = tell.send(Event::End);
    };
    thread::Builder::new().name("signals".into()).spawn(body).map(drop)
}

/// Ends at `q`, Ctrl-C and the end of input. Other keys draw anew.
fn read_keys(tell: SyncSender<Event>) -> io::Result<()> {
    let body = move || {
        let mut key = [0];
        loop {
            let event = match io::stdin().read(&mut key) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Ok(0) | Err(_) => Event::End,
                Ok(_) if matches!(key[0], b'q' | b'Q' | CONTROL_C | CONTROL_D) => Event::End,
                Ok(_) => Event::Redraw,
            };
            if tell.send(event).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("keys".into()).spawn(body).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fault: the error was "timed out", without the address.
    #[test]
    fn the_error_of_a_server_that_does_not_answer_names_it() {
        // `_tell` stays, as that of an asker whose name server does not answer.
        let (_tell, told) = sync_channel(EVENTS_MAX);
        let mut view = View::new("cache.example:11211".into());
        let error = take_two(&mut view, &told, Duration::ZERO).expect_err("there is no answer");
        assert_eq!(error.to_string(), "cache.example:11211: no answer within 0 s");
    }
}
