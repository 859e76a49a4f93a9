//! Handshakes, on threads of their own. A handshake takes about a millisecond of arithmetic, so it
//! must not hold up a core.
//!
//! Upstream:   the layer of a core gives a listener; clients connect.
//! Downstream: each thread has an epoll backend of its own, and a `session` for each client. A
//!             connection whose handshake is complete goes to the inbox of the listener's core.
//!
//! ```text
//! accepted --> handshake --> complete --> all records sent --> inbox
//!                 |  too slow, wrong            | too slow
//!                 +------> alert sent --> closed
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - H1  A client that sends nothing costs a slot and no thread. It is closed after
//!   `HANDSHAKE_NS_MAX`, or earlier while many handshakes are under way.
//! - H2  A thread has at most `HANDSHAKES_MAX` clients. Further clients wait in the kernel.
//! - H3  `queue` has the clients in the order in which they came, each once. So the first ones are
//!   the oldest. It has at most `QUEUE_MAX` entries, those of clients that are gone included.
//! - H4  What a client may make a thread keep is bounded by `HANDSHAKE_BYTES_MAX`, so a thread
//!   keeps at most `HANDSHAKES_MAX` times as much: 32 MiB.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};

use kachel_host::{Level, LogField};
use kachel_io::{
    Clock as _, Epoll, Event, Io as _, Lent, Limits, ListenerId, Peer, SendBlock, SocketId,
    SocketName, SystemClock, Wait, Waker,
};

use crate::inbox::{Delivered, Inbox};
use crate::limits::{
    CROWDED_HANDSHAKE_NS_MAX, HANDSHAKE_BYTES_MAX, HANDSHAKE_NS_MAX, HANDSHAKES_MAX,
};
use crate::process::Process;
use crate::session::{Session, Work};
use crate::settings::ListenerTls;

/// The most entries of `queue`. At the limit, the entries of clients that are gone are removed: at
/// least half, so the search costs each client a step.
const QUEUE_MAX: usize = 2 * HANDSHAKES_MAX as usize;

/// A listener whose clients speak TLS.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) listener: OwnedFd,
    pub(crate) tls: ListenerTls,
    /// The core that gets the clients.
    pub(crate) inbox: Arc<Inbox>,
    /// The name of the listener in the layer of that core.
    pub(crate) name: ListenerId,
}

/// A request of a core to a thread.
enum Order {
    Listen(Front),
    Close(Arc<Inbox>, ListenerId),
}

/// The orders for one thread, and how to wake it.
struct Orders {
    list: Arc<Mutex<Vec<Order>>>,
    waker: Waker,
}

/// The threads for handshakes. They end with the process.
pub struct Handshakes {
    threads: Vec<Orders>,
}

impl Handshakes {
    /// Starts `threads` threads. The caller must have blocked the signals of the process.
    ///
    /// Errors: out of threads, descriptors or memory.
    ///
    /// Panics: without a thread.
    pub fn start(threads: usize, process: &Arc<Process>) -> io::Result<Arc<Self>> {
        assert!(threads > 0, "some thread does the handshakes");
        let started = (0..threads).map(|number| {
            let (process, list) = (Arc::clone(process), Arc::<Mutex<Vec<Order>>>::default());
            let orders = Arc::clone(&list);
            let (opened, opens) = channel();
            let body = move || {
                let limits = Limits { sockets_max: HANDSHAKES_MAX, slack_us: 0 };
                let io = match Epoll::new(limits) {
                    Ok(io) => io,
                    Err(error) => return drop(opened.send(Err(error))),
                };
                let _started = opened.send(Ok(io.waker()));
                Thread::new(io, process, orders).run();
            };
            std::thread::Builder::new().name(format!("handshakes {number}")).spawn(body)?;
            let waker = opens.recv().map_err(io::Error::other)??;
            Ok(Orders { list, waker })
        });
        let threads = started.collect::<io::Result<_>>()?;
        Ok(Arc::new(Self { threads }))
    }

    /// Has all threads accept clients of a listener.
    ///
    /// Panics: when the process is out of descriptors, at its start.
    pub(crate) fn listen(&self, front: Front) {
        let Front { listener, tls, inbox, name } = front;
        for thread in &self.threads {
            let listener = listener.try_clone().expect("a descriptor for each listener");
            let inbox = Arc::clone(&inbox);
            thread.order(Order::Listen(Front { listener, tls, inbox, name }));
        }
    }

    /// Has all threads refuse clients of a listener from now on.
    pub(crate) fn close(&self, inbox: &Arc<Inbox>, name: ListenerId) {
        for thread in &self.threads {
            thread.order(Order::Close(Arc::clone(inbox), name));
        }
    }
}

impl fmt::Debug for Handshakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshakes").field("threads", &self.threads.len()).finish()
    }
}

