//! What a hostile engine process says to the daemon, and hears from it.

use crate::connections;
use crate::random::{bytes, one_of, word};
use crate::report::Report;
use fastrand::Rng;
use rnic_abi::control::{MAX_MESSAGE, decode, encode};
use rnic_abi::os::{Connection, Descriptors, EventFd};
use rnic_abi::verbs::AhAttr;
use rnic_host::inspect::{Found, Numbers};
use rnic_host::quota::{Amounts, Resource};
use rnic_host::report::{Cq, Object, Session, Totals};
use rnic_host::satellite::protocol::{Call, FromEngine, Inquiry, Severity, ToEngine, Told};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::sleep;
use std::time::Duration;

/// A way to misuse the socket.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Voice {
    /// Messages of the protocol in senseless order, whose answers are read.
    Calls,
    /// The same without a look at the answers.
    Deaf,
    /// What is no message.
    Nonsense,
    /// Descriptors where none belong.
    Descriptors,
    /// Wrong answers, none, or several.
    Liar,
    /// Says and reads nothing, not even that it has to end.
    Mute,
}

pub(crate) const VOICES: [Voice; 6] =
    [Voice::Calls, Voice::Deaf, Voice::Nonsense, Voice::Descriptors, Voice::Liar, Voice::Mute];

/// Until this process dies.
pub(crate) fn speak(voice: Voice, socket: &Connection, random: &mut Rng, report: &Report) {
    report.did(&format!("{voice:?}"));
    let mut hears = Hears::default();
    loop {
        match voice {
            Voice::Calls => {
                tell(socket, &message(random));
                hears.drain(socket);
            }
            Voice::Deaf => tell(socket, &message(random)),
            Voice::Nonsense => {
                // Now and then: the daemon kills it at the first one.
                sleep(Duration::from_millis(random.u64(..40)));
                nonsense(socket, random);
            }
            Voice::Descriptors => {
                sleep(Duration::from_millis(random.u64(..40)));
                descriptors(socket, random);
            }
            Voice::Liar => hears.lie(socket, random),
            Voice::Mute => sleep(Duration::from_secs(1)),
        }
    }
}

/// Without waiting, in most cases.
fn tell(socket: &Connection, message: &FromEngine) {
    if let Ok(bytes) = encode(message)
        && socket.try_send(&bytes, &[]).is_err()
    {
        sleep(Duration::from_micros(200));
    }
}

/// Any message of the protocol.
fn message(random: &mut Rng) -> FromEngine {
    let number = one_of(random, [0, 1, 2, 3, u32::MAX]) ^ random.u32(..8);
    match random.u8(..13) {
        9.. => connections::message(number, random),
        0 => FromEngine::Call(number, Call::Resolve(address(random))),
        1 => {
            let count = random.usize(..=Resource::ALL.len());
            let wanted = (0..count).map(|_| (one_of(random, Resource::ALL), word(random)));
            FromEngine::Call(number, Call::Take(wanted.collect()))
        }
        2 => FromEngine::Call(number, Call::Take(vec![(one_of(random, Resource::ALL), 1)])),
        3 => FromEngine::Give(amounts(random)),
        4 => FromEngine::Told(number, told(random)),
        8 => FromEngine::GiveWays(vec![(random.u32(..9), word(random) as u32); random.usize(..9)]),
        5 => FromEngine::Idle(word(random) as u32),
        6 => FromEngine::Log(
            one_of(random, [Severity::Error, Severity::Warning, Severity::Info, Severity::Debug]),
            line(random),
        ),
        _ => FromEngine::Counted(numbers(random)),
    }
}

/// Of this host: nothing leaves it.
fn address(random: &mut Rng) -> AhAttr {
    let [a, b, c] = [random.u8(..), random.u8(..), random.u8(..)];
    AhAttr {
        dgid: Ipv4Addr::new(127, a, b, c).to_ipv6_mapped().octets(),
        flow_label: word(random) as u32,
        sgid_index: one_of(random, [0, 0, 1, 255]),
        hop_limit: random.u8(..),
        traffic_class: random.u8(..),
        sl: random.u8(..),
        port_num: one_of(random, [1, 1, 0, 255]),
        is_global: random.u8(..8) != 0,
    }
}

fn amounts(random: &mut Rng) -> Amounts {
    let mut amounts = Amounts::default();
    for resource in Resource::ALL {
        amounts[resource] = word(random);
    }
    amounts
}

/// Up to 60,000 characters, control characters among them.
fn line(random: &mut Rng) -> String {
    let len = one_of(random, [0, 10, 300, 60_000]);
    (0..len).map(|_| char::from(random.u8(..128))).collect()
}

fn numbers(random: &mut Rng) -> Numbers {
    let count = one_of(random, [0, 3, 1000]);
    let mut numbers: Numbers =
        (0..count).map(|_| (format!("x{}", random.u32(..)).into(), word(random))).collect();
    numbers.insert("tx_packets".into(), word(random));
    numbers.insert("rx_bytes".into(), word(random));
    numbers
}

