//! The terminal: taken at the start, drawn once a second, given back at the end.
//!
//! Upstream:   `run`, with each frame.
//! Downstream: standard output, by control sequences that every terminal since the VT220 and xterm
//!             knows (ECMA-48, xterm's private modes 7, 25 and 1049); `kachel_host` for its modes.
//!
//! Invariants:
//! - S1  What was on the screen comes back, and the modes of the terminal, when this is dropped,
//!   and before the message of a panic, which ends the process.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use kachel_host::RawTerminal;
use kachel_observe::Severity;

use crate::frame::{Line, Size, Style};

/// Another screen, no cursor, no wrapping at the right border.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// The place of the first character.
const HOME: &str = "\x1b[H";
const ERASE_TO_END_OF_LINE: &str = "\x1b[K";
const ERASE_BELOW: &str = "\x1b[J";
const PLAIN: &str = "\x1b[0m";

/// The size if the terminal does not tell one: that of the VT100.
const SIZE_DEFAULT: Size = Size { columns: 80, lines: 24 };

/// The terminal while frames are shown.
#[derive(Debug)]
pub(crate) struct Screen {
    terminal: RawTerminal,
}

impl Screen {
    /// Takes the terminal of standard input and output. Errors: there is none.
    pub(crate) fn take() -> io::Result<Self> {
        let terminal = RawTerminal::take()?;
        let screen = Self { terminal };
        screen.restore_at_panic();
        show(ENTER)?;
        Ok(screen)
    }

    /// Gives the terminal back before the message of a panic of any thread (S1).
    fn restore_at_panic(&self) {
        let (restore, tell) = (self.terminal.restorer(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |panic| {
            let _ = show(LEAVE);
            restore();
            tell(panic);
        }));
    }

    /// The size of the terminal, which may change at any time.
    pub(crate) fn size(&self) -> Size {
        match self.terminal.size() {
            Some((columns, lines)) => Size { columns: columns.into(), lines: lines.into() },
            None => SIZE_DEFAULT,
        }
    }

    /// Shows a frame in place of the last one. Errors: the terminal is gone.
    pub(crate) fn draw(&self, frame: &[Line]) -> io::Result<()> {
        show(&drawn(frame))
    }
}

impl Drop for Screen {
    /// S1; the modes come back with the terminal.
    fn drop(&mut self) {
        // If the terminal is gone, nothing needs it back.
        let _ = show(LEAVE);
    }
}

fn show(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// The bytes that show a frame.
fn drawn(frame: &[Line]) -> String {
    let mut text = String::from(HOME);
    for (index, Line { text: line, style }) in frame.iter().enumerate() {
        let start = match style {
            Style::Plain => "",
            Style::Finding(Severity::Good) => "\x1b[1;32m",
            Style::Finding(Severity::Note) => "\x1b[1;36m",
            Style::Finding(Severity::Warning) => "\x1b[1;33m",
            Style::Finding(Severity::Problem) => "\x1b[1;31m",
        };
        // Behind the last line, the terminal would scroll.
        let between = if index == 0 { "" } else { "\r\n" };
        let _ = write!(text, "{between}{start}{line}{PLAIN}{ERASE_TO_END_OF_LINE}");
    }
    text + ERASE_BELOW
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::tcgetattr;

    use super::*;

    /// Set for the process that panics in the test below.
    const PANICS_ENV: &str = "KACHEL_TEST_PANICS";

    /// S1. The fault: a panic left the terminal without echo, on another screen, and its message
    /// was lost there.
    #[test]
    fn a_panic_gives_the_terminal_back() {
        if std::env::var_os(PANICS_ENV).is_some() {
            let _screen = Screen::take().expect("a terminal");
            let _ = std::thread::spawn(|| panic!("a planted fault")).join();
            std::process::exit(0); // As `panic = "abort"`: nothing is dropped.
        }
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let master = openpt(flags).expect("a pseudo terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("its other end");
        let name = ptsname(&master, Vec::new()).expect("a name");
        let path = std::path::Path::new(name.to_str().expect("ASCII"));
        let terminal = File::options().read(true).write(true).open(path).expect("a terminal");
        let modes = || format!("{:?}", tcgetattr(&terminal).expect("its modes"));
        let before = modes();
        let end = || Stdio::from(terminal.try_clone().expect("it again"));
        let name = "screen::tests::a_panic_gives_the_terminal_back";
        let mut child = Command::new(std::env::current_exe().expect("a test is a program"))
            .args(["--exact", name, "--nocapture"])
            .env(PANICS_ENV, "1")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("it starts");
        // All that it writes fits into the terminal.
        assert!(child.wait().expect("an end").success());
        assert_eq!(modes(), before);
        let mut told = Vec::new();
        let mut part = [0; 4096];
        let mut master = File::from(master);
        while !told.windows(7).any(|window| window == b"planted") {
            let count = master.read(&mut part).expect("what it has written");
            told.extend_from_slice(&part[..count]);
        }
        let told = String::from_utf8_lossy(&told);
        let places = [ENTER, LEAVE, "planted"].map(|text| told.find(text).expect(text));
        assert!(places.is_sorted(), "{told}");
    }

    #[test]
    fn a_frame_erases_the_one_before() {
        let line = |text: &str, style| Line { text: text.into(), style };
        let frame = [line("ab", Style::Finding(Severity::Problem)), line("c", Style::Plain)];
        let text = "\x1b[H\x1b[1;31mab\x1b[0m\x1b[K\r\nc\x1b[0m\x1b[K\x1b[J";
        assert_eq!(drawn(&frame), text);
    }
}
