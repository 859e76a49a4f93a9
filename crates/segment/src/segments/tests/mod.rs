//! Compares the log with a `BTreeMap` of the items that must exist, and checks the numbers that the
//! headers of the modules state.

mod audit;
mod bounds;
mod capacity;
mod gather;
mod index;
mod landing;
mod large;
mod life;
mod miss_ratio;
mod model;
mod overwrite;
mod prefixes;
mod reserve;
mod threads;
mod worth;
