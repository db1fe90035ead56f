//! What tests of several users need: programs and libraries that every user can read.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use anyhow::Result;

use crate::daemon::{Daemon, Spec};
use crate::dist::Dist;
use crate::lab::{Lab, Need};
use crate::paths::Scratch;
use crate::place::{Host, Node};
use crate::process::User;

/// An ordinary user other than [`User::NOBODY`], who must not suffer when that one attacks.
pub const SOMEBODY: User = User { uid: 23_456, gid: 23_456 };

/// A helper program, and the function that builds it and returns its folder.
pub type Helper = (&'static str, fn() -> Result<PathBuf>);

/// Programs and libraries outside the checkout, which may be closed to other users.
pub struct Commons {
    /// The prepared machine, whose tools have the helper programs.
    pub lab: Lab,
    /// The installation, one copy for the test's whole life; nodes refer to it.
    pub dist: &'static Dist,
    /// The folder of all this.
    pub scratch: Scratch,
}

impl Commons {
    /// Prepares the machine for the root's test called `test`, as [`Lab::open`] does.
    ///
    /// # Errors
    /// When a program cannot be had or copied.
    ///
    /// # Panics
    /// As [`Lab::open`].
    pub fn open(test: &str, programs: &[&str], helpers: &[Helper]) -> Result<Option<Self>> {
        let Some(mut lab) = Lab::open(test, Need::Root, programs)? else { return Ok(None) };
        let scratch = Scratch::new("commons")?;
        for (program, build) in helpers {
            fs::copy(build()?.join(program), scratch.join(program))?;
        }
        lab.tools = lab.tools.clone().with_built(scratch.path().to_owned());
        let dist = Box::leak(Box::new(Dist::get()?.copy_to(&scratch.join("dist"))?));
        Ok(Some(Self { lab, dist, scratch }))
    }

    /// A daemon and the programs beside it.
    ///
    /// # Errors
    /// When the daemon is not ready.
    pub fn node(&self, spec: &Spec) -> Result<Node> {
        let host = Host::here(Ipv4Addr::LOCALHOST.into(), &self.lab.tools);
        Ok(Node::new(Daemon::start(self.dist, spec)?, host, self.dist))
    }
}
