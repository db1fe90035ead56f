//! The life of one hostile engine process. How it attacks and ends follows from its number, so that
//! all ways meet each other sooner or later.

use crate::forbidden;
use crate::hand_over::{HANDS, Hand, HandOver};
use crate::messages::{VOICES, Voice, speak};
use crate::network::{self, Sockets};
use crate::report::Report;
use anyhow::Result;
use fastrand::Rng;
use rnic_abi::os::{Connection, Descriptors};
use rustix::process::{Signal, getpid, kill_process};
use std::os::fd::AsFd;
use std::process::abort;
use std::sync::Arc;
use std::thread::{sleep, spawn};
use std::time::Duration;

/// How long it lives at most, unless the daemon ends it.
const LIFE: u64 = 1500;

/// Attacks until this process dies.
pub(crate) fn attack(socket: Connection, fds: Descriptors, report: Report) -> Result<()> {
    let number = report.number()?;
    let mut random = Rng::with_seed(number as u64);
    let socket = Arc::new(socket);
    let hand_over = fds.exactly().ok().map(HandOver::new).transpose()?;
    let sockets = network::sockets(&socket);
    let udp = sockets.first().map(|first| first.both[0].as_fd());
    if random.u8(..4) == 0 {
        forbidden::attempt(&report, &socket, udp);
        if let Some(hand_over) = &hand_over {
            forbidden::write_to(&report, hand_over.fds[0].as_fd());
        }
    }
    talk(VOICES[number % VOICES.len()], &socket, &mut random, &report);
    use_wire(HANDS[number % HANDS.len()], hand_over, sockets, &mut random, &report);
    sleep(Duration::from_millis(random.u64(..LIFE)));
    die(&mut random, &report)
}

fn talk(voice: Voice, socket: &Arc<Connection>, random: &mut Rng, report: &Report) {
    let (socket, report, mut random) = (Arc::clone(socket), report.clone(), random.fork());
    spawn(move || speak(voice, &socket, &mut random, &report));
}

fn use_wire(
    hand: Hand,
    hand_over: Option<HandOver>,
    sockets: Vec<Sockets>,
    random: &mut Rng,
    report: &Report,
) {
    let (report, mut random) = (report.clone(), random.fork());
    match hand_over {
        Some(mut hand_over) => {
            spawn(move || hand_over.misuse(hand, &mut random, &report));
        }
        None if !sockets.is_empty() => {
            spawn(move || network::send_garbage(&sockets, &mut random, &report));
        }
        None => {}
    }
}

/// Its other threads are at work, and may be in the middle of a write.
fn die(random: &mut Rng, report: &Report) -> Result<()> {
    let way = random.u8(..6);
    report.did(&format!("Death{way}"));
    match way {
        0 => {}
        1 => abort(),
        2 => kill_process(getpid(), Signal::KILL)?,
        3 => kill_process(getpid(), Signal::SEGV)?,
        4 => {
            leave_a_child()?;
            kill_process(getpid(), Signal::STOP)?;
        }
        // The daemon may have had enough of it before.
        _ => sleep(Duration::from_millis(LIFE)),
    }
    Ok(())
}

/// It has all descriptors, and kills this process, which is stopped, in a moment.
fn leave_a_child() -> std::io::Result<()> {
    // SAFETY: the child makes system calls only, and ends.
    unsafe {
        match libc::fork() {
            -1 => Err(std::io::Error::last_os_error()),
            0 => {
                libc::usleep(300_000);
                libc::kill(libc::getppid(), libc::SIGKILL);
                libc::usleep(700_000);
                libc::_exit(0)
            }
            _ => Ok(()),
        }
    }
}
