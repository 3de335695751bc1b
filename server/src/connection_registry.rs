//! Open connections; at the limit, the connection that has waited for its client the longest is closed.

use crate::core::client::network;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// All connections.
pub struct Registry {
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    /// Most in all.
    total: usize,
    /// Most of one address.
    each: usize,
}

/// One connection, as far as others need to know it.
pub struct Connection {
    /// The address, as it is counted.
    network: IpAddr,
    state: Mutex<State>,
    /// Told when it has to go.
    pub evicted: Notify,
}

/// A connection waits for its client while there is no whole request, and while what is told is not read. A connection in between waits
/// for the engine, which is our matter.
#[derive(Clone, Copy)]
struct State {
    /// There is a whole request that is not answered yet.
    requested: bool,
    /// Something of an answer may be left to be handed to the system.
    unsent: bool,
    /// The client does not read.
    stalled: bool,
    /// Since when it waits for its client, where it does.
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
        // Whoever waited before goes on doing so: a byte now and then makes nobody younger.
        if !waited {
            state.since = Instant::now();
        }
    }
    /// The head of a request has arrived. Whoever asks anew begins to wait anew, unless what was told before is not read.
    pub fn begun(&self) {
        self.change(|state| {
            if !state.stalled {
                state.since = Instant::now();
            }
        });
    }
    /// A request has arrived whole.
    pub fn requested(&self) {
        self.change(|state| state.requested = true);
    }
    /// It was answered; the end of the answer may still lie in a buffer of ours.
    pub fn answered(&self) {
        self.change(|state| (state.requested, state.unsent) = (false, true));
    }
    /// The system has taken all there is of answers.
    pub fn flushed(&self) {
        self.change(|state| state.unsent = false);
    }
    /// The client reads what is told, or does not.
    pub fn set_stalled(&self, stalled: bool) {
        self.change(|state| state.stalled = stalled);
    }
    fn state(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Since when it waits for its client, where it does.
    pub fn waiting_since(&self) -> Option<Instant> {
        let state = self.state();
        state.is_waiting().then_some(state.since)
    }
    /// Is there neither a whole request nor anything of an answer that its client could still get?
    pub fn is_idle(&self) -> bool {
        let state = self.state();
        !state.requested && !state.unsent
    }
}

/// A connection's place among the others, given up when it is dropped.
pub struct ConnectionSlot {
    registry: Arc<Registry>,
    number: u64,
    /// The connection.
    pub connection: Arc<Connection>,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.registry.lock().remove(&self.number);
    }
}

impl Registry {
    /// Room for so many, and for half of them of one address.
    pub fn new(total: usize) -> Arc<Registry> {
        Arc::new(Registry { connections: Mutex::default(), total, each: total.div_ceil(2) })
    }
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Connection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// A place for the connection of that number from that address; none if all are taken by connections that do not wait for their
    /// clients.
    pub fn admit(self: &Arc<Registry>, number: u64, address: IpAddr) -> Option<ConnectionSlot> {
        let network = network(address);
        let mut connections = self.lock();
        let same = connections.values().filter(|connection| connection.network == network).count();
        if same >= self.each {
            evict(&mut connections, Some(network))?;
        } else if connections.len() >= self.total {
            evict(&mut connections, None)?;
        }
        let state = Mutex::new(State { requested: false, unsent: false, stalled: false, since: Instant::now() });
        let connection = Arc::new(Connection { network, state, evicted: Notify::new() });
        connections.insert(number, connection.clone());
        Some(ConnectionSlot { registry: self.clone(), number, connection })
    }
    /// Has the connection go that has waited for its client the longest, if there is one.
    pub fn make_room(&self) {
        evict(&mut self.lock(), None);
    }
    /// How many are connected.
    pub fn len(&self) -> usize {
        self.lock().len()
    }
}

fn evict(connections: &mut HashMap<u64, Arc<Connection>>, network: Option<IpAddr>) -> Option<()> {
    let candidates = connections.iter().filter(|(_, connection)| network.is_none_or(|it| it == connection.network));
    let waiting = candidates.filter_map(|(&number, connection)| Some((connection.waiting_since()?, number)));
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
        let places: Vec<ConnectionSlot> = (0..3).map(|i| registry.admit(i, address(i as u8)).unwrap()).collect();
        // The first is being answered; the second has been waiting longer than the third.
        places[0].connection.requested();
        let fourth = registry.admit(3, address(3)).unwrap();
        assert_eq!(places.iter().map(is_evicted).collect::<Vec<_>>(), [false, true, false]);
        places[2].connection.requested();
        fourth.connection.requested();
        assert!(registry.admit(4, address(4)).is_none(), "nobody waits for a client");
        // Who does not read what is told waits for its client, too.
        fourth.connection.set_stalled(true);
        assert!(registry.admit(5, address(5)).is_some());
        assert!(is_evicted(&fourth));
    }

    #[test]
    fn one_address_has_half_of_the_room() {
        let registry = Registry::new(4);
        let other = registry.admit(0, address(1)).unwrap();
        let places: Vec<ConnectionSlot> = (1..3).map(|i| registry.admit(i, address(2)).unwrap()).collect();
        let third = registry.admit(3, address(2)).unwrap();
        // Its own goes, not the other's, which is older.
        assert_eq!((is_evicted(&other), is_evicted(&places[0]), is_evicted(&places[1])), (false, true, false));
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
        assert!(kept.waiting_since() > since, "the body of its next request is on its way");
        // Whoever does not read what was told stays as old as that makes it.
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
        assert_eq!(network("2001:db8:1:2:3::4".parse().unwrap()), network("2001:db8:1:2::9".parse().unwrap()));
        assert_ne!(network("2001:db8:1:2::9".parse().unwrap()), network("2001:db8:1:3::9".parse().unwrap()));
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), address(1));
        assert_ne!(network(address(1)), network(address(2)));
    }
}
