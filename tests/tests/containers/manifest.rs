//! As much of Kubernetes' API (v1) as our manifests use. Unlike Kubernetes' own types, these take
//! no field that they do not know: a misspelt one would be ignored there.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

type Names = BTreeMap<String, String>;

/// One document of a file.
#[derive(Deserialize, Debug)]
#[serde(tag = "kind", deny_unknown_fields)]
pub(crate) enum Manifest {
    Pod {
        #[serde(rename = "apiVersion")]
        version: String,
        metadata: Metadata,
        spec: Box<PodSpec>,
    },
    Service {
        #[serde(rename = "apiVersion")]
        version: String,
        metadata: Metadata,
        spec: ServiceSpec,
    },
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Metadata {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) labels: Names,
}

#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ServiceSpec {
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<String>,
    selector: Names,
    ports: Vec<Port>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Port {
    name: String,
    port: u16,
    protocol: Protocol,
}

#[derive(Deserialize, Debug, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
enum Protocol {
    Tcp,
    Udp,
}

#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PodSpec {
    share_process_namespace: bool,
    restart_policy: Restart,
    security_context: Security,
    volumes: Vec<Volume>,
    #[serde(default)]
    pub(crate) init_containers: Vec<Container>,
    pub(crate) containers: Vec<Container>,
}

#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
enum Restart {
    Always,
    OnFailure,
    Never,
}

#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Security {
    run_as_non_root: bool,
    run_as_user: u32,
    run_as_group: u32,
    seccomp_profile: Seccomp,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Seccomp {
    #[serde(rename = "type")]
    kind: SeccompKind,
}

#[derive(Deserialize, Debug, PartialEq, Eq)]
enum SeccompKind {
    RuntimeDefault,
    Unconfined,
}

#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Volume {
    name: String,
    #[serde(rename = "emptyDir")]
    _empty_dir: Names,
}

#[derive(Deserialize, Debug, Clone)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Container {
    name: String,
    image: String,
    pub(crate) command: Vec<String>,
    restart_policy: Option<Restart>,
    startup_probe: Option<Probe>,
    #[serde(default)]
    env: Vec<Variable>,
    volume_mounts: Vec<Mount>,
}

#[derive(Deserialize, Debug, Clone)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Probe {
    exec: Exec,
    period_seconds: u32,
}

#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
struct Exec {
    command: Vec<String>,
}

#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
struct Variable {
    name: String,
    value: String,
}

#[derive(Deserialize, Debug, Clone)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Mount {
    name: String,
    mount_path: String,
}

/// All documents of a file.
///
/// # Errors
/// When one is not of this schema.
pub(crate) fn read(text: &str) -> Result<Vec<Manifest>> {
    let documents = serde_yaml_ng::Deserializer::from_str(text);
    documents.map(|document| Ok(Manifest::deserialize(document)?)).collect()
}

impl Manifest {
    /// The pod of this name.
    pub(crate) fn pod(&self, wanted: &str) -> Option<&PodSpec> {
        match self {
            Self::Pod { metadata, spec, .. } if metadata.name == wanted => Some(spec),
            _ => None,
        }
    }

    /// Whether it is no service, or one that a pod of these is behind.
    pub(crate) fn has_pod(&self, all: &[Self]) -> bool {
        let Self::Service { spec, .. } = self else { return true };
        all.iter().any(|other| match other {
            Self::Pod { metadata, .. } => {
                spec.selector.iter().all(|(key, value)| metadata.labels.get(key) == Some(value))
            }
            Self::Service { .. } => false,
        })
    }

    /// What Kubernetes checks beyond the types.
    ///
    /// # Errors
    /// The first thing that it would refuse.
    pub(crate) fn check(&self) -> Result<()> {
        let (Self::Pod { version, metadata, .. } | Self::Service { version, metadata, .. }) = self;
        ensure!(version == "v1", "apiVersion {version}");
        ensure!(is_name(&metadata.name), "{metadata:?}");
        match self {
            Self::Pod { spec, .. } => spec.check(),
            Self::Service { spec, .. } => spec.check(),
        }
        .with_context(|| metadata.name.clone())
    }
}

/// A label of DNS.
fn is_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&name.len()) && name.chars().all(good) && !name.starts_with('-')
}

impl ServiceSpec {
    fn check(&self) -> Result<()> {
        // Headless: the name is the pod's own address, which its device has.
        ensure!(self.cluster_ip.as_deref() == Some("None"), "{self:?}");
        ensure!(!self.selector.is_empty(), "{self:?}");
        let [port] = &self.ports[..] else { anyhow::bail!("{self:?}") };
        ensure!((port.port, &port.protocol) == (4791, &Protocol::Udp), "{port:?}");
        ensure!(is_name(&port.name), "{port:?}");
        Ok(())
    }
}

impl PodSpec {
    /// The user of all containers.
    pub(crate) fn user(&self) -> Option<u32> {
        let security = &self.security_context;
        (security.run_as_group == security.run_as_user).then_some(security.run_as_user)
    }

    fn check(&self) -> Result<()> {
        let security = &self.security_context;
        ensure!(security.run_as_non_root && security.run_as_user > 0, "{security:?}");
        ensure!(security.seccomp_profile.kind == SeccompKind::RuntimeDefault, "{security:?}");
        ensure!(self.share_process_namespace, "the daemon cannot name the program's process");
        ensure!(self.restart_policy != Restart::Always, "the program ends");
        for container in self.init_containers.iter().chain(&self.containers) {
            container.check(&self.volumes).with_context(|| container.name.clone())?;
        }
        let is_plain = |container: &Container| container.restart_policy.is_none();
        ensure!(self.containers.iter().all(is_plain), "only init containers are sidecars");
        Ok(())
    }
}

impl Container {
    /// Whether it goes on beside the program.
    pub(crate) fn is_sidecar(&self) -> bool {
        self.restart_policy == Some(Restart::Always)
    }

    /// Its variables.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&str, &String)> {
        self.env.iter().map(|variable| (variable.name.as_str(), &variable.value))
    }

    /// The command that succeeds once it is ready.
    pub(crate) fn probe(&self) -> Option<Self> {
        let command = self.startup_probe.as_ref()?.exec.command.clone();
        Some(Self { command, ..self.clone() })
    }

    fn check(&self, volumes: &[Volume]) -> Result<()> {
        ensure!(is_name(&self.name) && !self.image.is_empty(), "{self:?}");
        ensure!(self.restart_policy.is_none() || self.is_sidecar(), "{:?}", self.restart_policy);
        ensure!(self.startup_probe.as_ref().is_none_or(|probe| probe.period_seconds > 0), "0 s");
        for mount in &self.volume_mounts {
            let has = volumes.iter().any(|volume| volume.name == mount.name);
            ensure!(has && mount.mount_path.starts_with('/'), "{mount:?}");
        }
        Ok(())
    }
}
