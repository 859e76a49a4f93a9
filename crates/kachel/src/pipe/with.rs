//! The pipe of the process: a program in the driver of an interface, and its table.
//!
//! Upstream:   `serve` and `shards`.
//! Downstream: `kachel_pipe`.
//!
//! A thread looks at the interface while the pipe answers. It tells the program of new addresses,
//! and switches the pipe off if the interface does not send its replies. While hot keys are
//! observed, it tells the observers what the pipe has answered.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kachel_engine::Copies;
use kachel_host::Interface;
use kachel_io::{Clock as _, SystemClock};
use kachel_observe::{PipeNumbers, pipe_rows};
use kachel_options::{Protocol, ServeOptions};
use kachel_pipe::{
    Items, KeyReads, Losses, Lost, Mode, Pipe, PipeNetwork, PipeOptions, Place, Program,
    ReadDeltas, Speaks, SwitchError,
};
use kachel_shard::{ObserverSet, OtherCounts, PipeControl, Shared, Switched};

use crate::pipe::Answers;

/// How often the interface is looked at while the pipe answers. Replies may be lost for two such
/// times (`kachel_pipe::Losses`), and the program may have old addresses for one. A guess.
const LOOK_TIME: Duration = Duration::from_millis(500);

/// The pipe of the process.
#[derive(Clone, Debug)]
pub(crate) struct SmartPipe {
    table: Arc<Pipe>,
    /// The program goes when the last clone of this does.
    program: Arc<Program>,
    interface: Arc<str>,
    mode: Mode,
    /// Why it has switched itself off.
    reason: Arc<Mutex<Option<String>>>,
}

impl SmartPipe {
    /// Loads and attaches the program. It answers nothing yet. `None` if there is no `--pipe`, or
    /// after a line that says why this machine has none.
    pub(crate) fn load(options: &ServeOptions) -> Option<Self> {
        let interface = options.pipe.interface.as_deref()?;
        assert!(options.auth_file.is_none() && !options.sasl, "the options were checked");
        let loaded = Program::load(options.pipe.memory_bytes);
        let attached = loaded.and_then(|(mut program, table)| {
            let mode = program.attach(interface)?;
            Ok((program, table, mode))
        });
        match attached {
            Ok((program, table, mode)) => Some(Self {
                table: Arc::new(table),
                program: Arc::new(program),
                interface: interface.into(),
                mode,
                reason: Arc::default(),
            }),
            Err(error) => {
                say!(Warning, "--pipe {interface}: off: {error}");
                None
            }
        }
    }

    /// Has the program answer what is sent to the sockets, at the addresses that the interface has
    /// now.
    pub(crate) fn begin(&self, options: &ServeOptions, answers: Answers<'_>) {
        let network = match kachel_host::interface(&self.interface) {
            Ok(network) => network,
            Err(error) => {
                say!(
                    Warning,
                    "--pipe {}: off: its addresses are not known: {error}",
                    self.interface
                );
                return;
            }
        };
        let mut places = Vec::new();
        for (protocol, socket) in answers.sockets {
            let speaks = match protocol {
                Protocol::Auto => Speaks::Both,
                Protocol::Ascii => Speaks::Text,
                Protocol::Binary => Speaks::Binary,
            };
            let of_socket = network.addresses.iter().filter(|address| receives(socket, **address));
            places.extend(of_socket.map(|address| Place {
                address: SocketAddr::new(*address, socket.port()),
                speaks,
            }));
        }
        places.sort_by_key(|place| place.address);
        places.dedup();
        debug_assert!(places.iter().all(|place| place.address.port() != 0), "sockets are bound");
        let (interface, mode) = (&self.interface, self.mode);
        if places.is_empty() {
            say!(
                Warning,
                "--pipe {interface}: off: no UDP socket has an address of this interface"
            );
            return;
        }
        if network.mac.is_none() {
            say!(Warning, "--pipe {interface}: off: the interface has no address of Ethernet");
            return;
        }
        let list: Vec<_> = places.iter().map(|place| place.address.to_string()).collect();
        say!(
            Info,
            "--pipe {interface}: {} mode, answers at {}, before the host's firewall",
            mode.name(),
            list.join(", ")
        );
        assert!(answers.hash_keys != [0; 2], "the hash of keys is secret");
        let settings = PipeOptions {
            hash_keys: answers.hash_keys,
            start_ns: answers.start_ns,
            now_ns: SystemClock.now_ns(),
            reply_times: options.pipe.reply_times,
            places,
            network: described(&network),
        };
        let losses = Losses::new(self.table.counts().answered(), network.dropped);
        let own = |port| answers.own_ports.iter().any(|ports| ports.contains(&port));
        self.table.begin(&settings, |port| kachel_net::reflects(port) || own(port));
        let (pipe, shared) = (self.clone(), Arc::clone(answers.shared));
        let looks = move || pipe.look_at_interface(losses, &shared);
        if let Err(error) = std::thread::Builder::new().name("pipe".into()).spawn(looks) {
            self.switch_itself_off(format!("no thread can look at the interface: {error}"));
        }
    }

