//! The device: its network, its wire and its engines.

use crate::config::Config;
use crate::connections::{Connections, OwnConnections};
use crate::log::Filter;
use crate::users::{self, Parts, Users, this_program};
use anyhow::{Context, Result};
use rnic_abi::control::DeviceInfo;
use rnic_abi::os::EventFd;
use rnic_core::EngineConfig;
use rnic_core::config::default_limits;
use rnic_host::server::{
    Accounts, ClientMemory, Engines, Functions, MoreEngines, Registry, Service, WireGroups,
};
use rnic_host::settings::{Io, XdpMode, name_of};
use rnic_host::shard::{OwnEngine, ShardMessage, ShardPort};
use rnic_host::system::random;
use rnic_host::wire::{self, WireConfig};
use rnic_net::{Change, Claims, NetConfig, Network};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use xdp_io::udp::SteeredPort;

/// See the [module](self).
pub(crate) struct Device {
    network: Arc<Network>,
    io: String,
    info: DeviceInfo,
    /// What users have, and may have.
    pub(crate) ledger: Arc<Accounts>,
    groups: Arc<WireGroups>,
    /// The engine that has the wire, for clients of the daemon's own user.
    pub(crate) own: Arc<OwnEngine>,
    /// What peers say to QP1.
    connections: Arc<Connections>,
    /// Where engine processes of other users have sockets of their own.
    shared_port: Option<Arc<SteeredPort>>,
    /// Engines of other users, if the daemon is root, and those in programs.
    pub(crate) users: Option<Arc<Users>>,
}

/// What follows changes of the network, once it is there.
#[derive(Default)]
pub(crate) struct Followers {
    own: OnceLock<Arc<OwnEngine>>,
    connections: OnceLock<Arc<Connections>>,
    shared_port: OnceLock<Arc<SteeredPort>>,
    groups: OnceLock<Arc<WireGroups>>,
    users: OnceLock<Arc<Users>>,
}

impl Followers {
    fn follow(&self, change: Change) {
        if let Some(port) = self.shared_port.get() {
            port.retain(&change.addresses);
            port.move_to(change.interface.index);
        }
        if let Some(groups) = self.groups.get() {
            groups.move_to(change.interface);
        }
        if let Some(users) = self.users.get() {
            users.follow(&change);
        }
        if let Some(connections) = self.connections.get() {
            connections.set_mtu(change.port.active_mtu);
        }
        if let Some(own) = self.own.get() {
            own.handle().tell(ShardMessage::Network(change));
        }
    }
}

impl Device {
    /// Looks at the network, opens the wire and starts the engine that has it.
    pub(crate) fn start(config: &Config, log: &Filter, claims: &Arc<Claims>) -> Result<Self> {
        let followers: Arc<Followers> = Arc::default();
        let network = start_network(config, claims, &followers)?;
        let wire = wire::open(&wire_config(config), &network)
            .map_err(|error| explain_wire(config, error))?;
        let (io, shared_port) = (wire.mode().to_owned(), wire.shared_port());
        let joiner = wire.joiner();
        let mut engine = EngineConfig::new(random().context("no randomness")?);
        engine.gid_table_len = network.port().gid_table_len;
        engine.profile = config.profile.into();
        let port = ShardPort::Device(Box::new(wire));
        let own = OwnEngine::start(config.engine, engine, port);
        let own = Arc::new(own.context("cannot start the engine")?);
        let info = describe(config, &network);
        let connections = Connections::start(&info, &network, own.handle());
        let connections = connections.context("cannot start the connection manager")?;
        let ledger = Accounts::new(config.limits, rustix::process::geteuid().as_raw());
        let groups = WireGroups::new(own.handle().clone(), joiner);
        let mut device =
            Self { network, io, info, ledger, groups, own, connections, shared_port, users: None };
        device.users = device.start_users(config, log)?;
        // Changes from before the engines could follow them.
        let _ = followers.own.set(Arc::clone(&device.own));
        let _ = followers.connections.set(Arc::clone(&device.connections));
        if let Some(port) = &device.shared_port {
            let _ = followers.shared_port.set(Arc::clone(port));
        }
        let _ = followers.groups.set(Arc::clone(&device.groups));
        if let Some(users) = &device.users {
            let _ = followers.users.set(Arc::clone(users));
        }
        followers.follow(device.network.now());
        Ok(device)
    }

