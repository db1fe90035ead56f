//! Pictures of `rnic watch` and of its page, beside a program whose packets are lost.

use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use system_tests::browser::{Browser, Size};
use system_tests::daemon::{Daemon, Io, Spec};
use system_tests::dist::Dist;
use system_tests::lab::own_loopback;
use system_tests::packages::Toolbox;
use system_tests::place::{Host, Node};
use system_tests::process::wait_until;
use system_tests::programs::Dialogue;

/// The program runs until all pictures are taken.
const DIALOGUE: &str = "ib_send_bw -D 25 -q 3 -s 4096 -m 1024 -t 16";
const LOSSES: &str = "drop=1%";
/// Name, size of the terminal, and whether a queue pair is opened.
const SCREENS: [(&str, &str, bool); 3] = [
    ("watch-80x24", "80x24", false),
    ("watch-80x24-open", "80x24", true),
    ("watch-200x50", "200x50", true),
];
const PAGES: [(&str, &str, Size); 2] =
    [("watch-web-1280", "theme=light", (1280, 900)), ("watch-web-390", "theme=dark", (390, 844))];
const SOON: Duration = Duration::from_secs(10);

/// Takes them.
pub(super) fn take(browser: &Browser, folder: &Path) -> Result<()> {
    let tools = Toolbox::provide(&["ib_send_bw"])?;
    let nodes = [node(&tools, 0)?, node(&tools, 1)?];
    let [server, client] = &nodes;
    server.rnic(&["fault", "add", LOSSES]).check()?;
    thread::scope(|scope| {
        let dialogue = Dialogue::new(DIALOGUE).limit(Duration::from_secs(60));
        let program = scope.spawn(move || dialogue.run(server, client));
        let taken = beside(client, browser, folder);
        program.join().ok().context("the program's thread")??;
        taken
    })?;
    for node in nodes {
        node.stop()?;
    }
    Ok(())
}

/// While the program runs.
fn beside(node: &Node, browser: &Browser, folder: &Path) -> Result<()> {
    let page = node.rnic(&["watch", "--web", "127.0.0.1:0"]).start()?;
    let mut qpn = None;
    wait_until("a queue pair that sends again", SOON, || {
        let all: Value = serde_json::from_str(&node.rnic(&["qp", "--json"]).check()?)?;
        let is_it = |qp: &&Value| qp["counters"]["retransmitted_packets"].as_u64() > Some(20);
        qpn = all.as_array().and_then(|all| all.iter().find(is_it)?["qpn"].as_u64());
        Ok(qpn.is_some())
    })?;
    let qpn = qpn.unwrap_or_default().to_string();
    for (name, size, is_open) in SCREENS {
        let file = folder.join(format!("{name}.svg"));
        let options = if is_open { vec!["--qp", &qpn] } else { Vec::new() };
        node.rnic(&["watch", "--size", size, "--picture"]).arg(&file).args(options).check()?;
    }
    let url = page.stdout();
    for (name, part, size) in PAGES {
        let file = folder.join(format!("{name}.webp"));
        let url = format!("{}#{part}", url.trim());
        browser.picture_of(&url, Duration::from_secs(4), size, &file)?;
    }
    page.terminate(SOON)?;
    Ok(())
}

/// A daemon on one of two addresses of this host.
fn node(tools: &Toolbox, nth: u8) -> Result<Node> {
    let IpAddr::V4(address) = own_loopback() else { unreachable!("it is 127.something") };
    let [a, b, c, d] = address.octets();
    let address = IpAddr::from([a, b, c, d ^ nth]);
    let spec = Spec { addresses: vec![address], ..Spec::new(Io::Udp) };
    let daemon = Daemon::start(Dist::get()?, &spec)?;
    Ok(Node::new(daemon, Host::here(address, tools), Dist::get()?))
}
