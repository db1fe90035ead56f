//! What preloaded programs hear that know only sockets.

use anyhow::{Result, ensure};
use system_tests::daemon::Io;
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need, Pair};
use system_tests::native;
use system_tests::place::Place;

use super::{LIMIT, preloaded};

/// Runs a case of `tests/sockets` by itself on a device.
fn alone(name: &str, case: &str) -> Result<()> {
    let Some(lab) = Lab::open(name, Need::Root, &[])? else { return Ok(()) };
    let tools = lab.tools.clone().with_built(native::sockets()?);
    let pair = Pair::start(Dist::get()?, &tools, Io::Udp, 4200)?;
    let address = pair.left.address().to_string();
    let output = preloaded(&pair.left, native::SOCKETS, &[&address, case], LIMIT)?.wait()?;
    ensure!(output.success(), "{output}");
    pair.stop()
}

/// Sets may be larger than `fd_set`, and counts larger than sets.
#[test]
fn sets_of_any_size_are_selected_as_by_the_kernel() -> Result<()> {
    alone("sets_of_any_size_are_selected_as_by_the_kernel", "sets")
}

/// The kernel refuses addresses that are longer than any may be, and reads none of them.
#[test]
fn addresses_that_are_too_long_are_refused() -> Result<()> {
    alone("addresses_that_are_too_long_are_refused", "addresses")
}

/// The engine's threads have a table of descriptors of their own: what they do to numbers in it is
/// not done to rsockets of the program.
#[test]
fn numbers_of_the_engines_descriptors_are_not_the_programs() -> Result<()> {
    alone("numbers_of_the_engines_descriptors_are_not_the_programs", "numbers")
}
