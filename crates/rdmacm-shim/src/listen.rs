//! Listening, at all places of an identifier or at none.

use std::{ffi::c_int, net::SocketAddr};

use rnic_abi::control::{CmRequest, Reply};
use verbs_abi::rdma_cm_id;

use crate::{
    connect::bind,
    error::{Errno, Result, code},
    id::{self, Id, Place},
};

/// # Safety
/// `id` is one.
pub(crate) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| listen(id, backlog)))
}

fn listen(id: &mut Id, backlog: c_int) -> Result<()> {
    if id.inner().is_listening {
        return Err(Errno(libc::EINVAL));
    }
    if id.places().is_empty() {
        bind(id, None, SocketAddr::from(([0, 0, 0, 0], 0)))?;
    }
    let backlog = u32::try_from(backlog).ok().filter(|backlog| *backlog > 0);
    listen_at(&id.places(), backlog.unwrap_or(DEFAULT_BACKLOG))?;
    id.inner().is_listening = true;
    Ok(())
}

/// Places whose daemons are gone do not count where there are others.
fn listen_at(places: &[Place], backlog: u32) -> Result<()> {
    let mut listening = Vec::new();
    for place in places {
        match place.done(|id| CmRequest::Listen { id, backlog }) {
            Ok(()) => listening.push(place),
            Err(Errno(libc::EIO)) => {}
            // E.g. another one has the port there: the program may try again, and until then peers
            // must not find a listener at some addresses.
            Err(error) => {
                for place in listening {
                    // Fails only where the daemon is gone.
                    let _ = place.done(|id| CmRequest::StopListening { id });
                }
                return Err(error);
            }
        }
    }
    if listening.is_empty() { Err(Errno(libc::EIO)) } else { Ok(()) }
}

/// Refuses what peers ask a listener for, and the program has not read. It is not read for this
/// listener any more: its peers would wait until the program reads other events.
pub(crate) fn refuse_unread(place: &Place) {
    // Before it is looked at what there is: more would come meanwhile.
    let stopped = place.done(|id| CmRequest::StopListening { id });
    let asked = stopped.and_then(|()| place.device.call(CmRequest::Undecided { id: place.handle }));
    let Ok((Reply::Handles(handles), _)) = asked else { return };
    for handle in handles {
        let request = Place { handle, ..*place };
        if !id::is_known(&request) {
            // Fails only where the peer was first.
            let _ = request.release();
        }
    }
}

/// Requests that may wait where a program leaves that open, as Linux has it.
const DEFAULT_BACKLOG: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::with_daemon;
    use rnic_abi::{
        control::{Answer, Refusal, Request},
        os::Connection,
    };

    fn say(daemon: &Connection, answers: impl IntoIterator<Item = Answer>) {
        for answer in answers {
            daemon.send_message(&answer, &[]).unwrap();
        }
    }

    fn was_asked(daemon: &Connection) -> Option<CmRequest> {
        let mut buffer = [0; 64];
        let (len, _) = daemon.try_recv(&mut buffer).ok()?;
        match rnic_abi::control::decode(&buffer[..len]) {
            Ok(Request::Connections(request)) => Some(request),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_that_cannot_listen_everywhere_listens_nowhere() {
        let (first, second) = (with_daemon(), with_daemon());
        let places = [(&first, 3), (&second, 4)].map(|(of, handle)| Place { device: of.0, handle });
        let refusal = Refusal { errno: libc::EADDRINUSE, message: String::new() };
        say(&first.1, [Ok(Reply::Done), Ok(Reply::Done)]);
        say(&second.1, [Err(refusal)]);
        assert_eq!(listen_at(&places, 5), Err(Errno(libc::EADDRINUSE)));
        let listen = |id| Some(CmRequest::Listen { id, backlog: 5 });
        assert_eq!(was_asked(&first.1), listen(3));
        assert_eq!(was_asked(&first.1), Some(CmRequest::StopListening { id: 3 }));
        assert_eq!(was_asked(&second.1), listen(4));
        // The port is free now.
        say(&first.1, [Ok(Reply::Done)]);
        say(&second.1, [Ok(Reply::Done)]);
        assert_eq!(listen_at(&places, 5), Ok(()));
        assert_eq!([&first, &second].map(|of| was_asked(&of.1)), [listen(3), listen(4)]);
        // A daemon that is gone does not keep the others from it.
        drop(first.1);
        say(&second.1, [Ok(Reply::Done)]);
        assert_eq!(listen_at(&places, 5), Ok(()));
        drop(second.1);
        assert_eq!(listen_at(&places, 5), Err(Errno(libc::EIO)));
    }
}
