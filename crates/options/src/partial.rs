//! Options that are read but not checked together yet.
//!
//! Upstream:   the effects of rows fill them, in the order of the command line.
//! Downstream: [`ServeOptions`], checked.

use std::path::PathBuf;

use crate::data::DataOptions;
use crate::listen::{
    Fallback, Host, IpListen, Listeners, Protocol, UnixListen, port_number, read_list,
};
use crate::serve::{DEFAULT_PORT, ITEM_BYTES_DEFAULT};
use crate::tls::{ListenTls, TlsOptions};
use crate::{CalledAs, EXIT_USAGE, EngineMode, HAS_TLS, OptionsError, ServeOptions};

/// The options read so far; `finish` turns them into [`ServeOptions`].
pub(crate) struct PartialOptions {
    pub(crate) serve: ServeOptions,
    /// The protocol, if one is given.
    pub(crate) protocol: Option<Protocol>,
    /// `-p`, if it is given.
    pub(crate) port: Option<i32>,
    pub(crate) udp_port: i32,
    pub(crate) listen: Vec<String>,
    pub(crate) unix_path: Option<String>,
    pub(crate) unix_mode: u32,
    /// Whether `-o slab_chunk_max` is given.
    pub(crate) has_slab_chunk_max: bool,
}

/// The value of an option, already checked by its row.
#[derive(Clone, Copy)]
pub(crate) struct Given<'words> {
    /// The option and its value as they were given, for messages.
    pub(crate) spelled: &'words str,
    pub(crate) text: &'words str,
    pub(crate) integer: i64,
    pub(crate) real: f64,
}

impl<'words> Given<'words> {
    /// The option and its value as they were given.
    pub(crate) const fn spelled(self) -> &'words str {
        self.spelled
    }

    /// The value as text; empty if there is none.
    pub(crate) const fn text(self) -> &'words str {
        self.text
    }

    /// The value as a number. Panics if the row's range does not fit the type, which is a bug in
    /// the table.
    pub(crate) fn integer<T: TryFrom<i64>>(self) -> T {
        T::try_from(self.integer)
            .unwrap_or_else(|_| panic!("the row's range fits the option's type: {}", self.integer))
    }

    pub(crate) const fn real(self) -> f64 {
        self.real
    }
}

/// An effect that sets one field.
pub(crate) fn set<T>(place: &mut T, value: T) -> Result<(), OptionsError> {
    *place = value;
    Ok(())
}

impl PartialOptions {
    /// Checks what no row can check alone, and makes the listeners.
    pub(crate) fn finish(mut self) -> Result<ServeOptions, OptionsError> {
        let usage = |message: String| Err(OptionsError::new(EXIT_USAGE, message));
        let serve = &mut self.serve;
        if serve.engine != EngineMode::Cache {
            serve.evict = false;
        }
        if u64::from(serve.item_bytes_max) > serve.memory_bytes / 2 {
            return usage(too_large(serve.item_bytes_max, serve.memory_bytes));
        }
        let echo = &serve.echo;
        if echo.hot_lru_pct + echo.warm_lru_pct > 80 {
            return usage("-o: hot_lru_pct and warm_lru_pct must not exceed 80 together".into());
        }
        if echo.temporary_ttl.is_some() && !echo.lru_maintainer {
            return usage("-o: temporary_ttl needs lru_maintainer".into());
        }
        if let Some(threads) = serve.threads
            && echo.napi_ids > u32::from(threads)
        {
            return usage(format!("-N {} is more than -t {threads}", echo.napi_ids));
        }
        // As in memcached, `-S` selects the binary protocol.
        let usual = if serve.sasl { Protocol::Binary } else { serve.protocol };
        serve.protocol = self.protocol.unwrap_or(usual);
        serve.apply_roles()?;
        self.check_data()?;
        self.listen()?;
        self.check_pipe()?;
        self.check_logins()?;
        self.check_tls()?;
        let serve = &mut self.serve;
        serve.admin.check(serve.tls.enabled, &mut serve.reports)?;
        let are_observed = serve.observe.contains(&"prefixes");
        let delimiter = serve.prefix_delimiter;
        serve.admin.check_prefixes(delimiter, are_observed, &mut serve.reports)?;
        let without_effect = [
            ("--udp-port-per-shard", serve.udp.has_shard_ports),
            ("--udp-reply-datagrams", serve.udp.reply_datagrams_max > 1),
            ("--udp-sender-budget", serve.udp.sender_datagrams_max > 0),
            ("--pipe", serve.pipe.interface.is_some()),
        ];
        for (option, _) in without_effect.iter().filter(|(_, given)| *given) {
            if serve.listeners.udp.is_empty() {
                serve.reports.push(format!("{option}: has no effect without UDP (-U)"));
            }
        }
        let threads = serve.threads.unwrap_or(1);
        serve.shard_ports(threads)?;
        serve.udp_shard_ports(threads)?;
        assert!(
            self.serve.called_as == CalledAs::Memcached || !self.serve.listeners.is_empty(),
            "a server without listeners was refused above"
        );
        Ok(self.serve)
    }

