//! The power monitor MCP39F511 of Microchip, over its UART.
//!
//! Upstream:   `serial`, which opens the line.
//! Downstream: the line, with requests and replies as frames.
//!
//! ```text
//!   request  A5 08  41 00 12   4E 04  52      set the address pointer to 0x0012, read 4 bytes
//!            |  |   |          |      sum of all bytes before, modulo 256
//!            |  |   |          a read, and how many bytes
//!            |  |   set the address pointer, high byte first
//!            |  bytes of the frame
//!            header
//!   reply    06 07  D0 07 00 00  E4        ACK, bytes of the frame, data low byte first, the sum
//!            15                            NAK: the instrument does not know the command
//!            51                            CSFAIL: the request's sum was wrong
//! ```
//!
//! Sources. Of the data sheet (Microchip DS20005393B) only page 1 was at hand: a protocol of two
//! wires at up to 115.2 kbit/s. The form of the frames, the commands, and the register of active
//! power with its unit of 10 mW are those of two programs for this instrument that agree: Tasmota's
//! driver (`xnrg_33_mcp39f511.ino`) and, for all but the address, pinpoint of the Hasso Plattner
//! Institute (`mcp_com.c`), which is for the MCP39F511N. The test has a request and a reply that a
//! user recorded (Microchip's forum, thread 1140587). No instrument was at hand.

use super::super::energy::Sample;
use super::super::sampler::Meter;
use super::Line;

/// The highest baud rate, with which both programs open the line.
pub(super) const BAUD_MAX: u32 = 115_200;

const HEADER: u8 = 0xa5;
const SET_ADDRESS: u8 = 0x41;
const READ: u8 = 0x4e;
const ACK: u8 = 0x06;
const NAK: u8 = 0x15;
const CSFAIL: u8 = 0x51;

/// The register of active power: 32 bits, in units of 10 mW. The MCP39F511N, for two loads, has
/// current at this address.
const ACTIVE_POWER: u16 = 0x0012;
const ACTIVE_POWER_BYTES: u8 = 4;

/// The monitor.
pub(super) struct Monitor {
    line: Line,
}

impl Monitor {
    /// Takes a first reading.
    ///
    /// Errors: the instrument does not answer with one.
    pub(super) fn open(line: Line) -> Result<Self, String> {
        let mut monitor = Self { line };
        monitor.sample()?;
        Ok(monitor)
    }
}

impl Meter for Monitor {
    fn sample(&mut self) -> Result<Sample, String> {
        let request = read_request(ACTIVE_POWER, ACTIVE_POWER_BYTES);
        self.line.exchange(&request, watts).map(Sample::Watts)
    }
}

/// The frame that reads `count` bytes of registers from `address` on.
pub(super) fn read_request(address: u16, count: u8) -> [u8; 8] {
    assert!(count > 0, "a read without data");
    let [high, low] = address.to_be_bytes();
    let mut frame = [HEADER, 8, SET_ADDRESS, high, low, READ, count, 0];
    frame[7] = sum(&frame[..7]);
    frame
}

/// The reply's active power, in watts. `None` if more of it must come.
///
/// Errors: [`data`] has them, and power below zero.
fn watts(reply: &[u8]) -> Result<Option<f64>, String> {
    let Some(data) = data(reply, ACTIVE_POWER_BYTES)? else { return Ok(None) };
    let data = data.try_into().expect("4 bytes");
    // The register has no sign. If an instrument had one after all, its readings would be a factor
    // of millions too high.
    match i32::from_le_bytes(data) {
        centiwatts @ 0.. => Ok(Some(f64::from(centiwatts) / 100.0)),
        below => Err(format!("{below} x 10 mW: is the current of the instrument reversed?")),
    }
}

