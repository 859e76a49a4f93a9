//! `--shard-ports` and `--udp-port-per-shard`: a port for each shard, counted on from `-p` and
//! `-U`.
//!
//! Upstream:   `partial.rs` checks the option once the listeners are known; `kachel` asks again
//!             when the number of threads is known.
//! Downstream: `kachel` listens on the ports; `settings.rs` tells clients which ones.
//!
//! Invariants:
//! - I1  Shard n has port `-p` + 1 + n (UDP: `-U` + 1 + n), on every address of `-l`. Port `-p`
//!   stays a port for all clients. So a client that knows nothing of shards is served as without
//!   the option.
//! - I2  No port of a shard is a port of `-l`.

use std::ops::RangeInclusive;

use crate::{EXIT_USAGE, IpListen, OptionsError, ServeOptions};

/// The option whose ports are counted, and the option from which they are counted on.
struct Counted {
    option: &'static str,
    from: &'static str,
}

const TCP: Counted = Counted { option: "--shard-ports", from: "-p" };
const UDP: Counted = Counted { option: "--udp-port-per-shard", from: "-U" };

impl Counted {
    /// The ports of `threads` shards after `base` (I1).
    ///
    /// Errors: the ports do not exist, or one of them is in `listened` (I2).
    fn ports(
        &self,
        base: i32,
        listened: &[IpListen],
        threads: u16,
    ) -> Result<RangeInclusive<u16>, OptionsError> {
        assert!(threads > 0, "a server has a thread");
        let Self { from, .. } = self;
        let Some(base) = u16::try_from(base).ok().filter(|&port| port > 0) else {
            return Err(self.refused(&format!(
                "the ports are counted on from {from}, so {from} must be a port"
            )));
        };
        let Some(last) = base.checked_add(threads) else {
            return Err(self.refused(&format!(
                "with -t {threads} the ports after {from} {base} are needed, up to {}; there are ports \
                 up to 65535. Use a smaller {from} or -t",
                u32::from(base) + u32::from(threads)
            )));
        };
        let first = base + 1;
        let ports = first..=last;
        if let Some(taken) = listened.iter().find(|each| ports.contains(&each.port)) {
            return Err(self.refused(&format!(
                "port {} of -l would also be the port of a shard; the shards have the ports {first} \
                 to {last}",
                taken.port
            )));
        }
        Ok(ports)
    }

    fn refused(&self, why: &str) -> OptionsError {
        OptionsError::new(EXIT_USAGE, format!("{}: {why}", self.option))
    }
}

impl ServeOptions {
    /// The TCP ports of the shards of a server of `threads` threads (I1). `None` without
    /// `--shard-ports`.
    ///
    /// Errors: the ports do not exist, or one of them is also in `-l` (I2).
    pub fn shard_ports(&self, threads: u16) -> Result<Option<RangeInclusive<u16>>, OptionsError> {
        if !self.has_shard_ports {
            return Ok(None);
        }
        if self.listeners.unix.is_some() {
            return Err(TCP.refused("with -s there is no TCP, so there are no ports"));
        }
        TCP.ports(self.echo.tcp_port, &self.listeners.tcp, threads).map(Some)
    }

    /// The UDP ports of the shards of a server of `threads` threads (I1). `None` without
    /// `--udp-port-per-shard`, and without UDP.
    ///
    /// Errors: the ports do not exist, or one of them is also in `-l` (I2).
    pub fn udp_shard_ports(
        &self,
        threads: u16,
    ) -> Result<Option<RangeInclusive<u16>>, OptionsError> {
        if !self.udp.has_shard_ports || self.listeners.udp.is_empty() {
            return Ok(None);
        }
        debug_assert!(self.echo.udp_port != 0, "there is UDP");
        UDP.ports(self.echo.udp_port, &self.listeners.udp, threads).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, parse};

