//! A server that is built without the pipe. It says so if the pipe was asked for, and serves on.
//!
//! Upstream:   `mod`.
//! Downstream: nothing.

use std::sync::Arc;

use kachel_engine::Copies;
use kachel_options::ServeOptions;
use kachel_shard::{OtherCounts, PipeControl};

use crate::pipe::Answers;

/// The pipe of the process. There is none.
#[derive(Clone, Debug)]
pub(crate) enum SmartPipe {}

impl SmartPipe {
    pub(crate) fn load(options: &ServeOptions) -> Option<Self> {
        if let Some(interface) = &options.pipe.interface {
            say!(
                Warning,
                "--pipe {interface}: off: this server is built without it (feature pipe)"
            );
        }
        None
    }

    pub(crate) fn begin(&self, _options: &ServeOptions, _answers: Answers<'_>) {
        match *self {}
    }

    pub(crate) fn end(&self) {
        match *self {}
    }

    pub(crate) fn bytes(&self) -> u64 {
        match *self {}
    }

    pub(crate) fn copies(&self) -> Arc<dyn Copies> {
        match *self {}
    }

    pub(crate) fn counts(&self) -> OtherCounts {
        match *self {}
    }

    pub(crate) fn control(&self) -> PipeControl {
        match *self {}
    }
}
