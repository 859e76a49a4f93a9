//! `stats` and its topics.
//!
//! Upstream:   `control`.
//! Downstream: the sums of the counters of all cores and of all engines; the options of the
//!             process.
//!
//! The keys are those of memcached, in its order. Keys that only Kachel has begin with `kachel_`;
//! `stats kachel` tells them. `stats` has only one of them, its last line, because some programs
//! read 4,096 bytes of it. `kachel_observe` has the rows; here they become lines.

use std::collections::BTreeMap;

use kachel_engine::{Common as _, Engine};
use kachel_net::ConnectionIndex;
use kachel_observe::{
    CLASS_ROW_BYTES_MAX, Census, Classes, PIECE_ROWS_MAX, PrefixCounts, Row, WINDOW_BYTES_MAX,
};
use kachel_stdx::SizeClasses;
use kachel_wire::format::ShownKey;
use kachel_wire::request::BinaryHead;
use kachel_wire::{DetailTopic, Reply, StatsTopic, format};

use crate::clients::Clients;
use crate::context::Context;
use crate::waiting::engines::Engines;
use crate::waiting::parked::PIECE_BYTES_MAX;

const _: () = assert!(PIECE_ROWS_MAX * CLASS_ROW_BYTES_MAX <= PIECE_BYTES_MAX, "a piece has room");

/// Answers `stats` to one client.
pub(crate) struct Answering<'a, E: Engine> {
    pub(crate) context: &'a Context,
    pub(crate) engines: &'a Engines<E>,
    pub(crate) clients: &'a mut Clients<E::Pinned>,
    pub(crate) connection: ConnectionIndex,
    /// The head that replies of the binary protocol repeat. `None` in other protocols.
    pub(crate) head: Option<BinaryHead>,
}