impl Orders {
    fn order(&self, order: Order) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push(order);
        self.waker.wake();
    }
}

/// A listener on a thread. It takes the place of its number in the backend.
struct Listening {
    tls: ListenerTls,
    inbox: Arc<Inbox>,
    name: ListenerId,
}

/// A client whose handshake is under way.
struct Client {
    socket: SocketId,
    session: Box<Session>,
    /// The number of its listener in the backend.
    listener: usize,
    peer: Peer,
    /// Blocks that the backend has.
    in_flight: u32,
    /// Plain bytes that came together with the end of the handshake: at most those of one receive
    /// and of the record that it completes, because the socket is paused then (H4).
    plain: Vec<u8>,
    /// Whether any byte came from it.
    has_sent: bool,
    /// Whether its handshake has failed, and it is closed once its alert is sent.
    is_refused: bool,
}

/// A thread for handshakes.
struct Thread {
    io: Epoll,
    process: Arc<Process>,
    orders: Arc<Mutex<Vec<Order>>>,
    listening: Vec<Listening>,
    /// The clients, at the indices of their sockets.
    clients: Vec<Option<Box<Client>>>,
    count: u32,
    /// When each client came, in nanoseconds (H3). Some are gone by now.
    queue: VecDeque<(u64, SocketId)>,
    work: Work,
    spare: Vec<SendBlock>,
}

impl Thread {
    fn new(io: Epoll, process: Arc<Process>, orders: Arc<Mutex<Vec<Order>>>) -> Self {
        Self {
            io,
            process,
            orders,
            listening: Vec::new(),
            clients: Vec::new(),
            count: 0,
            queue: VecDeque::new(),
            work: Work::default(),
            spare: Vec::new(),
        }
    }

    /// Serves clients until the process ends.
    fn run(mut self) {
        let mut events = Vec::new();
        loop {
            let wait = self.close_slow();
            events.clear();
            if let Err(error) = self.io.poll(wait, &mut events) {
                // No client with TLS could be served any more, so the process ends.
                kachel_host::log(
                    Level::Error,
                    format_args!("TLS: the events of handshakes cannot be read: {error}"),
                    &[],
                );
                return kachel_host::ask_to_terminate();
            }
            for event in events.drain(..) {
                self.handle(event);
            }
        }
    }

    /// Closes the clients whose time is up (H1). Returns how long the thread may wait for the next.
    fn close_slow(&mut self) -> Wait {
        let now_ns = SystemClock.now_ns();
        while let Some((came_ns, socket)) = self.queue.front().copied() {
            if self.client(socket).is_some() {
                let crowded = self.count > HANDSHAKES_MAX / 2;
                let limit_ns = if crowded { CROWDED_HANDSHAKE_NS_MAX } else { HANDSHAKE_NS_MAX };
                let age_ns = now_ns.saturating_sub(came_ns);
                if age_ns < limit_ns {
                    return Wait::AtMostNs(limit_ns - age_ns);
                }
                self.count_error(socket);
                self.close(socket);
            }
            self.queue.pop_front();
        }
        Wait::Forever
    }

