//! Addresses that clients want to send to.

use super::{Daemon, queue_pair};
use rnic_abi::control::{CreateQp, Request};
use rnic_abi::verbs::{AhAttr, AttrMask, QpAttr, QpState, QpType};

#[test]
fn only_datagrams_are_sent_to_a_group() {
    let daemon = Daemon::start("groups", &[]);
    let client = daemon.open();
    let pd = client.handle(&Request::AllocPd);
    let cq = client.cq();
    let mut mapped = [0; 16];
    mapped[10..].copy_from_slice(&[0xff, 0xff, 239, 1, 2, 3]);
    let mut group = [0; 16];
    (group[0], group[1], group[15]) = (0xff, 0x0e, 9);
    for (sgid_index, dgid) in [(0, mapped), (1, group)] {
        let ah = AhAttr { dgid, sgid_index, is_global: true, port_num: 1, ..AhAttr::default() };
        client.handle(&Request::CreateAh { pd, attr: ah });
        for qp_type in [QpType::Rc, QpType::Uc] {
            let wanted = CreateQp { qp_type, ..queue_pair(pd, cq) };
            let qp = client.handle(&Request::CreateQp(wanted));
            let attr = QpAttr { state: QpState::Rtr, ah, ..QpAttr::default() };
            let mask = AttrMask::STATE | AttrMask::AV;
            let connect = Request::ModifyQp { qp, mask, attr };
            assert_eq!(client.errno(&connect), libc::EOPNOTSUPP, "{qp_type:?} {dgid:x?}");
        }
    }
}