    fn options(words: &[&str]) -> Result<ServeOptions, OptionsError> {
        let words = [&["serve"], words].concat();
        let parsed = parse(words.into_iter().map(std::ffi::OsString::from), "kachel".as_ref())?;
        let Command::Serve(options) = parsed else { panic!("it starts a server") };
        Ok(*options)
    }

    #[test]
    fn the_ports_of_the_shards_follow_the_port_of_all() {
        for (words, threads, ports) in [
            (&[][..], 4, None),
            (&["--shard-ports"], 4, Some(11212..=11215)),
            (&["--shard-ports", "-p", "65000"], 1, Some(65001..=65001)),
            (&["--shard-ports", "-p", "65000"], 535, Some(65001..=65535)),
            (&["--shard-ports", "-l", "*:11216,10.0.0.1"], 4, Some(11212..=11215)),
        ] {
            let options = options(words).expect("it starts a server");
            assert_eq!(options.shard_ports(threads).expect("ports"), ports, "{words:?}");
            let shown = ports
                .map_or("off".to_string(), |ports| format!("{}-{}", ports.start(), ports.end()));
            let settings = options.settings(threads);
            assert!(settings.contains(&("kachel_shard_ports".to_string(), shown)), "{words:?}");
        }
    }

    #[test]
    fn udp_has_ports_of_its_own() {
        let words = ["-p", "11211", "-U", "22345", "--udp-port-per-shard", "--shard-ports"];
        let options = options(&words).expect("it starts a server");
        assert_eq!(options.udp_shard_ports(4).expect("ports"), Some(22346..=22349));
        assert_eq!(options.shard_ports(4).expect("ports"), Some(11212..=11215));
        let shown = ("kachel_udp_shard_ports".to_string(), "22346-22349".to_string());
        assert!(options.settings(4).contains(&shown));
    }

    #[test]
    fn ports_that_cannot_be_are_refused_with_the_reason() {
        for (words, why) in [
            (&["-s", "/tmp/socket"][..], "with -s there is no TCP"),
            (&["-p", "-1"], "-p must be a port"),
            (&["-p", "65000", "-t", "536"], "up to 65536"),
            (&["-p", "65535"], "up to 65536"),
            (&["-l", "127.0.0.1:11213,127.0.0.1", "-t", "2"], "port 11213 of -l"),
            (&["-l", "[::1]:11212"], "port 11212 of -l"),
        ] {
            let error = options(&[&["--shard-ports"], words].concat()).expect_err("refused");
            assert_eq!(error.exit_code, EXIT_USAGE, "{words:?}");
            assert!(error.message.starts_with("--shard-ports: "), "{}", error.message);
            assert!(error.message.contains(why), "{}", error.message);
        }
        for (words, why) in [
            (&["-U", "-1"][..], "-U must be a port"),
            (&["-U", "65000", "-t", "536"], "up to 65536"),
            (&["-U", "7000", "-l", "127.0.0.1:7001,127.0.0.1"], "port 7001 of -l"),
        ] {
            let error = options(&[&["--udp-port-per-shard"], words].concat()).expect_err("refused");
            assert_eq!(error.exit_code, EXIT_USAGE, "{words:?}");
            assert!(error.message.starts_with("--udp-port-per-shard: "), "{}", error.message);
            assert!(error.message.contains(why), "{}", error.message);
        }
        for words in [&[][..], &["-U", "0"], &["-U", "11211", "-s", "/tmp/socket"]] {
            let options = options(&[&["--udp-port-per-shard"], words].concat()).expect("it starts");
            assert_eq!(options.udp_shard_ports(4).expect("no ports"), None);
            let report = "--udp-port-per-shard: has no effect without UDP (-U)";
            assert!(options.reports.iter().any(|said| said == report), "{:?}", options.reports);
        }
        // Without -t the number of threads is known only when the server starts.
        let options = options(&["--shard-ports", "-p", "65000"]).expect("it starts a server");
        assert!(options.shard_ports(536).is_err());
    }
}
