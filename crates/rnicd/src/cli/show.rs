//! `rnic status|devices|qp|mr|cq`.

use super::client::{Client, Places};
use super::programs::Programs;
use super::table::{Cell, Column, render};
use super::{Target, tell};
use crate::for_people;
use anyhow::Result;
use rnic_abi::control::Inspect;
use rnic_host::report::{Cq, EnginePlace, Made, Mr, Qp, Session, Status, User};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

/// Columns of `rnic qp`.
pub(super) const QP: &[Column<Made<Qp>>] = &[
    ("QPN", |made| Cell::hex(made.object.qpn, 6)),
    ("TYPE", |made| Cell::from(&*made.object.transport)),
    ("STATE", |made| Cell::from(&*made.object.state)),
    ("DEST-QPN", |made| Cell::of(made.object.dest_qpn, |qpn| Cell::hex(qpn, 6))),
    ("DGID", |made| Cell::of(made.object.dgid.as_deref(), Cell::from)),
    ("MTU", |made| Cell::of(made.object.path_mtu, Cell::amount)),
    ("OUTSTANDING", |made| Cell::amount(made.object.outstanding)),
    ("UNACKED-PSN", |made| Cell::hex(made.object.una, 6)),
    ("NEXT-PSN", |made| Cell::hex(made.object.next_psn, 6)),
    ("EXPECTED-PSN", |made| Cell::hex(made.object.expected_psn, 6)),
    ("PID", pid),
    ("COMMAND", command),
];

/// Columns of `rnic mr`.
pub(super) const MR: &[Column<Made<Mr>>] = &[
    ("MR", |made| Cell::amount(made.object.mr)),
    ("KEY", |made| Cell::hex(made.object.key, 8)),
    ("ADDRESS", |made| Cell::hex(made.object.iova, 12)),
    ("LENGTH", |made| Cell::amount(made.object.length)),
    ("ACCESS", |made| Cell::names(&made.object.access)),
    ("MEMORY", |made| Cell::from(&*made.object.memory)),
    ("WINDOWS", |made| Cell::amount(made.object.windows)),
    ("PD", |made| Cell::amount(made.object.pd)),
    ("PID", pid),
    ("COMMAND", command),
];

/// Columns of `rnic cq`.
pub(super) const CQ: &[Column<Made<Cq>>] = &[
    ("CQ", |made| Cell::amount(made.object.cq)),
    ("CQES", |made| Cell::amount(made.object.capacity)),
    ("WRITTEN", |made| Cell::amount(made.object.written)),
    ("POLLED", |made| Cell::amount(made.object.polled)),
    ("QUEUES", |made| Cell::amount(made.object.queues)),
    ("BROKEN", |made| Cell::Text(made.object.broken.to_string())),
    ("PID", pid),
    ("COMMAND", command),
];

fn pid<T>(made: &Made<T>) -> Cell {
    Cell::of(made.pid, Cell::amount)
}

fn command<T>(made: &Made<T>) -> Cell {
    Cell::of(made.command.as_deref(), Cell::from)
}

/// A report as JSON text.
pub(super) fn json(report: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(report)?)
}

/// A session with the daemon. People are told which it is, as there may be several.
pub(super) fn connect(target: &Target) -> Result<Client> {
    let client = Client::connect(target.place.socket.as_deref())?;
    if !target.json {
        client.tell();
    }
    Ok(client)
}

/// Objects as a table, each with the process that made it.
pub(super) fn list<T: Serialize + DeserializeOwned>(
    target: &Target,
    what: Inspect,
    client_of: fn(&T) -> u32,
    columns: &[Column<Made<T>>],
) -> Result<String> {
    let client = connect(target)?;
    let found: Vec<T> = client.list(what)?;
    tell_of_silent(&client);
    let programs = Programs::of(&client).unwrap_or_else(|error| {
        tell(format_args!("rnic: the processes are not known: {}", for_people(&error)));
        Programs::default()
    });
    let made = found.into_iter().map(|object| {
        let client = client_of(&object);
        programs.made(object, client)
    });
    let made: Vec<_> = made.collect();
    Ok(if target.json { json(&made)? } else { render(columns, &made) })
}

/// A status, and where it came from.
#[derive(Serialize)]
struct Located<'a> {
    #[serde(flatten)]
    status: Status,
    sessions: Vec<Session>,
    socket: &'a Path,
    /// It was started by `rnic run`.
    private: bool,
}

/// The daemon.
pub(super) fn status(target: &Target) -> Result<String> {
    let client = Client::connect(target.place.socket.as_deref())?;
    let (status, sessions) = (client.inspect(Inspect::Status)?, client.list(Inspect::Sessions)?);
    let (socket, private) = (client.path.as_path(), client.is_private());
    let found = Located { status, sessions, socket, private };
    Ok(if target.json { json(&found)? } else { describe(&found) })
}

