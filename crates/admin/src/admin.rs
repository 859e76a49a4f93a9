//! The thread of the admin address.
//!
//! Upstream:   `kachel`, at the start, with the listener; it replaces the token while it runs.
//! Downstream: `accept`, on a runtime of one thread.

use std::io;
use std::sync::Arc;

use tokio::runtime::Builder;

use crate::accept::{Accepting, AdminListener};
use crate::route::Service;
use crate::source::AdminSource;
use crate::token::AdminToken;

/// The admin address, which is served until the process ends.
#[derive(Clone)]
pub struct AdminAddress(Arc<Service>);

impl AdminAddress {
    /// Starts the thread that answers clients of `listener`. They may call the server by an IP
    /// address, as `localhost`, or by one of `hosts`. If there is a token, they must send it.
    ///
    /// Errors: out of threads, descriptors or memory.
    pub fn start(
        listener: AdminListener,
        hosts: Vec<String>,
        token: Option<AdminToken>,
        source: impl AdminSource,
    ) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let is_encrypted = listener.is_encrypted();
        let listener = {
            let _within = runtime.enter();
            Accepting::new(listener)?
        };
        let service = Arc::new(Service::new(hosts, token, is_encrypted, source));
        let of_thread = Arc::clone(&service);
        let of_updates = Arc::clone(&service);
        let body = move || {
            // Clients that ask often must not take processor time from the shards.
            kachel_host::give_way();
            runtime.spawn(async move { of_updates.update().await });
            match runtime.block_on(listener.serve(of_thread)) {}
        };
        std::thread::Builder::new().name("admin".into()).spawn(body)?;
        Ok(Self(service))
    }

    /// Replaces the token, which the server must have had from the start.
    pub fn set_token(&self, token: AdminToken) {
        self.0.set_token(token);
    }
}