/// The `count` bytes of data in a reply. `None` if more of it must come.
///
/// Errors: the instrument refuses the request, or the frame or its sum is wrong.
pub(super) fn data(reply: &[u8], count: u8) -> Result<Option<&[u8]>, String> {
    let bytes = count + 3;
    match *reply {
        [] | [ACK] => return Ok(None),
        [NAK, ..] => return Err("the instrument does not know the command (NAK)".to_owned()),
        [CSFAIL, ..] => return Err("the request arrived damaged (CSFAIL)".to_owned()),
        [ACK, length, ..] if length == bytes => {}
        [ACK, length, ..] => return Err(format!("a frame of {length} bytes instead of {bytes}")),
        [other, ..] => return Err(format!("a frame that begins with {other:#04x}")),
    }
    let end = usize::from(bytes) - 1;
    if reply.len() <= end {
        return Ok(None);
    }
    let (expected, found) = (sum(&reply[..end]), reply[end]);
    if found != expected {
        return Err(format!("a wrong checksum: {found:#04x} instead of {expected:#04x}"));
    }
    Ok(Some(&reply[2..end]))
}

/// The sum of the bytes, modulo 256.
pub(super) fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request for 32 bytes from 0x0002 on, and its reply, as a user recorded them.
    const RECORDED_REQUEST: [u8; 8] = [0xa5, 0x08, 0x41, 0x00, 0x02, 0x4e, 0x20, 0x5e];
    const RECORDED_REPLY: [u8; 35] = [
        0x06, 0x23, 0x51, 0xe0, 0x10, 0x18, 0x06, 0x00, 0x00, 0x00, 0xaf, 0x00, 0xff, 0x7f, 0xdb,
        0x01, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x95,
    ];

    #[test]
    fn a_recorded_exchange_is_built_and_parsed() {
        assert_eq!(read_request(0x0002, 32), RECORDED_REQUEST);
        assert_eq!(read_request(ACTIVE_POWER, 4), [0xa5, 8, 0x41, 0, 0x12, 0x4e, 4, 0x52]);
        let data = data(&RECORDED_REPLY, 32).expect("valid").expect("whole");
        assert_eq!((data.len(), &data[..4]), (32, &[0x51, 0xe0, 0x10, 0x18][..]));
        // 475 units of current and 20 mW: the open input of a monitor without a load.
        let at = |address: u16| usize::from(address - 0x0002);
        assert_eq!(data[at(0x000e)..at(ACTIVE_POWER)], 475_u32.to_le_bytes());
        assert_eq!(data[at(ACTIVE_POWER)..][..4], 2_u32.to_le_bytes());
        assert_eq!(watts(&[6, 7, 2, 0, 0, 0, 15]), Ok(Some(0.02)));
    }

    #[test]
    fn a_reply_may_come_in_pieces() {
        let reply = [0x06, 0x07, 0xd0, 0x07, 0x00, 0x00, 0xe4];
        for end in 0..reply.len() {
            assert_eq!(watts(&reply[..end]), Ok(None), "{end} bytes");
        }
        assert_eq!(watts(&reply), Ok(Some(20.0)));
    }

    #[test]
    fn each_damage_of_a_reply_is_found() {
        for (reply, named) in [
            (&[0x15][..], "NAK"),
            (&[0x51], "CSFAIL"),
            (&[0xff, 0x07], "begins with 0xff"),
            (&[0x06, 0x08], "8 bytes instead of 7"),
            (&[0x06, 0x07, 0xd0, 0x07, 0x00, 0x00, 0xe5], "0xe5 instead of 0xe4"),
            (&[0x06, 0x07, 0xff, 0xff, 0xff, 0xff, 0x09], "-1 x 10 mW"),
        ] {
            let error = watts(reply).unwrap_err();
            assert!(error.contains(named), "{reply:02x?}: {error}");
        }
        // No single damaged bit gives a reading.
        let reply = [0x06, 0x07, 0xd0, 0x07, 0x00, 0x00, 0xe4];
        for bit in 0..reply.len() * 8 {
            let mut damaged = reply;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(watts(&damaged), Ok(Some(_))), "bit {bit}");
        }
    }
}
