//! The command line of `kachel load`.
//!
//! Upstream:   the arguments after `kachel load`.
//! Downstream: `session` gets validated values; the JSON file repeats them as they were given.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Nothing is sent to a server before every option has been validated.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};
use serde::Serialize;

use crate::drive::Spin;
use crate::keys::Sizes;
use crate::meter::cpu_list;
use crate::mix::Ratio;
use crate::popularity::Choice;
use crate::protocol::Protocol;
use crate::schedule::Arrivals;
use crate::search::{Promise, Scan};
use crate::ttl::Ttls;

/// Maximum connections of one run.
pub(crate) const CONNECTIONS_MAX: usize = 60_000;
/// Maximum requests in flight on one connection.
pub(crate) const DEPTH_MAX: usize = 65_536;
/// Maximum threads.
pub(crate) const THREADS_MAX: usize = 1_024;
/// Maximum agents of one measurement.
pub(crate) const AGENTS_MAX: usize = 64;
/// Maximum keys of one get.
pub(crate) const KEYS_PER_GET_MAX: u32 = 10_000;

const EXAMPLES: &str = "\
Examples:
  kachel load
      50 connections, one get at a time each, 1 M keys of 30 B with 32 B values, 10 s
  kachel load --connections 4 --depth 32 --ratio 0:1 --pin 1 --server-pid auto
      pipelined sets, and the processor time that they cost the server
  kachel load --rate 100000 --arrivals poisson --zipf 0.99 --ratio 9:1 --json run.json
      open loop: response times count from the intended send time
  kachel load --search p95:1000us --arrivals poisson --duration-s 4
      the highest rate at which 95 % of the responses take at most 1 ms
  kachel load --agents 10.0.0.2:11222,10.0.0.3:11222 --server 10.0.0.9 --rate 900000
      one measurement from three machines (see `kachel load agent --help`)
  kachel load replay trace.csv.zst --value-scale 0.5
      a recorded trace, look-aside: a get that misses is followed by a set

Distributions, for --arrivals, --key-size and --value-size (the names are mutilate's):
  fixed:V  uniform:[LOW,]HIGH  normal:MEAN,SD  exponential:LAMBDA (mean 1 / LAMBDA)
  gpareto:[LOCATION,]SCALE,SHAPE (generalized Pareto)
  gev:LOCATION,SCALE,SHAPE (generalized extreme value)
  fb_key, fb_value, fb_ia: keys, values and gaps of Facebook's ETC pool (Atikoglu et al. 2012)
  A number below 0 counts as 0. A size is drawn once per key and cut to whole bytes: a key to 250 at
  most, a value to 1,000,000.

Distributions of keys, for --popularity:
  zipf:THETA             rank r in proportion to r^-THETA, for any THETA of at least 0
  scrambled[:THETA]      YCSB's scrambled Zipf: a rank of 10,000,000,000 items, hashed to a key
  latest[:THETA]         YCSB's latest: the rank counts from the newest key
  hotspot:KEYS,REQUESTS  shares: 0.2,0.8 sends 80 % of the requests to the first 20 % of the keys
  sequential             each thread requests all keys, one after the other
  The default THETA is YCSB's 0.99. That of scrambled and latest must be below 1.

Exit status: 0 on success, 1 if there were errors, 2 if the options are invalid.";

const AGENT_HELP: &str = "\
A leader is a `kachel load` with --agents. It sends its command line; files that it names (--tls-ca)
are those of the agent's machine. --json, --server-pid, --idle and --connect-rate concern the leader
alone, and each machine has its own --pin. An agent serves one leader after the other until it is
ended. The connection is not encrypted.

An agent sends load to any address that a leader names. So beyond its own machine it listens only
with a token, which leaders must have, too.

Examples:
  kachel load agent --listen 10.0.0.2:11222 --token token.txt
  kachel load --server 10.0.0.9 --agents 10.0.0.2:11222,10.0.0.3:11222 --token token.txt \\
    --rate 900000 --connections 300 --threads 4
      300,000 requests a second and 100 connections from each of three machines";

const REPLAY_HELP: &str = "\
A trace has one request a line: timestamp_s,key,key_size,value_size,client_id,operation,ttl_s
(the format of the Twitter cache traces), or is in libCacheSim's oracleGeneral format, whose records
are gets and have the size of the object with its key. Both may be compressed with zstd. Any other
file is refused. Requests that are left out or changed are counted in the report.

Look-aside: a get that misses is followed by a set with the trace's value size and TTL, on the same
connection. Other requests are sent unchanged. Requests for one key keep their order with any number
of connections. With several threads, each replays its share of the keys.

Examples:
  kachel load replay recs.csv.zst
  kachel load replay recs.csv.zst --connections 8 --depth 4 --json out.json
  kachel load replay recs.csv.zst --pace trace --speed 10
  kachel load replay w01.oracleGeneral.bin.zst --value-scale 0.1";

/// `kachel load`.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "kachel load",
    bin_name = "kachel load",
    about = "Drives a memcached server and measures it.",
    after_help = EXAMPLES,
    args_conflicts_with_subcommands = true,
    args_override_self = true,
    disable_help_subcommand = true,
    max_term_width = 100
)]
pub(crate) struct Options {
    /// A subcommand; without one, the steady mix runs.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Options of the steady mix.
    #[command(flatten)]
    pub(crate) steady: SteadyOptions,
}

