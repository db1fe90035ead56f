//! Asks the daemon again and again what it has.

use super::super::client::Client;
use super::super::programs::Programs;
use super::model::Lists;
use anyhow::Result;
use crossbeam_channel::{Receiver, bounded};
use rnic_abi::control::Inspect;
use rnic_host::report::{Qp, Status};
use std::thread;
use std::time::{Duration, Instant};

/// See the [module](self). Its thread ends after this.
pub(super) struct Asking {
    answers: Receiver<Result<Lists>>,
}

impl Asking {
    /// Asks in a thread of its own: a silent engine process keeps the daemon's answer back.
    pub(super) fn begin(client: Client) -> Result<Self> {
        let (to, answers) = bounded(1);
        let ask = move || {
            loop {
                let began = Instant::now();
                let lists = lists(&client);
                let is_last = lists.is_err();
                if to.send(lists).is_err() || is_last {
                    return;
                }
                // Whatever it takes, the daemon does something else most of the time.
                thread::sleep(PAUSE.max(began.elapsed() * 9));
            }
        };
        thread::Builder::new().name("rnic-ask".into()).spawn(ask)?;
        Ok(Self { answers })
    }

    /// The newest answer that was not taken.
    ///
    /// # Errors
    /// When the daemon does not answer any more, once.
    pub(super) fn newest(&self) -> Result<Option<Lists>> {
        self.answers.try_iter().last().transpose()
    }
}

fn lists(client: &Client) -> Result<Lists> {
    let status: Status = client.inspect(Inspect::Status)?;
    let qps = in_order(client.list(Inspect::Qps)?);
    // What there is to see of queue pairs does not depend on them.
    let programs = Programs::of(client).unwrap_or_default();
    let made = |qp: Qp| {
        let client = qp.client;
        programs.made(qp, client)
    };
    Ok(Lists {
        at_ns: super::now_ns(),
        qps: qps.into_iter().map(made).collect(),
        cqs: client.list(Inspect::Cqs)?,
        counters: client.inspect(Inspect::Counters)?,
        status,
    })
}

/// By their numbers. What an engine tells twice is one queue pair: no other has that number.
fn in_order(mut qps: Vec<Qp>) -> Vec<Qp> {
    qps.sort_by_key(|qp| qp.qpn);
    qps.dedup_by_key(|qp| qp.qpn);
    qps
}

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(400);

#[cfg(test)]
mod tests {
    use super::super::script::lists;
    use super::*;

    #[test]
    fn a_number_is_listed_once() {
        let qps: Vec<Qp> = lists(0, 0).qps.into_iter().map(|made| made.object).collect();
        let twice = qps.iter().rev().chain(&qps).cloned().collect();
        assert_eq!(in_order(twice), qps);
    }
}
