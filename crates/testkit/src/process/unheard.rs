//! A server whose log nobody takes: its standard error is a pipe that is full from the start.
//!
//! Upstream:   tests of the log, which name the command.
//! Downstream: the operating system.

use std::io::{PipeReader, Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use crate::process::server::announced_port;
use crate::process::waiting::wait_until;

/// A running server whose log nobody takes.
#[derive(Debug)]
pub struct Unheard {
    /// Its process.
    pub process: Child,
    /// The port at which it listens.
    pub port: u16,
    log: PipeReader,
}

impl Unheard {
    /// Starts a server and waits until it listens. The words of the command must have it listen on
    /// one free port.
    ///
    /// # Panics
    /// If the command cannot be started, or the server does not listen.
    pub fn start(mut command: Command) -> Self {
        let (log, writer) = std::io::pipe().expect("a pipe");
        let mut filler = writer.try_clone().expect("the pipe twice");
        rustix::io::ioctl_fionbio(&filler, true).expect("set");
        while filler.write(&[b'\n'; 4096]).is_ok() {}
        while filler.write(b"\n").is_ok() {}
        rustix::io::ioctl_fionbio(&filler, false).expect("set");
        drop(filler);
        let folder = tempfile::tempdir().expect("a folder");
        let ports = folder.path().join("ports");
        command.env("MEMCACHED_PORT_FILENAME", &ports).stdin(Stdio::null()).stderr(writer);
        let process = command.spawn().expect("it starts");
        drop(command); // It has the other end of the pipe.
        let mut port = None;
        wait_until("a port", || {
            port = announced_port(&ports);
            port.is_some()
        });
        Self { process, port: port.expect("a port"), log }
    }

    /// Reads the log until all who write to it have ended: line ends, and what the server has
    /// written since the pipe had room.
    ///
    /// # Panics
    /// If the log is no text.
    pub fn log(&mut self) -> String {
        let mut log = String::new();
        self.log.read_to_string(&mut log).expect("text");
        log
    }
}

impl Drop for Unheard {
    fn drop(&mut self) {
        // Neither can fail in a way that matters: the process is ours and may be gone.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
