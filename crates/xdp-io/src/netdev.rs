//! What a port must know about its network interface.

use std::io;

use crate::{Error, Result, sys};

/// Index of the interface called `name` in the calling thread's network namespace.
///
/// # Errors
/// [`Error::InterfaceMissing`].
pub fn index(name: &str) -> Result<u32> {
    sys::interface_index(name).map_err(|error| missing(name, error))
}

/// Name of the interface with an index.
///
/// # Errors
/// [`Error::InterfaceMissing`].
pub fn name(index: u32) -> Result<String> {
    sys::interface_name(index).map_err(|error| missing(&format!("number {index}"), error))
}

/// MTU in bytes: the longest IP packet.
///
/// # Errors
/// [`Error::InterfaceMissing`].
pub fn mtu(name: &str) -> Result<u32> {
    let value = sys::interface_request(name, libc::SIOCGIFMTU as libc::c_ulong)
        .map_err(|error| missing(name, error))?;
    Ok(u32::from_ne_bytes([value[0], value[1], value[2], value[3]]))
}

/// Receive queues in use. `None` where sysfs shows another network namespace, or nothing.
#[must_use]
pub fn rx_queues(name: &str) -> Option<usize> {
    let folder = format!("/sys/class/net/{name}");
    let shown = std::fs::read_to_string(format!("{folder}/ifindex")).ok()?;
    if shown.trim().parse() != Ok(index(name).ok()?) {
        return None;
    }
    let queues = std::fs::read_dir(format!("{folder}/queues")).ok()?.flatten();
    Some(queues.filter(|queue| queue.file_name().as_encoded_bytes().starts_with(b"rx-")).count())
}

/// Ethernet address.
///
/// # Errors
/// [`Error::InterfaceMissing`].
pub fn mac(name: &str) -> Result<[u8; 6]> {
    let value = sys::interface_request(name, libc::SIOCGIFHWADDR as libc::c_ulong)
        .map_err(|error| missing(name, error))?;
    // struct sockaddr: family, then the address.
    Ok([value[2], value[3], value[4], value[5], value[6], value[7]])
}

fn missing(interface: &str, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ENODEV | libc::ENXIO) => {
            Error::InterfaceMissing { interface: interface.to_owned() }
        }
        _ => Error::Os { operation: "interface request", source: error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_an_index_a_name_an_mtu_and_a_zero_mac() {
        let loopback = index("lo").unwrap();
        assert_eq!(name(loopback).unwrap(), "lo");
        assert!(mtu("lo").unwrap() >= 1280);
        assert_eq!(mac("lo").unwrap(), [0; 6]);
        assert!(rx_queues("lo").is_none_or(|queues| queues == 1));
        assert_eq!(rx_queues("no-such-if0"), None);
    }

    #[test]
    fn a_missing_interface_is_named() {
        let error = index("no-such-if0").unwrap_err();
        assert!(error.to_string().contains("no-such-if0"), "{error}");
        assert!(matches!(mtu("an-interface-name-too-long"), Err(Error::InterfaceMissing { .. })));
    }
}
