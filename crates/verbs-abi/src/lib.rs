//! The public libibverbs and librdmacm structures and constants, as the side that exports them
//! needs them.
//!
//! Everything carries its C name, so that a reader of verbs.h and rdma_cma.h finds it at once, and
//! is re-exported here flat. C enums are plain integers with constants, since a caller may pass any
//! value. Growing structures have the layout of rdma-core v64; `verbs_context` says why the newest
//! is right for every program. Flow steering rules (`ibv_flow_spec_*`) are left out: only their
//! handles occur in a signature.
//!
//! Sizes and offsets are asserted at compile time (`layouts`) and, with the constants, against
//! installed headers by a test.

#![allow(non_camel_case_types, non_snake_case)]

#[macro_use]
mod macros;

mod address;
mod cma;
mod context;
mod cq;
mod device;
mod kernel;
mod layouts;
#[cfg(feature = "link")]
pub mod link;
mod memory;
mod port;
mod qp;
mod srq;
mod work;

pub use address::*;
pub use cma::*;
pub use context::*;
pub use cq::*;
pub use device::*;
pub use kernel::*;
pub use memory::*;
pub use port::*;
pub use qp::*;
pub use srq::*;
pub use work::*;

/// A 16-bit value in network byte order.
pub type be16 = u16;
/// A 32-bit value in network byte order.
pub type be32 = u32;
/// A 64-bit value in network byte order.
pub type be64 = u64;

/// A C structure that may start as all zero bytes, as `calloc` would leave it.
///
/// # Safety
/// All zero bytes are a valid value: integers, nullable pointers, optional functions, and
/// structures of these.
pub unsafe trait Zeroed: Sized {
    /// The value with every byte zero.
    fn zeroed() -> Self {
        // SAFETY: that is what implementing the trait promises.
        unsafe { std::mem::zeroed() }
    }
}
