//! Captured frames on their way from an engine process to the daemon.

use super::{CaptureFeed, CaptureTap, Captured};
use crossbeam_channel::RecvTimeoutError;
use rnic_abi::control::{MAX_MESSAGE, decode};
use rnic_abi::os::Connection;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A frame, and how many were lost before it and after the one before.
#[derive(Serialize, Deserialize)]
struct Message {
    lost: u64,
    captured: Captured,
}

/// Sends what a feed has, until the other end is closed. In a thread of its own.
pub fn export(feed: &CaptureFeed, socket: &Connection) {
    let mut lost = 0;
    loop {
        match feed.frames.recv_timeout(LOOK_UP) {
            Ok(captured) => {
                let message = Message { lost: feed.lost() - lost, captured };
                lost += message.lost;
                if socket.send_message(&message, &[]).is_err() {
                    return;
                }
            }
            Err(RecvTimeoutError::Timeout) if !is_closed(socket) => {}
            Err(_) => return,
        }
    }
}

/// Shows what the other end [sends](export), until it is closed, sends what makes no sense, or the
/// capture is over. In a thread of its own.
pub fn import(tap: &CaptureTap, socket: &Connection) {
    let mut buffer = vec![0; MAX_MESSAGE];
    while !tap.is_over() {
        let mut fds = [PollFd::new(socket, PollFlags::IN)];
        if poll(&mut fds, Some(&timespec(LOOK_UP))).is_err() {
            return;
        }
        match socket.try_recv_plain(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(len @ 1..) => {
                let Ok(Message { lost, captured }) = decode(&buffer[..len]) else { return };
                tap.lost.fetch_add(lost, Ordering::Relaxed);
                tap.show(captured);
            }
            _ => return,
        }
    }
}

fn is_closed(socket: &Connection) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() }
}

/// How soon the end of a capture is noticed when there are no frames.
const LOOK_UP: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::super::capture;
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn frames_of_another_process_are_shown_and_losses_are_counted() {
        let (here, there) = Connection::pair().unwrap();
        let (their_tap, their_feed) = capture();
        let (tap, feed) = capture();
        let exporter = std::thread::spawn(move || export(&their_feed, &there));
        let importer = std::thread::spawn({
            let tap = tap.clone();
            move || import(&tap, &here)
        });
        their_tap.lost.fetch_add(7, Ordering::Relaxed);
        let frame = |n: u16| Captured {
            at: SystemTime::now(),
            sent: n.is_multiple_of(2),
            frame: n.to_le_bytes().repeat(2100),
        };
        let frames: Vec<_> = (0..300).map(frame).collect();
        frames.iter().for_each(|frame| their_tap.show(frame.clone()));
        for frame in &frames {
            assert_eq!(feed.frames.recv_timeout(Duration::from_secs(5)).as_ref(), Ok(frame));
        }
        assert_eq!(feed.lost(), 7);
        drop(feed);
        // Both end, and with them what they hold.
        importer.join().unwrap();
        exporter.join().unwrap();
        assert!(their_tap.is_over());
    }
}
