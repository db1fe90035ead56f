//! How connections end: refused, closed from either side, and by the death of either program in
//! each state. Whatever happens, the other program hears it.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::native::ENDS;
use crate::place::{Job, Node, Place};
use crate::process::wait_until;
use crate::programs::next_port;

/// The two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Server,
    Client,
}

use Side::{Client, Server};

/// What happens to a connection.
struct Ending {
    title: &'static str,
    /// What server and client do.
    modes: (&'static str, &'static str),
    /// What the programs print before one of them is killed.
    until: &'static [(Side, &'static str)],
    kill: Option<Side>,
    /// What the programs print then.
    then: &'static [(Side, &'static str)],
    /// So does the kernel's librdmacm.
    in_linux: bool,
}

const REQUEST: &str = "RDMA_CM_EVENT_CONNECT_REQUEST";
const UP: &str = "RDMA_CM_EVENT_ESTABLISHED";
const REFUSED: &str = "RDMA_CM_EVENT_REJECTED";
const OVER: &str = "RDMA_CM_EVENT_DISCONNECTED";
const LIMIT: Duration = Duration::from_secs(60);
/// How long an event may take, also in an emulated machine.
const PATIENCE: Duration = Duration::from_secs(20);

const fn ending(
    title: &'static str,
    modes: (&'static str, &'static str),
    then: &'static [(Side, &'static str)],
) -> Ending {
    Ending { title, modes, until: &[], kill: None, then, in_linux: true }
}

const fn death(
    side: Side,
    title: &'static str,
    modes: (&'static str, &'static str),
    until: &'static [(Side, &'static str)],
    then: &'static [(Side, &'static str)],
) -> Ending {
    Ending { until, kill: Some(side), ..ending(title, modes, then) }
}

const ENDINGS: [Ending; 9] = [
    ending(
        "the server refuses",
        ("reject", "wait"),
        &[(Client, "RDMA_CM_EVENT_REJECTED 28 thanks, but no")],
    ),
    ending("the server disconnects", ("disconnect", "wait"), &[(Client, OVER), (Server, OVER)]),
    ending("the client disconnects", ("accept", "disconnect"), &[(Client, OVER), (Server, OVER)]),
    Ending {
        // A program of Linux hears nothing of what it has not accepted.
        in_linux: false,
        ..death(
            Client,
            "the client dies while it connects",
            ("hold", "wait"),
            &[(Server, REQUEST)],
            &[(Server, REFUSED)],
        )
    },
    death(
        Server,
        "the server dies while it decides",
        ("hold", "wait"),
        &[(Server, REQUEST)],
        &[(Client, REFUSED)],
    ),
    death(
        Client,
        "the client dies when it is connected",
        ("accept", "wait"),
        &[(Client, UP), (Server, UP)],
        &[(Server, OVER)],
    ),
    death(
        Server,
        "the server dies when it is connected",
        ("accept", "wait"),
        &[(Client, UP), (Server, UP)],
        &[(Client, OVER)],
    ),
    death(
        Client,
        "the client dies in timewait",
        ("accept", "disconnect"),
        &[(Client, OVER)],
        &[(Server, OVER)],
    ),
    death(
        Server,
        "the server dies in timewait",
        ("disconnect", "wait"),
        &[(Server, OVER)],
        &[(Client, OVER)],
    ),
];

/// Plays all between a server and a client; `is_linux` says that the server is the kernel's.
///
/// # Errors
/// When a program does not hear what it has to.
pub fn play(server: &dyn Place, client: &dyn Place, is_linux: bool) -> Result<()> {
    for ending in &ENDINGS {
        one(server, client, (ending, is_linux)).context(ending.title)?;
        eprintln!("{}", ending.title);
    }
    died_while_it_listened(server, client)
}

fn one(server: &dyn Place, client: &dyn Place, (ending, is_linux): (&Ending, bool)) -> Result<()> {
    let (serving, port) = serve(server, ending.modes.0)?;
    let calling = start(client, "client", (server, port), ending.modes.1)?;
    let mut jobs = [Some(serving), Some(calling)];
    for (side, text) in ending.until {
        hears(&jobs, *side, text)?;
    }
    if let Some(side) = ending.kill {
        jobs[side as usize] = None;
    }
    if ending.in_linux || !is_linux {
        for (side, text) in ending.then {
            hears(&jobs, *side, text)?;
        }
    }
    Ok(())
}

/// The client dies, and its host hears no answer to the DREQ that it sends: the server hears of the
/// end all the same.
///
/// # Errors
/// As [`play`].
pub fn dies_while_it_disconnects(server: &dyn Place, client: &Node) -> Result<()> {
    let (serving, port) = serve(server, "accept")?;
    let calling = start(client, "client", (server, port), "wait")?;
    says(&*calling, UP)?;
    says(&*serving, UP)?;
    client.rnic(&["fault", "add", "drop=1"]).limit(PATIENCE).check()?;
    drop(calling);
    says(&*serving, OVER)?;
    client.rnic(&["fault", "clear"]).limit(PATIENCE).check()?;
    Ok(())
}

fn died_while_it_listened(server: &dyn Place, client: &dyn Place) -> Result<()> {
    let (serving, port) = serve(server, "accept")?;
    let listening = server.cm_listeners()?;
    drop(serving);
    // A daemon that has not heard of the death yet refuses as if the program had decided so.
    wait_until("the end of the listener", PATIENCE, || {
        Ok(listening.is_none() || server.cm_listeners()? < listening)
    })?;
    let calling = start(client, "client", (server, port), "wait")?;
    says(&*calling, "RDMA_CM_EVENT_REJECTED 8")
}

/// A server that listens, and its port.
///
/// # Errors
/// When it does not start.
pub fn serve(at: &dyn Place, mode: &str) -> Result<(Box<dyn Job>, u16)> {
    let port = next_port();
    let serving = start(at, "server", (at, port), mode)?;
    says(&*serving, "listening")?;
    Ok((serving, port))
}

fn start(
    at: &dyn Place,
    role: &str,
    (server, port): (&dyn Place, u16),
    mode: &str,
) -> Result<Box<dyn Job>> {
    let args = [role, &server.address().to_string(), &port.to_string(), mode].map(str::to_owned);
    at.start(ENDS, &args, LIMIT)
}

fn hears(jobs: &[Option<Box<dyn Job>>; 2], side: Side, text: &str) -> Result<()> {
    let said = |side: usize| jobs[side].as_ref().map_or_else(String::new, |job| job.said());
    let job = jobs[side as usize].as_ref().context("it is dead")?;
    let what = || format!("{side:?}\nserver: {}\nclient: {}", said(0), said(1));
    says(&**job, text).with_context(what)
}

fn says(job: &dyn Job, text: &str) -> Result<()> {
    wait_until(text, PATIENCE, || Ok(job.said().contains(text)))
}
