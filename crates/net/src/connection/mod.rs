//! One client's connection: its input that is not served yet, and the replies that it is owed.
//!
//! Upstream:   `shard` adds the bytes that `io` received, and takes requests from the front.
//! Downstream: [`Input`], [`Outbox`].
//!
//! ```text
//!          pause(Reader | Listing | Answers)               resume, once may_resume
//! Nothing -----------------------------------> Reader, ... --------------------------> Nothing
//!    |                                            ^
//!    |   pause(Record)                             | note_record
//!    +-----------------------------------> Record -+
//!    |   pause(Turn)                               | take_turn, while it is full
//!    +-----------------------------------> Turn ---+
//!    |   wait_with_login                           | note_login_turn
//!    +-----------------------------------> Login --+
//!
//! Reading --(quit, invalid input, the process stops: drain)--> Draining --(all sent)--> closed
//!    |                                                            ^
//!    +--(watch: begin_watching)--> Watching --(the process stops)-+
//! ```
//!
//! Invariants:
//! - I1  A connection is *paused* while it waits for something. Its requests are served only while
//!   it is not paused ([`Waiting::Nothing`]). When it is paused, `io` is told to stop receiving;
//!   bytes that still arrive are added to the tail. There is one exception: a connection that waits
//!   for its turn, or whose login waits, receives until the tail has [`WAITING_INPUT_BYTES_MAX`].
//!   Stopping costs more than a turn, and a login that waits must end when its client ends.
//! - I2  A connection that waits for a record is in the shard's list of such connections. Only that
//!   list ends the wait.
//! - I3  A connection is in each list of its shard (dirty, resumable, ready) at most once. Its mark
//!   for a list is set exactly while it is in the list. An exchange is marked as dirty all the
//!   time: it is in the list of exchanges instead.
//! - I4  A connection has at most one listing and at most one upload at a time.
//! - I5  While a login is owed, only logins are served. The debt goes with a connection that moves
//!   to another shard, and so does its time.
//! - I6  While an exchange of SASL is under way, a login is owed, and the connection does not move.
//! - I7  No request of a client that watches is read. Its input is dropped.

use kachel_io::{Peer, SocketId};

use crate::attempts::LoginTurn;
use crate::endpoint::{ClientProtocol, EndpointIndex};
use crate::input::Input;
use crate::limits::WAITING_INPUT_BYTES_MAX;
use crate::login::{Login, LoginOwed};
use crate::outbox::Outbox;
use crate::sasl::Exchange;

/// Whether requests are still read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Requests are read and answered.
    Reading,
    /// No more requests are read. The client is sent lines of the log (I7).
    Watching,
    /// No more requests are read. The owed replies are sent, and then the connection closes for
    /// this reason.
    Draining(CloseReason),
}

/// Why a connection closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// It broke, its client sent something that no request begins with, or was too slow.
    Error,
    /// Its client has closed it, or has asked for that.
    Normal,
    /// Its client was idle for too long.
    IdleTimeout,
    /// The process ends.
    Shutdown,
}

impl CloseReason {
    /// The reason as memcached names it in its log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Normal => "normal",
            Self::IdleTimeout => "idle_timeout",
            Self::Shutdown => "shutdown",
        }
    }
}

/// The event for which a connection's next request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Nothing: requests are served as they arrive.
    Nothing,
    /// The client must first read some of its replies.
    Reader,
    /// A listing of items must first be sent to its end.
    Listing,
    /// All parked requests of this connection must first be answered. Either another core was asked
    /// to free memory for a large value, or the next request is about all shards and so must come
    /// after the earlier ones.
    Answers,
    /// There must first be a record in which the next request can be parked.
    Record,
    /// The login must not be checked before its turn comes.
    Login,
    /// The core must first serve other clients: the connection has had its turn in this tick, or
    /// the tick has used up its budget.
    Turn,
}

