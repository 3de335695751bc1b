//! Open connections; at the limit, the connection that has been idle longest is closed.

use crate::core::client::network;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// The open connections, limited in total and per address.
pub struct Registry {
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    /// Maximum connections in total.
    total: usize,
    /// Maximum connections of one address.
    each: usize,
}

/// State of one connection that other threads need.
pub struct Connection {
    /// The client's address, reduced to its network.
    network: IpAddr,
    state: Mutex<State>,
    /// Notified when the connection must close.
    pub evicted: Notify,
}

/// A connection waits for its client until a whole request has arrived, and while the client does
/// not read the response. Otherwise the connection waits for the engine and is not closed.
#[derive(Clone, Copy)]
struct State {
    /// Whether a whole request has arrived that is not answered yet.
    requested: bool,
    /// Whether part of a response may still have to be passed to the operating system.
    unsent: bool,
    /// Whether the client has stopped reading.
    stalled: bool,
    /// Start of the current wait for the client, if the connection waits for it.
    since: Instant,
}

impl State {
    fn is_waiting(self) -> bool {
        !self.requested || self.stalled
    }
}

impl Connection {
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = state.is_waiting();
        change(&mut state);
        // A connection that was already waiting keeps its time: a byte now and then does not reset
        // it.
        if !waited {
            state.since = Instant::now();
        }
    }
    /// Records that the head of a request has arrived. This restarts the wait, unless the client
    /// does not read an earlier response.
    pub fn begun(&self) {
        self.change(|state| {
            if !state.stalled {
                state.since = Instant::now();
            }
        });
    }
    /// Records that a whole request has arrived.
    pub fn requested(&self) {
        self.change(|state| state.requested = true);
    }
    /// Records that the request is answered; the end of the response may still be in a buffer of
    /// this process.
    pub fn answered(&self) {
        self.change(|state| (state.requested, state.unsent) = (false, true));
    }
    /// Records that the operating system has taken all response bytes.
    pub fn flushed(&self) {
        self.change(|state| state.unsent = false);
    }
    /// Records whether the client has stopped reading.
    pub fn set_stalled(&self, stalled: bool) {
        self.change(|state| state.stalled = stalled);
    }
    fn state(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Returns the start of the wait for the client, or `None` while the connection waits for the
    /// engine.
    pub fn waiting_since(&self) -> Option<Instant> {
        let state = self.state();
        state.is_waiting().then_some(state.since)
    }
    /// Returns whether there is neither a whole request nor part of a response that the client
    /// could still receive.
    pub fn is_idle(&self) -> bool {
        let state = self.state();
        !state.requested && !state.unsent
    }
}

/// A connection's slot in the registry, released on drop.
pub struct ConnectionSlot {
    registry: Arc<Registry>,
    number: u64,
    /// The connection that holds the slot.
    pub connection: Arc<Connection>,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.registry.lock().remove(&self.number);
    }
}

impl Registry {
    /// Registry of at most `total` connections, half of which may come from one address.
    pub fn new(total: usize) -> Arc<Registry> {
        Arc::new(Registry {
            connections: Mutex::default(),
            total,
            each: total.div_ceil(2),
        })
    }
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Connection>>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
    /// Admits a connection from an address, evicting the longest-waiting one if needed. `None` if
    /// all connections wait for the engine.
    pub fn admit(self: &Arc<Registry>, number: u64, address: IpAddr) -> Option<ConnectionSlot> {
        let network = network(address);
        let mut connections = self.lock();
        let same = connections
            .values()
            .filter(|connection| connection.network == network)
            .count();
        if same >= self.each {
            evict(&mut connections, Some(network))?;
        } else if connections.len() >= self.total {
            evict(&mut connections, None)?;
        }
        let state = Mutex::new(State {
            requested: false,
            unsent: false,
            stalled: false,
            since: Instant::now(),
        });
        let connection = Arc::new(Connection {
            network,
            state,
            evicted: Notify::new(),
        });
        connections.insert(number, connection.clone());
        Some(ConnectionSlot {
            registry: self.clone(),
            number,
            connection,
        })
    }
    /// Closes the connection that has waited longest for its client, if any waits.
    pub fn make_room(&self) {
        evict(&mut self.lock(), None);
    }
    /// Returns the number of open connections.
    pub fn len(&self) -> usize {
        self.lock().len()
    }
}

