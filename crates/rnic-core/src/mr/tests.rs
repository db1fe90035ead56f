//! Keys and ranges.

use super::{Bind, BindFault, KeyFault, MrTable, NewMr, Through, WHOLE_SPACE};
use crate::command::{ClientId, Errno, WindowType};
use crate::ports::SpaceId;
use crate::secret::Secret;
use proptest::prelude::*;
use rnic_abi::verbs::AccessFlags;

fn new_mr(access: AccessFlags) -> NewMr {
    NewMr {
        client: ClientId(1),
        pd: 7,
        space: SpaceId(3),
        addr: 0x10_000,
        length: 0x1000,
        iova: 0x9000_0000,
        access,
    }
}

fn table_with(access: AccessFlags) -> (MrTable, u32) {
    let mut table = MrTable::new([8, 8], Secret::new([1, 2]));
    let keys = table.register(new_mr(access)).unwrap();
    (table, keys.rkey)
}

#[test]
fn an_access_is_translated_from_iova_to_address() {
    let (table, key) = table_with(AccessFlags::LOCAL_WRITE);
    let target = table.check(key, 7, 0x9000_0010, 16, AccessFlags::LOCAL_WRITE).unwrap();
    assert_eq!((target.space, target.addr, target.private), (SpaceId(3), 0x10_010, true));
}

#[test]
fn each_refusal_has_its_reason() {
    let none = AccessFlags::empty();
    let (table, key) = table_with(none);
    assert_eq!(table.check(key ^ 1, 7, 0x9000_0000, 1, none), Err(KeyFault::UnknownKey));
    assert_eq!(table.check(0, 7, 0x9000_0000, 1, none), Err(KeyFault::UnknownKey));
    assert_eq!(table.check(key, 8, 0x9000_0000, 1, none), Err(KeyFault::WrongPd));
    let write = AccessFlags::REMOTE_WRITE;
    assert_eq!(table.check(key, 7, 0x9000_0000, 1, write), Err(KeyFault::Access));
    assert_eq!(table.check(key, 7, 0x8fff_ffff, 1, none), Err(KeyFault::Bounds));
    assert_eq!(table.check(key, 7, 0x9000_0fff, 2, none), Err(KeyFault::Bounds));
    assert_eq!(table.check(key, 7, 0x9000_0000, u64::MAX, none), Err(KeyFault::Bounds));
    assert_eq!(table.check(key, 7, u64::MAX, 1, none), Err(KeyFault::Bounds));
    assert!(table.check(key, 7, 0x9000_0fff, 1, none).is_ok());
    assert!(table.check(key, 7, 0x9000_1000, 0, none).is_ok());
}

#[test]
fn impossible_registrations_are_refused() {
    let mut table = MrTable::new([1, 0], Secret::new([1, 2]));
    let mut refuse = |mr: NewMr| table.register(mr).map_err(|e| e.errno);
    assert_eq!(refuse(new_mr(AccessFlags::REMOTE_WRITE)), Err(Errno::Invalid));
    assert_eq!(refuse(new_mr(AccessFlags::REMOTE_ATOMIC)), Err(Errno::Invalid));
    let ok = new_mr(AccessFlags::REMOTE_READ);
    assert_eq!(refuse(NewMr { length: u64::MAX / 2, ..ok }), Err(Errno::Invalid));
    assert_eq!(refuse(NewMr { addr: u64::MAX - 10, ..ok }), Err(Errno::Invalid));
    assert_eq!(refuse(NewMr { iova: u64::MAX - 10, ..ok }), Err(Errno::Invalid));
    assert!(refuse(ok).is_ok());
    assert_eq!(refuse(ok), Err(Errno::NoMem));
}

#[test]
fn a_whole_address_space_is_a_region_only_on_demand_and_from_zero() {
    let mut table = MrTable::new([8, 8], Secret::new([1, 2]));
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND;
    let whole = NewMr { addr: 0, iova: 0, length: WHOLE_SPACE, ..new_mr(access) };
    for wrong in [
        NewMr { access: AccessFlags::LOCAL_WRITE, ..whole },
        NewMr { addr: 0x1000, ..whole },
        NewMr { iova: 0x1000, ..whole },
        NewMr { length: WHOLE_SPACE - 1, ..whole },
    ] {
        assert_eq!(table.register(wrong).map_err(|e| e.errno), Err(Errno::Invalid));
    }
    let key = table.register(whole).unwrap().lkey;
    for va in [0, 0x7fff_0000_1234, u64::MAX - 8] {
        let target = table.check(key, 7, va, 8, access).unwrap();
        assert_eq!((target.addr, target.private), (va, false));
    }
    assert_eq!(table.check(key, 7, u64::MAX, 1, access), Err(KeyFault::Bounds));
    assert_eq!(table.check(key, 7, 0, 1, AccessFlags::REMOTE_READ), Err(KeyFault::Access));
}

