//! The options that a daemon which runs can change, and SIGHUP, which changes them.

use crate::config::{Args, Config};
use crate::device::Device;
use crate::for_people;
use crate::log::Filter;
use crate::metrics::Metrics;
use anyhow::{Context, Result};
use rnic_abi::os::SocketFile;
use rnic_host::server::Service;
use std::sync::Arc;

/// What is in force, and what follows from it.
pub(super) struct Reloading<'a> {
    args: Args,
    config: Config,
    filter: Filter,
    device: &'a Device,
    service: &'a Arc<Service>,
    metrics: Option<Metrics>,
}

impl<'a> Reloading<'a> {
    /// Of a daemon that starts.
    ///
    /// # Errors
    /// When metrics cannot be served.
    pub(super) fn new(
        args: Args,
        config: Config,
        filter: Filter,
        device: &'a Device,
        service: &'a Arc<Service>,
    ) -> Result<Self> {
        let metrics = config.metrics.as_ref().map(|address| Metrics::serve(address, service));
        let metrics = metrics.transpose()?;
        Ok(Self { args, config, filter, device, service, metrics })
    }

    /// What is in force.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Reads the file again. What cannot be done is told, and leaves the rest as it is.
    pub(super) fn reload(&mut self) {
        if self.args.config.is_none() {
            tracing::info!("nothing to reload: the daemon has no configuration file (--config)");
            return;
        }
        let new = match Config::resolve_again(self.args.clone()) {
            Ok(new) => new,
            Err(error) => {
                tracing::error!("nothing is reloaded: {}", for_people(&error));
                return;
            }
        };
        let fixed = self.config.fixed_keys(&new);
        if !fixed.is_empty() {
            tracing::warn!("a restart is needed to change {}", fixed.join(", "));
        }
        let steps: [fn(&mut Self, &Config) -> Result<()>; 4] =
            [Self::set_log, Self::set_limits, Self::set_mode, Self::set_metrics];
        for step in steps {
            if let Err(error) = step(self, &new) {
                tracing::error!("not reloaded: {}", for_people(&error));
            }
        }
        tracing::info!("the configuration file was read again");
    }

    fn set_log(&mut self, new: &Config) -> Result<()> {
        self.filter.set(&new.log)?;
        self.config.log.clone_from(&new.log);
        Ok(())
    }

    fn set_limits(&mut self, new: &Config) -> Result<()> {
        self.device.ledger.set_limits(new.limits);
        self.config.limits = new.limits;
        Ok(())
    }

    /// Programs that are connected stay so.
    fn set_mode(&mut self, new: &Config) -> Result<()> {
        if new.mode == self.config.mode {
            return Ok(());
        }
        let path = &self.config.socket;
        SocketFile::at(path)
            .and_then(|socket| socket.set_mode(new.mode))
            .with_context(|| format!("cannot set the mode of {} (--mode)", path.display()))?;
        self.config.mode = new.mode;
        Ok(())
    }

    fn set_metrics(&mut self, new: &Config) -> Result<()> {
        let are_served = self.metrics.is_some() == new.metrics.is_some();
        if are_served && new.metrics == self.config.metrics {
            return Ok(());
        }
        // The old one is first given up: the new one may be the same port of all addresses, of
        // which the kernel allows one only.
        self.metrics = None;
        let serve = |config: &Config| {
            let address = config.metrics.as_ref();
            address.map(|address| Metrics::serve(address, self.service)).transpose()
        };
        match serve(new) {
            Ok(metrics) => {
                self.metrics = metrics;
                self.config.metrics.clone_from(&new.metrics);
                Ok(())
            }
            Err(error) => match serve(&self.config) {
                Ok(metrics) => {
                    self.metrics = metrics;
                    Err(error)
                }
                Err(again) => Err(error.context(format!("{again:#}, where they were"))),
            },
        }
    }
}