/// Subcommands.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Replays a recorded trace
    #[command(after_help = REPLAY_HELP, args_override_self = true, max_term_width = 100)]
    Replay(ReplayOptions),
    /// Lists the presets and their options
    Presets,
    /// Sends a part of the load for a `kachel load --agents` on another machine
    #[command(after_help = AGENT_HELP, args_override_self = true, max_term_width = 100)]
    Agent(AgentOptions),
}

/// Options of an agent.
#[derive(Clone, Debug, Args)]
pub(crate) struct AgentOptions {
    /// Where to wait for a leader; beyond this machine (127.0.0.1, ::1) a token is needed
    #[arg(long, default_value = "127.0.0.1:11222", value_name = "HOST:PORT")]
    pub(crate) listen: String,
    /// A file with the token that leaders must have, at least 16 bytes; the default is the
    /// environment variable KACHEL_LOAD_TOKEN
    #[arg(long, value_name = "FILE")]
    pub(crate) token: Option<PathBuf>,
    /// Cores of this machine to pin the threads to, round robin
    #[arg(long, value_name = "CORES")]
    pub(crate) pin: Option<CpuList>,
}

/// Options of both forms.
#[derive(Clone, Debug, Args, Serialize)]
pub(crate) struct CommonOptions {
    /// The server: HOST:PORT, HOST, or the path of a unix socket; several with commas between them
    /// share the keys by ketama
    #[arg(long, short = 's', default_value = "127.0.0.1:11211", value_name = "ADDRESS")]
    pub(crate) server: String,
    /// Connections, over all threads
    #[arg(long, short = 'c', default_value_t = 50, value_name = "N")]
    pub(crate) connections: usize,
    /// Requests in flight on each connection
    #[arg(long, short = 'd', default_value_t = 1, value_name = "N")]
    pub(crate) depth: usize,
    /// Threads of the generator
    #[arg(long, short = 't', default_value_t = 1, value_name = "N")]
    pub(crate) threads: usize,
    /// Cores to pin the threads to, round robin
    #[arg(long, value_name = "CORES")]
    pub(crate) pin: Option<CpuList>,
    /// When a thread that has nothing to do spins, and does not sleep
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    pub(crate) spin: Spin,
    /// Seed of all random choices: the same seed sends the same requests
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) seed: u64,
    /// Verify the bytes of every item returned
    #[arg(long)]
    pub(crate) check: bool,
    /// Process of the server, to measure its processor time; `auto` takes it from `stats`, if it is
    /// on this machine
    #[arg(long, value_name = "PID")]
    pub(crate) server_pid: Option<ServerPid>,
    /// Write all results to a file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Print the result without progress
    #[arg(long, short = 'q')]
    pub(crate) quiet: bool,
    /// Stop when no reply has come for this long
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    pub(crate) patience_s: f64,
}

