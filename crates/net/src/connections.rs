//! All connections of a shard, found by their socket.
//!
//! Upstream:   `shard` opens one when `io` accepts or adopts a socket.
//! Downstream: `Connection`.
//!
//! Invariants:
//! - I1  A connection is stored at the index of its socket (`SocketId::index`), and only while it
//!   is open.
//! - I2  An event for a socket of another generation belongs to an earlier connection and is
//!   dropped.
//! - I3  The number of an exchange (`exchange`) is none of a place (`index`, I1).

use kachel_io::SocketId;

use crate::connection::Connection;
use crate::endpoint::EndpointIndex;
use crate::exchange::Exchanges;
use crate::index::{ClientIndex, ConnectionIndex};

/// The shard's connections.
#[derive(Debug, Default)]
pub struct Connections {
    places: Vec<Option<Box<Connection>>>,
    count: u32,
    /// The exchanges with peers that have no connection (I3).
    pub exchanges: Exchanges,
}

impl Connections {
    /// Makes a table without connections.
    pub const fn new() -> Self {
        Self { places: Vec::new(), count: 0, exchanges: Exchanges::NONE }
    }

    /// The number of open connections.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The number of places: every index in use is below it.
    pub const fn places(&self) -> usize {
        self.places.len()
    }

    /// Opens a connection on `socket`, which was accepted at `endpoint`, in `sweep`.
    ///
    /// Panics: when a connection is open at its index, which is a bug in `io` (I1).
    pub fn open(
        &mut self,
        socket: SocketId,
        endpoint: EndpointIndex,
        sweep: u32,
    ) -> ConnectionIndex {
        let index = socket.index();
        if index >= self.places.len() {
            self.places.resize_with(index + 1, || None);
        }
        assert!(self.places[index].is_none(), "I1: socket index {index} is in use");
        self.places[index] = Some(Box::new(Connection::new(socket, endpoint, sweep)));
        self.count += 1;
        ConnectionIndex(u32::try_from(index).expect("socket indices are 32 bits"))
    }

    /// The index of an open connection on exactly this socket (I2).
    #[inline]
    pub fn find(&self, socket: SocketId) -> Option<ConnectionIndex> {
        let place = self.places.get(socket.index())?.as_ref()?;
        let index = u32::try_from(socket.index()).ok()?;
        (place.socket() == socket).then_some(ConnectionIndex(index))
    }

    /// The connection or exchange at `index`, if one is open there.
    #[inline]
    pub fn get_mut(&mut self, index: impl Into<ClientIndex>) -> Option<&mut Connection> {
        let index = index.into();
        match self.places.get_mut(index.number()) {
            Some(place) => place.as_deref_mut(),
            None => self.exchanges.connection_mut(index.exchange()?), // I3
        }
    }

    /// The connection or exchange at `index`, if one is open there.
    #[inline]
    pub fn get(&self, index: impl Into<ClientIndex>) -> Option<&Connection> {
        let index = index.into();
        match self.places.get(index.number()) {
            Some(place) => place.as_deref(),
            None => self.exchanges.connection(index.exchange()?), // I3
        }
    }

    /// Closes the connection at `index` and returns it, so that the caller can give back all that
    /// it holds.
    pub fn close(&mut self, index: ConnectionIndex) -> Option<Box<Connection>> {
        let closed = self.places.get_mut(index.0 as usize)?.take();
        self.count -= u32::from(closed.is_some());
        debug_assert!(self.count as usize <= self.places.len(), "I1: a place is one connection");
        closed
    }

    /// All open connections, with their indices. Cost: a walk over the places ever used.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (ConnectionIndex, &mut Connection)> {
        let numbered = (0..).map(ConnectionIndex).zip(&mut self.places);
        numbered.filter_map(|(index, place)| Some((index, place.as_deref_mut()?)))
    }

    /// All indices in use. Cost: a walk over the places ever used.
    pub fn indices(&self) -> impl Iterator<Item = ConnectionIndex> + '_ {
        let used = self.places.iter().enumerate().filter(|(_, place)| place.is_some());
        used.filter_map(|(index, _)| u32::try_from(index).ok()).map(ConnectionIndex)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_found_by_its_socket_and_no_later_one_by_an_older() {
        let (older, newer) = (SocketId::new(3, 1), SocketId::new(3, 2));
        let mut connections = Connections::new();
        assert_eq!(connections.find(older), None);
        let index = connections.open(older, EndpointIndex(0), 1);
        assert_eq!((connections.find(older), connections.count()), (Some(index), 1));
        assert_eq!(connections.find(newer), None, "I2");
        assert!(connections.close(index).is_some() && connections.close(index).is_none());
        assert_eq!(connections.count(), 0);
        let index = connections.open(newer, EndpointIndex(0), 1);
        assert_eq!((connections.find(older), connections.find(newer)), (None, Some(index)));
        assert_eq!(connections.indices().collect::<Vec<_>>(), [index]);
        assert_eq!(connections.iter_mut().count(), 1);
    }

    #[test]
    #[should_panic(expected = "I1: socket index 3 is in use")]
    fn two_connections_at_one_index_are_a_bug() {
        let mut connections = Connections::new();
        connections.open(SocketId::new(3, 1), EndpointIndex(0), 1);
        connections.open(SocketId::new(3, 2), EndpointIndex(0), 1);
    }
}
