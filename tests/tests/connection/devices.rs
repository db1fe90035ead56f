//! Programs with the devices of several daemons.

use anyhow::{Result, ensure};
use system_tests::daemon::{Daemon, Io, Spec};
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need, Pair, own_loopback};
use system_tests::native;
use system_tests::place::{Host, Node, Place};

use super::{PATIENCE, all_identifiers_end, once_it_listens};

/// A program has the devices of all daemons: it listens at the addresses of all, and each address
/// is that of its device.
#[test]
fn a_program_connects_by_the_devices_of_two_daemons() -> Result<()> {
    let name = "a_program_connects_by_the_devices_of_two_daemons";
    let Some(lab) = Lab::open(name, Need::Root, &["rping", "python3"])? else { return Ok(()) };
    let tools = lab.tools.clone().with_built(native::cm()?);
    let pair = Pair::start(Dist::get()?, &tools, Io::Udp, 4200)?;
    // Beside the first daemon, in its namespace.
    let [first, second] = [pair.left.address(), own_loopback()];
    let netns = Some(pair.net.left.netns.name().to_owned());
    let spec = Spec { addresses: vec![second], netns, ..Spec::new(Io::Udp) };
    let daemon = Daemon::start(Dist::get()?, &spec)?;
    let sockets = std::env::join_paths([pair.left.daemon.socket(), daemon.socket()])?;
    let other = Node::new(daemon, Host::at_end(&pair.net.left, &lab.tools), Dist::get()?);
    let start = |program: &str, args: &[&str]| {
        let cmd = pair.left.cmd(program)?.env("RNIC_SOCKET", &sockets);
        cmd.args(args).limit(PATIENCE).start()
    };
    let count = "import ctypes; lib = ctypes.CDLL('librdmacm.so.1'); n = ctypes.c_int(0); \
        lib.rdma_get_devices(ctypes.byref(n)); print(n.value)";
    let counted = start("python3", &["-c", count])?.wait()?;
    ensure!(counted.stdout == "2\n", "{counted}");
    // An event channel is another kind of descriptor then.
    let slept = start(native::CM, &[&first.to_string(), "10.77.0.99", "threads"])?.wait()?;
    ensure!(slept.success(), "{slept}");
    let port = system_tests::programs::next_port().to_string();
    let [to_first, to_second] = [first, second].map(|address| address.to_string());
    for bound in [&[][..], &["-a", &to_second]] {
        let serve = || start("rping", &[&["-s", "-P", "-p", &port], bound].concat());
        // The last place where it listens.
        let server = once_it_listens(&other, serve)?;
        let dial = |to: &str| -> Result<bool> {
            let args = ["-c", "-C", "5", "-V", "-a", to, "-p", &port];
            let here = start("rping", &args)?.wait()?;
            eprintln!("from the same host to {to}: {}", here.success());
            Ok(here.success())
        };
        ensure!(dial(&to_second)?, "{}", server.stderr());
        ensure!(dial(&to_first)? == bound.is_empty(), "{}", server.stderr());
        if bound.is_empty() {
            let args = ["-c", "-C", "5", "-V", "-a", &to_first, "-p", &port].map(str::to_owned);
            let client = pair.right.start("rping", &args, PATIENCE)?.wait()?;
            ensure!(client.success(), "{client}: {}", server.stderr());
        }
        drop(server);
        all_identifiers_end(&other, PATIENCE)?;
    }
    other.stop()?;
    pair.stop()
}
