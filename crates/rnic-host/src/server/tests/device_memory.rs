//! Memory of the daemon that clients map, and registrations of whole address spaces.

use super::*;
use crate::dma::slot_of;
use rnic_abi::os::memory;

const ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::ZERO_BASED);

fn alloc(client: &Client, length: u64) -> Result<(u32, OwnedFd), i32> {
    let request = Request::AllocDm { length };
    let (answer, mut fds) = client.connection.call(&request, &[]).unwrap();
    match answer {
        Ok(Reply::Handle(dm)) => Ok((dm, fds.next().unwrap())),
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => Err(refusal.errno),
    }
}

fn region(pd: u32, dm: u32, offset: u64, length: u64, access: AccessFlags) -> Request {
    Request::RegDmMr { pd, dm, offset, length, access }
}

#[test]
fn device_memory_stays_while_a_region_uses_it() {
    let daemon = Daemon::start("dm", &[]);
    let client = daemon.open();
    let pd = client.handle(&Request::AllocPd);
    let (dm, file) = alloc(&client, 100).unwrap();
    // Zeroed, whole pages, and no smaller ever.
    let words = memory::map(&file, 512).unwrap();
    assert!((0..512).all(|i| words.get(i) == 0));
    for (offset, length, access) in [
        (0, 101, ACCESS),
        (90, 11, ACCESS),
        (u64::MAX, 2, ACCESS),
        (0, 8, AccessFlags::LOCAL_WRITE),
        (0, 8, ACCESS | AccessFlags::ON_DEMAND),
        (0, 8, ACCESS | AccessFlags::HUGETLB),
    ] {
        let request = region(pd, dm, offset, length, access);
        assert_eq!(client.errno(&request), libc::EINVAL, "{offset} {length} {access:?}");
    }
    assert_eq!(client.errno(&region(pd, dm + 1, 0, 8, ACCESS)), libc::ENOENT);
    assert_eq!(client.errno(&region(pd ^ 0x100, dm, 0, 8, ACCESS)), libc::ENOENT);
    let all = ACCESS
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_ATOMIC
        | AccessFlags::FLUSH_GLOBAL
        | AccessFlags::MW_BIND;
    let Ok(Reply::Mr { mr, .. }) = client.call(&region(pd, dm, 90, 10, all)) else { panic!() };
    assert_eq!(client.errno(&Request::FreeDm { dm }), libc::EBUSY);
    assert_eq!(client.call(&Request::DeregMr { mr }), Ok(Reply::Done));
    assert_eq!(client.call(&Request::FreeDm { dm }), Ok(Reply::Done));
    assert_eq!(client.errno(&Request::FreeDm { dm }), libc::ENOENT);
}

/// Where the next address space has its place.
fn next_space(daemon: &Daemon) -> u32 {
    let registry = &daemon.service.registry;
    let space = registry.take_space();
    registry.give_space(space);
    slot_of(space)
}

/// Payload that is passed by reference names a space. It must not be found any more when its region
/// has ended, although the memory is still there.
#[test]
fn each_region_of_device_memory_has_a_space_that_ends_with_it() {
    let daemon = Daemon::start("dm-spaces", &[]);
    let client = daemon.open();
    let pd = client.handle(&Request::AllocPd);
    let (dm, _file) = alloc(&client, 4096).unwrap();
    let first = next_space(&daemon);
    let regions = [(); 2].map(|()| client.handle(&region(pd, dm, 0, 64, ACCESS)));
    assert_eq!(next_space(&daemon), first + 2);
    client.call(&Request::DeregMr { mr: regions[0] }).unwrap();
    assert_eq!(next_space(&daemon), first);
    client.call(&Request::DeregMr { mr: regions[1] }).unwrap();
    // One that the engine refuses leaves none either.
    let before = next_space(&daemon);
    assert_eq!(client.errno(&region(pd + 9, dm, 0, 64, ACCESS)), libc::ENOENT);
    assert_eq!(next_space(&daemon), before);
    assert_eq!(client.call(&Request::FreeDm { dm }), Ok(Reply::Done));
}

#[test]
fn device_memory_of_another_client_does_not_exist() {
    let daemon = Daemon::start("dm-foreign", &[]);
    let (client, other) = (daemon.open(), daemon.open());
    let (dm, _file) = alloc(&client, 4096).unwrap();
    let pd = other.handle(&Request::AllocPd);
    assert_eq!(other.errno(&region(pd, dm, 0, 8, ACCESS)), libc::ENOENT);
    assert_eq!(other.errno(&Request::FreeDm { dm }), libc::ENOENT);
}

