//! The whole server but for the kernel: shards over the in-memory door, on one thread.

mod flushes;
mod replies;
mod wire_cuts;
mod world;