/// Options of the steady mix.
#[derive(Clone, Debug, Args, Serialize)]
pub(crate) struct SteadyOptions {
    /// Options of both forms.
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) common: CommonOptions,
    /// A known load: ycsb-a to ycsb-f, etc, usr, cluster1 to cluster54; options beside it
    /// override its own (`kachel load presets` lists them)
    #[arg(long, value_name = "NAME")]
    pub(crate) preset: Option<String>,
    /// Protocol of the requests
    #[arg(long, value_enum, default_value_t = Protocol::Text)]
    pub(crate) protocol: Protocol,
    /// Send the requests over UDP, from a socket for each connection; the preload uses TCP
    #[arg(long)]
    pub(crate) udp: bool,
    /// Count a request over UDP as dropped after this time
    #[arg(long, default_value_t = 200.0, value_name = "MS", requires = "udp")]
    pub(crate) udp_timeout_ms: f64,
    /// Idle connections beside the load; each asks for the version once before
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) idle: usize,
    /// New connections a second beside the load; each asks for the version and closes
    #[arg(long, value_name = "PER_SECOND")]
    pub(crate) connect_rate: Option<f64>,
    /// The address of the new connections; the default is that of --server
    #[arg(long, value_name = "ADDRESS", requires = "connect_rate")]
    pub(crate) connect_to: Option<String>,
    /// Encrypt the new connections
    #[arg(long, requires_all = ["connect_rate", "certificates"])]
    pub(crate) connect_tls: bool,
    /// Options of TLS.
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) tls: TlsOptions,
    /// Duration of the measurement
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    pub(crate) duration_s: f64,
    /// Duration of the warm-up before it
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    pub(crate) warm_up_s: f64,
    /// Open loop: send this many requests a second over all threads, at fixed times; a set or cas
    /// that follows a get (--look-aside, the CAS part of --ratio) is sent beside them
    #[arg(long, value_name = "PER_SECOND", group = "open_loop")]
    pub(crate) rate: Option<f64>,
    /// Open loops at several rates: finds the highest one that keeps a promise, as p95:1000us or
    /// mean:1ms; each step has a warm-up and a duration
    #[arg(long, value_name = "PROMISE", group = "open_loop", conflicts_with = "preload_only")]
    pub(crate) search: Option<Promise>,
    /// The rate of the first step of a search
    #[arg(long, default_value_t = 10_000.0, value_name = "PER_SECOND", requires = "search")]
    pub(crate) search_from: f64,
    /// Open loops at the rates FROM, FROM + STEP, and so on up to TO
    #[arg(long, value_name = "FROM:TO:STEP", group = "open_loop", conflicts_with = "preload_only")]
    pub(crate) scan: Option<Scan>,
    /// Distribution of the times between the requests of an open loop, scaled to the rate: poisson,
    /// fixed, uniform, or any other one (see below)
    #[arg(long, default_value = "poisson", value_name = "DISTRIBUTION", requires = "open_loop")]
    pub(crate) arrivals: Arrivals,
    /// Ratio of gets, sets, deletes, increments, gets with a cas after them, inserts, and scans of
    /// 1 to 100 items; a scan needs one server with Kachel's --scan, and --protocol meta
    #[arg(
        long,
        default_value = "1:0",
        value_name = "GETS:SETS[:DELETES[:INCRS[:CAS[:INSERTS[:SCANS]]]]]"
    )]
    pub(crate) ratio: Ratio,
    /// Keys of one get
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) keys_per_get: u32,
    /// Number of keys
    #[arg(long, short = 'k', default_value_t = 1_000_000, value_name = "N")]
    pub(crate) keys: u64,
    /// Length of a key: 30, 20-40 (uniform), or a distribution (see below)
    #[arg(long, default_value = "30", value_name = "SIZES")]
    #[serde(serialize_with = "plain_if_fixed")]
    pub(crate) key_size: Sizes,
    /// Length of a value: 32, 10-1000 (uniform), etc (Facebook's ETC pool, cut at 8 KiB), or a
    /// distribution (see below)
    #[arg(long, default_value = "32", value_name = "SIZES")]
    pub(crate) value_size: Sizes,
    /// Exponent of Zipf-distributed keys: short for --popularity zipf:THETA
    #[arg(long, value_name = "THETA", overrides_with = "popularity")]
    #[serde(skip)]
    zipf: Option<f64>,
    /// Distribution of the requests over the keys: uniform, zipf:THETA, scrambled[:THETA],
    /// latest[:THETA], hotspot:KEYS,REQUESTS or sequential (see below)
    #[arg(long, default_value = "uniform", value_name = "DISTRIBUTION", overrides_with = "zipf")]
    pub(crate) popularity: Choice,
    /// TTL of sets; 0 means no expiry; several with their shares: 60:0.9,300:0.1
    #[arg(long, default_value = "0", value_name = "SECONDS")]
    pub(crate) ttl_s: Ttls,
    /// Set a key after a get missed it
    #[arg(long)]
    pub(crate) look_aside: bool,
    /// Preload this many keys a second, at fixed times; the default is as many as possible
    #[arg(long, value_name = "PER_SECOND", conflicts_with = "no_preload")]
    pub(crate) fill_rate: Option<f64>,
    /// Time between the preload and the warm-up
    #[arg(long, default_value_t = 0.0, value_name = "SECONDS")]
    pub(crate) rest_s: f64,
    /// Skip the preload of all keys
    #[arg(long)]
    pub(crate) no_preload: bool,
    /// Preload all keys, then exit
    #[arg(long, conflicts_with = "no_preload")]
    pub(crate) preload_only: bool,
    /// Share the load with agents on other machines (`kachel load agent`): connections, rate and
    /// keys are those of all machines together, --threads those of each
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) agents: Vec<String>,
    /// Leave the whole load to the agents
    #[arg(long, requires = "agents")]
    pub(crate) agents_only: bool,
    /// A file with the token of the agents; the default is the environment variable
    /// KACHEL_LOAD_TOKEN
    #[arg(long, value_name = "FILE", requires = "agents")]
    #[serde(skip)]
    pub(crate) token: Option<PathBuf>,
}

