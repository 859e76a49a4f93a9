//! Everything at once, against a whole process: clients over TLS, datagrams, logins, clients that
//! watch, and files that are read again. The input is random, from a seed, and mostly invalid.
//!
//! No reply is judged here. The server must stay alive, must serve a correct client, and must end
//! in order. Other suites judge replies, each with one feature at a time; here all features are in
//! use together.
//!
//! - `KACHEL_STORM_MINUTES=N` runs for N minutes; with `KACHEL_FULL=1` and without N, for one. Each
//!   round has a seed, which is printed, and a server of its own.
//! - Otherwise each form runs once, with a fixed number of steps.

use std::env;
use std::fs;
use std::io::Write as _;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kachel_testkit::{
    Authority, CertificateFiles, Client, Launch, Look, Random, Server, TLS_VERSIONS, is_usable,
    tell, tunnel,
};
use rustix::io::ioctl_fionbio;
use rustix::process::Signal;
use rustls::client::ClientConfig;

use crate::site::{BACKENDS, drained, raw};

/// Steps of a server in the short form, and in a round of the long form.
const STEPS: u64 = 300;
const STEPS_LONG: u64 = 20_000;
/// After this many steps, the server must serve a client that behaves.
const CHECKED_EVERY: u64 = 100;
/// Connections that the random client uses.
const CLIENTS: usize = 8;
/// In the long form, one step of so many sends a wrong password. The server delays other logins of
/// its address then, for a second or more.
const WRONG_ONE_IN: u64 = 10_000;

/// The requests of a server's clients, besides TLS and `watch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// UDP. It excludes logins, because a datagram cannot log in.
    Datagrams,
    /// `-Y`: logins by the text protocol.
    Logins,
    /// `-S`: logins by SASL. Its clients speak the binary protocol, so nobody watches.
    Sasl,
}

/// Requests of which parts are sent. The key of some ends a line. None is a login: cut, it would
/// have a wrong password.
const REQUESTS: &[&[u8]] = &[
    b"get a:1 b:2 c:3 d:4\r\n",
    b"set a:1 0 0 5\r\nhello\r\n",
    b"set a:1 0 1 300\r\n",
    b"set big:1 0 0 70000\r\n",
    b"append big:1 0 0 20000\r\n",
    b"ms YTpiCkVORA0K 3 b T60\r\nabc\r\n",
    b"mg YTpiCkVORA0K b k v N30\r\n",
    b"md a:1 q\r\nma n:1 N0 J5\r\nmn\r\nme a:1\r\n",
    b"incr n:1 5\r\ntouch n:1 1\r\ngat 5 a:1\r\n",
    b"lease-get l:1\r\n",
    b"delete b:2\r\n",
    b"stats\r\n",
    b"stats detail on\r\n",
    b"stats detail dump\r\n",
    b"stats cachedump 1 0\r\n",
    b"stats conns\r\nstats items\r\nstats slabs\r\nstats sizes\r\nstats settings\r\n",
    b"stats reset\r\n",
    b"lru_crawler metadump all\r\n",
    b"lru_crawler mgdump all\r\n",
    b"lru_crawler crawl all\r\n",
    b"watch fetchers mutations evictions connevents sysevents deletions\r\n",
    b"flush_all\r\n",
    b"cache_memlimit 64\r\n",
    b"refresh_certs\r\n",
    b"version\r\nquit\r\n",
    b"nonsense\r\n",
    b"\x80\x01\0\x09\x08\0\0\0\0\0\0\x13opaqcas-cas-flagtimea\r\nEND\r\n:xy",
    b"\x80\0\0\x03\0\0\0\0\0\0\0\x03opaq\0\0\0\0\0\0\0\0a:1",
    b"\x80\x10\0\x0b\0\0\0\0\0\0\0\x0bopaq\0\0\0\0\0\0\0\0detail dump",
];

/// A server, and the files that it reads again.
struct Site {
    server: Server,
    authority: Authority,
    folder: tempfile::TempDir,
    config: Arc<ClientConfig>,
    form: Form,
}

impl Site {
    fn start(form: Form, io: &str) -> Self {
        let (authority, folder) = (Authority::new(), tempfile::tempdir().expect("a folder"));
        let CertificateFiles { certificate, key } =
            authority.certify_server(folder.path(), "storm");
        let users = users_file(folder.path());
        fs::write(&users, "u:p\n").expect("written");
        let words = format!(
            "ssl_chain_cert={},ssl_key={},watcher_logbuf_size=64,track_sizes",
            certificate.display(),
            key.display()
        );
        let users = users.to_str().expect("UTF-8");
        let (of_form, variable): (&[&str], _) = match form {
            Form::Datagrams => (&["-U", "-1", "--udp-reply-datagrams", "3"], "NONE=".to_owned()),
            Form::Logins => (&["--login-timeout", "0", "-Y", users], "NONE=".to_owned()),
            Form::Sasl => (&["--login-timeout", "0", "-S"], format!("MEMCACHED_SASL_PWDB={users}")),
        };
        let common = ["-m", "16", "-t", "3", "-D", ":", "-Z", "-o", &words, "--io", io, "-R", "20"];
        let (options, under) = ([&common[..], of_form].concat(), ["env", &variable]);
        let program = Path::new(env!("CARGO_BIN_EXE_kachel"));
        let server = Launch { under: &under, ..Launch::memcached(program, &options) }.start();
        let config = Arc::new(authority.client(&TLS_VERSIONS, None));
        Self { server, authority, folder, config, form }
    }

