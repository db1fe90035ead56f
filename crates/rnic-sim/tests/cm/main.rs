//! The connection manager: its rules, one named test each, against a scripted peer; and a random
//! walk of several managers over faulty links.

mod datagrams;
mod ends;
mod peer;
mod replies;
mod requests;
mod users;
mod walk;
mod xrc;

use peer::{Talk, accepted, offer};
use rnic_core::cm::{CmError, Happening, PrivateData};
use roce_wire::cm::CmMessage;

/// Both halves of the usual life of a connection.
#[test]
fn a_connection_comes_up_and_goes_down() {
    let mut talk = Talk::listening();
    let id = talk.requested();
    talk.accept(id, 0x300);
    let CmMessage::Rep(rep) = talk.hear() else { panic!("no REP") };
    assert_eq!((rep.remote_comm_id, rep.local_qpn.value()), (peer::COMM, 0x300));
    talk.say(accepted(&rep));
    assert_eq!(talk.event(id), Happening::Established);
    talk.cm.disconnect(talk.now, id).expect("it is up");
    let CmMessage::Dreq(dreq) = talk.hear() else { panic!("no DREQ") };
    assert_eq!(dreq.remote_qpn.value(), peer::QPN);
    talk.say(peer::drep(&dreq));
    assert_eq!(talk.event(id), Happening::Disconnected);
    talk.pass(1000);
    assert_eq!(talk.event(id), Happening::TimewaitExit);
    assert_eq!(talk.cm.disconnect(talk.now, id), Ok(()), "it is over, however long");
    talk.cm.release(talk.now, id).expect("it is there");
    assert_eq!(talk.cm.len(), 1, "the listener");
}

#[test]
fn commands_that_do_not_fit_the_state_are_refused() {
    let mut talk = Talk::listening();
    let listener = talk.listener;
    let none = PrivateData::NONE;
    let now = talk.now;
    assert_eq!(talk.cm.accept(now, listener, &offer(5), &none), Err(CmError::State));
    assert_eq!(talk.cm.reject(now, listener, &none), Err(CmError::State));
    assert_eq!(talk.cm.disconnect(now, listener), Err(CmError::State));
    assert_eq!(talk.cm.establish(listener), Err(CmError::State));
    assert_eq!(talk.cm.release(now, 12_345), Err(CmError::NoSuchId));
    let id = talk.requested();
    assert_eq!(talk.cm.disconnect(now, id), Err(CmError::State), "it never was up");
    assert!(talk.cm.is_undecided(id, listener) && !talk.cm.is_undecided(listener, listener));
    let long = PrivateData::new(&[1; 196]).expect("fits a REP");
    assert_eq!(talk.cm.reject(now, id, &long), Err(CmError::Invalid));
    assert_eq!(talk.cm.accept(now, id, &offer(1), &none), Err(CmError::Invalid), "QP1");
    assert_eq!(talk.cm.listen(id, 1), Err(CmError::State));
    talk.accept(id, 0x300);
    assert!(!talk.cm.is_undecided(id, listener));
    assert_eq!(talk.cm.reject(now, id, &none), Err(CmError::State));
}
