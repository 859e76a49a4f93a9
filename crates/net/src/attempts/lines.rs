//! The logins that wait for a check, in one line for each group.
//!
//! Upstream:   `attempts` adds logins and removes them, and says when a check of a group is free.
//! Downstream: `attempts` passes the calls on to the cores.
//!
//! Invariants:
//! - W1  Between two changes of a line, `listed` is its entry in `by_count`, and in `due` of the
//!   core of its first login.
//! - W2  At most one login of a line is called at a time. From its call until it asks or leaves,
//!   the line is not in `due`.
//! - W3  A login that was displaced is in no line. Its core is called for it at once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::{AddressGroup, LoginTurn};
use crate::index::{ConnectionIndex, CoreIndex};

/// The connection of a login that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginWaiter {
    /// The core that serves it.
    pub core: CoreIndex,
    /// Its index there.
    pub connection: ConnectionIndex,
}

/// Why the wait of a login is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginCall {
    /// Its turn has come: the login must ask again now.
    Comes,
    /// Too many logins wait, and another one has taken its place.
    Displaced,
}

/// A login whose wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalledLogin {
    /// The index of its connection, on the core that is called. The connection may be gone.
    pub connection: ConnectionIndex,
    /// The place of the login. A login of another connection with this index has another place.
    pub turn: LoginTurn,
    /// Why its wait is over.
    pub call: LoginCall,
}

/// The logins of a group that wait. There is at least one.
#[derive(Debug, Default)]
struct Line {
    waiting: BTreeMap<LoginTurn, LoginWaiter>,
    /// The login that was called and has not asked yet (W2).
    called: Option<LoginTurn>,
    listed: Option<Listed>,
}

/// The keys of a line in the two orders (W1).
#[derive(Clone, Copy, Debug)]
struct Listed {
    count: ByCount,
    /// The core of its first login, and when a check is free. `None` while a login is called (W2).
    due: Option<(CoreIndex, u64)>,
}

/// Orders lines by their number of logins, then by the age of their last login. The last login of
/// the greatest line is displaced first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ByCount {
    count: usize,
    last: Reverse<u64>,
    group: AddressGroup,
}

/// The calls of one core.
#[derive(Debug, Default)]
struct Calls {
    /// The lines whose first login is one of this core, in the order in which their checks are
    /// free (W1).
    due: BTreeSet<(u64, AddressGroup)>,
    /// The logins of this core that were displaced since its last call (W3): at most one for each
    /// connection that waited at that call.
    displaced: Vec<(LoginTurn, ConnectionIndex)>,
}

/// All logins that wait.
#[derive(Debug)]
pub(super) struct Lines {
    lines: BTreeMap<AddressGroup, Line>,
    by_count: BTreeSet<ByCount>,
    cores: Box<[Calls]>,
    /// The number of logins in all lines.
    count: usize,
    /// The cores whose next call may have another time.
    changed: Vec<CoreIndex>,
}

impl Lines {
    /// Makes lines without logins.
    pub(super) fn new(cores: u16) -> Self {
        Self {
            lines: BTreeMap::new(),
            by_count: BTreeSet::new(),
            cores: (0..cores).map(|_| Calls::default()).collect(),
            count: 0,
            changed: Vec::with_capacity(usize::from(cores)),
        }
    }

    /// The number of logins that wait.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// The first login of a group.
    pub(super) fn first(&self, group: AddressGroup) -> Option<LoginTurn> {
        self.lines.get(&group)?.waiting.first_key_value().map(|(turn, _)| *turn)
    }

    /// The group whose last login is displaced first, and how many wait there.
    pub(super) fn longest(&self) -> Option<(AddressGroup, usize)> {
        self.by_count.last().map(|longest| (longest.group, longest.count))
    }

    /// Adds a login. After this and each of the next three functions, the caller must relist the
    /// group.
    pub(super) fn insert(&mut self, turn: LoginTurn, waiter: LoginWaiter) {
        let line = self.lines.entry(turn.group).or_default();
        let before = line.waiting.insert(turn, waiter);
        assert!(before.is_none(), "each login has a number of its own");
        self.count += 1;
    }

