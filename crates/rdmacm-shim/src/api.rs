//! The functions behind the rows of `exports.txt` whose kind is `impl`, in one namespace, each
//! under its C name.

pub(crate) use crate::strings::rdma_event_str;
