//! Compares the log with a `BTreeMap` of the items that must exist, and checks numbers that the
//! design promises.

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
mod reserve;
mod threads;
mod worth;
