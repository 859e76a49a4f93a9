//! A server that is built without TLS. Its options refuse TLS, so nothing here is ever called.
//!
//! Upstream:   `mod`.
//! Downstream: nothing.

use std::net::TcpListener;

use kachel_admin::AdminListener;
use kachel_host::UnusableFile;
use kachel_io::Io;
use kachel_options::{ListenTls, ServeOptions};
use kachel_shard::{Certificates, OtherCounts};

/// The answer to `refresh_certs` is that of memcached without TLS.
pub(crate) const CERTIFICATES_WITHOUT_TLS: Certificates = Certificates::Unknown;

/// The TLS of the process. There is none.
#[derive(Clone, Debug)]
pub(crate) enum Encryption {}

impl Encryption {
    pub(crate) fn new(options: &ServeOptions, _shards: u16) -> Result<Option<Self>, UnusableFile> {
        assert!(!options.tls.enabled, "the options refuse TLS");
        Ok(None)
    }

    pub(crate) const fn files(_shards: u16) -> u64 {
        0
    }

    pub(crate) fn start(&self) -> std::io::Result<()> {
        match *self {}
    }

    pub(crate) fn over<I: Io + 'static>(&self, _io: I, _listeners: &[ListenTls]) -> I {
        match *self {}
    }

    pub(crate) fn read_again(&self) -> Result<(), String> {
        match *self {}
    }

    pub(crate) fn check_access(&self) -> Result<(), String> {
        match *self {}
    }

    pub(crate) fn admin_listener(&self, _listener: TcpListener) -> AdminListener {
        match *self {}
    }

    pub(crate) fn counts(&self) -> OtherCounts {
        match *self {}
    }
}
