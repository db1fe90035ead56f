//! Identifiers that go to another channel.

use std::{ffi::c_int, ptr};

use rnic_abi::control::CmRequest;
use verbs_abi::{rdma_cm_id, rdma_event_channel};

use crate::{
    channel::{Channel, acknowledge_own},
    error::{Errno, Result, code},
    events,
    id::{self, Id},
};

/// # Safety
/// `id` is one, `channel` null or a channel.
pub(crate) unsafe extern "C-unwind" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: by contract.
    let own = unsafe { id::of(id) }.and_then(|id| migrate(id, channel.cast()));
    // Nothing has the identifier here any more: events find it by themselves.
    code(own.map(|own| {
        if let Some(old) = own {
            pass_on(old);
            // SAFETY: it was the identifier's own.
            unsafe { Channel::close(old) };
        }
    }))
}

/// The channel that was the identifier's own, if it had one.
fn migrate(id: &mut Id, channel: *mut Channel) -> Result<Option<*mut Channel>> {
    let is_sync = channel.is_null();
    let channel = if is_sync { Channel::open()? } else { channel };
    // SAFETY: a channel, by contract of the caller.
    unsafe { move_to(id, &*channel) }.inspect_err(|_| {
        if is_sync {
            // SAFETY: just made.
            unsafe { Channel::close(channel) };
        }
    })?;
    let old = std::mem::replace(&mut id.public.channel, channel.cast());
    let was_sync = std::mem::replace(&mut id.inner().is_sync, is_sync);
    if was_sync {
        acknowledge_own(id);
    }
    Ok(was_sync.then_some(old.cast()))
}

/// Has what a channel that is about to be closed holds go where its identifiers are by now. It
/// would be lost otherwise, and what peers ask for be refused.
fn pass_on(channel: *mut Channel) {
    // SAFETY: it is not closed yet.
    let fd = unsafe { (*channel).public.fd };
    // SAFETY: no pointers.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
    while let Ok(event) = events::next(channel) {
        // Only what the other channel has no room for.
        // SAFETY: just made.
        unsafe { events::rdma_ack_cm_event(event) };
    }
}

/// Moves all places of an identifier, or none. Those whose daemons are gone do not count where
/// there are others.
fn move_to(id: &Id, channel: &Channel) -> Result<()> {
    let places = id.places();
    let placing = channel.placing()?;
    let is_gone = |error: &Errno| places.len() > 1 && *error == Errno(libc::EIO);
    let mut ready = Vec::new();
    for place in &places {
        match placing.handle_at(place.device) {
            Ok(channel) => ready.push((place, channel)),
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let mut moved = Vec::new();
    for (place, channel) in ready {
        match place.done(|id| CmRequest::Move { id, channel }) {
            Ok(()) => moved.push(*place),
            Err(error) if is_gone(&error) => {}
            Err(error) => {
                move_back(id, &moved);
                return Err(error);
            }
        }
    }
    if moved.is_empty() && !places.is_empty() {
        return Err(Errno(libc::EIO));
    }
    id::set_channel(&places, ptr::from_ref(channel));
    Ok(())
}

fn move_back(id: &Id, places: &[id::Place]) {
    // SAFETY: every identifier has a channel.
    let old = unsafe { &*id.public.channel.cast::<Channel>() };
    for place in places {
        if let Some(channel) = old.known_at(place.device) {
            // Fails only where the daemon is gone.
            let _ = place.done(|id| CmRequest::Move { id, channel });
        }
    }
}
