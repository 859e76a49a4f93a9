//! The digital power meter WT210 of Yokogawa, over RS-232 in its mode 488.2.
//!
//! Upstream:   `serial`, which opens the line.
//! Downstream: the line, with program messages and response messages as lines of text.
//!
//! ```text
//!   :MEASURE:ITEM:V OFF;:STATUS:ERROR?  ->  0,"NO ERROR"     once for each setting
//!   :MEASURE:NORMAL:VALUE?              ->  123.45E+00       active power, for each sample
//! ```
//! Active power is made the only item of the response. A response with more values is refused:
//! somebody has changed the items. A response has no checksum, so a digit that is damaged into
//! another digit is not found.
//!
//! Sources: the user's manual of the WT210 and the WT230 (Yokogawa IM 760401-01E), of which these
//! pages were at hand:
//! - 11-6, 11-7: handshake, data format 8-N-1, baud rates up to 9,600, and terminators: received
//!   CR LF or LF, sent CR LF, LF or CR;
//! - 14-6, 14-7: several commands in one message, `:STATUS:ERROR?` and its response, responses with
//!   and without a header;
//! - 14-32: `MEASure[:NORMal]:VALue?`, the form of its values, and their order.
//!
//! The names of the items, the remote state, and 9.9E+37 for a value out of range are those of
//! Intel's yoko-tool 2 (`_wt210.py`, `_yokobase.py`), which its authors tested with this instrument
//! over a serial line. No instrument was at hand.

use super::super::energy::Sample;
use super::super::sampler::Meter;
use super::Line;

/// The highest baud rate.
pub(super) const BAUD_MAX: u32 = 9_600;

/// From this value on, a reading is no measurement: out of range, or no data.
const NO_MEASUREMENT: f64 = 9.9e37;

/// The messages before the first reading. Until the meter is in the remote state, it may refuse
/// settings. The items are all that the meter can send.
pub(super) const SETTINGS: [&str; 22] = [
    "*CLS",
    ":COMMUNICATE:REMOTE ON",
    ":COMMUNICATE:HEADER OFF",
    ":MEASURE:ITEM:W ON",
    ":MEASURE:ITEM:V OFF",
    ":MEASURE:ITEM:A OFF",
    ":MEASURE:ITEM:VA OFF",
    ":MEASURE:ITEM:VAR OFF",
    ":MEASURE:ITEM:PF OFF",
    ":MEASURE:ITEM:DEGR OFF",
    ":MEASURE:ITEM:VHZ OFF",
    ":MEASURE:ITEM:AHZ OFF",
    ":MEASURE:ITEM:WH OFF",
    ":MEASURE:ITEM:WHP OFF",
    ":MEASURE:ITEM:WHM OFF",
    ":MEASURE:ITEM:AH OFF",
    ":MEASURE:ITEM:AHP OFF",
    ":MEASURE:ITEM:AHM OFF",
    ":MEASURE:ITEM:VPK OFF",
    ":MEASURE:ITEM:APK OFF",
    ":MEASURE:ITEM:TIME OFF",
    ":MEASURE:ITEM:MATH OFF",
];
/// Gives the panel of the meter back to its user.
const LOCAL: &str = ":COMMUNICATE:REMOTE OFF";
const ERROR: &str = ":STATUS:ERROR?";
const VALUE: &str = ":MEASURE:NORMAL:VALUE?";

/// The meter, in its remote state.
pub(super) struct PowerMeter {
    line: Line,
}

impl PowerMeter {
    /// Makes active power the only item that the meter sends. This takes a few seconds at 9,600
    /// baud, because the meter confirms each setting.
    ///
    /// Errors: the meter does not answer, or refuses a setting.
    pub(super) fn open(line: Line) -> Result<Self, String> {
        let mut meter = Self { line };
        for setting in SETTINGS {
            let asked = meter.line.exchange(format!("{setting};{ERROR}\n").as_bytes(), confirmed);
            asked
                .map_err(|error| format!("{error} ({setting}; is the meter in its mode 488.2?)"))?;
        }
        Ok(meter)
    }
}

