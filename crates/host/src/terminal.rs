//! The terminal of the process, for a program that reads single keys.
//!
//! Upstream:   `top`.
//! Downstream: the kernel's modes of the terminal at standard input.
//!
//! Invariants:
//! - K1  The modes that the terminal had come back when [`RawTerminal`] is dropped.

use std::io::{self, IsTerminal as _};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// The terminal without the kernel's editing of lines: each key is read at once, also Ctrl-C, and
/// nothing is echoed.
#[derive(Debug)]
pub struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    /// Takes the terminal. Errors: standard input or standard output is not a terminal.
    pub fn take() -> io::Result<Self> {
        if !io::stdout().is_terminal() {
            return Err(io::Error::from(rustix::io::Errno::NOTTY));
        }
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Drain, &raw)?;
        Ok(Self { before })
    }

    /// Columns and lines of the terminal at standard output; `None` if it tells none.
    pub fn size(&self) -> Option<(u16, u16)> {
        let size = tcgetwinsize(io::stdout()).ok()?;
        (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
    }

    /// A function that gives the modes back that the terminal had (K1): for a panic, which may end
    /// the process before anything is dropped.
    pub fn restorer(&self) -> impl Fn() + Send + Sync + use<> {
        let before = self.before.clone();
        move || restore(&before)
    }
}

impl Drop for RawTerminal {
    /// K1.
    fn drop(&mut self) {
        restore(&self.before);
    }
}

fn restore(before: &Termios) {
    // If the terminal is gone, nothing needs its modes.
    let _ = tcsetattr(io::stdin(), OptionalActions::Drain, before);
}