    /// Checks that an engine on a disk has a folder, and that no other engine has its options.
    fn check_data(&self) -> Result<(), OptionsError> {
        let refused = |message: &str| Err(OptionsError::new(EXIT_USAGE, message));
        let serve = &self.serve;
        let DataOptions { folder, sync, space_bytes, rocksdb_options } = &serve.data;
        let is_on_disk = matches!(serve.engine, EngineMode::Flash | EngineMode::Rocksdb);
        match (is_on_disk, folder) {
            (true, None) => refused("--engine: this engine needs --data, the folder of its files."),
            (false, Some(_)) => refused("--data: this engine keeps nothing on a disk."),
            _ if !is_on_disk && sync.is_some() => {
                refused("--sync: this engine keeps nothing on a disk.")
            }
            _ if serve.engine != EngineMode::Flash && space_bytes.is_some() => {
                refused("--space: this is for --engine=flash.")
            }
            _ if serve.engine != EngineMode::Rocksdb && rocksdb_options.is_some() => {
                refused("--rocksdb-options: this is for --engine=rocksdb.")
            }
            _ if is_on_disk && serve.memory_file.is_some() => {
                refused("-e: this engine keeps its items itself.")
            }
            _ if is_on_disk && serve.pipe.interface.is_some() => {
                refused("--pipe: there are no copies of items of this engine.")
            }
            _ => Ok(()),
        }
    }

    /// Checks that the pipe leaves room for items, and answers nothing that the server would
    /// refuse.
    fn check_pipe(&self) -> Result<(), OptionsError> {
        let serve = &self.serve;
        debug_assert!(serve.pipe.reply_times > 0, "the table of options has the range");
        let message = if serve.pipe.interface.is_none() {
            return Ok(());
        } else if serve.auth_file.is_some() || serve.sasl {
            "--pipe: a datagram cannot log in, so there is no pipe with logins (-S, -Y)."
        } else if serve.udp.sender_datagrams_max > 0 {
            "--pipe: it does not count the datagrams of a sender; leave out --udp-sender-budget."
        } else if serve.pipe.memory_bytes > serve.memory_bytes / 2 {
            "--pipe-memory: the copies take at most half of -m."
        } else {
            return Ok(());
        };
        Err(OptionsError::new(EXIT_USAGE, message))
    }

    /// Checks that the listeners have the protocol of the login that clients must make.
    fn check_logins(&self) -> Result<(), OptionsError> {
        let serve = &self.serve;
        let tcp = serve.listeners.tcp.iter().map(|listen| listen.protocol);
        let mut protocols = tcp.chain([serve.protocol]);
        let asks_login = serve.auth_file.is_some() || serve.sasl;
        let message = if serve.auth_file.is_some() && serve.sasl {
            "-S, -Y: a server has one kind of login; use -S for the binary protocol, or -Y for text."
        } else if serve.auth_file.is_some() && protocols.any(|one| one == Protocol::Binary) {
            "-Y: the binary protocol has no such login; listen for text only."
        } else if serve.sasl && protocols.any(|one| one != Protocol::Binary) {
            "-S: the text protocol has no such login; listen for the binary protocol only."
        } else if asks_login && serve.echo.udp_port != 0 {
            "-S, -Y: a datagram cannot log in, so there is no UDP with logins; leave out -U."
        } else {
            return Ok(());
        };
        Err(OptionsError::new(EXIT_USAGE, message))
    }

    /// Checks the options of TLS together, and reports those without effect.
    fn check_tls(&mut self) -> Result<(), OptionsError> {
        let usage = |message: &str| Err(OptionsError::new(EXIT_USAGE, message));
        let ServeOptions { tls, listeners, reports, .. } = &mut self.serve;
        assert!(HAS_TLS || !tls.enabled, "a server without TLS has refused the option");
        if !tls.enabled {
            if *tls != TlsOptions::DEFAULTS {
                reports.push("-o ssl_...: without -Z there is no TLS, as in memcached".to_string());
            }
            return Ok(());
        }
        if listeners.tcp.is_empty() {
            return usage("-Z: TLS needs a TCP port; with -s or -p 0 there is none.");
        }
        if tls.chain_certificate.is_none() {
            return usage("-Z: TLS needs a certificate: -o ssl_chain_cert=<file>.");
        }
        let has_mtls = listeners.tcp.iter().any(|tcp| tcp.tls == ListenTls::WithClientCertificate);
        if (has_mtls || tls.verify_mode > 0) && tls.authorities.is_none() {
            let report = "-Z: without -o ssl_ca_cert, no certificate of a client is good";
            reports.push(report.to_string());
        }
        if listeners.udp.is_empty() {
            return Ok(());
        }
        reports.push(if has_mtls || tls.verify_mode > 1 {
            listeners.udp.clear();
            "-U: ignored: with -Z clients must show a certificate, and a datagram shows none".into()
        } else {
            "-Z, -U: datagrams are not encrypted".into()
        });
        Ok(())
    }

