//! Asking all daemons there may be, of which some may not answer: one that is stopped accepts
//! connections and says nothing.

use super::{OfProcess, candidate_socket_paths};
use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a daemon may take where others can answer in its place. A busy machine is quicker.
const PATIENCE: Duration = Duration::from_secs(5);
/// And one that has not answered this process before: lists of devices are made often.
const SHORT: Duration = Duration::from_millis(100);

/// What this process knows: those that did not answer.
static SILENT: OfProcess<HashSet<PathBuf>> = OfProcess::new();

/// What the daemons at all places where there may be one say, each place once. `ask` asks one, for
/// no longer than it is told; `WouldBlock` or `TimedOut` stand for no answer. As long as none
/// answers, those that could are asked again: a program that has but one device waits for it.
pub fn ask_each<T>(
    ask: impl FnMut(&Path, Duration) -> io::Result<T>,
) -> Vec<(PathBuf, io::Result<T>)> {
    ask_all(candidate_socket_paths(), PATIENCE, ask)
}

fn ask_all<T>(
    mut paths: Vec<PathBuf>,
    patience: Duration,
    mut ask: impl FnMut(&Path, Duration) -> io::Result<T>,
) -> Vec<(PathBuf, io::Result<T>)> {
    let mut seen = HashSet::new();
    paths.retain(|path| seen.insert(path.clone()));
    let mut ask_within = |path: &Path, patience| {
        let said = ask(path, patience);
        let mut silent = SILENT.lock();
        match is_silent(&said) {
            true => silent.insert(path.to_owned()),
            false => silent.remove(path),
        };
        said
    };
    let mut all: Vec<_> = paths
        .into_iter()
        .map(|path| {
            let is_known = SILENT.lock().contains(&path);
            let said = ask_within(&path, if is_known { SHORT.min(patience) } else { patience });
            (path, said)
        })
        .collect();
    while !all.iter().any(|(_, said)| said.is_ok()) && all.iter().any(|(_, said)| is_silent(said)) {
        for (path, said) in all.iter_mut().filter(|(_, said)| is_silent(said)) {
            *said = ask_within(path, patience);
        }
    }
    all
}

fn is_silent<T>(said: &io::Result<T>) -> bool {
    let kind = said.as_ref().err().map(io::Error::kind);
    matches!(kind, Some(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ABI_VERSION;
    use crate::control::Request;
    use crate::os::{Connection, Listener};
    use std::time::Instant;

    fn place(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("rnic-discovery-{}-{name}", std::process::id()))
    }

    /// As a stopped daemon: the kernel connects, and nothing answers.
    #[test]
    fn a_daemon_that_does_not_answer_keeps_no_program_from_another() {
        let (silent, speaks) = (place("silent"), place("speaks"));
        let _listener = Listener::bind(&silent, 0o600).unwrap();
        let within = Duration::from_millis(50);
        let ask = |path: &Path, limit| {
            if path == speaks {
                return Ok(());
            }
            let daemon = Connection::connect_within(path, limit)?;
            daemon.call(&Request::Hello { abi: ABI_VERSION }, &[]).map(drop)
        };
        let all = ask_all(vec![silent.clone(), speaks.clone(), silent.clone()], within, ask);
        assert_eq!(all.len(), 2);
        assert!(all[0].0 == silent && is_silent(&all[0].1), "{all:?}");
        assert!(all[1].0 == speaks && all[1].1.is_ok(), "{all:?}");
        // It is not waited for so long again.
        let begin = Instant::now();
        let hour = Duration::from_secs(3600);
        let all = ask_all(vec![silent.clone(), speaks.clone()], hour, ask);
        assert!(is_silent(&all[0].1) && begin.elapsed() < hour / 2);
    }

    #[test]
    fn a_program_waits_for_its_only_daemon() {
        let (mut asked, path) = (0, place("only"));
        let all = ask_all(vec![path.clone(), place("none")], Duration::ZERO, |at, _| {
            if at != path {
                return Err(io::ErrorKind::NotFound.into());
            }
            asked += 1;
            if asked > 3 { Ok(asked) } else { Err(io::ErrorKind::WouldBlock.into()) }
        });
        assert_eq!(all.into_iter().find_map(|(_, said)| said.ok()), Some(4));
    }
}
