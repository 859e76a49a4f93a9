//! The services of the machine: memory, cores, users, limits, signals.
//!
//! Upstream:   `kachel` uses it to start the process; `table` and `segment` take memory from it;
//!             `flash` and `rocks` have the folders of their data by it.
//! Downstream: the kernel, through `rustix` and `libc`.

mod address_space;
mod allocator;
mod budget;
mod cores;
mod daemon;
mod data_folder;
#[cfg(test)]
mod folder;
mod huge_pages;
mod identity;
mod interface;
mod limits;
mod log;
mod memory_file;
mod nodes;
mod obstacle;
mod pidfile;
mod region;
mod regular_file;
mod service_manager;
mod shared_words;
mod signals;
mod terminal;
mod tracing_files;
mod usage;

pub use address_space::{address_space_bounds, is_address_space_free};
pub use allocator::share_one_arena;
pub use budget::Budget;
pub use cores::{Cores, PinClaim, Unpinned, pin_to_core_of};
pub use daemon::{Daemon, leave_terminal};
pub use data_folder::{
    DataFolder, HeldFolder, NEW_SUFFIX, file_system_bytes, first_foreign, read_if_there,
};
pub use huge_pages::{PageKind, free_reserved_bytes};
pub use identity::{User, become_user, find_user, give_up_loading, is_root};
pub use interface::{Interface, interface};
pub use limits::{
    allow_core_files, allow_locked_memory, give_way, lock_memory, locked_memory_bytes_max,
    physical_memory_bytes, raise_open_files,
};
pub use log::{
    AdmittedLine, Level, LogField, LogFormat, admit_client_line, finish_log, log, log_client,
    lost_log_lines, set_log, start_log,
};
pub use memory_file::MemoryFile;
pub use nodes::Nodes;
pub use obstacle::{UnusableFile, is_lasting, may_pass};
pub use pidfile::{Pidfile, write_whole};
pub use region::{PAGE_BYTES, Region};
pub use regular_file::{open_regular_file, read_regular_file};
pub use service_manager::{ServiceState, tell_service_manager};
pub use shared_words::SharedWords;
pub use signals::{
    Signal, Signals, ask_to_reload, ask_to_save, ask_to_terminate, ignore_signals_of_writes,
    is_end_pending,
};
pub use terminal::RawTerminal;
pub use tracing_files::provide_tracing_files;
pub use usage::{Usage, entropy, usage};
