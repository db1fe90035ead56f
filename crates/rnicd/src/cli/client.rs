//! A session with a daemon.

use anyhow::{Context, Result, bail};
use rnic_abi::ABI_VERSION;
use rnic_abi::control::{DeviceInfo, Inspect, Reply, Request};
use rnic_abi::os::{Connection, candidate_socket_paths};
use serde_json::Value;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Client {
    connection: Connection,
    /// Where the daemon listens.
    pub(super) path: PathBuf,
}

impl Client {
    /// Connects to the daemon at `socket`, or to the first that is found.
    pub(super) fn connect(socket: Option<&Path>) -> Result<Self> {
        let paths = match socket {
            Some(path) => vec![path.to_path_buf()],
            None => candidate_socket_paths(),
        };
        let mut tried = Vec::new();
        for path in paths {
            match Self::at(&path) {
                Ok(client) => return Ok(client),
                Err(error) => tried.push(format!("{}: {error:#}", path.display())),
            }
        }
        bail!(
            "no daemon answers ({}); start one with `rnicd --netdev IFACE` or `rnicd --io udp`, \
             or use `rnic run -- COMMAND`, which starts one by itself",
            tried.join("; ")
        )
    }

    /// Connects to the daemon at `path`.
    pub(super) fn at(path: &Path) -> Result<Self> {
        let connection = Connection::connect(path)?;
        let client = Self { connection, path: path.to_path_buf() };
        client.call(&Request::Hello { abi: ABI_VERSION })?;
        Ok(client)
    }

    fn call(&self, request: &Request) -> Result<Reply> {
        let (answer, _) = self.connection.call(request, &[]).context("the daemon went away")?;
        answer.map_err(|refusal| anyhow::anyhow!("{refusal}"))
    }

    /// The daemon's devices.
    pub(super) fn devices(&self) -> Result<Vec<DeviceInfo>> {
        match self.call(&Request::ListDevices)? {
            Reply::Devices(devices) => Ok(devices),
            _ => bail!("the daemon gave an answer to another question"),
        }
    }

    /// What the daemon has: all pages together.
    pub(super) fn inspect(&self, what: Inspect) -> Result<Value> {
        let mut all = Vec::new();
        loop {
            let skip = u32::try_from(all.len())?;
            let Reply::Inspected { json, more } = self.call(&Request::Inspect { what, skip })?
            else {
                bail!("the daemon gave an answer to another question");
            };
            match serde_json::from_str(&json)? {
                Value::Array(page) => all.extend(page),
                whole => return Ok(whole),
            }
            if !more {
                return Ok(Value::Array(all));
            }
        }
    }

    /// Has the daemon write what it sends and receives to `to`, as pcapng.
    pub(super) fn capture(&self, to: BorrowedFd<'_>) -> Result<()> {
        let (answer, _) =
            self.connection.call(&Request::Capture, &[to]).context("the daemon went away")?;
        answer.map(|_| ()).map_err(|refusal| anyhow::anyhow!("{refusal}"))
    }

    /// Injects faults into what the daemon receives.
    pub(super) fn inject(&self, faults: Vec<String>, seed: u64) -> Result<()> {
        match self.call(&Request::InjectFaults { faults, seed })? {
            Reply::Done => Ok(()),
            _ => bail!("the daemon gave an answer to another question"),
        }
    }
}
