//! The log against a `BTreeMap` that knows what must be there, and the promises in figures.

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
