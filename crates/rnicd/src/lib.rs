//! The soft-rnic daemon: everything around the engine that needs an operating system.
//!
//! | module | what |
//! |---|---|
//! | [`config`] | command line and configuration file |

pub mod config;
