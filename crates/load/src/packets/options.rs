//! The command line of `kachel-lab packets`.
//!
//! Upstream:   the arguments after `kachel-lab packets`.
//! Downstream: `drive` gets validated values; the JSON file repeats them as they were given.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  No frame is sent before every option has been validated.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;
use serde::Serialize;

use crate::keys::{KEY_BYTES_MAX, Keys, Room, Sizes};
use crate::options::{CpuList, within};
use crate::packets::frame::Ends;
use crate::popularity::Choice;
use crate::schedule::Arrivals;

/// The port of the first flow. Servers do not answer some ports below (27015, 27960).
pub(crate) const PORT_FIRST: u16 = 28_000;
/// The most flows.
const FLOWS_MAX: u16 = 30_000;
/// The most requests in flight of one flow. The other bits of a request's number tell a late reply
/// from that to the next request.
pub(crate) const WINDOW_MAX: u16 = 1 << 12;
/// The most requests in flight.
const IN_FLIGHT_MAX: usize = 1 << 20;
/// A reply is one datagram.
const VALUE_BYTES_MAX: u32 = 1_024;

const HELP: &str = "\
It makes whole frames and exchanges them with a network interface, beside the kernel's network
stack: a request costs the client's core less than half of what a socket of UDP costs. It needs
CAP_NET_RAW, IPv4, and values of up to 1,024 B. It does not store the values; `kachel-lab load
--preload-only` does, with the same --keys, --key-size, --value-size and --seed.

The client's address must not be one of the interface, and its MAC address not that of the
interface, so that the kernel drops the replies after this program has them. Nobody answers
questions for the address (ARP), so the server's side needs an entry for it:

  ip neigh replace CLIENT lladdr 02:6b:61:63:68:65 dev INTERFACE nud permanent

Closed loop: each flow keeps --window requests in flight. Open loop (--rate): response times count
from the intended send time, and the thread spins. With --tick-us it sleeps between ticks; then the
processor time of the cores is that of the requests, and response times have up to a tick more. A
request that has no reply, or could not be sent, half a second after the end is an error, and its
age counts as its response time.

With --sets a share of the requests are sets over TCP, from the same thread. Each set of a key
stores another value. A get that was sent after the reply to a set and returns an older value is
stale.

Exit status: 0 on success, 1 if there were errors, 2 if the options are invalid.";

