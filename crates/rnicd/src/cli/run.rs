//! `rnic run`: a program with the drop-in libraries on its path.

mod engine;
mod failure;

use super::client::{Client, Places};
use super::private;
use super::tell;
use super::view;
use anyhow::{Context, Result, bail};
use clap::Args;
use engine::Engine;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// See the [module](self).
#[derive(Args, Debug)]
pub(super) struct Options {
    /// Use the daemon at this control socket
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Let the daemon map registered memory, which saves system calls
    ///
    /// The pages of a registration become shared memory, at the same addresses. Where that is
    /// unsafe (programs with several threads, memory that is not private and anonymous), the
    /// registration is an ordinary one. The option makes fork() slow, counts the memory as shared,
    /// and is unsuitable for allocators that clear memory with madvise(MADV_DONTNEED): see
    /// docs/shared-memory.md. Same as RNIC_SHARED_MEMORY=1.
    #[arg(long)]
    shared_memory: bool,
    /// Where the program's engine runs [default: $RNIC_ENGINE, else auto at a daemon of this user
    /// with --io udp, as private ones are, and without --shared-memory; else daemon]
    ///
    /// In the program itself it copies without system calls, and works where a sandbox keeps other
    /// processes from the program's memory. It takes a daemon of the program's own user with UDP
    /// sockets. Same as RNIC_ENGINE: see docs/functions.md. A program that polls turns the engine
    /// itself, unless RNIC_DRIVE=off is in its environment.
    #[arg(long, value_enum, value_name = "PLACE")]
    engine: Option<Engine>,
    /// Make rsockets of the program's TCP and UDP sockets
    ///
    /// The program then talks to others that use rsockets, by RDMA; where none answers it connects
    /// by TCP. It must wait with poll or select, not with epoll. Same as
    /// LD_PRELOAD=librspreload.so: see docs/connection.md.
    #[arg(long)]
    rsockets: bool,
    /// Leave /sys/class and /dev as they are
    ///
    /// Without it the program also finds the device's files in /sys/class/infiniband and its
    /// character device in /dev/infiniband, for which it gets a mount namespace. For an ordinary
    /// user that needs a user namespace, in which sudo and other setuid programs do not work and
    /// files of other users have no owner: see docs/verbs.md.
    #[arg(long)]
    no_view: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Becomes the program. Returns only when that fails.
pub(super) fn run(options: &Options) -> ExitCode {
    match prepare(options) {
        Ok(mut command) => {
            let error = command.exec();
            let path = std::env::var_os("PATH").unwrap_or_else(|| USUAL_PATH.into());
            let (status, message) = failure::explain(&options.command[0], &path, &error);
            tell(format_args!("rnic: {}", crate::for_people(&anyhow::Error::msg(message))));
            ExitCode::from(status)
        }
        Err(error) => {
            tell(format_args!("rnic: {}", crate::for_people(&error)));
            ExitCode::FAILURE
        }
    }
}

fn prepare(options: &Options) -> Result<Command> {
    let own = std::env::current_exe().context("cannot find my own executable")?;
    let libraries = library_directory(&own)?;
    let socket = find_or_start(options.socket.as_deref(), &own)?;
    // Memory that a daemon maps is for the daemon's engine.
    let may_choose = !options.shared_memory && std::env::var_os("RNIC_ENGINE").is_none();
    let engine = options.engine.or_else(|| may_choose.then(|| Engine::for_daemons_at(&socket)));
    if !options.no_view
        && let Err(error) = view::enter(&socket)
    {
        tell(format_args!(
            "rnic: the program does not find the device in /sys/class/infiniband and \
             /dev/infiniband (--no-view: as wanted): {}",
            crate::for_people(&error)
        ));
    }
    let mut command = Command::new(&options.command[0]);
    command.args(&options.command[1..]);
    command.env("LD_LIBRARY_PATH", with_library_path(&libraries));
    command.env("RNIC_SOCKET", socket);
    if options.rsockets {
        command.env("LD_PRELOAD", with_preload(&libraries)?);
    }
    if let Some(engine) = engine {
        command.env("RNIC_ENGINE", engine.name());
    }
    if options.shared_memory {
        command.env("RNIC_SHARED_MEMORY", "1");
    }
    Ok(command)
}

/// The value of `RNIC_SOCKET` for the program. A private daemon is started only if the user named
/// no socket: on a private daemon instead of the named one the program would reach none of its
/// peers.
fn find_or_start(socket: Option<&Path>, own: &Path) -> Result<OsString> {
    let places = Places::new(socket).absolute()?;
    match places.first() {
        // Several may be named, and the program sees the devices of all.
        Ok(_) if places.named.is_some() => as_list(&places.paths),
        Ok(client) => {
            // Root may have a daemon for each of several interfaces.
            let folder = client.path.parent();
            let answers = |path: &PathBuf| *path == client.path || Client::at(path).is_ok();
            let beside = places.paths.iter().filter(|path| path.parent() == folder);
            as_list(beside.filter(|path| answers(path)))
        }
        Err(tried) if places.named.is_some() => Err(places.explain(&tried)),
        Err(tried) => {
            for (path, why) in tried.iter().filter(|(_, why)| why.there) {
                tell(format_args!(
                    "rnic: a private daemon instead of the one at {}: {why}",
                    path.display()
                ));
            }
            as_list(&[private::daemon(own)?])
        }
    }
}

/// Sockets as the program finds them in `RNIC_SOCKET`.
fn as_list<'a>(sockets: impl IntoIterator<Item = &'a PathBuf>) -> Result<OsString> {
    let sockets: Vec<_> = sockets.into_iter().collect();
    let has_separator = |socket: &&&PathBuf| socket.as_os_str().as_encoded_bytes().contains(&b':');
    if let Some(socket) = sockets.iter().find(has_separator) {
        bail!(
            "the program cannot be told of the socket {}: `:` is between the paths in RNIC_SOCKET; \
             choose a path without it (rnicd --socket)",
            socket.display()
        );
    }
    Ok(std::env::join_paths(sockets)?)
}

