//! The public libibverbs and librdmacm structures as repr(C), and the versioned-cdylib build helper

#[cfg(feature = "link")]
pub mod link;