impl<E: Engine> Answering<'_, E> {
    /// Answers `stats` with this topic.
    pub(crate) fn stats(&mut self, topic: StatsTopic, io_kind: &str) {
        let dumps_allowed = self.context.shared.options.plain.dumps_allowed;
        match topic {
            StatsTopic::General => self.rows(false, io_kind),
            StatsTopic::Kachel => self.rows(true, io_kind),
            StatsTopic::Reset => unreachable!("`control` resets the counters"),
            StatsTopic::Settings => self.settings(),
            StatsTopic::Detail(_) if !dumps_allowed => self.reply(Reply::StatsDetailNotAllowed),
            StatsTopic::Cachedump(_) if !dumps_allowed => self.reply(Reply::CachedumpNotAllowed),
            StatsTopic::Detail(topic @ (DetailTopic::On | DetailTopic::Off)) => {
                self.context.shared.set_detailed(topic == DetailTopic::On);
                // The requests after this one in the same tick follow it.
                self.context.begin_sample();
                self.reply(Reply::Ok);
            }
            StatsTopic::Detail(DetailTopic::Usage) => self.reply(Reply::StatsDetailUsage),
            StatsTopic::Cachedump(Err(reply)) => self.reply(reply),
            StatsTopic::Unknown => self.reply(Reply::Error),
            StatsTopic::Sizes => {
                // memcached counts sizes only with `-o track_sizes`, and so does this server, so
                // that a client cannot cause a walk that the operator did not allow.
                self.stat("sizes_status", b"disabled");
                self.reply(Reply::End);
            }
            StatsTopic::Items
            | StatsTopic::Slabs
            | StatsTopic::Conns
            | StatsTopic::Detail(DetailTopic::Dump)
            | StatsTopic::Cachedump(Ok(_)) => unreachable!("`control` begins a listing"),
            // This topic has nothing to show yet.
            StatsTopic::Extstore => self.reply(Reply::End),
            StatsTopic::Pipe => self.pipe(),
            StatsTopic::Engine => self.files(),
            StatsTopic::HotKeys(count) => self.hottest_keys(count),
            StatsTopic::MissCurve => self.miss_curve(),
            StatsTopic::Prefixes(count) => self.observed_prefixes(count),
        }
    }

    pub(crate) fn reply(&mut self, reply: Reply) {
        self.clients.reply(self.connection, self.head, reply);
    }

    pub(crate) fn stat(&mut self, name: &str, value: &[u8]) {
        if let Some(mut sink) = self.clients.answering(self.connection) {
            match self.head {
                Some(head) => head.put_stat(&mut sink, name.as_bytes(), value),
                None => format::stat(&mut sink, name.as_bytes(), value),
            }
        }
    }

    /// Sends the next lines of `stats detail dump`, and its end after the last ones.
    ///
    /// In the binary protocol the lines are the value of a statistic. There is one, as in
    /// memcached, unless the lines are more than a window of prefixes.
    pub(crate) fn prefixes(&mut self, prefixes: BTreeMap<Vec<u8>, PrefixCounts>, is_last: bool) {
        let mut text: Vec<u8> = prefixes.into_iter().flat_map(prefix_line).collect();
        debug_assert!(text.len() <= WINDOW_BYTES_MAX, "prefixes, P2");
        if self.head.is_none() {
            self.clients.text(self.connection, &text);
        } else {
            text.extend_from_slice(if is_last { Reply::End.bytes() } else { b"" });
            self.stat("detailed", &text);
        }
        if is_last {
            self.reply(Reply::End);
        }
    }

    /// Sends the options of the process.
    fn settings(&mut self) {
        let context = self.context;
        for (name, value) in context.shared.settings() {
            self.stat(name, value.as_bytes());
        }
        self.reply(Reply::End);
    }

    /// Sends facts about the pipe, if there is one.
    fn pipe(&mut self) {
        let facts = self.context.shared.options.pipe.as_ref().map(|pipe| (pipe.facts)());
        debug_assert!(facts.as_ref().is_none_or(|facts| !facts.is_empty()), "a pipe has a state");
        for (name, value) in facts.into_iter().flatten() {
            self.stat(&name, value.as_bytes());
        }
        self.reply(Reply::End);
    }

    /// Sends what the engines tell about their files, if they have some.
    fn files(&mut self) {
        let report = self.engines.common().file_report();
        for row in report.iter().flat_map(kachel_observe::engine_rows) {
            self.stat(row.name, row.value.to_string().as_bytes());
        }
        self.reply(Reply::End);
    }

    /// Sends the rows of `stats`, or of `stats kachel` if only those that Kachel has are `own`.
    fn rows(&mut self, own: bool, io_kind: &str) {
        let (context, engines) = (self.context, self.engines);
        let shared = &context.shared;
        let facts = shared.facts(context.now(), io_kind, engines.common());
        let others = shared.options.other_rows(own);
        let rows = if own { kachel_observe::own } else { kachel_observe::general };
        rows(&shared.totals, &facts, &others, &mut |row| {
            self.stat(row.name, row.value.to_string().as_bytes());
        });
        self.reply(Reply::End);
    }

    /// What is known of the size classes, with this census of the items.
    fn classes<'c>(&self, census: &'c Census, sizes: &'c SizeClasses) -> Classes<'c, E::Reader>
    where
        Self: 'c,
    {
        let (totals, sums) = (&self.context.shared.totals, &self.engines.class_sums);
        Classes { totals, sums, sizes, census }
    }

    /// Sends a row of `stats items` or `stats slabs`. `topic` comes before the class.
    fn class_row(&mut self, topic: &str, class: Option<u8>, row: &Row<'_>) {
        let name = class.map(|class| format!("{topic}{class}:{}", row.name));
        self.stat(name.as_deref().unwrap_or(row.name), row.value.to_string().as_bytes());
    }

    /// Sends a piece of the answer to `stats items`, from class `from` on. Returns where the next
    /// piece begins; `None` after the last one.
    pub(crate) fn items(&mut self, census: &Census, from: u32) -> Option<u32> {
        let sizes = self.engines.common().size_classes();
        let now_s = self.context.now().second;
        let classes = self.classes(census, &sizes);
        let next = classes.items(from, now_s, &mut |class, row| {
            self.class_row("items:", class, row);
        });
        self.end_after(next)
    }

    /// Sends a piece of the answer to `stats slabs`, as [`Self::items`] does.
    pub(crate) fn slabs(&mut self, census: &Census, from: u32) -> Option<u32> {
        let sizes = self.engines.common().size_classes();
        let spent_bytes = self.context.shared.budget.spent_bytes();
        let classes = self.classes(census, &sizes);
        let next = classes.slabs(from, spent_bytes, &mut |class, row| {
            self.class_row("", class, row);
        });
        self.end_after(next)
    }

    /// Sends a piece of the answer to `stats sizes`, from step `from` on, as [`Self::items`] does.
    pub(crate) fn sizes(&mut self, census: &Census, from: u32) -> Option<u32> {
        let next = kachel_observe::sizes(census, from, |bytes, items| {
            self.stat(&bytes.to_string(), items.to_string().as_bytes());
        });
        self.end_after(next)
    }

    /// Ends the answer if no piece comes next.
    fn end_after(&mut self, next: Option<u32>) -> Option<u32> {
        if next.is_none() {
            self.reply(Reply::End);
        }
        next
    }
}

/// A line of `stats detail dump`.
fn prefix_line((prefix, counts): (Vec<u8>, PrefixCounts)) -> Vec<u8> {
    let PrefixCounts { gets, hits, sets, deletes } = counts;
    debug_assert!(hits <= gets, "a hit is a get");
    let mut line = b"PREFIX ".to_vec();
    ShownKey::of(&prefix).put_text(&mut line);
    let counts = format!(" get {gets} hit {hits} set {sets} del {deletes}\r\n");
    line.extend_from_slice(counts.as_bytes());
    line
}
