//! A Linux guest whose kernel has rxe: the peer that interoperability is judged by.
//!
//! [`image`] builds a kernel and an initial file system from Debian packages, [`guest`] boots
//! them with QEMU's emulation in about two seconds and runs commands in them. The guest's network
//! interface is a tap in a namespace; commands travel on a second, user-mode interface, so that
//! no byte of control shows on the wire under test.

pub mod agent;
pub mod cpio;
pub mod elf;
pub mod guest;
pub mod image;

pub use guest::{Guest, Machine};
pub use image::Image;

/// Programs of the host that building and running a guest takes.
pub const HOST_PROGRAMS: [&str; 4] = ["qemu-system-x86_64", "ip", "xz", "dpkg-deb"];