/// Options of TLS.
#[derive(Clone, Debug, Default, Args, Serialize)]
pub(crate) struct TlsOptions {
    /// Encrypt the connections of the load and the idle ones
    #[arg(long, requires = "certificates", conflicts_with = "udp")]
    pub(crate) tls: bool,
    /// Certificates that the server's must be signed by, in a PEM file
    #[arg(long, value_name = "FILE", group = "certificates")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Accept any certificate
    #[arg(long, group = "certificates")]
    pub(crate) tls_insecure: bool,
    /// The name in the server's certificate; the default is the host of its address
    #[arg(long, value_name = "NAME", requires = "certificates")]
    pub(crate) tls_name: Option<String>,
    /// Make a full handshake for every connection
    #[arg(long, requires = "certificates")]
    pub(crate) tls_no_resumption: bool,
}

impl TlsOptions {
    /// Whether an option beside `--tls` is given.
    fn is_any(&self) -> bool {
        let is_named = self.tls_ca.is_some() || self.tls_name.is_some();
        is_named || self.tls_insecure || self.tls_no_resumption
    }
}

/// Options of a replay.
#[derive(Clone, Debug, Args, Serialize)]
pub(crate) struct ReplayOptions {
    /// The trace, uncompressed or compressed with zstd
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Options of both forms.
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) common: CommonOptions,
    /// Factor for the value sizes of the trace
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    pub(crate) value_scale: f64,
    /// Send as fast as the server answers, or at the times of the trace (response time counts from
    /// those)
    #[arg(long, value_enum, default_value_t = Pace::Flat)]
    pub(crate) pace: Pace,
    /// Factor for the speed of the trace's time
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    pub(crate) speed: f64,
    /// Replay at most this many requests
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// Print a summary of the trace as JSON and send nothing
    #[arg(long)]
    pub(crate) facts: bool,
}

