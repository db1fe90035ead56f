//! What is said of a node's packets while it is observed, and whether all of it agrees.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use system_tests::inspect::ask;
use system_tests::lab::Lab;
use system_tests::observer::Observer;
use system_tests::paths::Scratch;
use system_tests::place::Node;
use system_tests::process::{Cmd, wait_until};

use crate::SOON;

/// Reasons of packets that are dropped before their queue pair checks them.
const EARLY: [&str; 9] = [
    "malformed",
    "icrc",
    "no_qp",
    "no_member",
    "transport",
    "qp_state",
    "p_key",
    "address",
    "q_key",
];

/// Everything that is said of the packets of one node, while it is observed.
pub(crate) struct Account {
    /// What its counters grew by.
    counters: BTreeMap<String, u64>,
    pub(crate) events: Vec<Value>,
    /// Whether outgoing, and the comment, of each frame.
    frames: Vec<(bool, String)>,
    pub(crate) faults: Vec<Value>,
    /// What `rnic explain` says of the capture.
    explained: Value,
    /// The story of the page that it makes.
    page: Value,
}

pub(crate) fn counters(node: &Node) -> Result<BTreeMap<String, u64>> {
    let counted = ask(node, "counters")?;
    let counted = counted.as_object().context("no counters")?;
    Ok(counted.iter().filter_map(|(name, n)| Some((name.clone(), n.as_u64()?))).collect())
}

/// The counters, once no packet is on its way.
fn settled(node: &Node) -> Result<BTreeMap<String, u64>> {
    let mut last = counters(node)?;
    wait_until("the last packet", SOON, || {
        std::thread::sleep(Duration::from_millis(100));
        let now = counters(node)?;
        let same = now == last;
        last = now;
        Ok(same)
    })?;
    counters(node)
}

impl Account {
    /// Of `act`, disturbed by `faults`.
    pub(crate) fn of(
        lab: &Lab,
        node: &Node,
        faults: &[&str],
        scratch: &Scratch,
        act: impl FnOnce() -> Result<()>,
    ) -> Result<Self> {
        node.rnic(&["fault", "clear"]).check()?;
        let before = settled(node)?;
        let capture = Observer::start(node, &["capture"], scratch.join("x.pcapng"))?;
        let trace = Observer::start(node, &["trace"], scratch.join("x.json"))?;
        node.rnic(&[&["fault", "add", "--seed", "7"], faults].concat()).check()?;
        act()?;
        let after = settled(node)?;
        let list = node.rnic(&["fault", "list", "--json"]).check()?;
        let (trace, said) = trace.stop()?;
        ensure!(!said.contains("lost"), "{said}");
        let (capture, said) = capture.stop()?;
        ensure!(!said.contains("lost"), "{said}");
        let growth = |(name, now): (String, u64)| {
            let before = before.get(&name).copied().unwrap_or(0);
            (name, now - before)
        };
        let name = capture.to_str().context("a name of ours")?;
        let html = scratch.join("x.html");
        let page = html.to_str().context("a name of ours")?;
        let explained = node.rnic(&["explain", "--json", "--html", page, name]).check()?;
        let account = Self {
            counters: after.into_iter().map(growth).collect(),
            events: lines(&trace)?,
            frames: commented(lab, &capture)?,
            faults: serde_json::from_str(&list)?,
            explained: serde_json::from_str(&explained)?,
            page: story_of(&fs::read_to_string(html)?)?,
        };
        fs::remove_file(capture)?;
        fs::remove_file(trace)?;
        Ok(account)
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    pub(crate) fn events(&self, is_wanted: impl Fn(&Value) -> bool) -> u64 {
        self.events.iter().filter(|event| is_wanted(event)).count() as u64
    }

    pub(crate) fn frames(&self, is_wanted: impl Fn(bool, &str) -> bool) -> u64 {
        self.frames.iter().filter(|(out, comment)| is_wanted(*out, comment)).count() as u64
    }

    /// Checks that all agree. `looped` packets are sent and received by the same device.
    pub(crate) fn check(&self, looped: bool) -> Result<()> {
        same("fault_no_room", self.counter("fault_no_room"), 0)?;
        let struck = |kind: &str, sent: bool| {
            let faults = self.faults.iter();
            let of_kind = faults.filter(|fault| fault["kind"] == kind && fault["sent"] == sent);
            of_kind.filter_map(|fault| fault["struck"].as_u64()).sum::<u64>()
        };
        let sent = self.events(|e| e["event"] == "sent");
        let received = self.events(|e| {
            e["event"] == "received"
                || (e["event"] == "dropped" && EARLY.iter().any(|early| e["reason"] == *early))
        });
        same("tx_packets", self.counter("tx_packets"), sent)?;
        same("rx_packets", self.counter("rx_packets"), received)?;
        let again = self.events(|e| e["event"] == "sent" && e["retransmit"] == true);
        same("retransmitted_packets", self.counter("retransmitted_packets"), again)?;
        same("sent again", again, self.frames(|_, text| text.contains("sent again")))?;
        let early =
            |text: &str| EARLY.iter().any(|reason| text.contains(&format!("dropped: {reason}")));
        // A flipped bit may be in the headers that tie a frame to its events.
        let corrupted = struck("corrupt", false) + struck("corrupt", true);
        let (wanted, found) =
            (self.counter("rx_icrc_encapsulated"), self.frames(|_, text| early(text)));
        ensure!(found <= wanted && wanted <= found + corrupted, "{found} of {wanted} bad ICRCs");
        let (dropped, doubled) = (struck("drop", false), struck("duplicate", false));
        let arrived = received + dropped - doubled;
        let left = sent + struck("duplicate", true);
        let (out, into) = (self.frames(|out, _| out), self.frames(|out, _| !out));
        if looped {
            same("frames", out, arrived + struck("drop", true))?;
            same("looped frames", out, left)?;
        } else {
            same("outgoing frames", out, left)?;
            same("incoming frames", into, arrived)?;
        }
        for fault in &self.faults {
            let (number, kind) = (&fault["fault"], fault["kind"].as_str().unwrap_or_default());
            let struck = fault["struck"].as_u64().unwrap_or(0);
            let events = self.events(|e| e["event"] == "fault" && e["fault"] == *number);
            same(&format!("events of {kind}"), struck, events)?;
            let text = format!("fault {number}: {kind}");
            same(
                &format!("comments of {kind}"),
                struck,
                self.frames(|_, all| all.contains(&text)),
            )?;
        }
        for (counter, kind) in [
            ("fault_dropped", "drop"),
            ("fault_duplicated", "duplicate"),
            ("fault_reordered", "reorder"),
            ("fault_delayed", "delay"),
            ("fault_corrupted", "corrupt"),
        ] {
            same(counter, self.counter(counter), struck(kind, false) + struck(kind, true))?;
        }
        let refusals = ["rnr", "nak"].map(|kind| struck(kind, false) + struck(kind, true));
        same("fault_refused", self.counter("fault_refused"), refusals.iter().sum())?;
        Ok(())
    }
}

impl Account {
    /// Steps of the page of which something is said.
    fn steps(&self, text: &str) -> Vec<&Value> {
        let says = |step: &&Value| {
            let said = step["text"].as_array().into_iter().flatten().filter_map(Value::as_str);
            said.into_iter().any(|said| said.contains(text))
        };
        self.page["steps"].as_array().into_iter().flatten().filter(says).collect()
    }

