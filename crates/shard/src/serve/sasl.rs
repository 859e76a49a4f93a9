//! Logins by SASL: the requests of clients of the binary protocol that must log in.
//!
//! Upstream:   `serve`, for a connection that has not logged in, before anything of it is parsed;
//!             and for a login of one that has.
//! Downstream: `wire` reads the request; `net` checks the messages of the exchange; the reply goes
//!             to the outbox.
//!
//! Invariants:
//! - I1  A connection counts as logged in only after [`SaslStep::Known`]. Each message of a login
//!   ends the login before it, as in memcached, so a failed one leaves the client logged out.
//! - I2  A message whose answer tells the client whether it has the right password is answered only
//!   if the address of the client may try. Until then the message stays in the input, and the
//!   exchange as it was.

use std::sync::Arc;

use kachel_engine::ReadValue;
use kachel_net::{CloseReason, Connection, SaslMessage, SaslStep, Users};
use kachel_wire::request::BinaryHead;
use kachel_wire::{BinaryStatus, SaslParsed, SaslRequest, parse_sasl};

use crate::cores::options::ClientEvent;
use crate::serve::login::LoggingIn;

impl<P: ReadValue> LoggingIn<'_, P> {
    /// Serves one request of the binary protocol at the front of `input`. Returns how many bytes of
    /// it are served. `None` if it is not whole, or must wait: the connection is paused.
    pub(crate) fn serve_sasl(mut self, input: &[u8]) -> Option<usize> {
        let connection = self.connection;
        let (head, request, bytes, skip_bytes) = match parse_sasl(input) {
            SaslParsed::NeedMore => {
                self.clients.with(connection, |open| open.input_mut().note_scanned(input.len()));
                return None;
            }
            SaslParsed::Close => {
                self.clients.drain(connection, CloseReason::Error);
                return Some(0);
            }
            SaslParsed::Refused { refusal, bytes } => {
                self.clients.refuse_binary(connection, &refusal);
                self.skip(refusal.skip_bytes);
                return Some(bytes);
            }
            SaslParsed::Request { head, request, bytes, skip_bytes } => {
                (head, request, bytes, skip_bytes)
            }
        };
        debug_assert!(bytes > 0 && bytes <= input.len(), "a request has bytes");
        let message = match request {
            SaslRequest::Version => {
                self.body(head, self.context.shared.options.version.as_bytes());
                return Some(bytes);
            }
            SaslRequest::ListMechanisms => {
                let names = self.context.shared.with_users(|users| users.mechanisms().names());
                self.body(head, names.unwrap_or("").as_bytes());
                return Some(bytes);
            }
            SaslRequest::Begin { mechanism, message } => {
                Some(SaslMessage::First { mechanism, message })
            }
            SaslRequest::Step { message } => Some(SaslMessage::Next(message)),
            SaslRequest::TooLong => None,
        };
        let (step, tells_password) = self.check(message, input.len() > bytes)?;
        self.answer(head, &step);
        if tells_password {
            self.end_attempt(step != SaslStep::Unknown);
        }
        self.skip(skip_bytes);
        Some(bytes)
    }

    /// The answer of the exchange to a message; `None` stands for one that is too long. Also
    /// whether the answer tells the client if its password is right. `has_more` says whether the
    /// client has sent more behind the message. Returns `None` if the message must wait (I2).
    fn check(
        &mut self,
        message: Option<SaslMessage<'_>>,
        has_more: bool,
    ) -> Option<(SaslStep, bool)> {
        let Self { context, clients, connection, sweep } = self;
        let shared = Arc::clone(&context.shared);
        let open = clients.connections.get_mut(*connection).expect("its request is being served");
        open.log_out(*sweep);
        debug_assert!(open.login().is_some(), "I1");
        let exchange = open.exchange_mut();
        let Some(message) = message else {
            exchange.give_up();
            return Some((SaslStep::Unknown, false));
        };
        if !exchange.tells_password(&message) {
            let answer =
                |users: &Users| exchange.answer(users, message, shared.number_of_message());
            return Some((shared.with_users(answer).unwrap_or(SaslStep::Unknown), false));
        }
        // Taken out, because the connection is asked about its login meanwhile.
        let mut exchange = std::mem::take(exchange);
        let mut step = SaslStep::Unknown;
        let check = |users: &Users| {
            step = exchange.answer(users, message, shared.number_of_message());
            step != SaslStep::Unknown
        };
        let checked = self.check_password(has_more, check);
        self.clients.with(self.connection, |open| *open.exchange_mut() = exchange);
        checked.map(|_| (step, true))
    }

    /// Counts the result of a message, as memcached does, and replies to it.
    fn answer(&mut self, head: BinaryHead, step: &SaslStep) {
        debug_assert!(!self.clients.is_paused(self.connection), "I2: it need not wait");
        let counters = &self.context.counters;
        if !matches!(step, SaslStep::Continue(_)) {
            counters.auth_cmds.add(1);
            counters.auth_errors.add(u64::from(*step == SaslStep::Unknown));
        }
        if *step == SaslStep::Unknown {
            self.context.tell_client(self.connection, ClientEvent::LoginFailed);
        }
        if *step == SaslStep::Known {
            self.clients.with(self.connection, Connection::log_in); // I1
        }
        let Some(mut sink) = self.clients.answering(self.connection) else { return };
        match step {
            SaslStep::Known => head.put_authenticated(&mut sink),
            SaslStep::Unknown => head.put_status(&mut sink, BinaryStatus::NotAllowed),
            SaslStep::Continue(message) => head.put_challenge(&mut sink, message),
        }
    }

    fn body(&mut self, head: BinaryHead, body: &[u8]) {
        if let Some(mut sink) = self.clients.answering(self.connection) {
            head.put_body(&mut sink, body);
        }
    }
}
