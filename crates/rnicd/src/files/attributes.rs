//! What each file says, as the kernel's documentation of sysfs-class-infiniband has it.

use super::LIFESPAN;
use crate::counted::Counted;
use rnic_abi::control::PortInfo;
use rnic_host::inspect::Numbers;
use rnic_host::server::Service;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The device, and what its counters were when last asked.
pub(super) struct Attributes {
    service: Arc<Service>,
    device: PathBuf,
    /// The interface it is on.
    netdev: Option<String>,
    counted: Counted,
    /// What was told of the counters last.
    told: Numbers,
}

impl Attributes {
    pub(super) fn new(service: &Arc<Service>) -> Self {
        let device = Path::new("sys/class/infiniband").join(&service.device.name);
        let of_first_address =
            || xdp_io::netdev::name(service.network.gids().first()?.ifindex).ok();
        let netdev = service.device.netdev.clone().or_else(of_first_address);
        let (counted, told) = (Counted::new(service), Numbers::new());
        Self { service: Arc::clone(service), device, netdev, counted, told }
    }

    /// Links, and where they lead.
    pub(super) fn links(&self) -> Vec<(PathBuf, PathBuf)> {
        let mut links = vec![
            ("dev/infiniband/uverbs0".into(), "../null".into()),
            ("sys/class/infiniband_verbs/uverbs0/device".into(), self.device_of_verbs()),
        ];
        if let Some(netdev) = &self.netdev {
            let class = Path::new("/sys/class/net").join(netdev);
            links.push((self.device.join("device/net").join(netdev), class));
        }
        links
    }

    /// From the file of the verbs to that of the device.
    fn device_of_verbs(&self) -> PathBuf {
        Path::new("../../infiniband").join(&self.service.device.name).join("device")
    }

    /// What the files have now, but for the counters.
    pub(super) fn now(&self) -> BTreeMap<OsString, String> {
        let mut files = Lines::default();
        self.verbs(&mut files);
        self.hardware(&mut files);
        self.port(&mut files);
        self.gids(&mut files);
        files.0
    }

    /// The counters that have changed since the last call; all of them at the first.
    pub(super) fn changed_counters(&mut self) -> BTreeMap<OsString, String> {
        let mut files = Lines::default();
        let port = self.device.join("ports/1");
        let is_first = self.told.is_empty();
        let counted = self.counted.now();
        let changed = |name: &str| counted.get(name).filter(|now| self.told.get(name) != Some(now));
        for (name, from) in PORT_COUNTERS {
            let now = from.and_then(|(from, unit)| Some(changed(from)? / unit));
            if let Some(number) = now.or(is_first.then_some(0)) {
                files.line(port.join("counters").join(name), number);
            }
        }
        for (name, number) in counted.iter().filter(|(name, _)| changed(name).is_some()) {
            files.line(port.join("hw_counters").join(name.as_ref()), number);
        }
        if is_first {
            files.line(port.join("hw_counters/lifespan"), LIFESPAN.as_millis());
        }
        if !files.0.is_empty() {
            self.told.clone_from(counted);
        }
        files.0
    }

    /// Not all of what was told was written.
    pub(super) fn tell_all_again(&mut self) {
        self.told.clear();
    }

    fn verbs(&self, files: &mut Lines) {
        let class = Path::new("sys/class/infiniband_verbs");
        files.line(class.join("abi_version"), 6);
        files.line(class.join("uverbs0/abi_version"), 1);
        files.line(class.join("uverbs0/ibdev"), &self.service.device.name);
        // `ibstat` looks for the version before it looks for devices.
        files.line("sys/class/infiniband_mad/abi_version", 5);
    }

    fn hardware(&self, files: &mut Lines) {
        let info = &self.service.device;
        let guid = quads(&info.node_guid);
        files.line(self.device.join("node_type"), "1: CA");
        files.line(self.device.join("node_guid"), &guid);
        files.line(self.device.join("sys_image_guid"), &guid);
        files.line(self.device.join("node_desc"), &info.name);
        files.line(self.device.join("fw_ver"), &info.fw_version);
        files.line(self.device.join("hca_type"), "soft-rnic");
        files.line(self.device.join("board_id"), "soft-rnic");
        files.line(self.device.join("hw_rev"), 0);
        let of_netdev = |attribute: &str| {
            let netdev = self.netdev.as_ref()?;
            let path = Path::new("/sys/class/net").join(netdev).join("device").join(attribute);
            fs::read_to_string(path).ok()
        };
        let cpus = || fs::read_to_string("/sys/devices/system/cpu/online").ok();
        let numa_node = of_netdev("numa_node").unwrap_or_else(|| "-1".into());
        files.line(self.device.join("device/numa_node"), numa_node.trim());
        let list = of_netdev("local_cpulist").or_else(cpus).unwrap_or_else(|| "0".into());
        let mask = of_netdev("local_cpus").unwrap_or_else(|| cpu_mask(list.trim()));
        files.line(self.device.join("device/local_cpulist"), list.trim());
        files.line(self.device.join("device/local_cpus"), mask.trim());
    }

