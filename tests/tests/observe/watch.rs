//! `rnic watch` in a terminal, beside a program whose packets are lost.

use super::{PROGRAMS, SOON, loopback};
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::thread;
use std::time::Duration;
use system_tests::lab::{Lab, Need};
use system_tests::place::Node;
use system_tests::programs::Dialogue;
use system_tests::terminal::Terminal;

/// `rnic watch` with a screen that shows its list.
pub(super) fn start(node: &Node) -> Result<Terminal> {
    let program = node.dist.bin("rnic");
    let program = program.to_str().context("a name of ours")?;
    let socket = node.daemon.socket().to_str().context("a name of ours")?.to_owned();
    let view = Terminal::start(&[program, "watch"], &[("RNIC_SOCKET", &socket)])?;
    view.wait_for("a list", SOON, |screen| has(screen, "Queue pairs"))?;
    Ok(view)
}

/// Continues one that was stopped while there was more to see than waits for it.
pub(super) fn counts_what_it_missed(mut view: Terminal) -> Result<()> {
    view.signal(Signal::CONT)?;
    let lost = |screen: &[String]| has(screen, " not shown") && !has(screen, " 0 not shown");
    view.wait_for("a count of events that were lost", SOON, lost)?;
    view.types("q")?;
    let (status, said) = view.end()?;
    ensure!(status.success(), "{status}");
    ensure!(said.contains("events not shown: they came faster"), "{said}");
    Ok(())
}

fn has(screen: &[String], text: &str) -> bool {
    screen.iter().any(|line| line.contains(text))
}

/// A line of the list with a queue pair that has sent something again.
fn sends_again(line: &str) -> bool {
    let words: Vec<_> = line.split_whitespace().collect();
    let again = words.last().copied().unwrap_or_default();
    line.contains(" RC ")
        && line.contains(" RTS ")
        && again.starts_with(|c| ('1'..='9').contains(&c))
}

#[test]
fn the_view_shows_a_lossy_connection_and_leaves_the_terminal_as_it_was() -> Result<()> {
    let test = "the_view_shows_a_lossy_connection";
    let Some(lab) = Lab::open(test, Need::Root, &[PROGRAMS[0], "ib_send_bw", "setsid"])? else {
        return Ok(());
    };
    let node = loopback(&lab)?;
    node.rnic(&["fault", "add", "drop=1%"]).check()?;
    let mut view = start(&node)?;
    let interrupted = start(&node)?;
    thread::scope(|scope| {
        let dialogue = scope.spawn(|| Dialogue::new("ib_send_bw -D 3 -s 16384").run(&node, &node));
        let seen = look_around(&mut view);
        dialogue.join().ok().context("the program's thread")??;
        seen
    })?;
    view.types("q")?;
    interrupted.signal(Signal::TERM)?;
    for ended in [view, interrupted] {
        let (status, said) = ended.end()?;
        ensure!(status.success(), "{status}: {said}");
    }
    node.stop()?;
    Ok(())
}

/// While the program runs.
fn look_around(view: &mut Terminal) -> Result<()> {
    let again = |screen: &[String]| screen.iter().any(|line| sends_again(line));
    view.wait_for("a queue pair that sends again", SOON, again)?;
    let events = |screen: &[String]| has(screen, " rewound ") || has(screen, " fault drop ");
    view.wait_for("events of trouble", SOON, events)?;
    // The line that is chosen first may be the receiver's.
    let first = view.screen().iter().position(|line| line.starts_with('>'));
    let sender = view.screen().iter().position(|line| sends_again(line));
    if first < sender {
        view.types("\x1b[B")?;
    }
    view.types("\r")?;
    let open = |screen: &[String]| has(screen, "Ladder: 0x") && has(screen, "in flight ");
    view.wait_for("the ladder of the sender", SOON, open)?;
    view.wait_for("its packets", SOON, |screen| has(screen, "RC_SEND_") && has(screen, "send "))?;
    view.resize(200, 50)?;
    let large = |screen: &[String]| {
        screen.len() == 50 && has(screen, "EXPECTED") && has(screen, "Ladder: 0x")
    };
    view.wait_for("all at once in a larger terminal", Duration::from_secs(2), large)?;
    Ok(())
}