fn evict(connections: &mut HashMap<u64, Arc<Connection>>, network: Option<IpAddr>) -> Option<()> {
    let candidates = connections
        .iter()
        .filter(|(_, connection)| network.is_none_or(|it| it == connection.network));
    let waiting =
        candidates.filter_map(|(&number, connection)| Some((connection.waiting_since()?, number)));
    let (_, number) = waiting.min()?;
    connections.remove(&number)?.evicted.notify_one();
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::net::Ipv4Addr;

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    fn is_evicted(place: &ConnectionSlot) -> bool {
        place.connection.evicted.notified().now_or_never().is_some()
    }

    #[test]
    fn who_has_waited_longest_goes() {
        let registry = Registry::new(3);
        let places: Vec<ConnectionSlot> = (0..3)
            .map(|i| registry.admit(i, address(i as u8)).unwrap())
            .collect();
        // The first is being answered; the second has been waiting longer than the third.
        places[0].connection.requested();
        let fourth = registry.admit(3, address(3)).unwrap();
        assert_eq!(
            places.iter().map(is_evicted).collect::<Vec<_>>(),
            [false, true, false]
        );
        places[2].connection.requested();
        fourth.connection.requested();
        assert!(
            registry.admit(4, address(4)).is_none(),
            "nobody waits for a client"
        );
        // A connection also waits for its client while the client does not read the response.
        fourth.connection.set_stalled(true);
        assert!(registry.admit(5, address(5)).is_some());
        assert!(is_evicted(&fourth));
    }

    #[test]
    fn one_address_has_half_of_the_room() {
        let registry = Registry::new(4);
        let other = registry.admit(0, address(1)).unwrap();
        let places: Vec<ConnectionSlot> = (1..3)
            .map(|i| registry.admit(i, address(2)).unwrap())
            .collect();
        let third = registry.admit(3, address(2)).unwrap();
        // A connection of the same address is closed, not the older one of the other address.
        assert_eq!(
            (
                is_evicted(&other),
                is_evicted(&places[0]),
                is_evicted(&places[1])
            ),
            (false, true, false)
        );
        assert_eq!(registry.len(), 3);
        drop((other, places, third));
        assert_eq!(registry.len(), 0);
    }

    #[test]
    fn a_byte_makes_nobody_younger() {
        let registry = Registry::new(1);
        let place = registry.admit(0, address(1)).unwrap();
        let since = place.connection.waiting_since();
        place.connection.set_stalled(true);
        place.connection.set_stalled(false);
        assert_eq!(place.connection.waiting_since(), since);
        place.connection.requested();
        assert_eq!(place.connection.waiting_since(), None);
        place.connection.answered();
        assert!(place.connection.waiting_since() > since);
    }

    #[test]
    fn a_new_request_makes_a_connection_younger() {
        let registry = Registry::new(1);
        let place = registry.admit(0, address(1)).unwrap();
        let kept = &place.connection;
        kept.requested();
        kept.answered();
        let since = kept.waiting_since();
        kept.begun();
        assert!(
            kept.waiting_since() > since,
            "the body of its next request is on its way"
        );
        // While the client does not read, the connection keeps its time.
        kept.set_stalled(true);
        let since = kept.waiting_since();
        kept.begun();
        assert_eq!(kept.waiting_since(), since);
    }

    #[test]
    fn a_connection_is_idle_once_all_of_its_answer_was_sent() {
        let registry = Registry::new(1);
        let place = registry.admit(0, address(1)).unwrap();
        let connection = &place.connection;
        assert!(connection.is_idle());
        connection.requested();
        connection.flushed();
        assert!(!connection.is_idle(), "it is not answered yet");
        connection.answered();
        assert!(!connection.is_idle(), "the answer is not sent yet");
        assert!(connection.waiting_since().is_some());
        connection.flushed();
        assert!(connection.is_idle());
    }

    #[test]
    fn a_network_of_many_addresses_is_one() {
        assert_eq!(
            network("2001:db8:1:2:3::4".parse().unwrap()),
            network("2001:db8:1:2::9".parse().unwrap())
        );
        assert_ne!(
            network("2001:db8:1:2::9".parse().unwrap()),
            network("2001:db8:1:3::9".parse().unwrap())
        );
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), address(1));
        assert_ne!(network(address(1)), network(address(2)));
    }
}
