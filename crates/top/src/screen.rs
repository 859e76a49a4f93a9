//! The terminal: taken at the start, drawn once a second, given back at the end.
//!
//! Upstream:   `run`, with each frame.
//! Downstream: standard output, by control sequences that every terminal since the VT220 and xterm
//!             knows (ECMA-48, xterm's private modes 7, 25 and 1049); `kachel_host` for its modes.
//!
//! Invariants:
//! - S1  What was on the screen comes back, and the modes of the terminal, when this is dropped.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use kachel_host::RawTerminal;

use crate::findings::Grade;
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
        show(ENTER)?;
        Ok(screen)
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
            Style::Finding(Grade::Well) => "\x1b[1;32m",
            Style::Finding(Grade::Notable) => "\x1b[1;33m",
            Style::Finding(Grade::Bad) => "\x1b[1;31m",
        };
        // Behind the last line, the terminal would scroll.
        let between = if index == 0 { "" } else { "\r\n" };
        let _ = write!(text, "{between}{start}{line}{PLAIN}{ERASE_TO_END_OF_LINE}");
    }
    text + ERASE_BELOW
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_erases_the_one_before() {
        let line = |text: &str, style| Line { text: text.into(), style };
        let frame = [line("ab", Style::Finding(Grade::Bad)), line("c", Style::Plain)];
        let text = "\x1b[H\x1b[1;31mab\x1b[0m\x1b[K\r\nc\x1b[0m\x1b[K\x1b[J";
        assert_eq!(drawn(&frame), text);
    }
}
