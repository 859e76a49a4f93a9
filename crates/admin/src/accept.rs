//! Accepts connections, each for one request.
//!
//! Upstream:   `admin`, on the thread of the admin address.
//! Downstream: `connection`, a task for each client.
//!
//! Invariants:
//! - A1  At most [`CONNECTIONS_MAX`] connections are open. One more ends the oldest of the network
//!   that has most of them. Most connections take milliseconds, so it is that of a client that is
//!   slow or silent, guesses tokens, or watches the live page and connects again. A network that
//!   floods ends only its own.
//! - A2  An accept that fails for want of descriptors or memory is followed by a pause.
//! - A3  A descriptor is held in reserve, so that requests for health and readiness are answered
//!   when clients of the cache have taken all others.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{poll_fn, ready};
use std::io;
use std::net::{IpAddr, Ipv6Addr, TcpListener};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;

#[cfg(feature = "tls")]
use tokio_rustls::TlsAcceptor;

use crate::connection::serve_connection;
use crate::limits::{ACCEPT_PAUSE, CONNECTIONS_MAX};
use crate::route::Service;

/// The socket of the admin address.
pub enum AdminListener {
    /// TCP.
    Tcp(TcpListener),
    /// TCP, with TLS.
    #[cfg(feature = "tls")]
    Tls(TcpListener, AdminCertificates),
    /// A unix socket.
    Unix(UnixListener),
}

impl AdminListener {
    /// Whether clients speak TLS.
    pub(crate) const fn is_encrypted(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Unix(_) => false,
            #[cfg(feature = "tls")]
            Self::Tls(..) => true,
        }
    }
}

/// The configuration of TLS for a new client; `None` if it cannot be served.
#[cfg(feature = "tls")]
pub type AdminCertificates = Arc<dyn Fn() -> Option<Arc<rustls::ServerConfig>> + Send + Sync>;

/// A listener of the runtime.
pub(crate) enum Accepting {
    Tcp(tokio::net::TcpListener),
    #[cfg(feature = "tls")]
    Tls(tokio::net::TcpListener, AdminCertificates),
    Unix(tokio::net::UnixListener),
}

impl Accepting {
    /// Must be called within the runtime. Errors: the user's limit of epoll watches, or no memory.
    pub(crate) fn new(listener: AdminListener) -> io::Result<Self> {
        match listener {
            AdminListener::Tcp(listener) => Ok(Self::Tcp(of_tcp(listener)?)),
            #[cfg(feature = "tls")]
            AdminListener::Tls(listener, certificates) => {
                Ok(Self::Tls(of_tcp(listener)?, certificates))
            }
            AdminListener::Unix(listener) => {
                listener.set_nonblocking(true)?;
                Ok(Self::Unix(tokio::net::UnixListener::from_std(listener)?))
            }
        }
    }

    /// Serves clients until the process ends.
    pub(crate) async fn serve(self, service: Arc<Service>) -> Infallible {
        match self {
            Self::Tcp(listener) => {
                let accept = async || {
                    let (stream, address) = listener.accept().await?;
                    Ok((ready(Ok(stream)), Some(address.ip())))
                };
                serve(accept, service).await
            }
            #[cfg(feature = "tls")]
            Self::Tls(listener, certificates) => {
                let accept = async || {
                    let (stream, address) = listener.accept().await?;
                    let configuration = certificates();
                    let opening = async {
                        let none = || io::Error::other("no certificate");
                        let acceptor = TlsAcceptor::from(configuration.ok_or_else(none)?);
                        acceptor.accept(stream).await
                    };
                    Ok((opening, Some(address.ip())))
                };
                serve(accept, service).await
            }
            Self::Unix(listener) => {
                let accept = async || {
                    let (stream, _) = listener.accept().await?;
                    Ok((ready(Ok(stream)), None))
                };
                serve(accept, service).await
            }
        }
    }
}