fn told(random: &mut Rng) -> Told {
    match random.u8(..5) {
        0 => Told::Engine(None),
        1 => {
            let [qps, cqs, mrs] = [word(random), word(random), word(random)];
            Told::Engine(Some(Found::Totals(Totals { qps, cqs, mrs })))
        }
        2 => Told::Engine(Some(Found::Counters(numbers(random)))),
        3 => {
            let objects = (0..random.usize(..1000)).map(|_| {
                let [cq, client, capacity, queues] =
                    [word(random), word(random), word(random), 1].map(|word| word as u32);
                let (written, polled, broken) = (word(random), word(random), true);
                let cq = Cq { cq, client, capacity, written, polled, queues, broken };
                (word(random) as u32, Object::Cq(cq))
            });
            let objects = objects.collect();
            let next = one_of(random, [None, Some(0), Some(1), Some(u32::MAX)]);
            Told::Engine(Some(Found::Objects { objects, next }))
        }
        _ => {
            let sessions = (0..random.usize(..100)).map(|_| {
                let [session, pid, uid] = [(); 3].map(|()| word(random) as u32);
                let (client, command) = (Some(uid ^ 1), Some(line(random)));
                Session { session, pid, uid, client, command }
            });
            Told::Sessions(sessions.collect())
        }
    }
}

/// What cannot be decoded: random, cut off, too long, or with more behind it.
fn nonsense(socket: &Connection, random: &mut Rng) {
    let mut message = match random.u8(..5) {
        0 => bytes(random, MAX_MESSAGE),
        1 => bytes(random, 64),
        2 => vec![random.u8(..8); MAX_MESSAGE + random.usize(1..100_000)],
        _ => encode(&message(random)).unwrap_or_default(),
    };
    match random.u8(..4) {
        0 => message.truncate(random.usize(..=message.len())),
        1 => message.extend(bytes(random, 100)),
        _ => {
            let at = random.usize(..message.len().max(1));
            if let Some(byte) = message.get_mut(at) {
                *byte ^= 1 << random.u8(..8);
            }
        }
    }
    // Also nothing at all, which reads as the end.
    let _ = send(socket, &message, SendFlags::DONTWAIT);
}

/// Sockets whose queues are full, ends of the sockets themselves, and as many as the kernel takes.
fn descriptors(socket: &Connection, random: &mut Rng) {
    let Ok((one, other)) = Connection::pair() else { return };
    while one.try_send(&[0; 1000], &[other.as_fd(), socket.as_fd()]).is_ok() {}
    let (event, file) = (EventFd::new(), std::fs::File::open("/proc/self/maps"));
    let (Ok(event), Ok(file)) = (event, file) else { return };
    let own = [one.as_fd(), other.as_fd(), socket.as_fd(), event.as_fd(), file.as_fd()];
    let count = one_of(random, [1, 2, 4, 5, MOST]);
    let fds: Vec<_> = (0..count).map(|_| one_of(random, own)).collect();
    let message = encode(&message(random)).unwrap_or_default();
    send_with(socket.as_fd(), &message, &fds);
}

/// Sends a message with descriptors, without waiting.
pub(crate) fn send_with(socket: BorrowedFd<'_>, message: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if control.push(SendAncillaryMessage::ScmRights(fds)) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let _ = sendmsg(socket, &[IoSlice::new(message)], &mut control, flags);
    }
}

/// Descriptors that the kernel takes in one message.
const MOST: usize = 253;

/// What the daemon says.
#[derive(Default)]
struct Hears {
    buffer: Vec<u8>,
    /// Connections of clients, which get no answer, or a wrong one.
    clients: VecDeque<OwnedFd>,
}

impl Hears {
    fn next(&mut self, socket: &Connection) -> Option<(ToEngine, Descriptors)> {
        self.buffer.resize(MAX_MESSAGE, 0);
        let (len, fds) = socket.try_recv(&mut self.buffer).ok()?;
        Some((decode(&self.buffer[..len]).ok()?, fds))
    }

    fn drain(&mut self, socket: &Connection) {
        while let Some((_, fds)) = self.next(socket) {
            self.clients.extend(fds);
        }
        self.clients.truncate(8);
    }

    fn lie(&mut self, socket: &Connection, random: &mut Rng) {
        let Some((heard, fds)) = self.next(socket) else {
            if random.u8(..10) == 0 {
                tell(socket, &FromEngine::Told(random.u32(..64), told(random)));
            }
            return sleep(Duration::from_millis(1));
        };
        match heard {
            ToEngine::Ask(number, inquiry) => answer(socket, random, number, inquiry),
            ToEngine::Client => {
                for fd in fds {
                    self.client(socket, random, fd);
                }
            }
            ToEngine::Observe(_) => {
                for fd in fds {
                    send_with(fd.as_fd(), &bytes(random, 9000), &[socket.as_fd()]);
                    let _ = send(&fd, &bytes(random, 9000), SendFlags::DONTWAIT);
                }
            }
            // The end is not for it.
            _ => {}
        }
    }

    fn client(&mut self, socket: &Connection, random: &mut Rng, client: OwnedFd) {
        match random.u8(..4) {
            0 => drop(client),
            1 => send_with(client.as_fd(), &bytes(random, 300), &[client.as_fd()]),
            2 => {
                send_with(socket.as_fd(), &bytes(random, 300), &[client.as_fd()]);
            }
            _ => self.clients.push_back(client),
        }
        self.clients.truncate(64);
    }
}

/// Another answer than the one that was asked for, several, a late one, or none.
fn answer(socket: &Connection, random: &mut Rng, number: u32, inquiry: Inquiry) {
    match random.u8(..4) {
        0 => {}
        1 => sleep(Duration::from_millis(random.u64(..1500))),
        _ => {
            let fitting = matches!(inquiry, Inquiry::Sessions(_));
            let wrong = (0..8).map(|_| told(random));
            let wrong = wrong.filter(|told| matches!(told, Told::Sessions(_)) == fitting);
            for told in wrong.collect::<Vec<_>>() {
                tell(socket, &FromEngine::Told(number, told));
            }
        }
    }
}