/// A socket with its input and its outbox.
#[derive(Debug)]
pub struct Connection {
    socket: SocketId,
    endpoint: EndpointIndex,
    /// The protocol of its client, once the first byte has come.
    protocol: ClientProtocol,
    phase: Phase,
    waiting: Waiting,
    /// Whether `io` was told to stop receiving.
    receiving_stopped: bool,
    /// Whether it is in the list of paused connections that may be served again (I3).
    resumable: bool,
    /// Whether it is in the list of connections that have replies to send or may be closed (I3).
    dirty: bool,
    /// Its position in the list of connections that are served in this tick, if it is there (I3).
    ready: Option<u32>,
    /// Whether a large value is being received.
    uploading: bool,
    /// Whether a listing of items is being sent (I4).
    listing: bool,
    /// Whether the peer has closed its sending side. The requests before that are still served.
    finished: bool,
    /// Whether the client must log in.
    login: Login,
    /// The login by SASL that is under way (I6).
    exchange: Exchange,
    /// The last round of balancing in which it was served. 0 if there was none.
    round: u32,
    /// The number of the last sweep at the time of the client's last sign of life.
    pub(crate) active_sweep: u32,
    /// The sweep in which `io` was last asked how many bytes the peer has not acknowledged; 0 if it
    /// has never been asked.
    pub(crate) asked_sweep: u32,
    /// The number of bytes that `io` answered in `asked_sweep`.
    pub(crate) unacknowledged_bytes: u64,
    /// The input that is not served yet.
    input: Input,
    /// The replies that the client is owed.
    outbox: Outbox,
}

impl Connection {
    /// A connection that begins in `sweep`, on a listener with this `endpoint`.
    pub(crate) const fn new(socket: SocketId, endpoint: EndpointIndex, sweep: u32) -> Self {
        Self {
            socket,
            endpoint,
            protocol: ClientProtocol::Negotiated,
            phase: Phase::Reading,
            waiting: Waiting::Nothing,
            receiving_stopped: false,
            resumable: false,
            dirty: false,
            ready: None,
            uploading: false,
            listing: false,
            finished: false,
            login: Login::NotAsked,
            exchange: Exchange::NONE,
            round: 0,
            active_sweep: sweep,
            asked_sweep: 0,
            unacknowledged_bytes: 0,
            input: Input::new(),
            outbox: Outbox::new(),
        }
    }

    /// The socket, as `io` knows it. An exchange has none.
    #[inline]
    pub fn socket(&self) -> SocketId {
        debug_assert!(self.socket != SocketId::NONE, "only a connection has a socket");
        self.socket
    }

    /// Makes it an exchange: its input is one datagram, and its replies are not sent through a
    /// socket. So it has no more input, and it is never in the list of dirty connections.
    pub(crate) fn begin_exchange(&mut self) {
        debug_assert!(self.socket == SocketId::NONE, "an exchange has no socket");
        self.finished = true;
        self.dirty = true;
    }

    /// The endpoint of the listener that accepted the connection.
    #[inline]
    pub const fn endpoint(&self) -> EndpointIndex {
        self.endpoint
    }

    /// The protocol of its client, as far as it is known.
    #[inline]
    pub const fn protocol(&self) -> ClientProtocol {
        self.protocol
    }

    /// Sets the protocol of its client: that of its endpoint, or the one that it has spoken on
    /// another shard. A new connection negotiates.
    pub fn set_protocol(&mut self, protocol: ClientProtocol) {
        debug_assert!(self.protocol == ClientProtocol::Negotiated, "a client keeps its protocol");
        self.protocol = protocol;
    }

    /// The protocol of its next request, which begins with `first`. The connection keeps it.
    #[inline]
    pub const fn settle_protocol(&mut self, first: u8) -> ClientProtocol {
        self.protocol = self.protocol.settled_by(first);
        self.protocol
    }

    /// The input that is not served yet.
    #[inline]
    pub const fn input(&self) -> &Input {
        &self.input
    }

    /// Gives mutable access to the input that is not served yet.
    #[inline]
    pub const fn input_mut(&mut self) -> &mut Input {
        &mut self.input
    }

