//! Identity of the client of a request.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

/// Client address and arrival time of a request.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The client's address.
    pub client: IpAddr,
    /// The time at which the request was received.
    pub received: Instant,
}

/// Reduces an IPv6 address to its /64 network, as one client may have 2^64 addresses; IPv4 stays as
/// it is.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address => address,
    }
}
