//! Events on their way.

use super::*;
use rnic_abi::verbs::AsyncEventType;

fn read(socket: &OwnedFd) -> Option<[u8; 8]> {
    let mut event = [0; 8];
    let flags = rustix::net::RecvFlags::DONTWAIT;
    rustix::net::recv(socket, &mut event, flags).ok().map(|_| event)
}

#[test]
fn a_full_socket_loses_nothing() {
    let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
    let mut host = ClientEvents::new(Arc::clone(&epoll));
    let (client, channel) = (ClientId(1), ChannelId(2));
    let (events, _async_end) = EventSocket::pair().unwrap();
    let (ours, theirs) = EventSocket::pair().unwrap();
    host.add_client(client, events);
    host.add_channel(client, channel, ours);
    const EVENTS: u32 = 5000;
    for cq in 0..EVENTS {
        host.completion_event(client, channel, cq);
    }
    assert_eq!(host.forget_cq(client, EVENTS - 1), 1);
    let mut seen = Vec::new();
    loop {
        while let Some(event) = read(&theirs) {
            seen.push(CompletionEvent::decode(event).cq);
        }
        let mut ready = Vec::with_capacity(4);
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&*epoll, rustix::buffer::spare_capacity(&mut ready), Some(&none)).unwrap();
        if ready.is_empty() {
            break;
        }
        for event in ready {
            host.writable(Token::decode(event.data.u64()).unwrap());
        }
    }
    assert_eq!(seen, (0..EVENTS - 1).collect::<Vec<_>>());
}

#[test]
fn events_of_strangers_are_ignored() {
    let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
    let mut host = ClientEvents::new(epoll);
    host.completion_event(ClientId(9), ChannelId(9), 1);
    host.async_event(ClientId(9), AsyncEvent { event: AsyncEventType::CommEst, element: 1 });
    let (events, theirs) = EventSocket::pair().unwrap();
    host.add_client(ClientId(9), events);
    drop(theirs);
    host.async_event(ClientId(9), AsyncEvent { event: AsyncEventType::CommEst, element: 1 });
}

#[test]
fn what_another_thread_has_to_say_is_sent_by_the_one_with_the_sockets() {
    let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
    let mut host = ClientEvents::new(epoll);
    let (client, channel) = (ClientId(1), ChannelId(2));
    let (events, asynchronous) = EventSocket::pair().unwrap();
    let (ours, completions) = EventSocket::pair().unwrap();
    host.add_client(client, events);
    host.add_channel(client, channel, ours);
    host.keep(true);
    host.completion_event(client, channel, 7);
    host.async_event(client, AsyncEvent { event: AsyncEventType::CommEst, element: 1 });
    host.completion_event(client, channel, 8);
    host.keep(false);
    assert!(
        host.any_kept_but_for(0) && read(&completions).is_none() && read(&asynchronous).is_none()
    );
    host.completion_event(client, channel, 9);
    host.send_kept();
    let cqs: Vec<_> = std::iter::from_fn(|| read(&completions)).collect();
    let cqs: Vec<_> = cqs.into_iter().map(|event| CompletionEvent::decode(event).cq).collect();
    assert_eq!(cqs, [7, 8, 9]);
    assert!(read(&asynchronous).is_some() && !host.any_kept_but_for(0));
}

#[test]
fn a_thread_takes_the_events_of_its_channel_and_no_others() {
    let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
    let mut host = ClientEvents::new(epoll);
    let client = ClientId(1);
    host.add_client(client, EventSocket::pair().unwrap().0);
    let [first, second] = [1, 2].map(|channel| {
        let (ours, theirs) = EventSocket::pair().unwrap();
        let inode = ours.inode;
        host.add_channel(client, ChannelId(channel), ours);
        (inode, theirs)
    });
    let taken = |event: Option<_>| event.map(|event| CompletionEvent::decode(event).cq);
    host.keep(true);
    for (channel, cq) in [(1, 7), (2, 8), (1, 9), (1, 10)] {
        host.completion_event(client, ChannelId(channel), cq);
    }
    host.keep(false);
    assert_eq!(host.forget_cq(client, 9), 1);
    assert_eq!(host.take_kept(0), None);
    assert_eq!(taken(host.take_kept(first.0)), Some(7));
    assert!(host.any_kept_but_for(first.0) && host.any_kept_but_for(second.0));
    assert_eq!(taken(host.take_kept(first.0)), Some(10));
    assert_eq!(host.take_kept(first.0), None);
    assert!(host.any_kept_but_for(first.0) && !host.any_kept_but_for(second.0));
    host.send_kept();
    assert_eq!((taken(read(&first.1)), taken(read(&second.1))), (None, Some(8)));
    assert!(!host.any_kept_but_for(0) && host.take_kept(second.0).is_none());
    // What was taken leaves no order of later events behind.
    host.keep(true);
    host.completion_event(client, ChannelId(1), 11);
    host.keep(false);
    host.send_kept();
    assert_eq!(taken(read(&first.1)), Some(11));
}

#[test]
fn events_of_a_queue_that_is_gone_keep_no_thread_busy() {
    let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
    let mut host = ClientEvents::new(epoll);
    let client = ClientId(1);
    host.add_client(client, EventSocket::pair().unwrap().0);
    let (ours, _theirs) = EventSocket::pair().unwrap();
    let inode = ours.inode;
    host.add_channel(client, ChannelId(1), ours);
    host.keep(true);
    host.completion_event(client, ChannelId(1), 7);
    assert_eq!(host.forget_cq(client, 7), 1);
    assert!(!host.any_kept_but_for(0) && host.take_kept(inode).is_none());
    host.completion_event(client, ChannelId(1), 8);
    host.remove_channel(client, ChannelId(1));
    assert!(!host.any_kept_but_for(0) && host.take_kept(inode).is_none());
}
