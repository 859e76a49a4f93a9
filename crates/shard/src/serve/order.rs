//! The order in which a tick serves clients, and which clients wait for a later tick.
//!
//! Upstream:   `tick`, with the ready connections; `serving`, which asks before each request
//!             whether the turn of the connection has ended.
//! Downstream: the run queue, for clients whose turn has ended or has not come.
//!
//! This file cites invariants of `serving` (I3) and of `cores/work` (W1).

use kachel_engine::Engine;
use kachel_io::Io;
use kachel_net::ClientProtocol;

use crate::connections::arrive::Inputs;
use crate::cores::run_queue::Join;
use crate::cores::work::TickWork;
use crate::request::batch::{Batch, Ready};
use crate::serve::serving::{Begun, Serving, Turn};

impl<E: Engine> Serving<'_, E> {
    /// Serves the ready connections until the budget of the tick is used up (`work`, W1). The
    /// connections from position `turns_from` on were taken off the run queue. Keys that arrive in
    /// base64 are decoded into the memory of `decoded`.
    pub(crate) fn serve_all<'b, I: Io>(
        &mut self,
        ready: &mut [Ready],
        turns_from: usize,
        inputs: &Inputs<'b, I>,
        decoded: &mut Vec<u8>,
    ) {
        let batch = Batch::new(std::mem::take(decoded));
        let protocol = ClientProtocol::Negotiated;
        let (turn_requests, begun) =
            (self.context.shared.options.plain.requests_per_tick, Begun::NONE);
        let tick = TickWork::of(ready.len() + self.clients.run_queue.len());
        let mut turn = Turn {
            on: self,
            ready,
            batch,
            has_only_staged: false,
            protocol,
            turn_requests,
            tick,
            begun,
        };
        turn.all(turns_from, inputs);
        turn.run();
        if turn_requests.is_some() {
            turn.end_turns();
        }
        debug_assert!(turn.batch.is_empty(), "I3: all that was staged is carried out");
        *decoded = turn.batch.into_decoded();
        // From here on, memory that other cores retire does not wait for this core.
        self.core.sleep(self.engines, self.context);
    }
}

impl<'b, E: Engine> Turn<'_, '_, 'b, E> {
    /// Serves the ready connections in the order of `work`, W1. Connections for which the tick has
    /// no time join the run queue.
    fn all<I: Io>(&mut self, turns_from: usize, inputs: &Inputs<'b, I>) {
        let ready = self.ready.len();
        debug_assert!(turns_from <= ready, "a position among the ready connections");
        if ready == 1 {
            return self.connection(0, inputs.of(&self.ready[0]), true); // It is alone.
        }
        for index in 0..turns_from {
            let input = inputs.of(&self.ready[index]);
            if self.tick.is_first(input.len()) {
                self.connection(index, input, false);
            }
        }
        for index in turns_from..ready {
            let is_first = index == turns_from; // It has its turn in any case (W1).
            if !is_first && self.tick.is_spent() {
                // The last connection is put in front first, so all of them keep their order.
                (index..ready).rev().for_each(|index| self.queue(index, Join::Front));
                break;
            }
            self.connection(index, inputs.of(&self.ready[index]), is_first);
        }
        for index in 0..turns_from {
            if !self.ready[index].has_begun {
                self.connection(index, inputs.of(&self.ready[index]), false);
            }
        }
    }

    /// Pauses the connections that have reached their limit of requests for this tick, so that
    /// other connections come first in the next tick. This is done once at the end, so that a batch
    /// still contains requests of several connections.
    #[cold]
    fn end_turns(&mut self) {
        debug_assert!(self.batch.is_empty(), "I3");
        for index in 0..self.ready.len() {
            let Ready { has_had_turn, ended, .. } = self.ready[index];
            if has_had_turn && !ended {
                self.queue(index, Join::Back);
            }
        }
    }

    /// Counts the request that starts at `offset`. Returns `false` if the connection has already
    /// begun `turn_requests` requests in this tick.
    #[cold]
    pub(super) fn begin(&mut self, offset: usize, turn_requests: u32) -> bool {
        debug_assert!(turn_requests > 0, "each connection has a turn");
        let is_new = std::mem::replace(&mut self.begun.last_start, offset) != offset;
        self.begun.count += u32::from(is_new);
        self.begun.count <= turn_requests
    }

    /// Adds a client to the run queue. The rest of its input is served in a later tick.
    pub(super) fn queue(&mut self, index: usize, join: Join) {
        let Ready { client, ended, .. } = self.ready[index];
        if !ended {
            self.ready[index].ended = true;
            self.on.clients.await_turn(self.on.context, client, join);
        }
    }
}
