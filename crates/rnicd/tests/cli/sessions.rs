//! Commands where there are many sessions.

use super::{Client, Daemon};
use rnic_abi::ABI_VERSION;
use rnic_abi::control::Request;
use rnic_abi::os::Connection;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeSet;

#[test]
fn commands_show_what_there_is_also_with_a_thousand_sessions() {
    let limit = getrlimit(Resource::Nofile);
    // The usual soft limit is too low for so many connections.
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let daemon = Daemon::start_with("many", &["--engines", "2"]);
    let idle: Vec<_> = (0..1000)
        .map(|_| {
            let connection = Connection::connect(&daemon.socket()).unwrap();
            let hello = Request::Hello { abi: ABI_VERSION };
            connection.call(&hello, &[]).unwrap().0.unwrap();
            connection
        })
        .collect();
    let clients: Vec<_> = (0..4).map(|_| Client::open(&daemon)).collect();
    let own = std::process::id();
    let status = daemon.json(&["status", "--json"]);
    let sessions = status["sessions"].as_array().unwrap();
    let numbers: BTreeSet<_> = sessions.iter().map(|one| one["session"].as_u64()).collect();
    assert_eq!(numbers.len(), sessions.len());
    let own_sessions = sessions.iter().filter(|session| session["pid"] == own).count();
    assert_eq!(own_sessions, idle.len() + clients.len());
    for what in ["qp", "mr", "cq"] {
        let list = daemon.json(&[what, "--json"]);
        let list = list.as_array().unwrap();
        assert_eq!(list.len(), clients.len(), "{what}");
        assert!(list.iter().all(|one| one["pid"] == own && one["command"].is_string()), "{list:?}");
    }
    let picture = daemon.folder.0.join("picture.svg");
    let picture = ["watch", "--picture", picture.to_str().unwrap(), "--after", "0.1"];
    for args in [&["counters"][..], &["devices"], &picture] {
        daemon.shown(args);
    }
}