    /// The replies that the client is owed.
    #[inline]
    pub const fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// Gives mutable access to the replies that the client is owed.
    #[inline]
    pub const fn outbox_mut(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Whether requests are read. Otherwise the input of the client is dropped.
    #[inline]
    pub fn is_reading(&self) -> bool {
        self.phase == Phase::Reading
    }

    /// Whether no more requests are read, and the connection closes once all replies are sent.
    #[inline]
    pub const fn is_draining(&self) -> bool {
        matches!(self.phase, Phase::Draining(_))
    }

    /// Whether a part of a reply was formatted, and the rest needs its input or items: it is a
    /// retrieval that continues, or a listing. The reply is finished even while it drains.
    #[inline]
    pub const fn is_replying(&self) -> bool {
        self.listing || self.input.is_retrieving()
    }

    /// Stops reading requests. The connection closes once all replies are sent. The first reason
    /// for that counts.
    pub fn drain(&mut self, reason: CloseReason) {
        if !self.is_draining() {
            self.phase = Phase::Draining(reason);
        }
        debug_assert!(self.is_draining() && !self.is_reading(), "nothing more is read");
    }

    /// Why the connection closes, if nothing of it has failed.
    pub const fn close_reason(&self) -> CloseReason {
        debug_assert!(self.finished || self.is_draining(), "something has ended it");
        match self.phase {
            Phase::Draining(reason) => reason,
            Phase::Reading | Phase::Watching => CloseReason::Normal,
        }
    }

    /// Whether the client is sent lines of the log (I7).
    #[inline]
    pub fn is_watching(&self) -> bool {
        self.phase == Phase::Watching
    }

    /// Reads no more requests of the client, which watches from now on (I7).
    pub fn begin_watching(&mut self) {
        assert!(self.is_reading(), "a client begins to watch with a request");
        self.phase = Phase::Watching;
    }

    /// Has the client log in before any other request.
    pub fn ask_login(&mut self, login: LoginOwed) {
        debug_assert!(self.input.is_empty() && self.outbox.is_empty(), "nothing was served before");
        self.login = Login::Owed(login);
    }

    /// The login that the client owes. `None` if it has logged in, or need not.
    #[inline]
    pub const fn login(&self) -> Option<&LoginOwed> {
        self.login.owed()
    }

    /// Notes that a login of the client has failed at `now_ns`. Returns whether that was one too
    /// many for this connection.
    pub fn note_login_failure(&mut self, now_ns: u64) -> bool {
        let owed = self.login.owed_mut().expect("a login that fails is owed");
        owed.note_failure(now_ns)
    }

    /// Pauses the connection until its login may be checked, from this `sweep` on. `turn` is the
    /// place of the login among those that wait; without one it waits because of the failures of
    /// its own connection.
    ///
    /// Returns whether the connection was not paused before.
    pub fn wait_with_login(&mut self, turn: Option<LoginTurn>, sweep: u32) -> bool {
        let owed = self.login.owed_mut().expect("only a login waits so");
        owed.wait(turn, sweep);
        self.pause(Waiting::Login)
    }

    /// Gives up the place of its login among those that wait, and returns it.
    pub fn give_up_login_turn(&mut self) -> Option<LoginTurn> {
        self.login.owed_mut().and_then(|owed| owed.turn.take())
    }

    /// Notes that the login of the client was checked, or need not wait any more.
    pub fn end_login_wait(&mut self, sweep: u32) {
        if let Some(owed) = self.login.owed_mut() {
            owed.end_wait(sweep);
        }
        debug_assert!(self.waiting != Waiting::Login, "a login that is checked does not wait");
    }

    /// The client, if it must log in or has. `None` if it need not.
    pub const fn logs_in(&self) -> Option<Peer> {
        self.login.peer()
    }

    /// Notes that the client has logged in.
    pub fn log_in(&mut self) {
        let owed = self.login().expect("a client logs in once");
        assert!(!self.exchange.is_begun(), "I6");
        self.login = Login::Done(owed.peer);
    }

    /// Notes that the client begins another login, in this `sweep`. Until it has logged in again,
    /// it owes a login. If it owes one already, nothing changes.
    pub const fn log_out(&mut self, sweep: u32) {
        if let Login::Done(peer) = self.login {
            debug_assert!(!self.exchange.is_begun(), "I6");
            self.login = Login::Owed(LoginOwed::new(sweep, peer));
        }
    }

    /// Gives mutable access to the login by SASL of a client that owes one (I6).
    pub fn exchange_mut(&mut self) -> &mut Exchange {
        assert!(self.login().is_some(), "I6");
        &mut self.exchange
    }

    /// Notes that the client gave a sign of life in `sweep`: it sent bytes, or read replies.
    #[inline]
    pub fn note_active(&mut self, sweep: u32) {
        debug_assert!(sweep >= self.active_sweep, "sweeps are numbered upwards");
        self.active_sweep = sweep;
    }

    /// Notes that bytes arrived from the client in `sweep`. They are a sign of life only if the
    /// client is owed no reply. While it is owed a reply, only reading is a sign of life.
    #[inline]
    pub fn note_received(&mut self, sweep: u32) {
        if self.outbox.owed_bytes() == 0 {
            self.note_active(sweep);
        }
    }

    /// The number of sweeps since the last sign of life.
    pub fn idle_sweeps(&self, sweep: u32) -> u32 {
        debug_assert!(sweep >= self.active_sweep, "sweeps are numbered upwards");
        sweep - self.active_sweep
    }

    /// The event for which the next request waits.
    #[inline]
    pub const fn waiting(&self) -> Waiting {
        self.waiting
    }

    /// Whether the next request waits for something (I1).
    #[inline]
    pub fn is_paused(&self) -> bool {
        self.waiting != Waiting::Nothing
    }

    /// Pauses the connection, so that its next request waits. Returns whether the connection was
    /// not paused before.
    ///
    /// Panics: `waiting` is [`Waiting::Nothing`] ([`Self::resume`] ends a pause), or the connection
    /// already waits for a record (I2).
    pub fn pause(&mut self, waiting: Waiting) -> bool {
        assert!(waiting != Waiting::Nothing, "I1: a pause has a cause");
        assert!(!self.awaits_record(), "I2: nothing is served that could have it wait again");
        let begins = !self.is_paused();
        self.waiting = waiting;
        begins
    }

    /// Whether the connection waits for a record, in which its next request can be parked (I2).
    #[inline]
    pub const fn awaits_record(&self) -> bool {
        matches!(self.waiting, Waiting::Record)
    }

    /// Whether the connection waits for its turn.
    #[inline]
    pub const fn awaits_turn(&self) -> bool {
        matches!(self.waiting, Waiting::Turn)
    }

    /// Ends the wait for a turn, so that requests are served again. A connection that is full then
    /// waits for its client ([`Waiting::Reader`]). Returns whether requests are served.
    ///
    /// The time limit of an incomplete request goes on, because the client could send the rest. If
    /// receiving was stopped, the time limit starts again in `sweep`.
    pub fn take_turn(&mut self, sweep: u32) -> bool {
        assert!(self.awaits_turn(), "its turn comes because it waits");
        self.waiting = Waiting::Reader;
        let is_served = self.may_resume();
        if is_served {
            self.waiting = Waiting::Nothing;
            if self.receiving_stopped {
                self.input.wait_from(sweep);
            }
        }
        is_served
    }

    /// Notes that there are records again. The connection is still paused, but as
    /// [`Waiting::Reader`]: it may be resumed at once unless it is full.
    ///
    /// Returns `false` if the connection does not wait for a record. In that case an earlier
    /// connection with the same index did.
    pub fn note_record(&mut self) -> bool {
        let awaited = self.waiting == Waiting::Record;
        if awaited {
            self.waiting = Waiting::Reader;
        }
        awaited
    }

    /// Whether the connection waits for the turn of its login.
    #[inline]
    pub const fn awaits_login_turn(&self) -> bool {
        matches!(self.waiting, Waiting::Login)
    }

    /// Notes that the turn of a login has come. The connection is still paused, but as
    /// [`Waiting::Reader`]: it may be resumed at once unless it is full. The login keeps its place
    /// until it is checked.
    pub fn note_login_turn(&mut self) {
        assert!(self.awaits_login_turn() && self.login().is_some(), "only a login waits so");
        self.waiting = Waiting::Reader;
    }

    /// Whether a paused connection may be resumed: its wait is over, and it is not full. The wait
    /// for a record is over only after [`Self::note_record`], that of a login after
    /// [`Self::note_login_turn`]. The wait for a turn ends by [`Self::take_turn`].
    pub fn may_resume(&self) -> bool {
        let is_over = match self.waiting {
            Waiting::Nothing | Waiting::Record | Waiting::Turn | Waiting::Login => false,
            Waiting::Reader | Waiting::Listing => !self.listing,
            Waiting::Answers => !self.listing && !self.outbox.awaits_answers(),
        };
        is_over && !self.is_full()
    }

    /// Ends the pause, so that requests are served again. Receiving was stopped meanwhile, so the
    /// time limit of an incomplete request starts again in `sweep`.
    pub fn resume(&mut self, sweep: u32) {
        assert!(self.may_resume(), "I1: what it waited for has come about");
        self.waiting = Waiting::Nothing;
        self.input.wait_from(sweep);
    }

    /// Whether the owed replies and the kept input have reached a limit.
    pub fn is_full(&self) -> bool {
        self.outbox.is_full(self.input.memory_bytes())
    }

    /// Whether nothing is received from the client because the connection is paused (I1).
    #[inline]
    fn must_not_receive(&self) -> bool {
        let receives = self.awaits_turn() || self.awaits_login_turn();
        self.is_paused() && !(receives && self.input.byte_count() < WAITING_INPUT_BYTES_MAX)
    }

    /// Whether `io` was not told to stop receiving.
    #[inline]
    pub const fn is_receiving(&self) -> bool {
        !self.receiving_stopped
    }

    /// Stops receiving if the pause of the connection requires that; otherwise, receives again.
    /// Returns what the caller must tell `io`: `Some(true)` to stop, `Some(false)` to receive,
    /// `None` for no change.
    #[inline]
    pub fn set_receiving(&mut self) -> Option<bool> {
        let stop = self.must_not_receive();
        let changes = stop != std::mem::replace(&mut self.receiving_stopped, stop);
        // Only `io`'s sockets can be told.
        (changes && self.socket != SocketId::NONE).then_some(stop)
    }

    /// Ends a stop of receiving if no pause asks for it any more. Returns whether the caller
    /// must tell `io` to receive again.
    #[inline]
    pub fn begin_receiving(&mut self) -> bool {
        let begins = self.receiving_stopped && !self.must_not_receive();
        if begins {
            self.receiving_stopped = false;
        }
        begins
    }

    /// Whether a large value is being received.
    #[inline]
    pub const fn is_uploading(&self) -> bool {
        self.uploading
    }

    /// Begins to receive a large value of this length.
    pub fn begin_upload(&mut self, value_bytes: usize) {
        assert!(!self.uploading, "I4: one value is received at a time");
        self.uploading = true;
        self.input.begin_block(value_bytes);
    }

    /// Ends the receiving of a large value, which is complete or was refused.
    pub fn end_upload(&mut self) {
        assert!(self.uploading, "a value that ends has begun");
        self.uploading = false;
        self.input.end_block();
    }

    /// Whether the next byte of input belongs to a data block: a large value, or a block to skip.
    #[inline]
    pub const fn is_in_block(&self) -> bool {
        self.uploading || self.input.is_skipping()
    }

    /// Whether the rest of a data block is awaited.
    pub const fn awaits_block(&self) -> bool {
        self.is_in_block() || self.input.announced_bytes() > 0
    }

    /// Whether the next bytes may be received into a landing: a large value is being received, all
    /// input before those bytes is served, and the connection still receives.
    pub fn may_land(&self) -> bool {
        self.uploading
            && self.phase == Phase::Reading
            && !(self.is_paused() || self.finished)
            && self.ready.is_none()
            && self.input.is_empty()
    }

    /// Whether a listing of items is being sent.
    #[inline]
    pub const fn is_listing(&self) -> bool {
        self.listing
    }

    /// Notes that a listing of items begins.
    pub fn begin_listing(&mut self) {
        assert!(!self.listing, "I4: one listing is sent at a time");
        self.listing = true;
    }

    /// Notes that the listing is complete.
    pub fn end_listing(&mut self) {
        assert!(self.listing, "a listing that ends has begun");
        self.listing = false;
    }

    /// Whether the peer has closed its sending side.
    #[inline]
    pub const fn is_finished(&self) -> bool {
        self.finished
    }

    /// Notes that the peer has closed its sending side.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// Notes that it was served in this round of balancing. Returns `false` if it was noted before.
    #[inline]
    pub fn note_round(&mut self, round: u32) -> bool {
        std::mem::replace(&mut self.round, round) != round
    }

    /// Whether nothing of it is under way: all its requests are answered, and all its replies are
    /// sent. So another shard can serve it as if its client had just connected, and nothing of it
    /// can be late.
    pub fn is_at_rest(&self) -> bool {
        self.ready.is_none() && self.input.is_empty() && self.may_leave()
    }

    /// Whether it is at rest except for its input, of which nothing was carried out. So another
    /// shard can serve it with this input as if its client had just connected.
    pub fn may_leave(&self) -> bool {
        let is_in_a_list = self.dirty || self.resumable;
        let has_work = self.uploading || self.listing || self.is_paused() || self.finished;
        let is_begun = self.input.is_begun() || self.exchange.is_begun();
        self.phase == Phase::Reading
            && !(is_in_a_list || has_work || is_begun)
            && self.outbox.is_empty()
    }

    /// Whether the peer has closed its sending side, and no more of its input will be served. A
    /// login that waits is given up, because its client may be gone and would keep a place among
    /// the waiting logins.
    #[inline]
    pub fn is_served(&self) -> bool {
        let waits = self.is_paused() && !self.awaits_login_turn();
        self.finished && !waits && !self.listing && self.ready.is_none()
    }

    /// Its position in the list of connections that are served in this tick.
    #[inline]
    pub const fn ready(&self) -> Option<u32> {
        self.ready
    }

    /// Notes its position in the list of connections that are served in this tick (I3).
    #[inline]
    pub fn set_ready(&mut self, place: u32) {
        assert!(self.ready.is_none(), "I3: it is served once a tick");
        self.ready = Some(place);
    }

    /// Notes that it was served in this tick (I3).
    #[inline]
    pub fn clear_ready(&mut self) {
        self.ready = None;
    }

    /// Marks it as being in the list `dirty`. Returns `false` if it was in this list before (I3).
    #[inline]
    pub fn mark_dirty(&mut self) -> bool {
        !std::mem::replace(&mut self.dirty, true)
    }

    /// Notes that its index was taken from the list `dirty`. Returns `false` if it was not marked:
    /// an earlier connection with the same index was in the list.
    #[inline]
    pub fn clear_dirty(&mut self) -> bool {
        std::mem::take(&mut self.dirty)
    }

    /// Marks it as being in the list `resumable`. Returns `false` if it was there before (I3).
    #[inline]
    pub fn mark_resumable(&mut self) -> bool {
        debug_assert!(!self.awaits_record(), "I2: only a record wakes it");
        !std::mem::replace(&mut self.resumable, true)
    }

    /// Notes that it was taken from the list `resumable` (I3).
    #[inline]
    pub fn clear_resumable(&mut self) {
        self.resumable = false;
    }
}

#[cfg(test)]
mod tests;
