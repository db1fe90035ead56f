//! Clients that use up the daemon's own resources and keep them: memory, descriptors, threads, and
//! the time of its engines.

use crate::Attack;
use crate::client::{Client, granted, greet};
use memmap2::{Advice, MmapOptions};
use rnic_abi::control::{Inspect, Reply, Request};
use rnic_abi::os::{Connection, candidate_socket_paths, memory};
use rnic_abi::verbs::AccessFlags;
use rnic_abi::verbs::QpType;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::thread::scope;
use std::time::{Duration, Instant};

/// Prints how many objects there are, and keeps them until the end.
fn hold<T>(attack: &mut Attack, what: &str, hoard: &[T]) {
    println!("got {} {what}", hoard.len());
    attack.done += hoard.len() as u64;
    while attack.goes_on() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Queues of the largest possible size, in as many clients as possible.
pub(crate) fn rings(attack: &mut Attack) -> io::Result<()> {
    /// CQEs of 128 bytes: 8 MiB.
    const CQES: u32 = 1 << 16;
    let (mut clients, mut queues) = (Vec::new(), Vec::new());
    while let Ok(mut client) = Client::open() {
        while let Ok(cq) = client.create_cq(CQES) {
            queues.push(cq);
        }
        clients.push(client);
        if clients.len() == 64 {
            break;
        }
    }
    hold(attack, "queues of 8 MiB", &queues);
    Ok(())
}

/// Completion channels, each of which is a descriptor of the daemon's.
pub(crate) fn channels(attack: &mut Attack) -> io::Result<()> {
    let (mut clients, mut channels) = (Vec::new(), Vec::new());
    while let Ok(client) = Client::open() {
        while let Ok((channel, theirs)) = client.call(&Request::CreateChannel) {
            // Our end is not needed.
            drop(theirs);
            channels.push(channel);
        }
        clients.push(client);
        if clients.len() == 64 {
            break;
        }
    }
    hold(attack, "channels", &channels);
    Ok(())
}

/// Connections, as fast as they can be made; some are kept.
pub(crate) fn crowd(attack: &mut Attack) -> io::Result<()> {
    const KEPT: usize = 500;
    let path = candidate_socket_paths().into_iter().next().unwrap_or_default();
    let mut kept: Vec<Connection> = Vec::new();
    while attack.goes_on() {
        attack.done += 1;
        let Ok(connection) = Connection::connect(&path) else { continue };
        if kept.len() < KEPT {
            kept.push(connection);
        } else {
            let at = attack.random.below(KEPT);
            kept[at] = connection;
        }
    }
    Ok(())
}

/// Asks for lists of many queue pairs, from many sessions without pause.
pub(crate) fn lists(attack: &mut Attack) -> io::Result<()> {
    let mut owner = Client::open()?;
    let mut owned = 0;
    while owned < 4000 && owner.create_qp(QpType::Rc).is_ok() {
        owned += 1;
    }
    println!("got {owned} queue pairs");
    let until = attack.until;
    scope(|threads| {
        let ask = move || {
            let Ok(session) = greet() else { return 0 };
            let (mut from, mut asked) = (0, 0);
            while Instant::now() < until {
                let request = Request::Inspect { what: Inspect::Qps, from };
                let Ok((Ok(reply), _)) = session.call(&request, &[]) else { break };
                let Reply::Inspected { next, .. } = reply else { break };
                from = next.unwrap_or(0);
                asked += 1;
            }
            asked
        };
        let asking: Vec<_> = (0..8).map(|_| threads.spawn(ask)).collect();
        attack.done += asking.into_iter().map(|one| one.join().unwrap_or(0)).sum::<u64>();
    });
    Ok(())
}

/// Registers memory of a process whose list of mappings is very long, from many sessions.
pub(crate) fn maps(attack: &mut Attack) -> io::Result<()> {
    let folder = Deep::make()?;
    let file = File::options().read(true).write(true).create(true).truncate(true).open("f")?;
    file.set_len(1 << 20)?;
    let (mut page, mut pages) = (MmapOptions::new(), Vec::new());
    page.len(4096);
    for at in 0..4000 {
        let map = if at % 2 == 0 { page.map_raw_read_only(&file) } else { page.map_raw(&file) };
        let Ok(map) = map else { break };
        pages.push(map);
    }
    let until = attack.until;
    scope(|threads| {
        let register = move || {
            let Ok(client) = Client::open() else { return 0 };
            let (addr, length) = (client.zone.as_ptr() as u64, client.zone.len() as u64);
            let (pd, access) = (client.pd, AccessFlags::LOCAL_WRITE);
            let request = Request::RegMr { pd, addr, length, iova: addr, access, fd_offset: 0 };
            let mut registered = 0;
            while Instant::now() < until {
                let Ok((Reply::Mr { mr, .. }, _)) = client.call(&request) else { break };
                if client.call(&Request::DeregMr { mr }).is_err() {
                    break;
                }
                registered += 1;
            }
            registered
        };
        let registering: Vec<_> = (0..6).map(|_| threads.spawn(register)).collect();
        attack.done += registering.into_iter().map(|one| one.join().unwrap_or(0)).sum::<u64>();
    });
    drop(folder);
    Ok(())
}

/// Bytes of a file so large that the kernel needs seconds to make its pages.
const GIANT: u64 = 4 << 30;

/// Registers such files.
pub(crate) fn giant(attack: &mut Attack) -> io::Result<()> {
    let client = Client::open()?;
    println!("got 1 device");
    while attack.goes_on() {
        let file = memory::reserve("giant", GIANT)?;
        let (pd, access) = (client.pd, AccessFlags::LOCAL_WRITE);
        let request = Request::RegMr { pd, addr: 0, length: GIANT, iova: 0, access, fd_offset: 0 };
        let (answer, _) = client.connection.call(&request, &[file.as_fd()])?;
        let Reply::Mr { mr, .. } = granted(answer)? else { break };
        client.call(&Request::DeregMr { mr })?;
        attack.done += 1;
    }
    Ok(())
}

/// Makes the pages of such files itself, as the daemon does: what they cost the kernel, and on a
/// virtual machine its host, is the same.
pub(crate) fn populate(attack: &mut Attack) -> io::Result<()> {
    /// Bytes in one go.
    const PIECE: usize = 2 << 20;
    println!("got 1 mapping");
    while attack.goes_on() {
        let file = memory::reserve("populate", GIANT)?;
        let len = usize::try_from(GIANT).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: no other program has the file.
        let map = unsafe { MmapOptions::new().len(len).map_mut(&file)? };
        for at in (0..len).step_by(PIECE) {
            map.advise_range(Advice::PopulateWrite, at, PIECE)?;
            if !attack.goes_on() {
                break;
            }
        }
        attack.done += 1;
    }
    Ok(())
}

/// The working folder, deeply nested, and removed at the end.
struct Deep {
    top: PathBuf,
}

impl Deep {
    fn make() -> io::Result<Self> {
        let top = std::env::temp_dir().join(format!("rnic-hostile-{}", std::process::id()));
        std::fs::create_dir(&top)?;
        let deep = Self { top };
        std::env::set_current_dir(&deep.top)?;
        let name = "x".repeat(239);
        // Step by step: the whole path is longer than the kernel accepts.
        for _ in 0..15 {
            std::fs::create_dir(&name)?;
            std::env::set_current_dir(&name)?;
        }
        Ok(deep)
    }
}

impl Drop for Deep {
    fn drop(&mut self) {
        let _ = std::env::set_current_dir("/");
        // By descriptors, because paths are too long.
        let _ = std::fs::remove_dir_all(&self.top);
    }
}
