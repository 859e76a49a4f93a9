//! A listing that a client waits for, and the counts that all listings of a core share.
//!
//! Upstream:   `listing` adds the pieces of all engines, or of all cores.
//! Downstream: `census` counts items, `prefixes` adds up the counts of the cores.
//!
//! ```text
//! stats items   --+
//! stats slabs   --+--> census of classes: the first one walks, the lines of all come from it
//! stats items   --+
//! stats sizes   -----> the next census
//! detail dump   --+
//! detail dump   --+--> window of prefixes: one dump has a round, then the next one
//! metadump ..   -----> nothing is counted
//! mscan         -----> window of a scan (`scan`): a few scans have a round at a time
//! ```
//!
//! Invariants:
//! - T1  One listing at a time walks the items for the census, and one fills the window of
//!   prefixes. Both finish even if their clients do not read, so no client keeps others waiting.
//! - T2  A listing stores its position in the lines that it sends, and no counts. So the memory of
//!   all listings does not depend on the number of items that they count.

use kachel_engine::{Cursor, EngineIndex, WalkNext};
use kachel_net::{ConnectionIndex, CoreIndex};
use kachel_observe::{Census, PrefixWindow};
use kachel_wire::request::BinaryHead;

use crate::context::Context;
use crate::listings::scan::{Scanning, Windows};
use crate::request::form::{Ended, Form};
use crate::waiting::parked::Executor;

/// The most bytes that `stats cachedump` sends, about.
const CACHEDUMP_BYTES_MAX: usize = 2 << 20;

/// A listing that a client waits for.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) connection: ConnectionIndex,
    /// The head that replies of the binary protocol repeat. `None` in other protocols.
    pub(crate) head: Option<BinaryHead>,
    pub(crate) form: Form,
    /// Bytes of the lines that were sent.
    pub(crate) sent_bytes: usize,
    /// The number of engines whose items are all listed, or of cores that have told all. A listing
    /// begins in another place on each core, so that many listings do not all need the same engine.
    pub(crate) listed: u16,
    pub(crate) cursor: Cursor,
    /// Whether another core was asked for a piece and has not answered yet.
    pub(crate) awaited: bool,
    pub(crate) begun: bool,
    /// The number of the first census that may answer it (`census`, N3).
    pub(crate) first_census: u64,
    /// The group of a census whose lines come next.
    pub(crate) next_group: u32,
    /// The least prefix whose line was not sent yet.
    pub(crate) next_prefix: Vec<u8>,
    /// The engine whose disk it waits for, and the operations that the engine had completed then.
    pub(crate) late: Option<(EngineIndex, u64)>,
    /// Whether an engine could not show all of its items.
    pub(crate) has_failed: bool,
    /// The scan, if it is one.
    pub(crate) scan: Option<Box<Scanning>>,
}

impl Listing {
    /// A listing of a client that has just asked for it. `first_census` is the number of the first
    /// census that may answer it.
    pub(crate) fn new(
        connection: ConnectionIndex,
        head: Option<BinaryHead>,
        form: Form,
        first_census: u64,
    ) -> Self {
        Self {
            connection,
            head,
            form,
            sent_bytes: 0,
            listed: 0,
            cursor: Cursor::default(),
            awaited: false,
            begun: false,
            first_census,
            next_group: 0,
            next_prefix: Vec::new(),
            late: None,
            has_failed: false,
            scan: None,
        }
    }

    /// Whether it is a scan that is in a round.
    fn is_in_round(&self) -> bool {
        self.scan.as_ref().is_some_and(|scan| scan.is_in_round())
    }

    /// The engine or the core that is listed next. `None` if all were.
    pub(crate) fn executor(&self, context: &Context) -> Option<Executor> {
        let count = self.form.executors(context);
        let next = (u32::from(context.core.0) + u32::from(self.listed)) % u32::from(count);
        let next = next as u16; // It is below `count`.
        let executor = match self.form.is_of_cores() {
            true => Executor::Core(CoreIndex(next)),
            false => Executor::Engine(EngineIndex(next)),
        };
        (self.listed < count).then_some(executor)
    }
}

impl Form {
    /// The number of engines, or of cores, whose parts a listing needs.
    fn executors(self, context: &Context) -> u16 {
        if self.is_of_cores() { context.cores() } else { context.engines() }
    }
}

/// The state of a listing towards the tally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Nothing: it walks, for itself or for all.
    Walks,
    /// Another listing walks for it.
    Waits,
    /// Nobody walks for it.
    Leads,
    /// Its lines can be sent.
    Lines,
}

/// The memory that the listings of a core share (`listing`, I5).
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) census: Census,
    pub(crate) window: PrefixWindow,
    /// The client whose listing fills the window.
    pub(crate) window_of: Option<ConnectionIndex>,
    /// The windows of scans.
    pub(crate) windows: Windows,
}

