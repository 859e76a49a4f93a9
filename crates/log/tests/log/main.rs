//! A log over a disk in memory that fails and loses power, and over file systems of the kernel.

mod appends;
mod checkpoints;
mod copies;
mod crashes;
mod damage;
mod failures;
mod large;
mod live;
mod rig;
mod starts;
mod verify;
