//! `rnic status|devices|qp|mr|cq|counters`.

use super::Target;
use super::client::{Client, Places};
use super::table::{Column, cell, render};
use anyhow::Result;
use rnic_abi::control::Inspect;
use serde_json::{Value, json};

/// Columns of `rnic qp`.
pub(super) const QP: &[Column] = &[
    ("QPN", "qpn"),
    ("TYPE", "type"),
    ("STATE", "state"),
    ("DEST-QPN", "dest_qpn"),
    ("DGID", "dgid"),
    ("MTU", "path_mtu"),
    ("OUTSTANDING", "outstanding"),
    ("UNA", "una"),
    ("NEXT-PSN", "next_psn"),
    ("EXPECTED-PSN", "expected_psn"),
    ("CLIENT", "client"),
];

/// Columns of `rnic mr`.
pub(super) const MR: &[Column] = &[
    ("MR", "mr"),
    ("KEY", "key"),
    ("ADDRESS", "iova"),
    ("LENGTH", "length"),
    ("ACCESS", "access"),
    ("MEMORY", "memory"),
    ("PD", "pd"),
    ("CLIENT", "client"),
];

/// Columns of `rnic cq`.
pub(super) const CQ: &[Column] = &[
    ("CQ", "cq"),
    ("CQES", "capacity"),
    ("WRITTEN", "written"),
    ("POLLED", "polled"),
    ("QUEUES", "queues"),
    ("BROKEN", "broken"),
    ("CLIENT", "client"),
];

fn json(value: &Value) -> Result<String> {
    Ok(serde_json::to_string_pretty(value)?)
}

/// What the daemon has. People are told which daemon it is, as there may be several.
fn ask(target: &Target, what: Inspect) -> Result<Value> {
    let client = Client::connect(target.socket.as_deref())?;
    if !target.json {
        client.tell();
    }
    client.inspect(what)
}

/// Objects as a table.
pub(super) fn list(target: &Target, what: Inspect, columns: &[Column]) -> Result<String> {
    let found = ask(target, what)?;
    if target.json {
        return json(&found);
    }
    Ok(render(columns, found.as_array().map_or(&[], Vec::as_slice)))
}

/// Counters that are not zero, or all of them as JSON.
pub(super) fn counters(target: &Target) -> Result<String> {
    let found = ask(target, Inspect::Counters)?;
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
    Ok(render(&[("COUNTER", "name"), ("VALUE", "value")], &counted))
}

/// The daemon.
pub(super) fn status(target: &Target) -> Result<String> {
    let client = Client::connect(target.socket.as_deref())?;
    let mut found = client.inspect(Inspect::Status)?;
    found["socket"] = json!(client.path);
    found["private"] = json!(client.is_private());
    if target.json {
        return json(&found);
    }
    let get = |path: &str| found.pointer(path).map_or_else(|| "-".to_owned(), cell);
    let state =
        if found.pointer("/port/active") == Some(&Value::Bool(true)) { "active" } else { "down" };
    let empty = Vec::new();
    let gids: Vec<String> = found["gids"]
        .as_array()
        .unwrap_or(&empty)
        .iter()
        .map(|gid| format!("{}: {}", cell(&gid["index"]), cell(&gid["address"])))
        .collect();
    let mut text = format!(
        "rnicd {}, process {}, up {} s, socket {}{}\n\
         device {}, interface {}, packet I/O {}, profile {}\n\
         port {state}, path MTU {}, interface MTU {}\n\
         GIDs {}\n\
         {} queue pairs, {} completion queues, {} memory regions\n\n",
        get("/version"),
        get("/pid"),
        get("/uptime_seconds"),
        client.path.display(),
        if client.is_private() { " (private to `rnic run`)" } else { "" },
        get("/device"),
        get("/netdev"),
        get("/io"),
        get("/profile"),
        get("/port/active_mtu"),
        get("/port/netdev_mtu"),
        gids.join(", "),
        get("/totals/qps"),
        get("/totals/cqs"),
        get("/totals/mrs"),
    );
    let columns = [("PID", "pid"), ("UID", "uid"), ("COMMAND", "command"), ("CLIENT", "client")];
    text += &render(&columns, found["sessions"].as_array().unwrap_or(&empty));
    Ok(text)
}

/// Devices of every daemon that answers.
pub(super) fn devices(target: &Target) -> Result<String> {
    let places = Places::new(target.socket.as_deref()).and_private();
    let clients: Vec<_> = places.paths.iter().filter_map(|path| Client::at(path).ok()).collect();
    if clients.is_empty() {
        places.first().map_err(|tried| places.explain(&tried))?;
    }
    let mut rows = Vec::new();
    for client in &clients {
        let profile = client.inspect(Inspect::Status)?["profile"].clone();
        for device in client.devices()? {
            let guid = device.node_guid.map(|byte| format!("{byte:02x}")).concat();
            rows.push(json!({
                "device": device.name,
                "netdev": device.netdev,
                "profile": profile,
                "node_guid": guid,
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
    Ok(render(&columns, &rows))
}