/// `kachel-lab packets`.
#[derive(Clone, Debug, Parser, Serialize)]
#[command(
    name = "kachel-lab packets",
    bin_name = "kachel-lab packets",
    about = "Drives a memcached server over UDP with frames of its own, and measures it.",
    after_help = HELP,
    args_override_self = true,
    max_term_width = 100
)]
pub(crate) struct Options {
    /// The interface to send and receive by
    #[arg(long, short = 'i', value_name = "NAME")]
    pub(crate) interface: String,
    /// The server: an address of IPv4 and a port
    #[arg(long, short = 's', value_name = "ADDRESS:PORT")]
    pub(crate) server: SocketAddrV4,
    /// The MAC address of the server's interface
    #[arg(long, value_name = "MAC")]
    pub(crate) server_mac: Mac,
    /// The address of the flows; not one of the interface
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) client: Ipv4Addr,
    /// The MAC address of the flows; not that of the interface
    #[arg(long, value_name = "MAC", default_value = "02:6b:61:63:68:65")]
    pub(crate) client_mac: Mac,
    /// Flows: source ports from 28000 on
    #[arg(long, short = 'f', default_value_t = 50, value_name = "N")]
    pub(crate) flows: u16,
    /// Requests in flight of each flow; in an open loop, at most
    #[arg(long, short = 'w', default_value_t = 1, value_name = "N")]
    pub(crate) window: u16,
    /// Open loop: send this many gets a second; sets are beside them
    #[arg(long, value_name = "PER_SECOND")]
    pub(crate) rate: Option<f64>,
    /// Distribution of the times between the requests of an open loop, as in `kachel-lab load`
    #[arg(long, default_value = "poisson", value_name = "DISTRIBUTION", requires = "rate")]
    pub(crate) arrivals: Arrivals,
    /// Send and receive once in this time and sleep meanwhile
    #[arg(long, value_name = "US", requires = "rate")]
    pub(crate) tick_us: Option<u64>,
    /// Send a request again if no reply has come after this time
    #[arg(long, default_value_t = 100.0, value_name = "MS")]
    pub(crate) timeout_ms: f64,
    /// Share of the requests that are sets over TCP, from 0 to 0.5
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    pub(crate) sets: f64,
    /// The server sends each request back as it is, as a program of XDP may; that is its reply
    #[arg(long, conflicts_with = "sets")]
    pub(crate) echo: bool,
    /// Number of keys
    #[arg(long, short = 'k', default_value_t = 1_000_000, value_name = "N")]
    pub(crate) keys: u64,
    /// Length of a key
    #[arg(long, default_value_t = 16, value_name = "BYTES")]
    pub(crate) key_size: u32,
    /// Length of a value
    #[arg(long, default_value_t = 32, value_name = "BYTES")]
    pub(crate) value_size: u32,
    /// Distribution of the requests over the keys, as in `kachel-lab load`
    #[arg(long, default_value = "uniform", value_name = "DISTRIBUTION")]
    pub(crate) popularity: Choice,
    /// Send this many gets of each key in a row
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) repeat: u32,
    /// End after this many gets since the warm-up, if that is earlier than --duration-s
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) seed: u64,
    /// Duration of the measurement
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    pub(crate) duration_s: f64,
    /// Duration of the warm-up before it
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    pub(crate) warm_up_s: f64,
    /// Process of the server, to measure its processor time
    #[arg(long, value_name = "PID")]
    pub(crate) server_pid: Option<u32>,
    /// Cores to measure the processor time of, for example those of the server and of the client
    #[arg(long, value_name = "CORES")]
    pub(crate) cores: Option<CpuList>,
    /// Write all results to a file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl Options {
    /// Errors: an invalid option, as a message for the user (I1).
    pub(crate) fn check(&self) -> Result<(), String> {
        within("flows", self.flows, 1, FLOWS_MAX)?;
        within("window", self.window, 1, WINDOW_MAX)?;
        within("key-size", self.key_size, 1, KEY_BYTES_MAX as u32)?;
        within("value-size", self.value_size, 0, VALUE_BYTES_MAX)?;
        within("duration-s", self.duration_s, 0.01, 1e6)?;
        within("warm-up-s", self.warm_up_s, 0.0, 1e6)?;
        within("repeat", self.repeat, 1, 1_000)?;
        within("limit", self.limit.unwrap_or(1), 1, u64::MAX)?;
        within("timeout-ms", self.timeout_ms, 0.1, 60_000.0)?;
        within("sets", self.sets, 0.0, 0.5)?;
        if let Some(rate) = self.rate {
            within("rate", rate, 0.001, 1e8)?;
        }
        if let Some(tick_us) = self.tick_us {
            within("tick-us", tick_us, 1, 1_000_000)?;
        }
        let in_flight = usize::from(self.flows) * usize::from(self.window);
        if in_flight > IN_FLIGHT_MAX {
            return Err(format!("--flows times --window must be at most {IN_FLIGHT_MAX}"));
        }
        let port = self.server.port();
        if port == 0 || (PORT_FIRST..PORT_FIRST + self.flows).contains(&port) {
            return Err(format!("--server: port {port} is 0 or one of the flows'"));
        }
        if self.client == *self.server.ip() {
            return Err("--client and --server are the same address".into());
        }
        for (name, mac) in [("server-mac", self.server_mac), ("client-mac", self.client_mac)] {
            // All zeros is that of the loopback interface.
            if mac.0[0] & 1 == 1 {
                return Err(format!("--{name} is that of a group of interfaces"));
            }
        }
        self.synthetic_keys().map(|_| ())
    }

    /// The keys and values.
    ///
    /// Errors: the keys are too short to differ.
    pub(crate) fn synthetic_keys(&self) -> Result<Keys, String> {
        let (key, value) = (Sizes::Fixed(self.key_size), Sizes::Fixed(self.value_size));
        Keys::with(self.keys, Room::default(), key, value, self.seed)
    }

    /// The addresses of both ends.
    pub(crate) fn ends(&self) -> Ends {
        Ends {
            client_mac: self.client_mac.0,
            server_mac: self.server_mac.0,
            client: self.client,
            server: self.server,
        }
    }
}

