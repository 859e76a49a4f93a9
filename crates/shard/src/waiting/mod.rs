//! Connections and requests that wait, and the code that wakes them.
//!
//! Upstream:   `serve`, `large` and `listings`, with connections and requests that cannot go on
//!             now; `tick`, which resumes those that can.
//! Downstream: the engines, each behind its lock; `request`, which executes requests that waited.
//!
//! | waiting | for | woken by |
//! |---|---|---|
//! | a connection | its client to read its replies | `pause` |
//! | a connection | the end of a listing, or answers to its parked requests | `pause` |
//! | a connection | memory for its next request | `records` |
//! | a client whose turn is over | the clients before it in the run queue | `connections/arrive` |
//! | a login | its turn | `logins` |
//! | a request for an engine that another core holds | the holder | `entered`, `mailboxes` |
//! | a request that its engine delays | what is fetched, or its time | `backlog`, `waiters` |
//! | an operation on a file | room in the backend of a core | `files`, `calls` |
//! | a reply | its change to be durable | `fences` |
//! | a store or an upload whose room other cores still read | the reader in its way | `calls` |

pub(crate) mod pause;
pub(crate) mod logins;
pub(crate) mod files;
pub(crate) mod records;
pub(crate) mod held;
pub(crate) mod homes;
pub(crate) mod inspect;
pub(crate) mod entered;
pub(crate) mod engines;
pub(crate) mod backlog;
pub(crate) mod waiters;
pub(crate) mod calls;
pub(crate) mod mailboxes;
pub(crate) mod parked;
