//! What `rnic status|qp|mr|cq|counters` show, as JSON.

use crate::dma::SystemDma;
use crate::shard::Port;
use rnic_abi::control::Inspect;
use rnic_abi::verbs::AccessFlags;
use rnic_core::{CqView, Engine, QpView};
use serde_json::{Map, Value, json};
use std::net::Ipv6Addr;

/// The objects of one engine: an array's worth of values, or one object for counters.
pub(crate) fn engine(
    engine: &Engine,
    dma: &SystemDma,
    wire: &mut Port,
    lost: u64,
    what: Inspect,
) -> Vec<Value> {
    match what {
        Inspect::Status => vec![totals(engine)],
        Inspect::Qps => engine.qps().map(|view| qp(&view)).collect(),
        Inspect::Cqs => engine.cqs().map(|view| cq(&view)).collect(),
        Inspect::Mrs => engine
            .mrs()
            .map(|(mr, region)| {
                json!({
                    "mr": mr,
                    "client": region.mr.client.0,
                    "pd": region.mr.pd,
                    "iova": region.mr.iova,
                    "length": region.mr.length,
                    "key": region.key,
                    "access": access(region.mr.access),
                    "memory": if dma.is_mapped(region.mr.space) { "shared" } else { "process" },
                })
            })
            .collect(),
        Inspect::Counters => {
            let mut all: Map<String, Value> =
                engine.counters().iter().map(|(name, value)| (name.into(), value.into())).collect();
            all.insert("shard_rx_lost".into(), lost.into());
            all.extend(wire.counters().into_iter().map(|(name, n)| (name.into(), n.into())));
            vec![Value::Object(all)]
        }
    }
}

fn totals(engine: &Engine) -> Value {
    json!({
        "qps": engine.qps().count(),
        "cqs": engine.cqs().count(),
        "mrs": engine.mrs().count(),
    })
}

fn qp(view: &QpView) -> Value {
    let attr = &view.attr;
    // Set on the way to RTR.
    let peer = Some(attr).filter(|attr| attr.path_mtu != 0);
    json!({
        "qp": view.qp,
        "qpn": view.qpn,
        "client": view.client.0,
        "type": format!("{:?}", view.qp_type).to_uppercase(),
        "state": format!("{:?}", attr.state).to_uppercase(),
        "dest_qpn": peer.map(|attr| attr.dest_qpn),
        "dgid": peer.map(|attr| Ipv6Addr::from(attr.ah.dgid).to_canonical().to_string()),
        "path_mtu": peer.map(|attr| 128u32 << attr.path_mtu),
        "outstanding": view.outstanding,
        "una": view.in_flight.0,
        "next_psn": view.in_flight.1,
        "expected_psn": view.expected_psn,
        "timeout": attr.timeout,
        "retry_cnt": attr.retry_cnt,
        "send_cq": view.cqs.0,
        "recv_cq": view.cqs.1,
        "counters": serde_json::to_value(view.counters).unwrap_or_default(),
    })
}

/// The rights as verbs call them, without `IBV_ACCESS_`.
fn access(flags: AccessFlags) -> Vec<String> {
    flags.iter_names().map(|(name, _)| name.to_lowercase()).collect()
}

fn cq(view: &CqView) -> Value {
    json!({
        "cq": view.cq,
        "client": view.client.0,
        "capacity": view.capacity,
        "written": view.written,
        "polled": view.polled,
        "queues": view.users,
        "broken": view.broken,
    })
}

/// What all engines have together: lists one after the other, numbers added up.
pub(crate) fn join(what: Inspect, found: Vec<Vec<Value>>) -> Vec<Value> {
    let all = found.into_iter().flatten();
    if !matches!(what, Inspect::Status | Inspect::Counters) {
        return all.collect();
    }
    let mut sums: Map<String, Value> = Map::new();
    for (name, value) in all
        .filter_map(|value| match value {
            Value::Object(object) => Some(object),
            _ => None,
        })
        .flatten()
    {
        let sum = sums.entry(name).or_insert(json!(0));
        *sum = json!(sum.as_u64().unwrap_or(0) + value.as_u64().unwrap_or(0));
    }
    vec![Value::Object(sums)]
}
