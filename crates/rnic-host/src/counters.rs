//! What the counters around an engine mean; those of the engine itself are in
//! [`rnic_core::Counters`].

use rnic_core::Counters;
use rnic_core::cm::CmCounters;

/// Every counter that a daemon may show, with its meaning. `docs/counters.md` has the same rows.
pub fn meanings() -> impl Iterator<Item = (&'static str, &'static str)> {
    Counters::MEANINGS.iter().chain(AROUND).chain(CmCounters::MEANINGS).copied()
}

/// What a daemon shows beside them, which goes up and down.
pub const GAUGES: &[(&str, &str)] = &[
    ("cm_ids", "Identifiers that programs have in the connection manager."),
    ("cm_listeners", "Those that listen."),
];

/// Those of the way between an engine and the network, and between engines.
const AROUND: &[(&str, &str)] = &[
    ("shard_rx_lost", "Datagrams for another engine that it did not take in time."),
    ("shard_rx_misled", "Datagrams for an engine that does not exist, or receives by itself."),
    (
        "driven_turns",
        "Turns that programs made of the engines in them, while they polled, posted or waited for completion events.",
    ),
    ("shard_tx_trains", "Trains that engine processes handed over."),
    ("shard_tx_lost", "Trains of engine processes for which the link had no room for long."),
    ("shard_tx_waited", "Turns of engine processes that ended because the link had no more room."),
    (
        "shard_cut_off_ring",
        "Engine processes ended for indexes in shared memory that make no sense.",
    ),
    (
        "shard_cut_off_wake_ups",
        "Engine processes ended for wake-ups without end and without trains.",
    ),
    ("loopback_trains", "Trains of datagrams that stayed within the device."),
    ("loopback_group_lost", "Datagrams to local members of a group that found no room."),
    ("link_rx_trains", "Reads from the link that brought datagrams (udp, af-packet)."),
    ("link_rx_frames", "Frames received (af-xdp)."),
    ("link_rx_bytes", "Bytes received from the link (udp, af-packet)."),
    ("link_rx_malformed", "Frames or datagrams that are no RoCEv2 datagram, or cut short."),
    ("link_rx_foreign_mac", "Frames for another MAC address (af-packet, af-xdp)."),
    (
        "link_rx_foreign_vlan",
        "Frames of a VLAN that has no interface on this host (af-packet, af-xdp).",
    ),
    ("link_rx_foreign_ip", "Datagrams for another IP address (af-packet)."),
    ("link_rx_errors", "Errors of the kernel on receiving."),
    ("link_rx_dropped", "Frames that the kernel dropped in front of the AF_XDP socket."),
    (
        "link_rx_no_buffer",
        "Datagrams that the kernel dropped because the engine did not read in time.",
    ),
    ("link_tx_trains", "Writes to the link, of one or more datagrams each (udp, af-packet)."),
    ("link_tx_frames", "Frames sent (af-xdp)."),
    ("link_tx_backpressure", "How often the link took no more, so that the engine had to wait."),
    ("link_tx_errors", "Writes that the kernel refused."),
    ("link_tx_no_route", "Datagrams that no link can send: there is none to that address."),
    (
        "link_bind_failed",
        "Attempts to serve an address by a socket that failed; they are repeated (udp).",
    ),
    (
        "link_reopen_failed",
        "Times that the link could not be opened on an interface that was made anew.",
    ),
    (
        "local_rx_trains",
        "Reads from the sockets to other engines of this host that brought datagrams (beside af-packet, af-xdp).",
    ),
    ("local_rx_bytes", "Bytes received from those sockets."),
    ("local_rx_malformed", "Datagrams from those sockets that were cut short."),
    ("local_rx_errors", "Errors of the kernel on receiving from those sockets."),
    (
        "local_rx_no_buffer",
        "Datagrams that the kernel dropped because the engine did not read those sockets in time (beside af-xdp).",
    ),
    ("local_tx_trains", "Writes to those sockets, of one or more datagrams each."),
    (
        "local_tx_backpressure",
        "How often those sockets took no more, so that the engine had to wait.",
    ),
    ("local_tx_errors", "Writes to those sockets that the kernel refused."),
    ("local_bind_failed", "Attempts to open those sockets that failed; they are repeated."),
    ("fault_dropped", "Datagrams dropped by `rnic fault`."),
    ("fault_duplicated", "Datagrams doubled by `rnic fault`."),
    ("fault_reordered", "Datagrams that `rnic fault` let others overtake."),
    ("fault_delayed", "Datagrams delayed by `rnic fault`."),
    ("fault_corrupted", "Datagrams in which `rnic fault` flipped a bit."),
    ("fault_marked", "Datagrams that `rnic fault` marked with congestion."),
    ("fault_refused", "Acknowledgements that `rnic fault` made refusals (rnr, nak)."),
    ("fault_cq_errors", "Datagrams at which `rnic fault` broke a completion queue."),
    (
        "fault_no_room",
        "Datagrams that `rnic fault` passed on unharmed, or lost, because too many were kept back.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use rnic_core::QpCounters;
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::{env, fs};

    /// Counters are pairs of a name and a number in the source of links and engines.
    fn named_in(folder: &Path, names: &mut BTreeSet<String>) {
        const PREFIXES: [&str; 8] = [
            "local_",
            "link_",
            "fault_",
            "loopback_",
            "shard_rx_",
            "shard_tx_",
            "shard_cut_off_",
            "driven_",
        ];
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                named_in(&path, names);
            } else {
                let text = fs::read_to_string(&path).unwrap();
                let begins = |word: &&str| PREFIXES.iter().any(|prefix| word.starts_with(prefix));
                names.extend(text.split("(\"").skip(1).filter(begins).filter_map(|rest| {
                    let (name, _) = rest.split_once("\", ")?;
                    // What only tests compare is no pair.
                    let is_name = !name.contains(['"', ' ']);
                    is_name.then(|| name.to_owned())
                }));
            }
        }
    }

    #[test]
    fn every_counter_has_a_meaning() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut named = BTreeSet::new();
        named_in(&source.join("wire"), &mut named);
        named_in(&source.join("shard"), &mut named);
        let explained: BTreeSet<_> = AROUND.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(named, explained);
        let core: Vec<_> = Counters::default().iter().map(|(name, _)| name).collect();
        let explained: Vec<_> = Counters::MEANINGS.iter().map(|(name, _)| *name).collect();
        assert_eq!(core, explained);
    }

    /// Names and meanings in the tables of a part of the document.
    fn rows(part: &str) -> BTreeSet<(&str, &str)> {
        let rows = part.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"));
        let cells = rows.filter_map(|row| {
            let mut cells = row.split(" | ");
            Some((cells.next()?.trim_end_matches('`'), cells.next()?))
        });
        cells.collect()
    }

    #[test]
    fn the_document_says_what_the_code_says() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/counters.md");
        let text = fs::read_to_string(path).unwrap();
        let (port, qp) = text.split_once("## Of a queue pair").unwrap();
        assert_eq!(rows(port), meanings().chain(GAUGES.iter().copied()).collect());
        assert_eq!(rows(qp), QpCounters::MEANINGS.iter().copied().collect());
    }
}
