//! Choices that a user makes about a device.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Packet I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Io {
    /// The best that the interface and the privileges allow
    Auto,
    /// AF_XDP sockets: needs CAP_NET_RAW, CAP_BPF and CAP_NET_ADMIN
    AfXdp,
    /// AF_PACKET sockets: needs CAP_NET_RAW; much slower before Linux 6.2
    AfPacket,
    /// Kernel UDP sockets: needs no privilege
    Udp,
    /// No network: only queue pairs of this device reach each other
    Loopback,
}

/// How the XDP program is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum XdpMode {
    /// Zero-copy, else native, else generic
    Auto,
    /// In the driver, frames shared with the NIC
    ZeroCopy,
    /// In the driver, frames copied
    Native,
    /// In the network stack, works on every interface
    Generic,
}

/// What an idle engine does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Idle {
    /// Spin for --spin microseconds after the last work, then sleep
    Adaptive,
    /// Never sleep: lowest latency, one core always busy
    Busy,
    /// Sleep at once
    Event,
}

/// Where the engine's thread runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Beside the program on machines with fewer than four CPUs, else free
    Auto,
    /// On the CPU of the program it serves; each yields to the other when it has nothing to do
    Program,
    /// Wherever the scheduler puts it; neither engine nor programs yield the CPU
    Free,
}

/// Vendor behaviour where implementations differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// As the InfiniBand architecture says
    Spec,
    /// As ConnectX does it: timeouts, ACK requests, credits, ECN bits
    #[cfg_attr(feature = "clap", value(name = "connectx"))]
    ConnectX,
}

impl From<Profile> for rnic_core::Profile {
    fn from(profile: Profile) -> Self {
        match profile {
            Profile::Spec => Self::Spec,
            Profile::ConnectX => Self::ConnectX,
        }
    }
}

/// How an engine's thread behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Idle behaviour.
    pub idle: Idle,
    /// Spin budget of [`Idle::Adaptive`].
    pub spin: Duration,
    /// Where the thread runs.
    pub placement: Placement,
}

impl Default for Settings {
    fn default() -> Self {
        let spin = Duration::from_micros(DEFAULT_SPIN);
        Self { idle: Idle::Adaptive, spin, placement: Placement::Auto }
    }
}

/// A choice as the command line and the configuration file have it.
pub fn name_of(choice: &impl Serialize) -> String {
    let value = serde_json::to_value(choice).ok();
    value.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
}

/// Microseconds: bridges the gaps of a busy connection, and is too short to be seen in `top`.
const DEFAULT_SPIN: u64 = 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_have_the_names_of_the_command_line() {
        assert_eq!(name_of(&Io::AfXdp), "af-xdp");
        assert_eq!(name_of(&Profile::ConnectX), "connectx");
    }
}
