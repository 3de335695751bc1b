//! Clients.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

/// Where a request came from, and when.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The address of its client.
    pub client: IpAddr,
    /// When it was received.
    pub received: Instant,
}

/// What one client can have many of counts as one address: a network of IPv6 has 2^64 of them.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address => address,
    }
}