    fn client(&mut self, socket: SocketId) -> Option<&mut Client> {
        let client = self.clients.get_mut(socket.index())?.as_deref_mut()?;
        (client.socket == socket).then_some(client)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Woken => self.follow_orders(),
            Event::Accepted { listener, socket, peer } => {
                self.accepted(socket, listener.index(), peer);
            }
            Event::Received { socket, bytes } => self.received(socket, bytes),
            Event::Sent { socket, block } => {
                self.put_back(block);
                if let Some(client) = self.client(socket) {
                    client.in_flight -= 1;
                    self.go_on(socket);
                }
            }
            Event::Finished { socket } | Event::Failed { socket } => {
                // A client that only looks whether the port is open has made no mistake.
                if self.client(socket).is_some_and(|client| client.has_sent) {
                    self.count_error(socket);
                }
                self.close(socket);
            }
            // A connection counts once its handshake is done. This thread receives into no landing,
            // and no datagrams, and has no files.
            Event::Gone
            | Event::Taken { .. }
            | Event::Landed { .. }
            | Event::Datagram { .. }
            | Event::DatagramsLost { .. }
            | Event::FileDone { .. }
            | Event::DirectIoRefused { .. } => {}
        }
    }

    fn follow_orders(&mut self) {
        let orders =
            std::mem::take(&mut *self.orders.lock().unwrap_or_else(PoisonError::into_inner));
        for order in orders {
            match order {
                Order::Listen(Front { listener, tls, inbox, name }) => {
                    let id = self.io.listen(listener);
                    assert!(id.index() == self.listening.len(), "listeners are counted");
                    self.listening.push(Listening { tls, inbox, name });
                }
                Order::Close(inbox, name) => {
                    let is_it = |listening: &Listening| {
                        Arc::ptr_eq(&listening.inbox, &inbox) && listening.name == name
                    };
                    if let Some(index) = self.listening.iter().position(is_it) {
                        self.io.listen_close(ListenerId(index as u32));
                    }
                }
            }
        }
    }

    fn accepted(&mut self, socket: SocketId, listener: usize, peer: Peer) {
        let tls = self.listening[listener].tls;
        let session = self.process.configuration(tls);
        let session = session.map(|config| Session::new(config, self.process.counts()));
        let Some(Ok(session)) = session else {
            self.process.counts().handshake_errors.fetch_add(1, Ordering::Relaxed);
            return self.io.close(socket);
        };
        let index = socket.index();
        if index >= self.clients.len() {
            self.clients.resize_with(index + 1, || None);
        }
        self.clients[index] = Some(Box::new(Client {
            socket,
            session: Box::new(session),
            listener,
            peer,
            in_flight: 0,
            plain: Vec::new(),
            has_sent: false,
            is_refused: false,
        }));
        self.count += 1;
        debug_assert!(self.count <= HANDSHAKES_MAX, "H2");
        self.queue.push_back((SystemClock.now_ns(), socket)); // H3
        if self.queue.len() > QUEUE_MAX {
            let clients = &self.clients;
            self.queue.retain(|(_, socket)| {
                let client = clients.get(socket.index()).and_then(|client| client.as_deref());
                client.is_some_and(|client| client.socket == *socket)
            });
        }
        assert!(self.queue.len() <= QUEUE_MAX, "H2, H3: at least half of the entries were gone");
    }

    fn received(&mut self, socket: SocketId, bytes: Lent) {
        let Self { io, clients, work, spare, .. } = self;
        let Some(client) = clients.get_mut(socket.index()).and_then(|c| c.as_deref_mut()) else {
            return;
        };
        if client.is_refused {
            return;
        }
        client.has_sent = true;
        let result = client.session.receive(io.lent(bytes), &mut client.plain, work);
        debug_assert!(client.plain.len() <= HANDSHAKE_BYTES_MAX, "H4");
        let mut records = work.to_send.as_slice();
        while !records.is_empty() {
            let mut block = spare.pop().unwrap_or_default();
            let count = block.put(records);
            records = &records[count..];
            client.in_flight += 1;
            io.send(socket, block);
        }
        if result.is_err() {
            client.is_refused = true;
            self.count_error(socket);
        }
        self.go_on(socket);
    }

    /// Delivers a client whose handshake is complete, or closes one that is refused, as soon as all
    /// its records are sent.
    fn go_on(&mut self, socket: SocketId) {
        let Some(client) = self.client(socket) else { return };
        let (is_refused, is_established) = (client.is_refused, client.session.is_established());
        let has_sent_all = client.in_flight == 0;
        if !is_refused && !is_established {
            return;
        }
        self.io.pause(socket);
        if !has_sent_all {
            return;
        }
        if is_refused {
            return self.close(socket);
        }
        // The backend has sent everything, so it gives the socket up.
        let Some(fd) = self.io.give_up(socket) else { return };
        let Some(client) = self.clients[socket.index()].take() else { return };
        self.count -= 1;
        let Client { session, listener, peer, plain, .. } = *client;
        debug_assert!(session.is_established() && !is_refused, "only such a client is served");
        let Listening { inbox, name, .. } = &self.listening[listener];
        inbox.deliver(Delivered { socket: fd, session, listener: *name, peer, plain });
    }

    fn count_error(&mut self, socket: SocketId) {
        let Some(client) = self.client(socket) else { return };
        if client.session.is_established() {
            return;
        }
        let name = SocketName { peer: client.peer, descriptor: self.io.descriptor(socket) };
        self.process.counts().handshake_errors.fetch_add(1, Ordering::Relaxed);
        let Some(admitted) = kachel_host::admit_client_line(Level::Info) else { return };
        let peer = name.peer.to_string();
        let fields = [
            LogField::text("event", "handshake_failed"),
            LogField::text("client", &peer),
            LogField::number("fd", u64::try_from(name.descriptor).unwrap_or(0)),
        ];
        admitted.write(format_args!("refused {name}: its TLS handshake has failed"), &fields);
    }

    fn close(&mut self, socket: SocketId) {
        if self.client(socket).is_some() {
            self.clients[socket.index()] = None;
            self.count -= 1;
            self.io.close(socket);
        }
    }

    fn put_back(&mut self, mut block: SendBlock) {
        if self.spare.len() < crate::limits::SPARE_BLOCKS_MAX {
            block.clear();
            self.spare.push(block);
        }
    }
}