    fn start_users(&self, config: &Config, log: &Filter) -> Result<Option<Arc<Users>>> {
        let is_root = rustix::process::geteuid().is_root();
        if !is_root && self.shared_port.is_none() && config.engines == 1 {
            return Ok(None);
        }
        let parts = Parts {
            log: log.clone(),
            settings: config.engine,
            profile: config.profile,
            device: self.info.clone(),
            io: self.io.clone(),
            groups: config.groups,
            ledger: Arc::clone(&self.ledger),
            network: Arc::clone(&self.network),
            wire_groups: Arc::clone(&self.groups),
            connections: Arc::clone(&self.connections),
            own: Arc::clone(&self.own),
            shared_port: self.shared_port.clone(),
            command: is_root.then(this_program),
        };
        let users = Users::new(parts).context("cannot start engines of users")?;
        users.start_own(config.engines - 1).context("cannot start so many engines")?;
        Ok(Some(users))
    }

    /// What leads clients of the daemon's own user to its other engines.
    fn more(&self, config: &Config) -> Option<Arc<dyn MoreEngines>> {
        let users = self.users.as_ref().filter(|_| config.engines > 1)?;
        Some(Arc::new(users::OwnEngines::new(Arc::clone(users))))
    }

    /// What starts engines in programs, where there are sockets for them.
    fn functions(&self) -> Option<Arc<dyn Functions>> {
        self.shared_port.as_ref()?;
        Some(Arc::new(users::FunctionStarter(Arc::clone(self.users.as_ref()?))))
    }

    /// What sessions of this process share.
    pub(crate) fn service(&self, config: &Config) -> Result<Arc<Service>> {
        let engines: Arc<dyn Engines> = match &self.users {
            Some(users) => users.clone(),
            None => self.own.clone(),
        };
        Ok(Arc::new(Service {
            device: self.info.clone(),
            network: self.network.clone(),
            groups: self.groups.clone(),
            engine: self.own.handle().clone(),
            engines,
            connections: Arc::new(OwnConnections(Arc::clone(&self.connections))),
            functions: self.functions(),
            more: self.more(config),
            ledger: self.ledger.clone(),
            memory: ClientMemory::OfProcesses,
            owner: rustix::process::geteuid().as_raw(),
            pid: std::process::id(),
            io: self.io.clone(),
            profile: config.profile,
            registry: Registry::new(0)?,
            started: Instant::now(),
            stop: EventFd::new()?,
        }))
    }
}

/// How the wire is opened.
pub(crate) fn wire_config(config: &Config) -> WireConfig {
    let trains = xdp_io::packet::knows_trains();
    let users = rustix::process::geteuid().is_root();
    WireConfig { io: config.io, xdp_mode: config.xdp_mode, trains, users }
}

/// Looks at the network, which no other daemon may have.
pub(crate) fn start_network(
    config: &Config,
    claims: &Arc<Claims>,
    followers: &Arc<Followers>,
) -> Result<Arc<Network>> {
    let exclusive = config.io != Io::Loopback;
    let (claims, followers) = (Arc::clone(claims), Arc::clone(followers));
    let claimed = Arc::clone(&claims);
    let on_change = move |change: Change| {
        if exclusive {
            claimed.follow(&change.addresses);
        }
        followers.follow(change);
    };
    let place = NetConfig { netdev: config.netdev.clone(), addresses: config.addresses.clone() };
    let network = Network::start(place, Box::new(on_change))?;
    if exclusive {
        // Before the wire: opening it would already take the other daemon's packets.
        let follows = config.netdev.is_some() && config.addresses.is_empty();
        claims.take(follows, &network.now().addresses).map_err(anyhow::Error::msg)?;
    }
    Ok(network)
}

pub(crate) fn explain_wire(config: &Config, error: impl std::fmt::Display) -> anyhow::Error {
    let mode = match config.xdp_mode {
        XdpMode::Auto => String::new(),
        mode => format!(" --xdp-mode {}", name_of(&mode)),
    };
    anyhow::anyhow!("packet I/O (--io {}{mode}): {error}", name_of(&config.io))
}

fn describe(config: &Config, network: &Network) -> DeviceInfo {
    let mac = config.netdev.as_deref().and_then(|name| xdp_io::netdev::mac(name).ok());
    let node_guid = match mac.filter(|mac| *mac != [0; 6]) {
        Some([a, b, c, d, e, f]) => [a ^ 2, b, c, 0xff, 0xfe, d, e, f],
        // No hardware address: a locally administered one made of the first address.
        None => {
            let gid = network.gids().first().map_or([0; 16], |entry| entry.gid);
            let [.., a, b, c, d] = gid;
            [2, b'r', b'n', 0xff, a, b, c, d]
        }
    };
    DeviceInfo {
        name: config.device.clone(),
        netdev: config.netdev.clone(),
        node_guid,
        fw_version: env!("CARGO_PKG_VERSION").into(),
        limits: default_limits(),
    }
}
