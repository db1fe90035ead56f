//! What the running kernel can do for an AF_PACKET socket.

use crate::sys;

/// The first kernel whose vnet header knows UDP_L4 segmentation.
const TRAINS_SINCE: (u32, u32) = (6, 2);

/// Whether the kernel sends and receives trains over AF_PACKET.
///
/// Decided by the kernel version: a better test would have to send a train on the user's network.
/// On an older kernel with this feature ported back, frames are sent one by one.
#[must_use]
pub fn knows_trains() -> bool {
    version(&sys::kernel_release()).is_some_and(|version| version >= TRAINS_SINCE)
}

/// The first two numbers of a release such as `6.1.0-56-amd64` or `6.2-rc1`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_as_distributions_write_them() {
        for (release, expected) in [
            ("6.1.0-56-amd64", Some((6, 1))),
            ("6.2.0", Some((6, 2))),
            ("6.2-rc1", Some((6, 2))),
            ("6.12+", Some((6, 12))),
            ("5.14.0-427.el9.x86_64", Some((5, 14))),
            ("10.0", Some((10, 0))),
            ("6", None),
            ("", None),
            ("next-20260101", None),
            ("99999999999.1", None),
        ] {
            assert_eq!(version(release), expected, "{release}");
        }
        assert!(version("6.1.192") < Some(TRAINS_SINCE) && Some(TRAINS_SINCE) <= version("6.2.0"));
    }

    #[test]
    fn the_running_kernel_has_a_version() {
        assert!(version(&sys::kernel_release()).is_some());
    }
}