/// How the requests of a trace are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Pace {
    /// As fast as the server answers
    Flat,
    /// At the times in the trace
    Trace,
}

/// A length that is the same for all keys is a number, as before there were others.
fn plain_if_fixed<S: serde::Serializer>(sizes: &Sizes, serializer: S) -> Result<S::Ok, S::Error> {
    match sizes {
        Sizes::Fixed(bytes) => serializer.serialize_u32(*bytes),
        sizes => sizes.serialize(serializer),
    }
}

/// A list of cores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct CpuList(pub(crate) Vec<usize>);

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        cpu_list(text).map(Self)
    }
}

/// Which process the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ServerPid {
    /// The process that `stats` names.
    Auto,
    /// The process with this number.
    Pid(u32),
}

impl FromStr for ServerPid {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "auto" => Ok(Self::Auto),
            Ok(pid) if pid > 0 => Ok(Self::Pid(pid)),
            _ => Err(format!("'{text}' is neither a process number nor 'auto'")),
        }
    }
}

pub(crate) fn within<T: PartialOrd + std::fmt::Display>(
    name: &str,
    value: T,
    least: T,
    most: T,
) -> Result<(), String> {
    if value >= least && value <= most {
        return Ok(());
    }
    Err(format!("--{name} must be {least} to {most}, not {value}"))
}

impl CommonOptions {
    /// Errors: an invalid option, as a message for the user (I1).
    pub(crate) fn check(&self) -> Result<(), String> {
        within("connections", self.connections, 1, CONNECTIONS_MAX)?;
        within("depth", self.depth, 1, DEPTH_MAX)?;
        within("threads", self.threads, 1, THREADS_MAX)?;
        within("patience-s", self.patience_s, 0.01, 86_400.0)?;
        if self.threads > self.connections {
            return Err(format!(
                "--threads {} needs at least as many --connections, not {}",
                self.threads, self.connections
            ));
        }
        Ok(())
    }
}

impl SteadyOptions {
    /// The distribution of the requests over the keys.
    ///
    /// Errors: an invalid exponent, as a message for the user.
    pub(crate) fn choice(&self) -> Result<Choice, String> {
        match self.zipf {
            None => Ok(self.popularity),
            Some(theta) if theta >= 0.0 && theta.is_finite() => Ok(Choice::Zipf(theta)),
            Some(theta) => Err(format!("--zipf must be a number of at least 0, not {theta}")),
        }
    }

