//! What the process asks of the machine.
//!
//! Upstream:   `kachel` starts the process with it; `table` and `segment` take their memory from it.
//! Downstream: the kernel, through `rustix` and `libc`.

mod budget;
mod region;

pub use budget::Budget;
pub use region::{PAGE_BYTES, Region};
