//! Where requests go, how they travel, and what goes on beside them.
//!
//! Upstream:   validated options.
//! Downstream: `session` opens connections and flows, idle connections and new ones.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Names are resolved and certificates are read here, before the first connection.

use std::sync::Arc;

use crate::address::{Address, Target, host};
use crate::connects::ConnectPlan;
use crate::ketama::Ring;
use crate::options::{CommonOptions, SteadyOptions, TlsOptions};
use crate::protocol::Protocol;
use crate::tls::Security;

/// Where requests go, how they travel, and what goes on beside them.
#[derive(Clone, Debug)]
pub(crate) struct Transport {
    /// The servers.
    pub(crate) targets: Vec<Target>,
    /// Chooses the server of a key, if there are several.
    pub(crate) ring: Option<Arc<Ring>>,
    /// The protocol of the requests.
    pub(crate) protocol: Protocol,
    /// The timeout of a request over UDP; `None`: connections.
    pub(crate) udp_timeout_ns: Option<u64>,
    /// The number of idle connections.
    pub(crate) idle: usize,
    /// New connections during the run.
    pub(crate) connects: Option<ConnectPlan>,
}

impl Transport {
    /// Requests of the text protocol over connections that are not encrypted, and nothing beside.
    ///
    /// Errors: the address does not resolve, as a message for the user.
    pub(crate) fn plain(options: &CommonOptions) -> Result<Self, String> {
        let names: Vec<String> = options.server.split(',').map(str::to_owned).collect();
        let mut targets = Vec::with_capacity(names.len());
        for name in &names {
            targets.push(Target { address: resolve("--server", name)?, security: None });
        }
        let ring = (names.len() > 1).then(|| Arc::new(Ring::new(&names)));
        let protocol = Protocol::Text;
        Ok(Self { targets, ring, protocol, udp_timeout_ns: None, idle: 0, connects: None })
    }

    /// As the options of a steady mix say.
    ///
    /// Errors: an address does not resolve, or certificates cannot be read; as messages for the
    /// user (I1).
    pub(crate) fn of(options: &SteadyOptions) -> Result<Self, String> {
        let mut transport = Self::plain(&options.common)?;
        let (tls, server) = (&options.tls, &options.common.server);
        if tls.tls {
            assert!(!options.udp, "I1: the options exclude each other");
            for (target, name) in transport.targets.iter_mut().zip(server.split(',')) {
                target.security = Some(security(tls, name)?);
            }
        }
        transport.protocol = options.protocol;
        transport.udp_timeout_ns = options.udp.then_some((options.udp_timeout_ms * 1e6) as u64);
        transport.idle = options.idle;
        if let Some(rate) = options.connect_rate {
            let (option, to) = match &options.connect_to {
                Some(to) => ("--connect-to", to),
                None => ("--server", server), // Only one: `options` checks it.
            };
            let security = options.connect_tls.then(|| security(tls, to)).transpose()?;
            let target = Target { address: resolve(option, to)?, security };
            let pin = options.common.pin.as_ref().map(|list| list.0.clone());
            transport.connects = Some(ConnectPlan { target, rate, pin });
        }
        Ok(transport)
    }
}

/// Resolves the address that an option names.
fn resolve(option: &str, text: &str) -> Result<Address, String> {
    Address::resolve(text).map_err(|error| format!("{option} {error}"))
}

/// How connections to this address are encrypted.
fn security(tls: &TlsOptions, address: &str) -> Result<Security, String> {
    assert!(tls.tls_insecure != tls.tls_ca.is_some(), "I1: the options need one of the two");
    let host = tls.tls_name.as_deref().unwrap_or(host(address));
    Security::new(tls.tls_ca.as_deref(), host, !tls.tls_no_resumption)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::options::Options;

    #[test]
    fn a_bad_address_is_told_with_its_option() {
        for (line, start) in [
            ("--server 127.0.0.1:99999", "--server 127.0.0.1:99999: "),
            ("--connect-rate 1 --connect-to 127.0.0.1:99999", "--connect-to 127.0.0.1:99999: "),
        ] {
            let words = std::iter::once("load").chain(line.split(' '));
            let options = Options::try_parse_from(words).expect("valid options");
            let error = Transport::of(&options.steady).expect_err("no such port");
            assert!(error.starts_with(start), "{error}");
        }
    }
}
