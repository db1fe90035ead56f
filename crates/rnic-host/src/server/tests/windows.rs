//! Memory windows, and regions that change, over the control socket.

use super::{Client, Daemon};
use crate::quota::Resource;
use rnic_abi::control::{Inspect, Reply, Request};
use rnic_abi::verbs::AccessFlags;

fn window(client: &Client, pd: u32, kind: u8) -> Option<(u32, u32)> {
    match client.call(&Request::AllocMw { pd, kind }) {
        Ok(Reply::Mw { mw, rkey }) => Some((mw, rkey)),
        _ => None,
    }
}

#[test]
fn a_window_is_made_and_destroyed_and_keeps_its_domain() {
    let daemon = Daemon::start("windows", &[]);
    let (client, stranger) = (daemon.open(), daemon.open());
    let pd = client.handle(&Request::AllocPd);
    let (first, key) = window(&client, pd, 1).expect("a window of type 1");
    let (second, other) = window(&client, pd, 2).expect("a window of type 2");
    assert_ne!((first, key >> 8), (second, other >> 8));
    assert_eq!(client.errno(&Request::AllocMw { pd, kind: 3 }), libc::EINVAL);
    assert_eq!(client.errno(&Request::AllocMw { pd: pd + 9, kind: 1 }), libc::ENOENT);
    assert_eq!(stranger.errno(&Request::AllocMw { pd, kind: 1 }), libc::ENOENT);
    assert_eq!(stranger.errno(&Request::DeallocMw { mw: first }), libc::ENOENT);
    assert_eq!(client.errno(&Request::DeallocPd { pd }), libc::EBUSY);
    for mw in [first, second] {
        client.call(&Request::DeallocMw { mw }).unwrap();
        assert_eq!(client.errno(&Request::DeallocMw { mw }), libc::ENOENT);
    }
    client.call(&Request::DeallocPd { pd }).unwrap();
}

/// They take what a region takes, so a program must not be told that it may have more.
#[test]
fn windows_count_as_memory_regions() {
    let daemon = Daemon::start("windows-quota", &[(Resource::Mrs, 3)]);
    let client = daemon.open();
    let Ok(Reply::Devices(devices)) = client.call(&Request::ListDevices) else {
        panic!("no devices")
    };
    assert_eq!(devices[0].limits.max_mw, 3);
    let pd = client.handle(&Request::AllocPd);
    let memory = vec![0; 4096];
    client.register(pd, &memory);
    let made: Vec<_> = (0..3).map(|_| window(&client, pd, 2)).collect();
    assert_eq!(made.iter().filter(|made| made.is_some()).count(), 2);
    assert_eq!(client.errno(&Request::RegNullMr { pd }), libc::ENOMEM);
    client.call(&Request::DeallocMw { mw: made[0].unwrap().0 }).unwrap();
    let null = client.handle(&Request::RegNullMr { pd });
    let shown = client.list(Inspect::Mrs);
    assert_eq!(shown[1]["memory"], "none");
    assert_eq!(shown[0]["windows"], 0);
    client.call(&Request::DeregMr { mr: null }).unwrap();
    // A client that ends gives back what it has.
    drop(client);
    daemon.settle();
    assert!(window(&daemon.open(), pd, 1).is_none(), "its domain is gone, too");
}

#[test]
fn a_registration_changes_or_stays_as_it_is() {
    let daemon = Daemon::start("rereg", &[(Resource::RegisteredBytes, 100_000)]);
    let client = daemon.open();
    let [pd, other] = [0; 2].map(|_| client.handle(&Request::AllocPd));
    let memory = vec![0; 8192];
    let start = memory.as_ptr() as u64;
    let mr = client.register(pd, &memory[..4096]);
    let key = client.list(Inspect::Mrs)[0]["key"].clone();
    let change = |pd, range, access| Request::ReregMr { mr, pd, range, access };
    let write = Some(AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE);
    for (refused, errno) in [
        (change(Some(77), None, None), libc::ENOENT),
        (change(None, Some((0x1000, 4096, 0x1000)), None), libc::EFAULT),
        (change(None, Some((start, 200_000, start)), None), libc::ENOMEM),
        (change(None, None, Some(AccessFlags::REMOTE_WRITE)), libc::EINVAL),
        (Request::ReregMr { mr: mr + 1, pd: None, range: None, access: write }, libc::ENOENT),
    ] {
        // The range that is too long for the quota may have other memory behind it, or none.
        let found = client.errno(&refused);
        assert!(found == errno || (errno == libc::ENOMEM && found == libc::EFAULT), "{refused:?}");
        let shown = &client.list(Inspect::Mrs)[0];
        assert_eq!((&shown["pd"], &shown["length"]), (&pd.into(), &4096.into()));
    }
    client.call(&change(Some(other), Some((start, 8192, 0)), write)).unwrap();
    let shown = &client.list(Inspect::Mrs)[0];
    assert_eq!((&shown["pd"], &shown["length"]), (&other.into(), &8192.into()));
    assert_eq!((&shown["iova"], &shown["key"]), (&0.into(), &key));
    client.call(&Request::DeallocPd { pd }).unwrap();
    client.call(&Request::DeregMr { mr }).unwrap();
    client.call(&Request::DeallocPd { pd: other }).unwrap();
}

/// The library copies what is small itself where memory was found at registration.
#[test]
fn on_demand_memory_that_is_not_there_is_no_ordinary_region() {
    let daemon = Daemon::start("rereg-odp", &[]);
    let client = daemon.open();
    let pd = client.handle(&Request::AllocPd);
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND;
    let (addr, length) = (0x1000, 4096);
    let request = Request::RegMr { pd, addr, length, iova: addr, access, fd_offset: 0 };
    let mr = client.handle(&request);
    let access = Some(AccessFlags::LOCAL_WRITE);
    let change = Request::ReregMr { mr, pd: None, range: None, access };
    assert_eq!(client.errno(&change), libc::EFAULT);
    client.call(&Request::DeregMr { mr }).unwrap();
}