    /// Puts the short form of an option into the long one, so that the JSON of a report has one
    /// answer.
    ///
    /// Errors: as `choice`.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        self.popularity = self.choice()?;
        self.zipf = None;
        Ok(())
    }

    /// Errors: an invalid option, as a message for the user (I1).
    pub(crate) fn check(&self) -> Result<(), String> {
        self.common.check()?;
        self.choice()?;
        within("duration-s", self.duration_s, 0.01, 1e7)?;
        within("warm-up-s", self.warm_up_s, 0.0, 1e7)?;
        within("udp-timeout-ms", self.udp_timeout_ms, 0.1, 60_000.0)?;
        within("idle", self.idle, 0, CONNECTIONS_MAX)?;
        if let Some(rate) = self.connect_rate {
            within("connect-rate", rate, 0.1, 1e6)?;
        }
        within("keys-per-get", self.keys_per_get, 1, KEYS_PER_GET_MAX)?;
        if let Some(rate) = self.rate {
            within("rate", rate, 0.001, 1e9)?;
        }
        within("search-from", self.search_from, 1.0, 1e9)?;
        if let Some(rate) = self.fill_rate {
            within("fill-rate", rate, 0.001, 1e9)?;
        }
        within("rest-s", self.rest_s, 0.0, 1e6)?;
        if self.tls.is_any() && !self.tls.tls && !self.connect_tls {
            return Err(
                "--tls-ca, --tls-insecure, --tls-name and --tls-no-resumption need --tls or \
                        --connect-tls"
                    .into(),
            );
        }
        if self.common.server.contains(',') {
            self.check_for_several_servers()?;
        }
        if !self.agents.is_empty() {
            self.check_for_agents()?;
        }
        if self.ratio.scans > 0 && (self.protocol != Protocol::Meta || self.udp) {
            return Err("--ratio with scans needs --protocol meta, and not --udp".into());
        }
        if self.look_aside && self.keys_per_get > 1 {
            return Err("--look-aside needs --keys-per-get 1".into());
        }
        Ok(())
    }
}

impl SteadyOptions {
    /// Errors: an option that is about one server, as a message for the user.
    fn check_for_several_servers(&self) -> Result<(), String> {
        let with_one = [
            ("--udp", self.udp),
            ("--idle", self.idle > 0),
            ("--connect-rate", self.connect_rate.is_some()),
            ("--server-pid", self.common.server_pid.is_some()),
            ("--keys-per-get", self.keys_per_get > 1),
            ("--ratio with scans", self.ratio.scans > 0),
        ];
        if let Some((name, _)) = with_one.into_iter().find(|(_, is_given)| *is_given) {
            return Err(format!("{name} needs one --server, not several"));
        }
        if self.common.server.split(',').any(|name| name.is_empty() || name.contains('/')) {
            return Err("several servers in --server must each be HOST:PORT or HOST".into());
        }
        Ok(())
    }
}

impl SteadyOptions {
    /// The machines that send requests.
    pub(crate) fn machines(&self) -> usize {
        self.agents.len() + usize::from(!self.agents_only)
    }

    /// Errors: an option that several machines cannot share, as a message for the user.
    fn check_for_agents(&self) -> Result<(), String> {
        within("agents", self.agents.len(), 1, AGENTS_MAX)?;
        if (1..self.agents.len()).any(|index| self.agents[..index].contains(&self.agents[index])) {
            return Err("--agents names an agent twice, and an agent serves one leader".into());
        }
        let (machines, threads) = (self.machines(), self.common.threads);
        if machines * threads > self.common.connections {
            return Err(format!(
                "{machines} machines with --threads {threads} need at least {} --connections, not \
                 {}",
                machines * threads,
                self.common.connections
            ));
        }
        if self.ratio.inserts > 0 {
            return Err(
                "--agents: several machines cannot share the numbers of inserted keys, so \
                        --ratio must have no inserts"
                    .into(),
            );
        }
        if self.agents_only && (self.idle > 0 || self.connect_rate.is_some()) {
            return Err("--idle and --connect-rate are the leader's, so not --agents-only".into());
        }
        Ok(())
    }
}