impl Tally {
    /// Whether the listing of this client walks for all (T1).
    pub(crate) fn is_led_by(&self, connection: ConnectionIndex) -> bool {
        [self.census.walker(), self.window_of].contains(&Some(connection))
    }

    /// Whether a listing goes on although its client does not read: it walks for all, or it is a
    /// scan in a round, which ends with its window.
    pub(crate) fn must_go_on(&self, listing: &Listing) -> bool {
        listing.is_in_round() || self.is_led_by(listing.connection)
    }

    /// The state of this listing.
    pub(crate) fn part(&self, listing: &Listing) -> Part {
        let leader = match (listing.form, listing.form.grouping()) {
            (Form::Scan { .. }, _) if listing.is_in_round() => return Part::Walks,
            (Form::Scan { .. }, _) if self.windows.is_any_free() => return Part::Leads,
            (Form::Scan { .. }, _) => return Part::Waits,
            (Form::Prefixes, _) => self.window_of,
            (_, None) => return Part::Walks,
            (_, Some(grouping)) if self.census.serves(grouping, listing.first_census) => {
                return Part::Lines;
            }
            (_, Some(_)) => self.census.walker(),
        };
        match leader {
            None => Part::Leads,
            Some(connection) if connection == listing.connection => Part::Walks,
            Some(_) => Part::Waits,
        }
    }

    /// Has a listing walk for all, from the beginning (T1), or a scan begin a round.
    pub(crate) fn lead(&mut self, listing: &mut Listing, engines: u16) {
        debug_assert!(self.part(listing) == Part::Leads, "T1: nobody else does");
        (listing.listed, listing.cursor) = (0, Cursor::default());
        if let Some(scan) = &mut listing.scan {
            listing.form = scan.begin_round(&self.windows, engines);
            return;
        }
        match listing.form.grouping() {
            Some(grouping) => self.census.begin(grouping, listing.connection),
            None => self.window_of = Some(listing.connection),
        }
    }

    /// Drops what a client has counted for all, because it has left.
    pub(crate) fn forget(&mut self, connection: ConnectionIndex) {
        if self.census.walker() == Some(connection) {
            self.census.drop_all();
        }
        if self.window_of == Some(connection) {
            (self.window, self.window_of) = (PrefixWindow::default(), None);
        }
        debug_assert!(!self.is_led_by(connection), "T1: another one may begin");
    }

    /// Goes on with a listing after a piece of `executor`, whose lines or notes are `text`. Returns
    /// the lines to send.
    pub(crate) fn go_on<'t>(
        &mut self,
        listing: &mut Listing,
        context: &Context,
        executor: Executor,
        text: &'t [u8],
        ended: Ended,
    ) -> &'t [u8] {
        debug_assert!(!listing.awaited, "a listing goes on with the piece that it waited for");
        let count = listing.form.executors(context);
        debug_assert!(listing.listed < count, "it was not over");
        if ended.next == WalkNext::Failed {
            // What was counted for others is of no use to them.
            self.forget(listing.connection);
            listing.has_failed = true;
            if let Some(scan) = &mut listing.scan {
                scan.fail();
                return b"";
            }
            return if listing.form.counts() { b"" } else { text };
        }
        let mut is_last = ended.next == WalkNext::End;
        listing.late = match (ended.next, executor) {
            (WalkNext::Later, Executor::Engine(engine)) => Some((engine, ended.completed)),
            _ => None,
        };
        if let Some(scan) = &mut listing.scan {
            scan.add(text, ended.next);
        } else if listing.form.counts() {
            self.census.add(text, u64::from(ended.examined));
            let cut = !is_last && self.census.is_enough(context.engines());
            is_last |= cut;
            if is_last {
                let Executor::Engine(engine) = executor else {
                    unreachable!("engines are counted")
                };
                let items = context.shared.totals.engines[engine.number()].items.value();
                self.census.end_engine(cut.then_some(items));
            }
        } else if listing.form == Form::Prefixes {
            self.window.add(text, !is_last);
            is_last = true; // A round takes one piece of each core.
        } else {
            listing.sent_bytes += text.len();
        }
        listing.listed += u16::from(is_last);
        listing.cursor = if is_last { Cursor::default() } else { ended.cursor };
        if let Form::Cachedump { lines_left, .. } = &mut listing.form {
            let lines = text.iter().filter(|&&byte| byte == b'\n').count();
            *lines_left = lines_left.saturating_sub(u32::try_from(lines).unwrap_or(u32::MAX));
            if *lines_left == 0 || listing.sent_bytes >= CACHEDUMP_BYTES_MAX {
                listing.listed = count;
            }
        }
        if listing.form.counts() && listing.listed == count {
            self.census.end();
        }
        let has_lines = !(listing.form.counts() || listing.form == Form::Prefixes);
        if has_lines && listing.scan.is_none() { text } else { b"" }
    }
}
