//! The types of `tls` in a build without the feature `tls`. The options of TLS are refused.
//!
//! Upstream:   `transport` asks for TLS.
//! Downstream: nothing. No value of these types exists.

use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::Path;

/// How connections to one server are encrypted.
#[derive(Clone, Debug)]
pub(crate) enum Security {}

impl Security {
    /// Errors: always, as a message for the user.
    pub(crate) fn new(_: Option<&Path>, _: &str, _: bool) -> Result<Self, String> {
        Err("--tls needs a kachel-lab that is built with --features tls".into())
    }

    pub(crate) fn stream(&self, _: TcpStream) -> io::Result<TcpStream> {
        match *self {}
    }

    pub(crate) fn handshake(&self, _: &mut TcpStream) -> io::Result<Session> {
        match *self {}
    }
}

/// The session of one connection after its handshake.
#[derive(Debug)]
pub(crate) enum Session {}

impl Session {
    pub(crate) fn receive(&mut self, _: &OwnedFd, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn wants_write(&self) -> bool {
        match *self {}
    }

    pub(crate) fn send(&mut self, _: &OwnedFd, _: &[u8]) -> io::Result<usize> {
        match *self {}
    }
}