    fn connect(&self) -> Client {
        let address = ([127, 0, 0, 1], self.server.port()).into();
        Client::new(tunnel(&self.config, address).expect("it listens"))
    }

    /// A client that waits for nothing, neither to send nor to read.
    fn connect_hasty(&self) -> Client {
        let client = self.connect();
        ioctl_fionbio(client.socket(), true).expect("a socket");
        client
    }

    /// The request that logs a client in, with a password.
    fn login(&self, password: u8) -> Vec<u8> {
        match self.form {
            Form::Datagrams => Vec::new(),
            Form::Logins => [b"set login 0 0 3\r\nu ", &[password][..], b"\r\n"].concat(),
            Form::Sasl => {
                let head = b"\x80\x21\0\x05\0\0\0\0\0\0\0\x09opaq\0\0\0\0\0\0\0\0PLAIN\0u\0";
                [&head[..], &[password]].concat()
            }
        }
    }

    /// A client that watches all streams, if that is possible.
    fn watch(&self) -> Client {
        let client = self.connect_hasty();
        offer(&client, &self.login(b'p'));
        offer(&client, b"watch fetchers mutations evictions connevents sysevents deletions\r\n");
        client
    }

    /// Writes the files anew, and has the server read them.
    fn reload(&self, random: &mut Random) {
        if random.percent(30) {
            self.authority.certify_server(self.folder.path(), "storm");
        }
        let users = users_file(self.folder.path());
        let more: String = (0..random.below(20)).map(|n| format!("user{n}:{n}\n")).collect();
        // The user that behaves is in every file that is good. A bad line makes a file of `-Y` bad,
        // which then changes nothing; in one of `-S` it is passed over.
        let text = random.pick(&["u:p\n", "u:p\r\n", "u:p\nno colon\n"]);
        let next = users.with_extension("next");
        fs::write(&next, format!("{more}{text}")).expect("written");
        fs::rename(&next, &users).expect("renamed");
        self.server.signal(Signal::HUP);
    }

    /// Checks that the process is alive, and that it serves a client that behaves.
    fn check(&mut self) {
        self.server.assert_alive();
        // Of a debug build, a thread that panics leaves the others alive.
        let said = self.server.last_words();
        assert!(!said.contains("panicked"), "{said}");
        let mut client = self.connect();
        client.send(self.login(b'p'));
        match self.form {
            Form::Datagrams => {}
            Form::Logins => assert_eq!(self.reply(&mut client, 8), b"STORED\r\n", "a right login"),
            Form::Sasl => {
                let told = self.reply(&mut client, 24 + 13);
                assert!(told.ends_with(b"Authenticated"), "{}", told.escape_ascii());
                client.send([&[0x80, 0x0a][..], &[0; 22]].concat());
                assert_eq!(self.reply(&mut client, 24)[..2], [0x81, 0x0a], "a noop");
                return;
            }
        }
        client.send("mn\r\n");
        assert_eq!(self.reply(&mut client, 4), b"MN\r\n");
    }

    /// The next bytes that a client gets.
    ///
    /// Panics: if they do not come, with what the server has said.
    fn reply(&self, client: &mut Client, bytes: usize) -> Vec<u8> {
        let mut reply = vec![0; bytes];
        let mut read = 0;
        while read < bytes {
            match client.look(&mut reply[read..]) {
                Look::Bytes(count) => read += count,
                other => panic!("{other:?} in place of a reply: {}", self.server.last_words()),
            }
        }
        reply
    }

    /// Ends the server in order.
    fn end(mut self) {
        self.server.assert_alive();
        self.server.signal(Signal::TERM);
        let status = self.server.process.wait().expect("it ends");
        assert!(status.success(), "{status}: {}", self.server.last_words());
    }
}

/// Sends what the socket of a client takes at once.
fn offer(client: &Client, bytes: &[u8]) {
    let _some_or_none = client.socket().write(bytes);
}

fn users_file(folder: &Path) -> PathBuf {
    folder.join("users")
}