fn describe(found: &Located<'_>) -> String {
    let Located { status, sessions, socket, private } = found;
    let gids: Vec<String> =
        status.gids.iter().map(|gid| format!("{}: {}", gid.index, gid.address)).collect();
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "rnicd {}, process {}, up {}, socket {}{}\n\
         device {}, interface {}, packet I/O {}, profile {}\n\
         port {}, path MTU {}, interface MTU {}\n\
         GIDs {}\n\
         resources: qp {}, cq {}, mr {}\n\n",
        status.version,
        status.pid,
        duration(Duration::from_secs(status.uptime_seconds)),
        socket.display(),
        if *private { " (private to `rnic run`)" } else { "" },
        status.device,
        status.netdev.as_deref().unwrap_or("-"),
        status.io,
        status.profile,
        if status.port.active { "active" } else { "down" },
        status.port.active_mtu,
        status.port.netdev_mtu,
        if gids.is_empty() { "-".to_owned() } else { gids.join(", ") },
        status.totals.qps,
        status.totals.cqs,
        status.totals.mrs,
    );
    let columns: [Column<Session>; 3] = [
        ("PID", |session| Cell::amount(session.pid)),
        ("UID", |session| Cell::amount(session.uid)),
        ("COMMAND", |session| Cell::of(session.command.as_deref(), Cell::from)),
    ];
    text += &render(&columns, sessions);
    let columns: [Column<User>; 9] = [
        ("ENGINE", |user| Cell::amount(user.pid)),
        ("IN", |user| Cell::from(user.place.name())),
        ("UID", |user| Cell::amount(user.uid)),
        ("GID", |user| Cell::amount(user.gid)),
        ("SESSIONS", |user| Cell::amount(user.sessions)),
        ("SENT", |user| Cell::of(user.tx_bytes, Cell::amount)),
        ("RECEIVED", |user| Cell::of(user.rx_bytes, Cell::amount)),
        ("REFUSED", |user| Cell::of(user.handed_over, |all| Cell::amount(all.tx_refused))),
        ("LOST", |user| Cell::of(user.handed_over, |all| Cell::amount(all.rx_lost))),
    ];
    if !status.users.is_empty() {
        text.push('\n');
        text += &render(&columns, &status.users);
    }
    text + &silent(&status.users)
}

/// Says which engine processes do not answer. What was read from the others is shown in any case.
pub(super) fn tell_of_silent(client: &Client) {
    match client.inspect::<Status>(Inspect::Status) {
        Ok(status) => silent(&status.users).lines().for_each(tell),
        Err(error) => tell(format_args!("rnic: something may be missing: {}", for_people(&error))),
    }
}

/// A line for each engine process that did not answer: what it has is not shown.
fn silent(users: &[User]) -> String {
    let silent = users.iter().filter(|user| !user.answers);
    let line = |user: &User| {
        let User { pid, uid, .. } = user;
        let which = match user.place {
            EnginePlace::Process => format!("engine process {pid} of user {uid}"),
            EnginePlace::Program => format!("the engine in process {pid}"),
            EnginePlace::Daemon => format!("engine {} of the daemon", user.shard),
        };
        format!("{which} does not answer: what it has is missing here\n")
    };
    silent.map(line).collect()
}

/// `1d 2h 3m 4s`, from the largest unit that is not zero.
fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let parts = [
        (seconds / 86_400, "d"),
        (seconds / 3600 % 24, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
    ];
    let first = parts.iter().position(|(count, _)| *count > 0).unwrap_or(parts.len() - 1);
    parts[first..]
        .iter()
        .map(|(count, unit)| format!("{count}{unit}"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// A device of a daemon.
#[derive(Serialize)]
struct Device {
    device: String,
    netdev: Option<String>,
    profile: String,
    node_guid: String,
    fw_version: String,
    socket: String,
}

/// Devices of every daemon that answers.
pub(super) fn devices(target: &Target) -> Result<String> {
    let places = Places::new(target.place.socket.as_deref()).and_private();
    let (mut clients, mut tried) = (Vec::new(), Vec::new());
    for path in &places.paths {
        match Client::at(path) {
            Ok(client) => clients.push(client),
            Err(why) => tried.push((path.as_path(), why)),
        }
    }
    if clients.is_empty() {
        return Err(places.explain(&tried));
    }
    for (path, why) in tried.iter().filter(|(_, why)| why.there) {
        eprintln!("rnic: no devices of the daemon at {}: {why}", path.display());
    }
    let mut rows = Vec::new();
    for client in &clients {
        let status: Status = client.inspect(Inspect::Status)?;
        for device in client.devices()? {
            let guid: Vec<_> = device
                .node_guid
                .chunks(2)
                .map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]))
                .collect();
            rows.push(Device {
                device: device.name,
                netdev: device.netdev,
                profile: status.profile.clone(),
                node_guid: guid.join(":"),
                fw_version: device.fw_version,
                socket: client.path.display().to_string(),
            });
        }
    }
    if target.json {
        return json(&rows);
    }
    let columns: [Column<Device>; 5] = [
        ("DEVICE", |row| Cell::from(&*row.device)),
        ("INTERFACE", |row| Cell::of(row.netdev.as_deref(), Cell::from)),
        ("PROFILE", |row| Cell::from(&*row.profile)),
        ("NODE GUID", |row| Cell::from(&*row.node_guid)),
        ("SOCKET", |row| Cell::from(&*row.socket)),
    ];
    Ok(render(&columns, &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_process_that_does_not_answer_is_named() {
        let user = |uid, answers| User {
            uid,
            gid: 100,
            pid: 7 * uid,
            shard: 1,
            place: EnginePlace::Process,
            sessions: 1,
            answers,
            tx_bytes: None,
            rx_bytes: None,
            handed_over: None,
        };
        let text = silent(&[user(1000, true), user(1001, false)]);
        assert_eq!(text.lines().count(), 1);
        assert!(text.starts_with("engine process 7007 of user 1001 does not answer"), "{text}");
    }

    #[test]
    fn a_time_begins_with_its_largest_unit() {
        let text = |seconds| duration(Duration::from_secs(seconds));
        assert_eq!(text(0), "0s");
        assert_eq!(text(59), "59s");
        assert_eq!(text(3600), "1h 0m 0s");
        assert_eq!(text(90_061), "1d 1h 1m 1s");
    }
}
