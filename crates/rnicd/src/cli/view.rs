//! What `rnic run` lets a program see of `/sys/class` and `/dev`: all that is there, and the
//! device's own files where the kernel would have those of a device of its own.
//!
//! Nothing can be added to these folders, so the program gets a mount namespace in which a new
//! folder covers each, with what was in it and what is to be added. An ordinary user may do so in
//! a user namespace, in which the program has its own user id and every other one is `nobody`.

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CloneFlags, unshare};
use rnic_abi::os::files_beside;
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    unmount,
};
use rustix::process::{getegid, geteuid};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Gives this process such a view of the devices of the daemons that listen on `sockets`, in the
/// form of `RNIC_SOCKET`.
///
/// # Errors
/// When the kernel or a container's rules forbid it. What the process sees is as before then.
pub(super) fn enter(sockets: &OsStr) -> Result<()> {
    let trees = published(sockets)?;
    if unshare(CloneFlags::CLONE_NEWNS).is_err() {
        // There is no way back out of a user namespace, so another process tries first: some
        // systems allow the namespace and nothing in it.
        try_elsewhere(sockets)?;
        become_own_root()?;
    }
    add(&trees)
}

/// Whether this process may have the view. Afterwards it is of no other use.
///
/// # Errors
/// When it may not.
pub(super) fn attempt(sockets: &OsStr) -> Result<()> {
    let trees = published(sockets)?;
    become_own_root()?;
    add(&trees)
}

/// What the daemons publish.
fn published(sockets: &OsStr) -> Result<Vec<PathBuf>> {
    let trees: Vec<PathBuf> = std::env::split_paths(sockets)
        .map(|socket| files_beside(&socket))
        .filter(|tree| tree.join(INFINIBAND).is_dir())
        .collect();
    if trees.is_empty() {
        bail!("the daemon publishes no files");
    }
    Ok(trees)
}

fn try_elsewhere(sockets: &OsStr) -> Result<()> {
    let own = std::env::current_exe().context("cannot find my own executable")?;
    let tried = Command::new(own).arg("try-view").arg(sockets).output();
    let tried = tried.context("cannot try it in another process")?;
    let why = String::from_utf8_lossy(&tried.stderr);
    ensure!(tried.status.success(), "{}", why.trim().trim_start_matches("rnic: "));
    Ok(())
}

/// A user namespace in which this process may mount, with its own user id.
fn become_own_root() -> Result<()> {
    let what = "cannot have mounts of its own";
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).context(what)?;
    // An ordinary user may map its own group only where no other can be left.
    fs::write("/proc/self/setgroups", "deny").context(what)?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")).context(what)?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")).context(what)
}

/// Adds the files to the folders, for this process and its children alone.
fn add(trees: &[PathBuf]) -> Result<()> {
    let from_outside = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", from_outside).context("cannot have mounts of its own")?;
    cover(Path::new("/sys/class"), &["infiniband", "infiniband_verbs", "infiniband_mad"])?;
    cover(Path::new("/dev"), &["infiniband"])?;
    for (index, tree) in trees.iter().enumerate() {
        link(tree, index).context("cannot add the device's files")?;
    }
    Ok(())
}

/// Puts a new folder over this one, with all that it has, and with these folders, into which more
/// can be put.
fn cover(folder: &Path, extended: &[&str]) -> Result<()> {
    let what = || format!("cannot cover {}", folder.display());
    let covered = open(folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).with_context(what)?;
    let before = PathBuf::from(format!("/proc/self/fd/{}", covered.as_raw_fd()));
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("rnic", folder, "tmpfs", flags, c"mode=755").with_context(what)?;
    bring_back(&before, folder, extended)
        .inspect_err(|_| {
            let _ = unmount(folder, UnmountFlags::DETACH);
        })
        .with_context(what)
}

fn bring_back(before: &Path, folder: &Path, extended: &[&str]) -> io::Result<()> {
    for entry in fs::read_dir(before)? {
        let entry = entry?;
        let (name, kind, to) =
            (entry.file_name(), entry.file_type()?, folder.join(entry.file_name()));
        if extended.iter().any(|extended| name == **extended) {
            continue;
        }
        let back = if kind.is_symlink() {
            fs::read_link(entry.path()).and_then(|target| symlink(target, to))
        } else {
            let made =
                if kind.is_dir() { fs::create_dir(&to) } else { File::create(&to).map(drop) };
            made.and_then(|()| Ok(mount_bind_recursive(entry.path(), &to)?))
        };
        match back {
            // A device that is gone in the meantime.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            back => back?,
        }
    }
    for name in extended {
        fs::create_dir(folder.join(name))?;
        let before = before.join(name);
        if before.is_dir() {
            bring_back(&before, &folder.join(name), &[])?;
        }
    }
    Ok(())
}

/// Leads to the files of a daemon, the `index`-th of those that the program uses.
fn link(tree: &Path, index: usize) -> io::Result<()> {
    let uverbs = format!("uverbs{index}");
    let class = Path::new("/sys/class");
    for entry in fs::read_dir(tree.join(INFINIBAND))? {
        let entry = entry?;
        link_new(&entry.path(), &class.join("infiniband").join(entry.file_name()))?;
    }
    let verbs = tree.join("sys/class/infiniband_verbs");
    let mad = tree.join("sys/class/infiniband_mad/abi_version");
    link_new(&verbs.join("uverbs0"), &class.join("infiniband_verbs").join(&uverbs))?;
    link_new(&verbs.join("abi_version"), &class.join("infiniband_verbs/abi_version"))?;
    link_new(&mad, &class.join("infiniband_mad/abi_version"))?;
    link_new(Path::new("../null"), &Path::new("/dev/infiniband").join(uverbs))
}

/// What is there already is a device of the kernel's, or of a view around this one.
fn link_new(target: &Path, at: &Path) -> io::Result<()> {
    match symlink(target, at) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

const INFINIBAND: &str = "sys/class/infiniband";
