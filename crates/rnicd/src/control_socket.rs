//! The control socket, and who may use it.

use crate::config::Config;
use anyhow::{Context, Result};
use rnic_abi::os::{Listener, SocketFile};

/// Listens there. The socket goes away with the value.
///
/// # Errors
/// When it cannot be made or given to its group. A daemon that listens there is not disturbed.
pub(crate) fn listen(config: &Config) -> Result<Listener> {
    let path = &config.socket;
    let listener = Listener::bind(path, config.mode).with_context(|| {
        format!("cannot listen on the control socket {} (--socket chooses another)", path.display())
    })?;
    if let Some(gid) = config.group.as_deref().map(group_id).transpose()? {
        SocketFile::at(path)
            .and_then(|socket| socket.set_group(gid))
            .with_context(|| format!("cannot give {} to group {gid} (--group)", path.display()))?;
    }
    Ok(listener)
}

/// A group by its number or name.
fn group_id(name: &str) -> Result<u32> {
    if let Ok(gid) = name.parse() {
        return Ok(gid);
    }
    // The C library asks wherever the host keeps its groups, which need not be /etc/group.
    let group = nix::unistd::Group::from_name(name).context("cannot look groups up (--group)")?;
    let gid = group.map(|group| group.gid.as_raw());
    gid.with_context(|| format!("there is no group {name:?}; `getent group` lists them (--group)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_a_number_or_a_name() {
        assert_eq!(group_id("4711").unwrap(), 4711);
        assert_eq!(group_id("root").unwrap(), 0);
        let error = group_id("no such group").unwrap_err().to_string();
        assert!(error.contains("\"no such group\""), "{error}");
    }
}
