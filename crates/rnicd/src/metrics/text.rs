//! The text.

use rnic_host::counters::{GAUGES, meanings};
use rnic_host::inspect::Numbers;
use rnic_host::report::Totals;
use rnic_host::server::Service;
use std::fmt::Write;

pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All numbers of the device.
pub(super) fn render(service: &Service, counted: &Numbers, totals: Totals) -> String {
    let port = service.network.port();
    let about = Labels { device: &service.device.name, netdev: service.device.netdev.as_deref() };
    of(&about, counted, totals, port.active)
}

/// What tells one device from another.
struct Labels<'a> {
    device: &'a str,
    netdev: Option<&'a str>,
}

fn of(labels: &Labels<'_>, counted: &Numbers, totals: Totals, is_active: bool) -> String {
    let device = escaped(labels.device);
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "# TYPE soft_rnic info\n# HELP soft_rnic The device.\n\
         soft_rnic_info{{device=\"{device}\",netdev=\"{}\",version=\"{}\"}} 1\n\
         # TYPE soft_rnic_port_active gauge\n\
         # HELP soft_rnic_port_active Whether the port can send (1).\n\
         soft_rnic_port_active{{device=\"{device}\"}} {}\n\
         # TYPE soft_rnic_objects gauge\n\
         # HELP soft_rnic_objects Objects that programs have.\n",
        escaped(labels.netdev.unwrap_or_default()),
        env!("CARGO_PKG_VERSION"),
        u8::from(is_active),
    );
    for (kind, count) in [("qp", totals.qps), ("cq", totals.cqs), ("mr", totals.mrs)] {
        let _ = writeln!(text, "soft_rnic_objects{{device=\"{device}\",kind=\"{kind}\"}} {count}");
    }
    for (name, meaning) in GAUGES {
        let Some(number) = counted.get(*name) else { continue };
        let _ = write!(
            text,
            "# TYPE soft_rnic_{name} gauge\n# HELP soft_rnic_{name} {}\n\
             soft_rnic_{name}{{device=\"{device}\"}} {number}\n",
            escaped(meaning)
        );
    }
    for (name, meaning) in meanings() {
        let Some(number) = counted.get(name) else { continue };
        let _ = write!(
            text,
            "# TYPE soft_rnic_{name} counter\n# HELP soft_rnic_{name} {}\n\
             soft_rnic_{name}_total{{device=\"{device}\"}} {number}\n",
            escaped(meaning)
        );
    }
    text += "# EOF\n";
    text
}

/// A label's value or a text of help.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_has_type_help_and_value() {
        let labels = Labels { device: "rnic0", netdev: Some("e\"0") };
        let counted = Numbers::from([("tx_packets".into(), 7), ("no_such_counter".into(), 1)]);
        let text = of(&labels, &counted, Totals { qps: 3, cqs: 2, mrs: 1 }, true);
        let wanted = "# TYPE soft_rnic_tx_packets counter\n\
                      # HELP soft_rnic_tx_packets Datagrams sent.\n\
                      soft_rnic_tx_packets_total{device=\"rnic0\"} 7\n# EOF\n";
        assert!(text.ends_with(wanted), "{text}");
        assert!(text.contains("netdev=\"e\\\"0\"") && !text.contains("no_such_counter"), "{text}");
        assert!(text.contains("soft_rnic_objects{device=\"rnic0\",kind=\"qp\"} 3\n"), "{text}");
    }

    #[test]
    fn the_dashboard_asks_for_what_there_is() {
        let labels = Labels { device: "rnic0", netdev: None };
        let counted = meanings().map(|(name, _)| (name.into(), 1)).collect();
        let text = of(&labels, &counted, Totals::default(), true);
        let dashboard = include_str!("../../../../docs/grafana.json");
        serde_json::from_str::<serde_json::Value>(dashboard).unwrap();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut asked = 0;
        for rest in dashboard.split("soft_rnic_").skip(1) {
            let name = rest.split(|c| !is_part(c)).next().unwrap();
            assert!(text.contains(&format!("\nsoft_rnic_{name}{{")), "no metric {name}");
            asked += 1;
        }
        assert!(asked > 20, "{asked}");
    }
}