    /// Those among them with a PSN.
    pub(crate) fn steps_of(&self, psn: u64, text: &str) -> Vec<&Value> {
        let psn = format!("{psn:#08x}");
        let has = |step: &&Value| {
            let fields = step["blocks"][0]["fields"].as_array().into_iter().flatten();
            fields.into_iter().any(|field| field["name"] == "BTH PSN" && field["value"] == *psn)
        };
        self.steps(text).into_iter().filter(has).collect()
    }

    /// Checks that the page shows each packet that was disturbed or sent again.
    pub(crate) fn page_agrees(&self) -> Result<()> {
        let again = self.steps("sent again").len() as u64;
        same("sent again on the page", self.counter("retransmitted_packets"), again)?;
        for fault in &self.faults {
            let (number, kind) = (&fault["fault"], fault["kind"].as_str().unwrap_or_default());
            let steps = self.steps(&format!("fault {number}: {kind}"));
            let struck = fault["struck"].as_u64().unwrap_or(0);
            same(&format!("{kind} on the page"), struck, steps.len() as u64)?;
        }
        Ok(())
    }
}

/// The data of a page.
fn story_of(html: &str) -> Result<Value> {
    let (_, data) = html.split_once("id=\"story\">").context("a page has a story")?;
    let (data, _) = data.split_once("</script>").context("a story has an end")?;
    Ok(serde_json::from_str(data)?)
}

/// A number of each direction of each connection in what `rnic explain` said, added up.
fn explained(account: &Account, pointer: &str) -> u64 {
    let connections = account.explained["connections"].as_array();
    let directions = connections.into_iter().flatten().flat_map(|of| of["sent"].as_array());
    directions.flatten().filter_map(|sent| sent.pointer(pointer)?.as_u64()).sum()
}

/// One packet was lost on its way from `sender`: what `rnic explain` reads from its capture is what
/// happened.
pub(crate) fn explains_one_loss(sender: &Account) -> Result<()> {
    // Segments of a UDP train have the IP identifications 0, 1, 2, which tell nothing of a packet
    // that is sent twice within milliseconds. The comments of the capture do.
    same("copies", 0, explained(sender, "/copies_made_by_the_network"))?;
    let again = explained(sender, "/repeated");
    same("sent again", sender.counter("retransmitted_packets"), again)?;
    let rewound = |cause: &str| sender.events(|e| e["event"] == "rewound" && e["cause"] == cause);
    let naks = explained(sender, "/went_back/after_sequence_nak");
    same("NAKs", rewound("sequence_nak"), naks)?;
    same("timeouts", rewound("timeout"), explained(sender, "/went_back/after_silence"))
}

pub(crate) fn same(what: &str, one: u64, other: u64) -> Result<()> {
    ensure!(one == other, "{what}: {one} is not {other}");
    Ok(())
}

/// The events of a trace.
fn lines(file: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(file)?;
    let mut lines = text.lines().map(|line| Ok(serde_json::from_str(line)?));
    let head: Value = lines.next().context("no head")??;
    ensure!(head["schema"] == 1 && head["device"] == "rnic0", "{head}");
    lines.collect()
}

/// Fields of each frame, as tshark reads the file.
pub(crate) fn fields(lab: &Lab, file: &Path, names: &[&str]) -> Result<Vec<Vec<String>>> {
    let names = names.iter().flat_map(|name| ["-e", name]);
    let text = Cmd::new(lab.tools.program("tshark")?)
        .arg("-r")
        .arg(file)
        .args(["--disable-protocol", "rpcordma", "-T", "fields", "-E", "separator=|"])
        .args(names)
        .limit(Duration::from_secs(60))
        .check()?;
    Ok(text.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect())
}

pub(crate) fn commented(lab: &Lab, file: &Path) -> Result<Vec<(bool, String)>> {
    let frames = fields(lab, file, &["frame.packet_flags_direction", "frame.comment"])?;
    Ok(frames.into_iter().map(|frame| (frame[0].ends_with('2'), frame[1].clone())).collect())
}
