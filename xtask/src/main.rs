//! `cargo xtask`: build, try, test.
fn main() {}