/// The address of an interface of Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Mac(pub(crate) [u8; 6]);

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no MAC address; an example is 02:6b:61:63:68:65");
        let bytes: Vec<u8> = text
            .split(':')
            .map(|part| match part.len() {
                1 | 2 => u8::from_str_radix(part, 16).map_err(|_| wrong()),
                _ => Err(wrong()),
            })
            .collect::<Result<_, _>>()?;
        bytes.try_into().map(Self).map_err(|_| wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "-i lo -s 10.0.0.2:11211 --server-mac 2:0:0:0:0:1 --client 10.0.0.3";

    fn parse(more: &str) -> Result<Options, String> {
        let words = ["packets"].into_iter().chain(VALID.split(' ')).chain(more.split_whitespace());
        let options = Options::try_parse_from(words).map_err(|error| error.to_string())?;
        options.check().map(|()| options)
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }

    #[test]
    fn valid_options_are_accepted() {
        let options = parse("--rate 5000 --tick-us 200 --popularity zipf:0.99").expect("valid");
        assert_eq!(options.ends().server_mac, [2, 0, 0, 0, 0, 1]);
        assert_eq!(options.ends().client_mac, *b"\x02kache");
        assert_eq!((options.popularity, options.tick_us), (Choice::Zipf(0.99), Some(200)));
        assert!(parse("--sets 0.05 --flows 4000 --window 256").is_ok());
    }

    #[test]
    fn invalid_options_are_refused_and_named() {
        for (line, name) in [
            ("--flows 0", "--flows"),
            ("--flows 30001", "--flows"),
            ("--window 4097", "--window"),
            ("--flows 4000 --window 300", "--window"),
            ("--rate 0", "--rate"),
            ("--rate NaN", "--rate"),
            ("--tick-us 200", "--rate"),
            ("--arrivals fixed", "--rate"),
            ("--rate 5 --tick-us 0", "--tick-us"),
            ("--timeout-ms 0", "--timeout-ms"),
            ("--repeat 0", "--repeat"),
            ("--limit 0", "--limit"),
            ("--sets 0.6", "--sets"),
            ("--sets 0.1 --echo", "--echo"),
            ("--keys 0", "--keys"),
            ("--keys 1000 --key-size 2", "--key-size"),
            ("--key-size 251", "--key-size"),
            ("--value-size 1025", "--value-size"),
            ("--duration-s 0", "--duration-s"),
            ("--warm-up-s=-1", "--warm-up-s"),
            ("--server [::1]:11211", "--server"),
            ("--server 10.0.0.2", "--server"),
            ("--server 10.0.0.2:0", "--server"),
            ("--server 10.0.0.2:28049", "--server"),
            ("--server 10.0.0.3:11211", "--client"),
            ("--client-mac ff:ff:ff:ff:ff:ff", "--client-mac"),
            ("--server-mac 01:00:5e:00:00:01", "--server-mac"),
            ("--server-mac 02:00:00:00:00", "--server-mac"),
            ("--server-mac 02:00:00:00:00:001", "--server-mac"),
            ("--popularity zipf", "--popularity"),
        ] {
            let error = parse(line).expect_err(line);
            assert!(error.contains(name), "{line}: {error}");
        }
    }
}