fn of_tcp(listener: TcpListener) -> io::Result<tokio::net::TcpListener> {
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

/// Serves the clients that `accept` returns: a future that has the stream of the client, and the
/// address of the client, if it has one.
async fn serve<S, O>(
    accept: impl AsyncFn() -> io::Result<(O, Option<IpAddr>)>,
    service: Arc<Service>,
) -> Infallible
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    O: Future<Output = io::Result<S>> + Send + 'static,
{
    let reserve = Arc::new(Reserve::default());
    reserve.fill();
    let mut connections: VecDeque<Open> = VecDeque::with_capacity(CONNECTIONS_MAX);
    loop {
        match reserve.fill_during(accept()).await {
            Ok((opening, address)) => {
                connections.retain(|open| !open.task.is_finished());
                if connections.len() == CONNECTIONS_MAX
                    && let Some(place) = place_to_end(connections.iter().map(|open| open.network))
                    && let Some(open) = connections.remove(place)
                {
                    open.task.abort(); // A1
                }
                let (service, reserve) = (Arc::clone(&service), Arc::clone(&reserve));
                let task = tokio::spawn(async move {
                    serve_connection(opening, address, service).await;
                    reserve.fill();
                });
                connections.push_back(Open { network: address.map(network_of), task });
            }
            Err(error) if is_of_client(&error) => {}
            // The next accept follows at once: another thread may take the descriptor.
            Err(_) if reserve.release() => continue, // A3
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await, // A2
        }
        // Lets the other tasks run. So a connection whose request has arrived is answered before
        // it can become the oldest.
        tokio::task::yield_now().await;
    }
}

/// A connection that may be open.
struct Open {
    /// `None` for a client of a unix socket.
    network: Option<IpAddr>,
    task: JoinHandle<()>,
}

/// The network of an address: all addresses of an IPv6 network of 64 bits can be one client's.
fn network_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let bits = address.to_bits() >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from_bits(bits))
        }
    }
}

/// The place of the oldest connection of the network that has most (A1). The oldest come first.
fn place_to_end(networks: impl Iterator<Item = Option<IpAddr>> + Clone) -> Option<usize> {
    let count = |wanted| networks.clone().filter(|network| *network == wanted).count();
    let counted = networks.clone().enumerate().map(|(place, network)| (count(network), place));
    counted.max_by_key(|&(count, place)| (count, Reverse(place))).map(|(_, place)| place)
}

/// Whether an accept failed because a client has left.
fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// The descriptor in reserve (A3).
#[derive(Debug, Default)]
struct Reserve(Mutex<Option<UnixDatagram>>);

impl Reserve {
    fn place(&self) -> MutexGuard<'_, Option<UnixDatagram>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a descriptor, unless there is one in reserve or none is left.
    fn fill(&self) {
        let mut place = self.place();
        if place.is_none() {
            *place = UnixDatagram::unbound().ok();
        }
    }

    /// Waits for the next client. Whenever there is none, a descriptor is taken in reserve: Linux
    /// reports a want of descriptors before it looks for a client, so [`Self::release`] may have
    /// been for nobody.
    async fn fill_during<T>(&self, accepting: impl Future<Output = T>) -> T {
        let mut accepting = pin!(accepting);
        poll_fn(|context| {
            let accepted = accepting.as_mut().poll(context);
            if accepted.is_pending() {
                self.fill();
            }
            accepted
        })
        .await
    }

    /// Gives the descriptor to the next client. Returns whether there was one.
    fn release(&self) -> bool {
        self.place().take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::task::{Context, Waker};

    use super::*;

    /// A3. The fault: an accept without a client released the reserve, and nothing took it back
    /// until the next connection ended. A client of the cache got it, and then nobody was answered.
    #[test]
    fn a_descriptor_is_in_reserve_while_no_client_comes() {
        let reserve = Reserve::default();
        reserve.fill();
        assert!(reserve.release(), "an accept has failed for want of descriptors");
        let mut waiting = pin!(reserve.fill_during(pending::<()>()));
        let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        assert!(reserve.release(), "one is in reserve again");
    }

    #[test]
    fn a_network_that_floods_ends_its_own_connections() {
        let of = |addresses: &[&str]| {
            let networks = addresses.iter().map(|address| match *address {
                "unix" => None,
                address => Some(network_of(address.parse().expect("an address"))),
            });
            place_to_end(networks)
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&["unix", "unix"]), Some(0), "the oldest");
        assert_eq!(of(&["10.0.0.1", "10.0.0.2", "10.0.0.2"]), Some(1), "its own");
        assert_eq!(of(&["10.0.0.1", "2001:db8::1", "10.0.0.2", "2001:db8::2"]), Some(1), "by 64");
        assert_eq!(of(&["2001:db8:0:1::1", "2001:db8::1"]), Some(0), "two networks");
    }
}
