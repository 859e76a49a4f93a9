//! `refresh_certs`: a client asks to have the certificates read again.
//!
//! Upstream:   `control`, for such a request; `tick`, once a tick.
//! Downstream: `refreshes` passes the request to the process. Its main thread reads the files,
//!             because a shard must not wait for a disk. Then it wakes the shards, and each
//!             answers its clients.
//!
//! ```text
//! client --- ask ---> asked: 5 ---> process reads ---> done: 5, result ---> answers up to 5
//! ```

use kachel_engine::ReadValue;
use kachel_net::{AnswerRoom, ConnectionIndex};
use kachel_wire::Reply;

use crate::clients::{Answered, Clients};
use crate::context::Context;
use crate::cores::refreshes::Refreshing;

/// Bytes of the longest answer: an error names a file and a reason. The rest is cut.
const ANSWER_BYTES_MAX: u16 = 512;

impl<P: ReadValue> Clients<P> {
    /// Asks for a reading, for a client that is answered afterwards. Its later requests go on.
    pub(crate) fn ask_refresh(
        &mut self,
        context: &Context,
        connection: ConnectionIndex,
        noreply: bool,
    ) {
        let room = AnswerRoom { line_bytes: ANSWER_BYTES_MAX, value_bytes: 0 };
        let slot = self.keep_slot(connection.into(), room);
        let number = context.shared.refreshes.ask();
        debug_assert!(number > 0, "requests are numbered from 1 on");
        self.refreshing.push(Refreshing { slot, number, noreply });
    }

    /// Answers the clients whose reading is done. Cost: nothing while no client waits.
    #[inline]
    pub(crate) fn answer_refreshed(&mut self, context: &Context) {
        if !self.refreshing.is_empty() {
            self.answer_done(context);
        }
    }

    fn answer_done(&mut self, context: &Context) {
        let refreshes = &context.shared.refreshes;
        let (done, error) = (refreshes.done(), refreshes.error());
        debug_assert!(!self.refreshing.is_empty(), "some client waits");
        let mut text = match &error {
            Some(sentence) => sentence.clone().into_bytes(),
            None => Reply::Ok.bytes().to_vec(),
        };
        if error.is_some() {
            text.truncate(usize::from(ANSWER_BYTES_MAX) - 2);
            text.extend_from_slice(b"\r\n");
        }
        // Nobody reads files any more once the process stops.
        let is_stopping = context.shared.is_stopping();
        debug_assert!(text.len() <= usize::from(ANSWER_BYTES_MAX), "it fits the room kept for it");
        let waiting = std::mem::take(&mut self.refreshing);
        for one in waiting {
            if one.number > done && !is_stopping {
                self.refreshing.push(one);
                continue;
            }
            let is_silent = one.noreply && error.is_none();
            let text = if is_silent { &b""[..] } else { &text };
            self.answered(one.slot, Answered { text, value: &mut None, fence: None });
        }
    }
}