impl Meter for PowerMeter {
    fn sample(&mut self) -> Result<Sample, String> {
        self.line.exchange(format!("{VALUE}\n").as_bytes(), watts).map(Sample::Watts)
    }
}

impl Drop for PowerMeter {
    fn drop(&mut self) {
        let deadline = std::time::Instant::now() + super::REPLY_MAX;
        // A meter that is gone needs no panel.
        let _ = self.line.send(format!("{LOCAL}\n").as_bytes(), deadline);
    }
}

/// The first line of text in a reply, without its terminator: CR LF, LF or CR. `None` if more of it
/// must come. The LF of an earlier reply may precede it.
fn line_of(reply: &[u8]) -> Result<Option<&str>, String> {
    let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let Some(begin) = reply.iter().position(|byte| !is_end(byte)) else { return Ok(None) };
    let rest = &reply[begin..];
    let Some(end) = rest.iter().position(is_end) else { return Ok(None) };
    let line = std::str::from_utf8(&rest[..end]).ok().filter(|line| line.is_ascii());
    let line = line.ok_or_else(|| format!("an answer that is no text: {:02x?}", &rest[..end]))?;
    Ok(Some(line.trim()))
}

/// The response to `:STATUS:ERROR?`. `None` if more of it must come.
///
/// Errors: the meter reports one.
fn confirmed(reply: &[u8]) -> Result<Option<()>, String> {
    match line_of(reply)? {
        None => Ok(None),
        Some(line) if line.split(',').next() == Some("0") => Ok(Some(())),
        Some(line) => Err(format!("the meter reports {line:?}")),
    }
}

/// The response's active power, in watts. `None` if more of it must come.
///
/// Errors: it is not one value, or no measurement.
fn watts(reply: &[u8]) -> Result<Option<f64>, String> {
    let Some(line) = line_of(reply)? else { return Ok(None) };
    if line.contains(',') {
        return Err(format!("other items than active power are on: {line:?}"));
    }
    let watts: Option<f64> = line.parse().ok().filter(|watts: &f64| watts.is_finite());
    match watts {
        Some(watts) if watts >= NO_MEASUREMENT => Err(format!("out of range or no data: {line}")),
        Some(watts) => Ok(Some(watts)),
        None => Err(format!("no number: {line:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are the examples of pages 14-7 and 14-32, and a reading from yoko-tool's README.
    #[test]
    fn responses_of_the_manual_are_parsed() {
        assert_eq!(watts(b"123.45E+00\r\n"), Ok(Some(123.45)));
        assert_eq!(watts(b"15.4E+00\n"), Ok(Some(15.4)));
        assert_eq!(watts(b"-0.15E+03\r"), Ok(Some(-150.0)), "a generator");
        assert_eq!(confirmed(b"0,\"NO ERROR\"\r\n"), Ok(Some(())));
    }

    #[test]
    fn a_response_may_come_in_pieces_behind_the_end_of_another() {
        let reply = b"\n123.45E+00\r\n";
        for end in 0..reply.len() - 1 {
            assert_eq!(watts(&reply[..end]), Ok(None), "{end} bytes");
        }
        assert_eq!(watts(reply), Ok(Some(123.45)));
    }

    #[test]
    fn each_damage_of_a_response_is_found() {
        for (reply, named) in [
            (&b"9.91E+37\n"[..], "no data"),
            (b"9.9E+37\n", "out of range"),
            (b"230.1E+00,15.4E+00\n", "other items"),
            (b"12\xb3.45E+00\n", "no text"),
            (b"1?3.45E+00\n", "no number"),
            (b"inf\n", "no number"),
        ] {
            let error = watts(reply).unwrap_err();
            assert!(error.contains(named), "{reply:02x?}: {error}");
        }
        let error = confirmed(b"113,\"Undefined header\"\n").unwrap_err();
        assert!(error.contains("113"), "{error}");
    }
}
