//! `rnic status|devices|qp|mr|cq|counters`.

use super::Target;
use super::client::{Client, Places};
use super::table::{Column, Show, cell, render};
use anyhow::Result;
use rnic_abi::control::Inspect;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// Columns of `rnic qp`.
pub(super) const QP: &[Column] = &[
    ("QPN", "qpn", Show::Hex(6)),
    ("TYPE", "type", Show::Plain),
    ("STATE", "state", Show::Plain),
    ("DEST-QPN", "dest_qpn", Show::Hex(6)),
    ("DGID", "dgid", Show::Plain),
    ("MTU", "path_mtu", Show::Plain),
    ("OUTSTANDING", "outstanding", Show::Plain),
    ("UNACKED-PSN", "una", Show::Hex(6)),
    ("NEXT-PSN", "next_psn", Show::Hex(6)),
    ("EXPECTED-PSN", "expected_psn", Show::Hex(6)),
    ("PID", "pid", Show::Plain),
    ("COMMAND", "command", Show::Plain),
];

/// Columns of `rnic mr`.
pub(super) const MR: &[Column] = &[
    ("MR", "mr", Show::Plain),
    ("KEY", "key", Show::Hex(8)),
    ("ADDRESS", "iova", Show::Hex(12)),
    ("LENGTH", "length", Show::Plain),
    ("ACCESS", "access", Show::Plain),
    ("MEMORY", "memory", Show::Plain),
    ("PD", "pd", Show::Plain),
    ("PID", "pid", Show::Plain),
    ("COMMAND", "command", Show::Plain),
];

/// Columns of `rnic cq`.
pub(super) const CQ: &[Column] = &[
    ("CQ", "cq", Show::Plain),
    ("CQES", "capacity", Show::Plain),
    ("WRITTEN", "written", Show::Plain),
    ("POLLED", "polled", Show::Plain),
    ("QUEUES", "queues", Show::Plain),
    ("BROKEN", "broken", Show::Plain),
    ("PID", "pid", Show::Plain),
    ("COMMAND", "command", Show::Plain),
];

/// A value as JSON text.
pub(super) fn json(value: &Value) -> Result<String> {
    Ok(serde_json::to_string_pretty(value)?)
}

/// A session with the daemon. People are told which it is, as there may be several.
fn connect(target: &Target) -> Result<Client> {
    let client = Client::connect(target.place.socket.as_deref())?;
    if !target.json {
        client.tell();
    }
    Ok(client)
}

/// Objects as a table, each with the process that made it.
pub(super) fn list(target: &Target, what: Inspect, columns: &[Column]) -> Result<String> {
    let client = connect(target)?;
    let mut found = client.inspect(what)?;
    let status = client.inspect(Inspect::Status)?;
    let objects = found.as_array_mut().map_or(&mut [][..], Vec::as_mut_slice);
    for object in &mut *objects {
        let sessions = status["sessions"].as_array().into_iter().flatten();
        let maker = sessions.into_iter().find(|session| session["client"] == object["client"]);
        for key in ["pid", "command"] {
            object[key] = maker.map_or(Value::Null, |session| session[key].clone());
        }
    }
    Ok(if target.json { json(&found)? } else { render(columns, objects) })
}

/// Counters that are not zero, or all of them as JSON.
pub(super) fn counters(target: &Target) -> Result<String> {
    let found = connect(target)?.inspect(Inspect::Counters)?;
    if target.json {
        return json(&found);
    }
    let counted: Vec<Value> = found
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, value)| value.as_u64() != Some(0))
        .map(|(name, value)| json!({ "name": name, "value": value }))
        .collect();
    Ok(render(&[("COUNTER", "name", Show::Plain), ("VALUE", "value", Show::Plain)], &counted))
}

/// The daemon.
pub(super) fn status(target: &Target) -> Result<String> {
    let client = Client::connect(target.place.socket.as_deref())?;
    let mut found = client.inspect(Inspect::Status)?;
    found["socket"] = json!(client.path);
    found["private"] = json!(client.is_private());
    Ok(if target.json { json(&found)? } else { describe(&found) })
}

fn describe(found: &Value) -> String {
    let get = |path: &str| found.pointer(path).map_or_else(|| "-".to_owned(), cell);
    let is = |path: &str| found.pointer(path) == Some(&Value::Bool(true));
    let list = |key: &str| found[key].as_array().map_or(&[][..], Vec::as_slice);
    let gids: Vec<String> = list("gids")
        .iter()
        .map(|gid| format!("{}: {}", cell(&gid["index"]), cell(&gid["address"])))
        .collect();
    let up = Duration::from_secs(found["uptime_seconds"].as_u64().unwrap_or(0));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "rnicd {}, process {}, up {}, socket {}{}\n\
         device {}, interface {}, packet I/O {}, profile {}\n\
         port {}, path MTU {}, interface MTU {}\n\
         GIDs {}\n\
         resources: qp {}, cq {}, mr {}\n\n",
        get("/version"),
        get("/pid"),
        duration(up),
        get("/socket"),
        if is("/private") { " (private to `rnic run`)" } else { "" },
        get("/device"),
        get("/netdev"),
        get("/io"),
        get("/profile"),
        if is("/port/active") { "active" } else { "down" },
        get("/port/active_mtu"),
        get("/port/netdev_mtu"),
        if gids.is_empty() { "-".to_owned() } else { gids.join(", ") },
        get("/totals/qps"),
        get("/totals/cqs"),
        get("/totals/mrs"),
    );
    let columns = [("PID", "pid"), ("UID", "uid"), ("COMMAND", "command")];
    text += &render(&columns.map(|(title, key)| (title, key, Show::Plain)), list("sessions"));
    text
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

/// Devices of every daemon that answers.
pub(super) fn devices(target: &Target) -> Result<String> {
    let places = Places::new(target.place.socket.as_deref()).and_private();
    let clients: Vec<_> = places.paths.iter().filter_map(|path| Client::at(path).ok()).collect();
    if clients.is_empty() {
        places.first().map_err(|tried| places.explain(&tried))?;
    }
    let mut rows = Vec::new();
    for client in &clients {
        let profile = client.inspect(Inspect::Status)?["profile"].clone();
        for device in client.devices()? {
            let guid: Vec<_> = device
                .node_guid
                .chunks(2)
                .map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]))
                .collect();
            rows.push(json!({
                "device": device.name,
                "netdev": device.netdev,
                "profile": profile,
                "node_guid": guid.join(":"),
                "fw_version": device.fw_version,
                "socket": client.path,
            }));
        }
    }
    if target.json {
        return json(&Value::Array(rows));
    }
    let columns = [
        ("DEVICE", "device"),
        ("INTERFACE", "netdev"),
        ("PROFILE", "profile"),
        ("NODE GUID", "node_guid"),
        ("SOCKET", "socket"),
    ];
    Ok(render(&columns.map(|(title, key)| (title, key, Show::Plain)), &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_begins_with_its_largest_unit() {
        let text = |seconds| duration(Duration::from_secs(seconds));
        assert_eq!(text(0), "0s");
        assert_eq!(text(59), "59s");
        assert_eq!(text(3600), "1h 0m 0s");
        assert_eq!(text(90_061), "1d 1h 1m 1s");
    }
}