    /// Looks at the interface, and at the reads of copies, as long as the server serves.
    fn look_at_interface(&self, mut losses: Losses, shared: &Shared) {
        let mut deltas = None;
        while self.table.is_serving() {
            std::thread::sleep(LOOK_TIME);
            self.note_reads(&mut deltas, shared);
            let answered = self.table.counts().answered();
            // An idle server asks the kernel nothing.
            if answered == losses.answered() {
                continue;
            }
            let Ok(network) = kachel_host::interface(&self.interface) else { continue };
            self.table.note_network(&described(&network));
            if network.mac.is_none() {
                continue; // It is gone, and its counts with it.
            }
            if let Some(Lost { answered, dropped }) = losses.look(answered, network.dropped) {
                self.switch_itself_off(format!(
                    "the interface has dropped {dropped} packets while the pipe answered {answered}; \
                     the other end of a veth needs an XDP program, or GRO (ethtool -K IFACE gro on)"
                ));
            }
        }
    }

    /// Has the observers note the reads that the pipe has answered since the last call, while hot
    /// keys or prefixes are observed.
    fn note_reads<'p>(&'p self, deltas: &mut Option<ReadDeltas<'p>>, shared: &Shared) {
        let observers = &shared.observers;
        if !observers.on().has(ObserverSet::HOT_KEYS.with(ObserverSet::PREFIXES)) {
            *deltas = None;
            return;
        }
        let now_ns = SystemClock.now_ns();
        deltas.get_or_insert_with(|| ReadDeltas::begin(&self.table)).poll(|reads| {
            let KeyReads { key, secret_hash, value_bytes, count } = reads;
            observers.note_outside((key, secret_hash), count, value_bytes, now_ns);
        });
    }

    /// Has the program pass everything on, and says why.
    fn switch_itself_off(&self, reason: String) {
        let line = format!("--pipe {}: off: {reason}", self.interface);
        *self.reason() = Some(reason);
        let switched = self.table.switch(false);
        say!(Warning, "{line}");
        if let Err(error) = switched {
            say!(Warning, "--pipe {}: {error}", self.interface);
        }
    }

    fn reason(&self) -> MutexGuard<'_, Option<String>> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the program pass everything on from now on.
    pub(crate) fn end(&self) {
        self.table.end();
    }

    /// Bytes of the table.
    pub(crate) fn bytes(&self) -> u64 {
        self.table.bytes()
    }

    pub(crate) fn copies(&self) -> Arc<dyn Copies> {
        Arc::clone(&self.table) as Arc<dyn Copies>
    }

    /// The sums for `stats`. `stats pipe` has the details.
    pub(crate) fn counts(&self) -> OtherCounts {
        let table = Arc::clone(&self.table);
        OtherCounts(Arc::new(move || {
            let counts = table.counts();
            let Items { items, items_max, .. } = table.items();
            pipe_rows(&PipeNumbers {
                answers: table.answers(),
                answered: counts.answered(),
                passed: counts.all_passed(),
                items,
                items_max,
            })
        }))
    }

    /// The statistics and the switch of the pipe, for requests of clients.
    pub(crate) fn control(&self) -> PipeControl {
        let pipe = self.clone();
        let switched = self.clone();
        PipeControl {
            facts: Arc::new(move || pipe.facts()),
            switch: Arc::new(move |on| switched.switch(on)),
        }
    }

    fn switch(&self, on: bool) -> Switched {
        if on && self.program.is_detached() {
            return Switched::Detached;
        }
        *self.reason() = None;
        match self.table.switch(on) {
            Ok(()) => Switched::Done,
            Err(SwitchError::NotServing) => Switched::NotEnabled,
            Err(SwitchError::StillAnswering) => Switched::StillAnswers,
        }
    }

    /// The state of the pipe, for `stats pipe`.
    fn state(&self) -> &'static str {
        match (self.program.is_detached(), self.table.is_serving(), self.table.answers()) {
            (true, ..) => "detached",
            (false, false, _) => "unused",
            (false, true, true) => "on",
            (false, true, false) => "off",
        }
    }

    /// The names and values of `stats pipe`. Cores on which the program has not run, and counts of
    /// a core that are 0, are left out.
    fn facts(&self) -> Vec<(String, String)> {
        let Self { table, interface, mode, .. } = self;
        let Items { items, items_max, promotions, demotions, invalidations } = table.items();
        let reason = self.reason().clone();
        let texts = [("state", self.state()), ("interface", interface), ("mode", mode.name())];
        let reason = reason.as_deref().map(|reason| ("reason", reason));
        let numbers = [
            ("memory", table.bytes()),
            ("items", items),
            ("items_max", items_max),
            ("promotions", promotions),
            ("demotions", demotions),
            ("invalidations", invalidations),
        ];
        let texts = texts.into_iter().chain(reason);
        let texts = texts.map(|(name, text)| (name.to_string(), text.to_string()));
        let numbers = numbers.into_iter().chain(table.counts().named());
        let numbers = numbers.map(|(name, number)| (name.to_string(), number.to_string()));
        let of_cores = table.counts_by_core().flat_map(|(core, counts)| {
            let some = counts.named().filter(|(_, count)| *count > 0);
            some.map(move |(name, count)| (format!("cpu:{core}:{name}"), count.to_string()))
        });
        texts.chain(numbers).chain(of_cores).collect()
    }
}

/// The interface, as the program needs it.
fn described(interface: &Interface) -> PipeNetwork {
    let Interface { addresses, mac, closed, .. } = interface.clone();
    PipeNetwork { mac, addresses, closed }
}

/// Whether a socket with this local address receives what is sent to `address`.
fn receives(socket: &SocketAddr, address: IpAddr) -> bool {
    debug_assert!(!address.is_unspecified(), "an address of an interface");
    match socket.ip() {
        IpAddr::V4(ip) => address.is_ipv4() && (ip.is_unspecified() || ip == address),
        IpAddr::V6(ip) => address.is_ipv6() && (ip.is_unspecified() || ip == address),
    }
}