/// Where the libraries are: beside `bin/` in `lib/` as installed, or where cargo builds them.
fn library_directory(own: &Path) -> Result<PathBuf> {
    let own = own.canonicalize().unwrap_or_else(|_| own.to_path_buf());
    let bin = own.parent().context("my own executable is in no directory")?;
    let installed = bin.with_file_name("lib");
    if installed.join(VERBS).exists() {
        return Ok(installed);
    }
    if bin.join(VERBS).exists() {
        return Ok(bin.to_path_buf());
    }
    if bin.join(VERBS_AS_BUILT).exists() {
        return link_as_built(bin);
    }
    anyhow::bail!(
        "cannot find {VERBS}: neither in {} nor beside {}; `cargo xtask dist` makes a tree with \
         everything in its place",
        installed.display(),
        own.display()
    )
}

/// Cargo names libraries without the version that the loader looks for.
fn link_as_built(bin: &Path) -> Result<PathBuf> {
    let directory = bin.join("rnic-run-lib");
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    for (built, wanted) in [(VERBS_AS_BUILT, VERBS), (CM_AS_BUILT, CM)] {
        let link = directory.join(wanted);
        if !link.exists()
            && let Err(error) = std::os::unix::fs::symlink(bin.join(built), &link)
            && error.kind() != std::io::ErrorKind::AlreadyExists
        {
            return Err(error).with_context(|| format!("cannot make {}", link.display()));
        }
    }
    Ok(directory)
}

/// The library that makes rsockets of sockets, in front of what is preloaded anyway.
fn with_preload(libraries: &Path) -> Result<OsString> {
    // As installed; where cargo builds it; the folder above one of links to what it builds.
    let folders = [libraries.join("rsocket"), libraries.to_path_buf(), libraries.join("..")];
    let found = folders.iter().map(|folder| folder.join(PRELOAD)).find(|place| place.exists());
    let found = found.with_context(|| format!("cannot find {PRELOAD} in {}", libraries.display()));
    Ok(in_front("LD_PRELOAD", found?.canonicalize()?.as_os_str()))
}

/// Our libraries in front of what was on the path.
fn with_library_path(libraries: &Path) -> OsString {
    in_front("LD_LIBRARY_PATH", libraries.as_os_str())
}

/// Something in front of what a list of the environment has.
fn in_front(list: &str, first: &OsStr) -> OsString {
    let mut path = first.to_owned();
    if let Some(before) = std::env::var_os(list).filter(|before| !before.is_empty()) {
        path.push(":");
        path.push(before);
    }
    path
}

/// Where the C library looks for programs without the variable.
const USUAL_PATH: &str = "/bin:/usr/bin";
const VERBS: &str = "libibverbs.so.1";
const VERBS_AS_BUILT: &str = "libibverbs.so";
const PRELOAD: &str = "librspreload.so";
const CM: &str = "librdmacm.so.1";
const CM_AS_BUILT: &str = "librdmacm.so";
