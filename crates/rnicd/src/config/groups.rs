//! The group that may use the control socket.

use crate::config::Config;
use anyhow::Context;

/// The group of the control socket.
pub(crate) fn socket_group(config: &Config) -> anyhow::Result<Option<u32>> {
    config.group.as_deref().map(group_id).transpose()
}

/// A group by its number or name.
fn group_id(name: &str) -> anyhow::Result<u32> {
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
