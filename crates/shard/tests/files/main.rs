//! Whole shards over plain engines with files: on a disk in memory, and on file systems of the
//! kernel by epoll and by io_uring.

mod bench;
mod cold_reads;
mod commits;
mod failures;
