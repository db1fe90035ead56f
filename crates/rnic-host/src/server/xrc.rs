//! XRC domains of a client, and what keeps the way of a target that several clients refer to.

use super::accounts::{Account, Charge};
use super::link::EngineLink;
use super::reply::unexpected_outcome;
use crate::quota::Resource;
use crate::refusal::{Refused, refuse, refused_by_kernel};
use rnic_abi::control::Reply;
use rnic_core::{ClientCommand, Outcome, XrcFile, XrcOpen};
use rnic_net::Hold;
use rustix::fs::{FileType, fstat};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The domains that a client takes part in.
pub(super) struct Domains {
    link: EngineLink,
    account: Account,
    user: u32,
    opened: HashMap<u32, Opened>,
}

/// What a client holds of a domain.
struct Opened {
    /// Open, so that its inode does not become another file's.
    _file: Option<OwnedFd>,
    _charges: [Charge; 2],
}

impl Domains {
    /// Of the client at the other end of `link`, a process of `user`.
    pub(super) fn new(link: EngineLink, account: Account, user: u32) -> Self {
        Self { link, account, user, opened: HashMap::new() }
    }

    /// Makes or joins a domain. The file is known by its descriptor: a client shares the domains
    /// of files that it can open, whatever else it knows of them.
    pub(super) fn open(
        &mut self,
        file: Option<OwnedFd>,
        create: bool,
        exclusive: bool,
    ) -> Result<Reply, Refused> {
        let descriptors = u64::from(file.is_some());
        let wanted = [(Resource::Pds, 1), (Resource::Descriptors, descriptors)];
        let charges = self.account.take_all(wanted)?;
        let key = file.as_ref().map(|file| key_of(file, self.user)).transpose()?;
        let how = XrcOpen { file: key, create, exclusive };
        let Outcome::Handle(xrcd) = self.link.execute(ClientCommand::OpenXrcd(how))? else {
            return Err(unexpected_outcome());
        };
        self.opened.insert(xrcd, Opened { _file: file, _charges: charges });
        Ok(Reply::Handle(xrcd))
    }

    pub(super) fn close(&mut self, xrcd: u32) -> Result<Reply, Refused> {
        self.link.execute(ClientCommand::CloseXrcd { xrcd })?;
        self.opened.remove(&xrcd);
        Ok(Reply::Done)
    }
}

fn key_of(file: &OwnedFd, user: u32) -> Result<XrcFile, Refused> {
    let stat = fstat(file)
        .map_err(|error| refused_by_kernel("the file cannot be looked at")(error.into()))?;
    // What has no inode of its own, as anonymous descriptors, would be one domain for all of them.
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(refuse(libc::EINVAL, "only a regular file can stand for an XRC domain"));
    }
    Ok(XrcFile { user, device: stat.st_dev, inode: stat.st_ino })
}

/// What keeps the way of a queue pair to its peer, once it has one. All clients that refer to an
/// XRC target keep the same.
#[derive(Clone, Default)]
pub(super) struct Way(Arc<Mutex<Option<Hold>>>);

impl Way {
    /// To change it together with the queue pair: the last of two changes is the last of both.
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Hold>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ways of the targets there are, by their numbers.
#[derive(Default)]
pub(super) struct Targets(Mutex<HashMap<u32, Weak<Mutex<Option<Hold>>>>>);

impl Targets {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Weak<Mutex<Option<Hold>>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A target was made, which no other client knows yet.
    pub(super) fn add(&self, qpn: u32) -> Way {
        let way = Way::default();
        let mut all = self.lock();
        all.retain(|_, way| way.strong_count() > 0);
        all.insert(qpn, Arc::downgrade(&way.0));
        way
    }

    /// That of a target, if there is such a target.
    pub(super) fn find(&self, qpn: u32) -> Option<Way> {
        self.lock().get(&qpn).and_then(Weak::upgrade).map(Way)
    }
}
