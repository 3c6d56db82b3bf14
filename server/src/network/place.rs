//! Places of open connections: so many in all, half of which one client may hold.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_flight::client_network;

/// The places of a listener.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// By client, without those of this machine: a proxy there has the connections of many.
    by_network: HashMap<IpAddr, usize>,
}

/// The place of one connection; free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    network: Option<IpAddr>,
}

impl Places {
    /// As many places as `most`, all free.
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: Mutex::default() })
    }

    /// A place for a connection of a client; `None`: too many are open, of all clients or of this one.
    pub(super) fn take(self: &Arc<Self>, client: IpAddr) -> Option<Place> {
        let network = (!client.to_canonical().is_loopback()).then(|| client_network(client));
        let mut taken = self.taken.lock();
        if taken.all >= self.most {
            return None;
        }
        if let Some(network) = network {
            let of_client = taken.by_network.entry(network).or_default();
            if *of_client >= self.most.div_ceil(2) {
                return None;
            }
            *of_client += 1;
        }
        taken.all += 1;
        Some(Place { places: Arc::clone(self), network })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        taken.all -= 1;
        let Some(network) = self.network else { return };
        if let Some(of_client) = taken.by_network.get_mut(&network) {
            *of_client -= 1;
            if *of_client == 0 {
                taken.by_network.remove(&network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_client_holds_half_of_the_places_and_this_machine_all() {
        let address = |text: &str| -> IpAddr { text.parse().unwrap() };
        let places = Places::new(5);
        let (one, other) = (address("10.0.0.1"), address("2001:db8::1"));
        let mut held: Vec<Place> = (0..3).map(|_| places.take(one).unwrap()).collect();
        assert!(places.take(one).is_none());
        held.push(places.take(other).unwrap());
        // Another address of the network that one client has.
        held.push(places.take(address("2001:db8::2")).unwrap());
        assert!(places.take(address("10.0.0.2")).is_none() && places.take(address("127.0.0.1")).is_none());
        assert_eq!(places.taken.lock().by_network.len(), 2);
        drop(held);
        assert!(places.taken.lock().by_network.is_empty());
        let held: Vec<Place> = (0..5).map(|_| places.take(address("::1")).unwrap()).collect();
        assert!(places.take(address("127.0.0.1")).is_none());
        drop(held);
        assert!(places.take(one).is_some());
    }
}