    /// Removes a login, if it waits.
    pub(super) fn remove(&mut self, turn: LoginTurn) {
        self.note_asked(turn);
        if let Some(line) = self.lines.get_mut(&turn.group) {
            self.count -= usize::from(line.waiting.remove(&turn).is_some());
        }
        debug_assert!(self.count > 0 || self.lines.len() <= 1, "a line has a login");
    }

    /// Notes that a login has asked, so that the next one of its group may be called (W2).
    pub(super) fn note_asked(&mut self, turn: LoginTurn) {
        if let Some(line) = self.lines.get_mut(&turn.group)
            && line.called == Some(turn)
        {
            line.called = None;
        }
    }

    /// Displaces the last login of a group (W3).
    pub(super) fn displace_last(&mut self, group: AddressGroup) {
        let line = self.lines.get_mut(&group).expect("W1: it has a line");
        let (turn, waiter) = line.waiting.pop_last().expect("a line has a login");
        self.count -= 1;
        self.note_asked(turn);
        self.cores[waiter.core.number()].displaced.push((turn, waiter.connection));
        self.note_changed(waiter.core);
    }

    /// Updates the entries of the line of a group (W1), if it has one. A check of the group is free
    /// at `free_ns`.
    pub(super) fn relist(&mut self, group: AddressGroup, free_ns: u64) {
        let Some(line) = self.lines.get_mut(&group) else { return };
        let before = line.listed.take();
        let (first, last) = (line.waiting.first_key_value(), line.waiting.last_key_value());
        if let (Some((_, first)), Some((last, _))) = (first, last) {
            let count = ByCount { count: line.waiting.len(), last: last.number, group };
            let due = line.called.is_none().then_some((first.core, free_ns));
            line.listed = Some(Listed { count, due });
        }
        let now = line.listed;
        if now.is_none() {
            self.lines.remove(&group);
        }
        if let Some(Listed { count, due }) = before {
            let is_gone = self.by_count.remove(&count);
            debug_assert!(is_gone, "W1");
            if let Some((core, free_ns)) = due {
                self.cores[core.number()].due.remove(&(free_ns, group));
                self.note_changed(core);
            }
        }
        if let Some(Listed { count, due }) = now {
            self.by_count.insert(count);
            if let Some((core, free_ns)) = due {
                self.cores[core.number()].due.insert((free_ns, group));
                self.note_changed(core);
            }
        }
    }

    /// See [`super::Attempts::call`].
    pub(super) fn call(&mut self, core: CoreIndex, now_ns: u64) -> Option<CalledLogin> {
        let calls = &mut self.cores[core.number()];
        if let Some((turn, connection)) = calls.displaced.pop() {
            self.note_changed(core);
            return Some(CalledLogin { connection, turn, call: LoginCall::Displaced });
        }
        let (free_ns, group) = *calls.due.first()?;
        if free_ns > now_ns {
            return None;
        }
        let line = self.lines.get_mut(&group).expect("W1: it is due");
        debug_assert!(line.called.is_none(), "W2");
        let (turn, waiter) = line.waiting.first_key_value().expect("a line has a login");
        debug_assert!(waiter.core == core, "W1");
        let (turn, connection) = (*turn, waiter.connection);
        line.called = Some(turn);
        self.relist(group, free_ns);
        Some(CalledLogin { connection, turn, call: LoginCall::Comes })
    }

    /// See [`super::Attempts::next_ns`].
    pub(super) fn next_ns(&self, core: CoreIndex) -> Option<u64> {
        let Calls { due, displaced } = &self.cores[core.number()];
        if displaced.is_empty() { due.first().map(|(free_ns, _)| *free_ns) } else { Some(0) }
    }

    /// See [`super::Attempts::take_changed`].
    pub(super) fn take_changed(&mut self) -> Option<CoreIndex> {
        self.changed.pop()
    }

    fn note_changed(&mut self, core: CoreIndex) {
        debug_assert!(core.number() < self.cores.len(), "a core of this process");
        if !self.changed.contains(&core) {
            self.changed.push(core);
        }
    }
}
