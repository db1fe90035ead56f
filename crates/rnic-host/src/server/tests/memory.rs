//! Registrations: what memory is accepted, what the daemon maps of it, and how that ends.

use super::{Client, Daemon, registration};
use crate::quota::Resource;
use rnic_abi::control::{Inspect, Reply, Request};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

#[test]
fn memory_that_is_not_there_is_refused_at_once() {
    let daemon = Daemon::start("memory", &[]);
    let client = daemon.open();
    let pd = client.handle(&Request::AllocPd);
    let memory = [0u8; 64];
    let at = memory.as_ptr() as u64;
    for (addr, length, errno) in
        [(u64::MAX - 3, 8, libc::EINVAL), (8, 8, libc::EFAULT), (at, 1 << 45, libc::EFAULT)]
    {
        assert_eq!(client.errno(&registration(pd, addr, length)), errno, "{addr:#x}+{length}");
    }
    // None at all needs no memory, with a file or without.
    let (file, _words) = rnic_abi::os::memory::create("test", 512).unwrap();
    for empty in [registration(pd, at, 0), registration(pd, 8, 0)] {
        let (answer, _) = client.connection.call(&empty, &[file.as_fd()]).unwrap();
        assert!(matches!(answer, Ok(Reply::Mr { .. })), "{answer:?}");
        let Reply::Mr { mr, .. } = client.call(&empty).unwrap() else { panic!() };
        client.call(&Request::DeregMr { mr }).unwrap();
    }
    // A file that can be cut is a way to kill the daemon.
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    let request = registration(pd, at, 64);
    let (answer, _) = client.connection.call(&request, &[file.as_fd()]).unwrap();
    assert!(answer.is_err());
    // One that cannot is welcome, as far as it reaches.
    let (file, _words) = rnic_abi::os::memory::create("test", 512).unwrap();
    let too_long = registration(pd, at, 4097);
    let (answer, _) = client.connection.call(&too_long, &[file.as_fd()]).unwrap();
    assert_eq!(answer.unwrap_err().errno, libc::EINVAL);
    let (answer, _) = client.connection.call(&request, &[file.as_fd()]).unwrap();
    assert!(matches!(answer, Ok(Reply::Mr { .. })), "{answer:?}");
}

#[test]
fn what_the_daemon_maps_is_limited_and_told_apart() {
    let daemon = Daemon::start("mapped", &[(Resource::SharedBytes, 4096)]);
    let (client, other) = (daemon.open(), daemon.open());
    let (file, words) = rnic_abi::os::memory::create("test", 512).unwrap();
    let map = |client: &Client, length| {
        let pd = client.handle(&Request::AllocPd);
        let request = registration(pd, words.at(0).as_ptr() as u64, length);
        client.connection.call(&request, &[file.as_fd()]).unwrap().0
    };
    // For all clients of a user together; what was refused does not count.
    assert_eq!(map(&client, 4097).unwrap_err().errno, libc::ENOMEM);
    let Ok(Reply::Mr { mr, .. }) = map(&client, 3000) else { panic!("refused") };
    let refusal = map(&other, 2000).unwrap_err();
    assert!(refusal.message.contains("quota.shared-bytes"), "{refusal}");
    let memory = [0; 64];
    other.register(other.handle(&Request::AllocPd), &memory);
    let found = client.list(Inspect::Mrs);
    let mut kinds: Vec<_> = found.iter().map(|mr| mr["memory"].as_str().unwrap()).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["process", "shared"]);
    client.call(&Request::DeregMr { mr }).unwrap();
    assert!(map(&other, 2000).is_ok());
    drop(other);
    let started = Instant::now();
    while map(&client, 4096).is_err() {
        assert!(started.elapsed() < Duration::from_secs(10), "a dead client's share is not free");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Also payload that was passed by reference and has not arrived: it cannot be read from memory
/// that is not there.
#[test]
fn memory_is_out_of_reach_when_its_deregistration_is_answered() {
    const NAME: &str = "rnic-deregistered";
    let daemon = Daemon::start("deregister", &[]);
    let client = daemon.open();
    let pd = client.handle(&Request::AllocPd);
    let (file, words) = rnic_abi::os::memory::create(NAME, 512).unwrap();
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains(NAME)).count()
    };
    let request = registration(pd, words.at(0).as_ptr() as u64, 4096);
    for _ in 0..200 {
        let (answer, _) = client.connection.call(&request, &[file.as_fd()]).unwrap();
        let Ok(Reply::Mr { mr, .. }) = answer else { panic!("{answer:?}") };
        assert_eq!(mapped(), 2, "by the client and the daemon, which are one process here");
        client.call(&Request::DeregMr { mr }).unwrap();
        assert_eq!(mapped(), 1);
    }
}