#[test]
fn no_byte_is_inside_an_empty_region() {
    let mut table = MrTable::new([8, 8], Secret::new([1, 2]));
    let access = AccessFlags::LOCAL_WRITE;
    let key = table.register(NewMr { length: 0, ..new_mr(access) }).unwrap().lkey;
    assert_eq!(table.check(key, 7, 0x9000_0000, 1, access), Err(KeyFault::Bounds));
    assert!(table.check(key, 7, 0x9000_0000, 0, access).is_ok());
}

#[test]
fn a_deregistered_key_is_dead_and_only_its_owner_can_kill_it() {
    let mut table = MrTable::new([8, 8], Secret::new([1, 2]));
    let keys = table.register(new_mr(AccessFlags::empty())).unwrap();
    assert!(table.deregister(ClientId(2), keys.mr).is_err());
    assert!(table.deregister(ClientId(1), keys.mr).is_ok());
    let access = AccessFlags::empty();
    assert_eq!(table.check(keys.rkey, 7, 0x9000_0000, 1, access), Err(KeyFault::UnknownKey));
    assert!(table.deregister(ClientId(1), keys.mr).is_err());
}

proptest! {
    #[test]
    fn what_is_granted_is_inside(va: u64, len: u64) {
        let (table, key) = table_with(AccessFlags::empty());
        if let Ok(target) = table.check(key, 7, va, len, AccessFlags::empty()) {
            prop_assert!(target.addr >= 0x10_000);
            prop_assert!(target.addr.checked_add(len).unwrap() <= 0x11_000);
        }
    }
}

/// A table with a region in which windows can be bound, and the region's key.
fn table_for_windows(count: usize) -> (MrTable, u32) {
    let mut table = MrTable::new([8, count], Secret::new([1, 2]));
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
    let lkey = table.register(new_mr(access)).unwrap().lkey;
    for qp in 0..3 {
        table.make_room_for(qp);
    }
    (table, lkey)
}

fn bind(table: &mut MrTable, qp: u32, key: u32, lkey: u32) -> Result<(), BindFault> {
    let access = u64::from(AccessFlags::REMOTE_READ.bits());
    let bind = Bind { key, lkey, start: 0x9000_0000, length: 16, access };
    table.bind(Through { pd: 7, qp }, &bind)
}

proptest! {
    /// However windows are bound, invalidated and destroyed: a queue pair that ends takes those
    /// with it that it had bound, and no other.
    #[test]
    fn windows_end_with_the_queue_pair_that_bound_them(
        steps in proptest::collection::vec((0u32..3, 0usize..6, 0u8..8), 1..60),
    ) {
        let (mut table, lkey) = table_for_windows(6);
        let client = ClientId(1);
        let made = (0..6).map(|_| table.alloc_window(client, 7, WindowType::Two).unwrap());
        let mut windows: Vec<(u32, u32)> = made.collect();
        let mut bound_by = [None; 6];
        for (qp, nth, what) in steps {
            let (mw, key) = windows[nth];
            match what {
                0..=4 => {
                    let result = bind(&mut table, qp, key, lkey);
                    prop_assert_eq!(result.is_ok(), bound_by[nth].is_none());
                    bound_by[nth] = bound_by[nth].or(Some(qp));
                }
                5 => {
                    let result = table.invalidate(key, Through { pd: 7, qp });
                    prop_assert_eq!(result.is_ok(), bound_by[nth] == Some(qp));
                    bound_by[nth] = bound_by[nth].filter(|by| *by != qp);
                }
                6 => {
                    prop_assert!(table.dealloc_window(client, mw).is_ok());
                    windows[nth] = table.alloc_window(client, 7, WindowType::Two).unwrap();
                    bound_by[nth] = None;
                }
                _ => {
                    table.unbind_windows_of(qp);
                    bound_by = bound_by.map(|by| by.filter(|by| *by != qp));
                }
            }
            for ((mw, _), by) in windows.iter().zip(bound_by) {
                let window = table.windows().find(|(handle, _)| handle == mw).unwrap().1;
                prop_assert_eq!(window.is_bound(), by.is_some());
            }
        }
    }
}