    fn port(&self, files: &mut Lines) {
        let port = self.service.network.port();
        let (state, phys_state) =
            if port.active { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") };
        let mut line = |name: &str, value: &dyn Display| {
            files.line(self.device.join("ports/1").join(name), value);
        };
        line("state", &state);
        line("phys_state", &phys_state);
        line("rate", &rate(&port));
        line("link_layer", &"Ethernet");
        // An Ethernet port has no subnet manager that would give it these.
        line("lid", &"0x0");
        line("lid_mask_count", &0);
        line("sm_lid", &"0x0");
        line("sm_sl", &0);
        // CM supported, IP based GIDs.
        line("cap_mask", &"0x04010000");
        line("pkeys/0", &"0xffff");
    }

    fn gids(&self, files: &mut Lines) {
        let port = self.device.join("ports/1");
        let used = self.service.network.gids();
        for index in 0..self.service.network.port().gid_table_len {
            let entry = used.iter().find(|entry| entry.index == index);
            let gid = entry.map_or([0; 16], |entry| entry.gid);
            files.line(port.join(format!("gids/{index}")), quads(&gid));
            let Some(entry) = entry else { continue };
            let name = xdp_io::netdev::name(entry.ifindex).ok();
            files.line(port.join(format!("gid_attrs/types/{index}")), "RoCE v2");
            if let Some(name) = name.as_ref().or(self.netdev.as_ref()) {
                files.line(port.join(format!("gid_attrs/ndevs/{index}")), name);
            }
        }
    }
}

/// Files of one line, by their paths, which compare faster like this.
#[derive(Default)]
struct Lines(BTreeMap<OsString, String>);

impl Lines {
    fn line(&mut self, path: impl Into<PathBuf>, value: impl Display) {
        self.0.insert(path.into().into_os_string(), format!("{value}\n"));
    }
}

/// Groups of 16 bits as the kernel prints GUIDs and GIDs.
fn quads(bytes: &[u8]) -> String {
    let quads: Vec<String> = bytes
        .chunks_exact(2)
        .map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect())
        .collect();
    quads.join(":")
}

/// A list of CPUs as `0-3,8`, as the kernel's mask of 32-bit words: `10f`.
fn cpu_mask(list: &str) -> String {
    let mut words = vec![0_u32];
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<u16>(), last.parse::<u16>()) else { continue };
        for cpu in first..=last {
            let word = usize::from(cpu / u32::BITS as u16);
            words.resize(words.len().max(word + 1), 0);
            if let Some(word) = words.get_mut(word) {
                *word |= 1 << (cpu % u32::BITS as u16);
            }
        }
    }
    let words: Vec<String> = words.iter().rev().map(|word| format!("{word:08x}")).collect();
    words.join(",")
}

/// The link's speed in the words of the kernel, from the same codes as `ibv_query_port` tells.
fn rate(port: &PortInfo) -> String {
    let (width, speed) = port.width_and_speed();
    let lanes: u32 = if width == 1 { 1 } else { 4 };
    // Tenths of Gb/s of a lane.
    let (lane, name) = match speed {
        1 => (25, "SDR"),
        2 => (50, "DDR"),
        4 => (100, "QDR"),
        8 => (100, "FDR10"),
        32 => (250, "EDR"),
        64 => (500, "HDR"),
        _ => (1000, "NDR"),
    };
    let tenths = lanes * lane;
    let point = if tenths.is_multiple_of(10) { String::new() } else { format!(".{}", tenths % 10) };
    format!("{}{point} Gb/sec ({lanes}X {name})", tenths / 10)
}

/// Counters of the port, the engine's counter that has each, and its unit there: data is counted in
/// words of four bytes.
const PORT_COUNTERS: [(&str, Option<(&str, u64)>); 20] = [
    ("port_xmit_data", Some(("tx_bytes", 4))),
    ("port_rcv_data", Some(("rx_bytes", 4))),
    ("port_xmit_packets", Some(("tx_packets", 1))),
    ("port_rcv_packets", Some(("rx_packets", 1))),
    ("unicast_xmit_packets", Some(("tx_packets", 1))),
    ("unicast_rcv_packets", Some(("rx_packets", 1))),
    ("multicast_xmit_packets", None),
    ("multicast_rcv_packets", None),
    ("port_rcv_errors", Some(("rx_malformed", 1))),
    ("port_xmit_discards", Some(("link_tx_errors", 1))),
    ("port_xmit_wait", Some(("link_tx_backpressure", 1))),
    ("port_rcv_constraint_errors", None),
    ("port_rcv_remote_physical_errors", None),
    ("port_rcv_switch_relay_errors", None),
    ("port_xmit_constraint_errors", None),
    ("symbol_error", None),
    ("link_error_recovery", None),
    ("link_downed", None),
    ("local_link_integrity_errors", None),
    ("excessive_buffer_overrun_errors", None),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_of_the_kernel() {
        assert_eq!(quads(&[2, 0x72, 0x6e, 0xff, 0, 1, 2, 3]), "0272:6eff:0001:0203");
        assert_eq!(cpu_mask("0-1"), "00000003");
        assert_eq!(cpu_mask("0-3,8"), "0000010f");
        assert_eq!(cpu_mask("31-32"), "00000001,80000000");
        assert_eq!(cpu_mask("nonsense"), "00000000");
        let rate = |speed_mbps| {
            let (active, max_mtu, active_mtu) = (true, 5, 3);
            let (netdev_mtu, gid_table_len) = (1500, 1);
            rate(&PortInfo { active, max_mtu, active_mtu, netdev_mtu, gid_table_len, speed_mbps })
        };
        assert_eq!(rate(1_000), "2.5 Gb/sec (1X SDR)");
        assert_eq!(rate(10_000), "10 Gb/sec (1X FDR10)");
        assert_eq!(rate(100_000), "100 Gb/sec (4X EDR)");
    }
}
