//! Connections and requests that wait, and what wakes them.
//!
//! Upstream:   `serve`, `large` and `listings`, with what cannot go on now; `tick`, which asks for
//!             what has become ready.
//! Downstream: the engines, each behind its lock; `request`, which executes what has waited.
//!
//! | what waits | for | is woken by |
//! |---|---|---|
//! | a connection | its client to read its replies, or a record | `pause`, `records` |
//! | a client whose turn is over | the clients before it in the run queue | `connections/arrive` |
//! | a login | its turn | `turns` |
//! | a request for an engine that another core holds | the holder | `engines`, `mailboxes` |
//! | a request that its engine delays | the engine | `backlog` |

pub(crate) mod pause;
pub(crate) mod turns;
pub(crate) mod records;
pub(crate) mod engines;
pub(crate) mod backlog;
pub(crate) mod mailboxes;
pub(crate) mod parked;
