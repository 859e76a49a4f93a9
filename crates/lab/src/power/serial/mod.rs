//! Instruments on a serial line, and the line: raw bytes, with a limit on each wait.
//!
//! Upstream:   `meter`, with the instrument, the device and the baud rate that the user named.
//! Downstream: the terminal driver of the kernel; `mcp39f511` and `wt210` parse the replies.
//!
//! ```text
//!   discard old input -> send the request -> receive -> parse -+-> a value
//!                                               ^              |
//!                                               +- more needed-+   (at most REPLY_MAX in all)
//! ```
//! An instrument that is silent, or whose adapter is unplugged, costs [`REPLY_MAX`] a sample. A
//! sample gets its time on the clock of this machine when its reply is whole. So the clock of an
//! instrument does not matter.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::termios::{
    ControlModes, OptionalActions, QueueSelector, tcflush, tcgetattr, tcsetattr,
};

use super::sampler::Meter;

mod mcp39f511;
#[cfg(test)]
mod tests;
mod wt210;

/// How long an instrument may take for a reply. It is a guess: at 1,200 baud, the longest reply of
/// both takes a fifth of it. Two samples around a lost reply are then four of the default
/// intervals apart, which `energy` bridges.
const REPLY_MAX: Duration = Duration::from_secs(1);
/// The most bytes of a reply. Longer input is noise.
const REPLY_BYTES_MAX: usize = 256;
/// The baud rates that a user may name.
const BAUDS: [u32; 8] = [1_200, 2_400, 4_800, 9_600, 19_200, 38_400, 57_600, 115_200];

/// The instruments on a serial line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instrument {
    /// The power monitor of Microchip.
    Mcp39f511,
    /// The digital power meter of Yokogawa.
    Wt210,
}

impl Instrument {
    /// The instrument with this name on the command line.
    pub(super) fn named(name: &str) -> Option<Self> {
        [Self::Mcp39f511, Self::Wt210].into_iter().find(|instrument| instrument.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Mcp39f511 => "mcp39f511",
            Self::Wt210 => "wt210",
        }
    }

    /// The highest baud rate that the instrument has. It is the one if the user names none.
    fn baud_max(self) -> u32 {
        match self {
            Self::Mcp39f511 => mcp39f511::BAUD_MAX,
            Self::Wt210 => wt210::BAUD_MAX,
        }
    }
}

impl fmt::Display for Instrument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An instrument and its line, as the user names them: `DEVICE[,BAUD]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    instrument: Instrument,
    device: PathBuf,
    baud: u32,
}

impl Port {
    /// Reads `DEVICE[,BAUD]`.
    ///
    /// Errors: there is no device, or the instrument does not have that baud rate.
    pub(super) fn parse(instrument: Instrument, text: &str) -> Result<Self, String> {
        let most = instrument.baud_max();
        let (device, baud) = match text.rsplit_once(',') {
            None => (text, most),
            Some((device, baud)) => {
                let baud = baud.parse().ok().filter(|baud| *baud <= most && BAUDS.contains(baud));
                let known = BAUDS.iter().take_while(|known| **known <= most);
                let known: Vec<String> = known.map(u32::to_string).collect();
                let refused = || format!("the baud rate of {instrument}: {}", known.join(", "));
                (device, baud.ok_or_else(refused)?)
            }
        };
        if device.is_empty() {
            return Err(format!("{instrument} needs a device, for example /dev/ttyUSB0"));
        }
        Ok(Self { instrument, device: device.into(), baud })
    }

    /// Opens the line and prepares the instrument.
    ///
    /// Errors: it is no serial line, or the instrument does not answer as it must.
    pub(super) fn open(&self) -> Result<Box<dyn Meter>, String> {
        let line = Line::open(&self.device, self.baud)?;
        Ok(match self.instrument {
            Instrument::Mcp39f511 => Box::new(mcp39f511::Monitor::open(line)?),
            Instrument::Wt210 => Box::new(wt210::PowerMeter::open(line)?),
        })
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{},{}", self.instrument, self.device.display(), self.baud)
    }
}

/// A serial line: 8 data bits, no parity, one stop bit, no handshake.
struct Line {
    file: File,
    device: PathBuf,
}

impl Line {
    /// Opens the device without waiting for a carrier.
    ///
    /// Errors: it cannot be opened, or it is no terminal, or its driver lacks the baud rate.
    fn open(device: &Path, baud: u32) -> Result<Self, String> {
        assert!(BAUDS.contains(&baud), "a baud rate that `Port` accepts");
        let named = |error: &dyn fmt::Display| format!("{}: {error}", device.display());
        let flags = OFlags::NOCTTY | OFlags::NONBLOCK;
        let flags = i32::try_from(flags.bits()).expect("flags of open fit");
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(device);
        let file = file.map_err(|error| named(&error))?;
        let mut modes = tcgetattr(&file).map_err(|error| named(&error))?;
        modes.make_raw();
        modes.control_modes |= ControlModes::CLOCAL | ControlModes::CREAD;
        modes.control_modes -= ControlModes::CSTOPB | ControlModes::CRTSCTS;
        modes.set_speed(baud).map_err(|error| named(&error))?;
        tcsetattr(&file, OptionalActions::Flush, &modes).map_err(|error| named(&error))?;
        Ok(Self { file, device: device.to_owned() })
    }

    /// Sends a request, and receives until `parse` returns a value. `parse` returns `None` for the
    /// beginning of a reply. Input that arrived before the request is discarded: it may be a late
    /// reply to an earlier one.
    ///
    /// Errors: no whole reply within [`REPLY_MAX`], the line is closed, or that of `parse`.
    fn exchange<T>(
        &mut self,
        request: &[u8],
        parse: impl Fn(&[u8]) -> Result<Option<T>, String>,
    ) -> Result<T, String> {
        let deadline = Instant::now() + REPLY_MAX;
        tcflush(&self.file, QueueSelector::IFlush).map_err(|error| self.named(&error))?;
        self.send(request, deadline)?;
        let mut reply = Vec::new();
        loop {
            if !self.is_ready(PollFlags::IN, deadline)? {
                return Err(match reply.len() {
                    0 => self.named(&"no answer"),
                    count => self.named(&format!("an incomplete answer of {count} bytes")),
                });
            }
            let mut received = [0; 64];
            match self.file.read(&mut received) {
                Ok(0) => return Err(self.named(&"the line is closed")),
                Ok(count) => reply.extend_from_slice(&received[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(self.named(&error)),
            }
            if let Some(value) = parse(&reply).map_err(|error| self.named(&error))? {
                return Ok(value);
            }
            if reply.len() > REPLY_BYTES_MAX {
                return Err(self.named(&"an answer without an end"));
            }
        }
    }

    fn send(&mut self, mut request: &[u8], deadline: Instant) -> Result<(), String> {
        while !request.is_empty() {
            if !self.is_ready(PollFlags::OUT, deadline)? {
                return Err(self.named(&"the line takes no request"));
            }
            match self.file.write(request) {
                Ok(count) => request = &request[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(self.named(&error)),
            }
        }
        Ok(())
    }

    /// Waits until the line is ready for `what`, or closed. `false` if that is not so before the
    /// deadline.
    fn is_ready(&self, what: PollFlags, deadline: Instant) -> Result<bool, String> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).expect("a short time");
            match poll(&mut [PollFd::new(&self.file, what)], Some(&left)) {
                Ok(count) => return Ok(count > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(self.named(&error)),
            }
        }
    }

    fn named(&self, error: &dyn fmt::Display) -> String {
        format!("{}: {error}", self.device.display())
    }
}
