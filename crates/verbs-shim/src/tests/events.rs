//! Completion channels and asynchronous events.

use std::{io, time::Duration};

use rnic_abi::verbs::AsyncEventType;
use verbs_abi::{
    IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ERR, IBV_EVENT_QP_FATAL, IBV_WR_SEND, ibv_async_event,
};

use super::*;
use crate::cq::req_notify_cq;

/// What `ibv_get_cq_event` gives, or errno.
fn cq_event(world: &World) -> Result<*mut ibv_cq, i32> {
    let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: valid objects.
    if unsafe { ibv_get_cq_event(world.channel, &raw mut cq, &raw mut context) } == 0 {
        assert_eq!(context as usize, 0x77);
        Ok(cq)
    } else {
        Err(io::Error::last_os_error().raw_os_error().unwrap())
    }
}

fn async_event(world: &World) -> Result<ibv_async_event, i32> {
    let mut event = ibv_async_event::zeroed();
    // SAFETY: valid objects.
    if unsafe { ibv_get_async_event(world.context, &raw mut event) } == 0 {
        Ok(event)
    } else {
        Err(io::Error::last_os_error().raw_os_error().unwrap())
    }
}

fn do_not_block(fd: c_int) {
    // SAFETY: a live descriptor.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        assert_eq!(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
    }
}

fn channel_fd(world: &World) -> c_int {
    // SAFETY: a live object.
    unsafe { (*world.channel).fd }
}

#[test]
fn an_arming_gives_one_event_which_destroying_waits_for() {
    let world = World::new();
    do_not_block(channel_fd(&world));
    assert_eq!(cq_event(&world), Err(libc::EAGAIN));
    // SAFETY: a live object.
    assert_eq!(unsafe { req_notify_cq(world.cq, 0) }, 0);
    for _ in 0..2 {
        assert_eq!(world.send(&mut request(IBV_WR_SEND, 0, &mut [])), 0);
        world.finish_send();
    }
    assert_eq!(cq_event(&world), Ok(world.cq));
    assert_eq!(cq_event(&world), Err(libc::EAGAIN));
    assert_eq!(world.poll().len(), 2);
    // SAFETY: used no more.
    assert_eq!(unsafe { ibv_destroy_qp(world.qp) }, 0);
    let cq = world.cq as usize;
    let destroyer = std::thread::spawn(move || {
        // SAFETY: used no more, but for the acknowledgement.
        unsafe { ibv_destroy_cq(cq as *mut ibv_cq) }
    });
    std::thread::sleep(Duration::from_millis(50));
    assert!(!destroyer.is_finished());
    // SAFETY: the other thread waits for this.
    unsafe { ibv_ack_cq_events(world.cq, 1) };
    assert_eq!(destroyer.join().unwrap(), 0);
}

#[test]
fn solicited_arming_waits_for_a_solicited_completion() {
    let world = World::new();
    do_not_block(channel_fd(&world));
    // SAFETY: a live object.
    assert_eq!(unsafe { req_notify_cq(world.cq, 1) }, 0);
    world.complete(&world.receive_cqe(0, 0));
    assert_eq!(cq_event(&world), Err(libc::EAGAIN));
    let mut cqe = world.receive_cqe(1, 0);
    cqe.flags |= CqeFlags::SOLICITED;
    world.complete(&cqe);
    assert_eq!(cq_event(&world), Ok(world.cq));
}

#[test]
fn an_unread_event_neither_blocks_destroying_nor_reaches_a_later_cq() {
    let world = World::new();
    do_not_block(channel_fd(&world));
    // SAFETY: valid objects; each is used no more after its end.
    unsafe {
        assert_eq!(req_notify_cq(world.cq, 0), 0);
        world.complete(&world.send_cqe(0, 0));
        assert_eq!(ibv_destroy_qp(world.qp), 0);
        assert_eq!(ibv_destroy_comp_channel(world.channel), libc::EBUSY);
        assert_eq!(ibv_destroy_cq(world.cq), 0);
        assert_eq!(cq_event(&world), Err(libc::EAGAIN));
        assert_eq!(ibv_destroy_comp_channel(world.channel), 0);
    }
}

#[test]
fn async_events_name_their_objects() {
    let world = World::new();
    // SAFETY: a live object.
    do_not_block(unsafe { (*world.context).async_fd });
    assert!(matches!(async_event(&world), Err(libc::EAGAIN)));
    world.fake.state().raise(AsyncEventType::PortErr, 1);
    world.fake.state().raise(AsyncEventType::QpFatal, world.qp_handle());
    world.fake.state().raise(AsyncEventType::QpFatal, 99_999);
    let event = async_event(&world).unwrap();
    // SAFETY: a port event.
    assert_eq!((event.event_type, unsafe { event.element.port_num }), (IBV_EVENT_PORT_ERR, 1));
    let mut event = async_event(&world).unwrap();
    // SAFETY: a queue pair event.
    assert_eq!((event.event_type, unsafe { event.element.qp }), (IBV_EVENT_QP_FATAL, world.qp));
    assert!(matches!(async_event(&world), Err(libc::EAGAIN)), "no such object");
    // SAFETY: valid objects.
    unsafe {
        ibv_ack_async_event(&raw mut event);
        assert_eq!((*world.qp).events_completed, 1);
        assert_eq!(ibv_destroy_qp(world.qp), 0);
    }
}

#[test]
fn the_death_of_the_daemon_ends_waiting_calls() {
    let world = World::new();
    // SAFETY: a live object.
    assert_eq!(unsafe { req_notify_cq(world.cq, 0) }, 0);
    assert_eq!(world.send(&mut request(IBV_WR_SEND, 0, &mut [])), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            world.fake.die();
        });
        let addresses = (world.channel as usize, world.cq as usize);
        scope.spawn(move || {
            let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
            let channel = addresses.0 as *mut ibv_comp_channel;
            // SAFETY: a live channel.
            assert_eq!(unsafe { ibv_get_cq_event(channel, &raw mut cq, &raw mut context) }, 0);
            assert_eq!(cq as usize, addresses.1);
        });
    });
    assert_eq!(world.poll().len(), 1, "flushed");
    assert_eq!(cq_event(&world), Err(libc::EIO));
    let event = async_event(&world).unwrap();
    assert_eq!(event.event_type, IBV_EVENT_DEVICE_FATAL);
    assert!(matches!(async_event(&world), Err(libc::EIO)));
}

// SAFETY: tests hand the world to threads that only call the interface, which is made for that.
unsafe impl Sync for World {}
