//! The `rnic` command.