#[test]
fn device_memory_is_limited_for_all_clients_of_a_user() {
    let daemon = Daemon::start("dm-quota", &[(Resource::DeviceMemoryBytes, 10_000)]);
    let (client, other) = (daemon.open(), daemon.open());
    let Ok(Reply::Devices(devices)) = client.call(&Request::ListDevices) else { panic!() };
    assert_eq!(devices[0].limits.max_dm_size, 8192);
    assert_eq!(alloc(&client, 8193).map(drop), Err(libc::ENOMEM));
    assert_eq!(alloc(&client, 0).map(drop), Err(libc::EINVAL));
    assert_eq!(alloc(&client, u64::MAX).map(drop), Err(libc::EINVAL));
    assert_eq!(alloc(&client, u64::MAX / 2).map(drop), Err(libc::ENOMEM));
    let (dm, _file) = alloc(&client, 8192).unwrap();
    assert_eq!(alloc(&other, 1).map(drop), Err(libc::ENOMEM));
    client.call(&Request::FreeDm { dm }).unwrap();
    let (_, _file) = alloc(&other, 8192).unwrap();
    // What a client had goes with it.
    drop(other);
    let started = Instant::now();
    while alloc(&client, 8192).is_err() {
        assert!(started.elapsed() < Duration::from_secs(10), "a dead client's memory is not free");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn whole_space(pd: u32, access: AccessFlags) -> Request {
    Request::RegMr { pd, addr: 0, length: u64::MAX, iova: 0, access, fd_offset: 0 }
}

/// A whole address space is charged as what there is of it now, not as 2^64 bytes.
#[test]
fn a_whole_address_space_is_charged_as_its_size() {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND;
    let daemon = Daemon::start("implicit", &[]);
    let client = daemon.open();
    let pd = client.handle(&Request::AllocPd);
    assert_eq!(client.errno(&whole_space(pd, AccessFlags::LOCAL_WRITE)), libc::EFAULT);
    let Ok(Reply::Mr { mr, lkey, .. }) = client.call(&whole_space(pd, access)) else { panic!() };
    let here = 0u64;
    let addr = std::ptr::from_ref(&here) as u64;
    let check = |pd, lkey, access| Request::CheckAccess { pd, lkey, addr, length: 8, access };
    assert_eq!(client.call(&check(pd, lkey, access)), Ok(Reply::Done));
    let reading = access | AccessFlags::REMOTE_READ;
    for denied in [check(pd, lkey, reading), check(pd, lkey ^ 1, access)] {
        assert_eq!(client.errno(&denied), libc::EFAULT);
    }
    assert_eq!(client.call(&Request::DeregMr { mr }), Ok(Reply::Done));
    let small = Daemon::start("implicit-small", &[(Resource::RegisteredBytes, 1 << 20)]);
    let client = small.open();
    let pd = client.handle(&Request::AllocPd);
    assert_eq!(client.errno(&whole_space(pd, access)), libc::ENOMEM);
}

/// Pages that a file has, of which a client may keep as many copies as it likes.
fn blocks(file: &OwnedFd) -> i64 {
    rustix::fs::fstat(file).unwrap().st_blocks
}

/// The file of the rings of a client's first queue, which is a large one.
fn rings(client: &Client) -> OwnedFd {
    let request = Request::CreateCq { cqe: 1000, channel: None, comp_vector: 0 };
    let (_, fds) = client.call_with(&request);
    fds.into_iter().next().unwrap()
}

#[test]
fn a_client_keeps_nothing_of_memory_that_it_gave_back() {
    let daemon = Daemon::start("dm-kept", &[]);
    let client = daemon.open();
    let (dm, freed) = alloc(&client, 1 << 20).unwrap();
    let (_, left) = alloc(&client, 1 << 20).unwrap();
    let rings = rings(&client);
    assert!([&freed, &left, &rings].into_iter().all(|file| blocks(file) > 0));
    client.call(&Request::FreeDm { dm }).unwrap();
    assert_eq!(blocks(&freed), 0);
    drop(client);
    daemon.settle();
    assert_eq!([blocks(&left), blocks(&rings)], [0, 0]);
}

/// Completions that came before the end of the daemon can be polled after it.
#[test]
fn a_daemon_that_ends_leaves_the_queues_as_they_are() {
    let daemon = Daemon::start("dm-end", &[]);
    let client = daemon.open();
    let rings = rings(&client);
    daemon.service.stop.wake().unwrap();
    daemon.settle();
    assert!(blocks(&rings) > 0);
}