    /// Turns `-l`, `-p`, `-U`, `-s` and `-a` into listeners.
    fn listen(&mut self) -> Result<(), OptionsError> {
        let serve = &mut self.serve;
        let mut entries: Vec<&str> = Vec::new();
        for entry in self.listen.iter().flat_map(|list| list.split([',', ';'])).map(str::trim) {
            // The same address twice is one listener, as in memcached.
            if !entries.contains(&entry) {
                entries.push(entry);
            }
        }
        if entries.is_empty() && serve.called_as == CalledAs::Kachel {
            entries.push("127.0.0.1");
        }
        let list = entries.join(",");
        serve.echo.inter = (!entries.is_empty()).then(|| list.clone());
        // As in memcached, the port of UDP is also that of TCP if only it is given.
        let unless_given = if self.udp_port == 0 { DEFAULT_PORT } else { self.udp_port };
        let port = self.port.unwrap_or(unless_given);
        serve.echo.tcp_port = port;
        serve.echo.udp_port = self.udp_port;
        serve.echo.unix_path = self.unix_path.clone();
        serve.echo.unix_mode = self.unix_mode;

        if let Some(path) = self.unix_path.take() {
            if !self.listen.is_empty() {
                serve.reports.push("-l: ignored: with -s there is no TCP".to_string());
            }
            if self.udp_port != 0 {
                serve.reports.push("-U: ignored: with -s there is no UDP".to_string());
            }
            let (path, mode) = (PathBuf::from(path), self.unix_mode);
            let unix = UnixListen { path, mode, protocol: serve.protocol };
            serve.listeners = Listeners { unix: Some(unix), ..Listeners::default() };
            return Ok(());
        }
        if port == 0 && self.udp_port == 0 {
            report_nothing(serve)?;
        }
        let protocol = serve.protocol;
        let tls = if serve.tls.enabled { ListenTls::OfProcess } else { ListenTls::Off };
        let listen_at = |port, reports: &mut Vec<String>| {
            if entries.is_empty() {
                let port = port_number(port).expect("the row's range is that of ports");
                Ok(vec![IpListen { host: Host::Any, port, protocol, tls }])
            } else {
                read_list(&list, Fallback { port, protocol, tls }, reports)
            }
        };
        let mut tcp = listen_at(port, &mut serve.reports)?;
        if tcp.is_empty() {
            return Err(OptionsError::new(EXIT_USAGE, "-l: the list is empty."));
        }
        let hosts = tcp.len();
        debug_assert!(port != 0 || self.udp_port != 0 || !serve.reports.is_empty(), "it was told");
        if port == 0 {
            // As in memcached, there is no TCP then, not even on a port that -l names.
            tcp.clear();
        }
        // An entry of -l with a port has this port for UDP, too, as in memcached. What is said
        // about the list was said above.
        let udp = match self.udp_port {
            0 => Vec::new(),
            port => listen_at(port, &mut Vec::new())?,
        };
        let udp: Vec<_> =
            udp.into_iter().map(|udp| IpListen { tls: ListenTls::Off, ..udp }).collect();
        debug_assert!(udp.is_empty() || udp.len() == hosts, "UDP on each address of -l");
        serve.listeners = Listeners { tcp, udp, unix: None };
        Ok(())
    }
}

/// Why an item may not have `item_bytes` in a memory of `memory_bytes`. The option that was not
/// left at its default is named first.
fn too_large(item_bytes: u32, memory_bytes: u64) -> String {
    debug_assert!(u64::from(item_bytes) > memory_bytes / 2, "it is refused for a reason");
    let needed_mib = (2 * u64::from(item_bytes)).div_ceil(1 << 20);
    if item_bytes == ITEM_BYTES_DEFAULT {
        return format!(
            "-m {} (memory-limit): too little for items of {item_bytes} bytes (-I, max-item-size, by \
             default); use at least -m {needed_mib}, or a smaller -I",
            memory_bytes >> 20
        );
    }
    format!(
        "-I (max-item-size): the largest item ({item_bytes} bytes) must not be more than half of the \
         memory limit (-m, memory-limit, {memory_bytes} bytes); use at least -m {needed_mib}, or a \
         smaller -I"
    )
}

/// Notes that there is nothing to listen on. Under the name memcached the server runs all the same,
/// until a signal ends it, as memcached does.
///
/// Errors: it has its own name.
fn report_nothing(serve: &mut ServeOptions) -> Result<(), OptionsError> {
    let message = "-p 0: there is nothing to listen on; give a port, or a unix socket with -s.";
    debug_assert!(serve.listeners.is_empty(), "no listener was made before");
    if serve.called_as == CalledAs::Kachel {
        return Err(OptionsError::new(EXIT_USAGE, message));
    }
    serve.reports.push(message.to_string());
    Ok(())
}