impl ReplayOptions {
    /// Errors: an invalid option, as a message for the user (I1).
    pub(crate) fn check(&self) -> Result<(), String> {
        self.common.check()?;
        if self.common.server.contains(',') {
            return Err("replay needs one --server, not several".into());
        }
        within("value-scale", self.value_scale, 0.0, 1e6)?;
        within("speed", self.speed, 1e-6, 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        let words = std::iter::once("kachel load").chain(line.split_whitespace());
        let options = Options::try_parse_from(words).map_err(|error| error.to_string())?;
        match &options.command {
            Some(Command::Replay(replay)) => replay.check()?,
            Some(Command::Presets | Command::Agent(_)) => {}
            None => options.steady.check()?,
        }
        Ok(options)
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }

    #[test]
    fn both_forms_are_parsed() {
        let options = parse("-c 4 -d 32 --ratio 9:1 --pin 0-1 --server-pid 12").expect("valid");
        let common = &options.steady.common;
        assert_eq!((common.connections, common.depth), (4, 32));
        assert_eq!(common.pin, Some(CpuList(vec![0, 1])));
        assert_eq!(common.server_pid, Some(ServerPid::Pid(12)));
        assert_eq!(options.steady.ratio, Ratio { gets: 9, sets: 1, ..Ratio::default() });
        let options = parse("replay x.csv --value-scale 0.5 -c 7").expect("valid");
        let Some(Command::Replay(replay)) = options.command else { panic!("replay") };
        assert_eq!((replay.value_scale, replay.common.connections), (0.5, 7));
    }

    #[test]
    fn the_later_of_two_distributions_of_keys_counts() {
        let choice = |line| parse(line).expect("valid").steady.choice();
        assert_eq!(choice(""), Ok(Choice::Uniform));
        assert_eq!(choice("--zipf 0.5"), Ok(Choice::Zipf(0.5)));
        assert_eq!(choice("--popularity latest --zipf 0.5"), Ok(Choice::Zipf(0.5)));
        assert_eq!(choice("--zipf 0.5 --popularity latest"), Ok(Choice::Latest(0.99)));
    }

    #[test]
    fn invalid_options_are_refused() {
        for line in [
            "--depth 0",
            "--connections 0",
            "--threads 3 --connections 2",
            "--protocol http",
            "--udp-timeout-ms 100",
            "--idle 1000000",
            "--connect-rate 0",
            "--connect-to localhost",
            "--connect-tls --tls-insecure",
            "--connect-rate 1 --connect-tls",
            "--tls",
            "--tls --tls-insecure --tls-ca ca.pem",
            "--tls --tls-insecure --udp",
            "--tls-ca ca.pem",
            "--tls-insecure",
            "--tls-insecure --tls-name a.example",
            "--tls-insecure --connect-rate 1 --tls-no-resumption",
            "--udp --udp-timeout-ms 0",
            "replay x.csv --protocol binary",
            "--ratio 0:0",
            "--search p95",
            "--search p95:1ms --rate 5",
            "--search p95:1ms --scan 1:2:1",
            "--search p95:1ms --preload-only",
            "--search-from 5",
            "--search p95:1ms --search-from 0",
            "--scan 2:1:1",
            "--server a,b --udp",
            "--server a,b --server-pid auto",
            "--server a,b --keys-per-get 2",
            "--server a,",
            "--server a,/run/b",
            "replay x.csv --server a,b",
            "--fill-rate 0",
            "--fill-rate 5 --no-preload",
            "--rest-s -1",
            "--agents-only",
            "--token x",
            "--agents a:1,a:1",
            "--agents a:1,b:1 --connections 5 --threads 2",
            "--agents a:1 --ratio 1:0:0:0:0:1",
            "--agents a:1 --agents-only --idle 5",
            "agent --connections 5",
            "--ratio 9",
            "--rate 0",
            "--rate NaN",
            "--arrivals fixed",
            "--zipf NaN",
            "--popularity zipf",
            "--popularity scrambled:1.2",
            "--rate 1 --arrivals weibull",
            "--rate 1 --arrivals 0",
            "--key-size x",
            "--value-size gev:1,0,0",
            "--duration-s 0",
            "--server-pid x",
            "--pin 3-1",
            "--ttl-s -1",
            "--value-size 5-2",
            "--look-aside --keys-per-get 2",
            "--preload-only --no-preload",
            "replay",
            "replay x.csv --speed 0",
            "replay x.csv --value-scale -1",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
