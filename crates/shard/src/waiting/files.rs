//! Operations on files: from an engine to the I/O backend of a core, and back.
//!
//! Upstream:   `entered` takes what an engine has queued when it releases the engine; the events of
//!             `io` bring completed operations.
//! Downstream: `tick` submits to `io`, and passes completions to the engine, or to its holder.
//!
//! ```text
//! engine --next_submission--> outgoing of the core that releases it --submit--> io
//!    |                                                                          |
//!    +-- no room: kept with the engine, and the home core is called             | FileDone
//!                                                                               v
//! engine <--complete-- holder, or this core <--parked-- record <-- completed of the same core
//! ```
//!
//! Invariants:
//! - S1  The token of an operation in flight has the number of its engine in its highest 16 bits.
//!   The engine uses the others.
//! - S2  A core takes no more submissions than its backend has room for. It has given them to the
//!   backend before it sleeps.
//! - S3  Each completion reaches its engine once: as a record, which the holder of the engine
//!   cannot release the lock without seeing (`kachel_stdx::CombiningLock`, C3).
//! - S4  A core does not end before its operations have completed: requests of other cores may wait
//!   for them.
//! - S5  While home engines of a core wait for room, no engine takes more than an equal share of
//!   the operations that the backend carries out at once. The shares add up to at least all of
//!   these, so while there is room, one of the engines that wait has less than its share.

use kachel_engine::{Engine, EngineIndex};
use kachel_io::{FileOperation, Files};

use crate::context::Context;
use crate::waiting::engines::Engines;
use crate::waiting::held::HeldEngines;
use crate::waiting::records::Records;

/// Bits of a token that belong to the engine (S1).
const TOKEN_BITS: u32 = 48;

/// The operations that a poll has brought back. Each stays in the box in which its engine made it.
pub(crate) type Completed = Vec<Box<FileOperation>>;

/// An engine whose operations on files a core can carry out. An engine without files uses
/// [`std::convert::Infallible`] for both.
pub trait FileEngine:
    Engine<Submission: Into<Box<FileOperation>>, Completion: From<Box<FileOperation>>>
{
}

impl<E> FileEngine for E
where
    E: Engine,
    E::Submission: Into<Box<FileOperation>>,
    E::Completion: From<Box<FileOperation>>,
{
}

/// Passes the completed operations of a core to their engines, or to the cores that hold them.
/// Cost: a load, if there are none.
#[inline]
pub(crate) fn complete<E: FileEngine>(
    context: &Context,
    engines: &Engines<E>,
    records: &mut Records<E>,
    completed: &mut Completed,
) {
    if !completed.is_empty() {
        complete_some(context, engines, records, completed);
    }
}

#[cold]
fn complete_some<E: FileEngine>(
    context: &Context,
    engines: &Engines<E>,
    records: &mut Records<E>,
    completed: &mut Completed,
) {
    let mut held = HeldEngines::new(engines, context);
    for mut operation in completed.drain(..) {
        let engine = EngineIndex((operation.token >> TOKEN_BITS) as u16); // S1
        debug_assert!(engine.0 < context.engines(), "S1: an engine of this process");
        operation.token &= (1 << TOKEN_BITS) - 1;
        context.note_file_done(engine);
        held.park(records.completion(context, engine, operation.into())); // S3
    }
}

/// Submits the operations of the engines that a core has released. Cost: a load, if there are none.
#[inline]
pub(crate) fn submit<E: FileEngine>(io: &mut impl Files, context: &Context, engines: &Engines<E>) {
    engines.take_outgoing(context, |engine, submission| {
        let mut operation: Box<FileOperation> = submission.into();
        assert!(operation.token >> TOKEN_BITS == 0, "S1: an engine uses {TOKEN_BITS} bits");
        operation.token |= u64::from(engine.0) << TOKEN_BITS;
        let submitted = io.submit(operation);
        assert!(submitted.is_ok(), "S2: there is room");
    });
}
