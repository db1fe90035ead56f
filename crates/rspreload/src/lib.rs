//! `librspreload.so`: preloaded, it makes rsockets of the TCP and UDP sockets of a program that
//! knows nothing of them.
//!
//! Each such socket has a descriptor of the kernel, open on /dev/null, which stands for the
//! rsocket in the program. The functions here take the place of libc's; for all other descriptors
//! they call libc's own. Calls that librdmacm makes itself are libc's, too.

// A test program keeps libc's functions, so that in tests not all of it is used.
#![cfg_attr(test, allow(dead_code))]

mod again;
mod config;
mod data;
mod descriptors;
mod fork;
mod real;
mod select;
mod signals;
mod sockets;
mod table;
mod waiting;