/// A request, or what is left of one: cut, doubled, or with a byte that is another.
fn bytes(random: &mut Random) -> Vec<u8> {
    let mut bytes = random.pick(REQUESTS).to_vec();
    for _ in 0..random.below(3) {
        let at = random.index(bytes.len());
        match random.below(5) {
            0 => bytes[at] = random.bits() as u8,
            1 => bytes.truncate(at + 1),
            2 => bytes.extend_from_slice(random.pick(REQUESTS)),
            3 => bytes.resize(bytes.len() + random.skewed(1, 70_000) as usize, b'v'),
            _ => bytes.extend_from_slice(b"\r\n"),
        }
    }
    bytes
}

/// Connections, of which some watch and some never read.
struct Storm {
    clients: Vec<Client>,
    udp: Option<(UdpSocket, u16)>,
    random: Random,
    sends_wrong_passwords: bool,
}

impl Storm {
    fn step(&mut self, site: &Site) {
        let at = self.random.index(self.clients.len());
        match self.random.below(100) {
            0..=59 => {
                let bytes = bytes(&mut self.random);
                offer(&self.clients[at], &bytes);
            }
            60..=74 => self.send_datagram(),
            75..=84 => {
                let _looked = self.clients[at].look(&mut [0; 1 << 14]);
            }
            85..=89 => {
                let next = site.connect_hasty();
                offer(&next, &site.login(b'p'));
                let gone = std::mem::replace(&mut self.clients[at], next);
                if self.random.percent(50) {
                    gone.reset();
                }
            }
            90 => self.clients[at] = site.watch(),
            91 => self.clients[at].end_sending(),
            // A client that speaks no TLS, or stops in the middle of its handshake.
            92 => {
                let mut stranger = raw(site.server.port());
                let hello = [&b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03"[..], &[7; 40]].concat();
                let said = if self.random.percent(50) { &hello[..] } else { REQUESTS[0] };
                let _sent = stranger.write(said);
                if said == REQUESTS[0] {
                    drained(&mut stranger);
                }
            }
            93 => site.reload(&mut self.random),
            _ if self.sends_wrong_passwords && self.random.below(WRONG_ONE_IN * 6 / 100) == 0 => {
                self.clients[at] = site.connect_hasty();
                offer(&self.clients[at], &site.login(b'x'));
            }
            _ => {}
        }
    }

    fn send_datagram(&mut self) {
        let Some((socket, port)) = &self.udp else { return };
        let mut datagram = vec![0, self.random.bits() as u8, 0, 0, 0, 1, 0, 0];
        datagram.extend_from_slice(&bytes(&mut self.random));
        datagram.truncate(60_000);
        let _lost = socket.send_to(&datagram, ("127.0.0.1", *port));
        let _reply = socket.recv(&mut [0; 2048]);
    }
}

/// A storm of this many steps, or until `deadline`. Returns the steps.
fn storm(form: Form, io: &str, seed: u64, steps: u64, deadline: Option<Instant>) -> u64 {
    let mut site = Site::start(form, io);
    let udp = (form == Form::Datagrams).then(|| {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.set_nonblocking(true).expect("a socket");
        (socket, site.server.udp_port())
    });
    // The first one watches from the beginning to the end.
    let watcher = site.watch();
    let clients = (0..CLIENTS).map(|_| site.watch()).collect();
    let random = Random::for_purpose(seed, "storm");
    let mut storm = Storm { clients, udp, random, sends_wrong_passwords: deadline.is_some() };
    let mut done = 0;
    while done < steps && deadline.is_none_or(|deadline| Instant::now() < deadline) {
        storm.step(&site);
        done += 1;
        if done % CHECKED_EVERY == 0 {
            site.check();
        }
    }
    site.check();
    drop((storm, watcher));
    site.end();
    done
}

#[test]
fn everything_at_once_ends_no_server() {
    let forms = [Form::Datagrams, Form::Logins, Form::Sasl];
    let ways: Vec<(Form, &str)> = BACKENDS
        .into_iter()
        .filter(|io| is_usable(io))
        .flat_map(|io| forms.map(|form| (form, io)))
        .collect();
    let minutes = env::var("KACHEL_STORM_MINUTES").ok();
    let minutes = minutes.map(|minutes| minutes.parse::<u64>().expect("a number of minutes"));
    let is_full = env::var_os("KACHEL_FULL").is_some();
    let Some(minutes) = minutes.or(is_full.then_some(1)) else {
        for (seed, (form, io)) in (1..).zip(ways) {
            storm(form, io, seed, STEPS, None);
        }
        return;
    };
    let deadline = Instant::now() + Duration::from_secs(60 * minutes);
    let mut steps = 0;
    for (seed, (form, io)) in (1..).zip(ways.into_iter().cycle()) {
        if Instant::now() >= deadline {
            break;
        }
        tell(&format!("storm {seed}: {form:?}, {io}"));
        steps += storm(form, io, seed, STEPS_LONG, Some(deadline));
    }
    tell(&format!("storm: {steps} steps in {minutes} minutes, every server alive"));
}
