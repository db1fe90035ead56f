//! Which of many combinations a run tests: some by the commit, in the long form all.
//!
//! A commit always gets the same ones, so that what failed for a change fails for it again; over
//! the commits all have their turn.

use std::fmt::Debug;

use crate::lab::{LONG_ENV, long_form};
use crate::paths;
use crate::process::Cmd;

/// Any text: chooses others than the commit does.
pub const CHOICE_ENV: &str = "RNIC_CHOICE";

/// What the choices of this run are drawn from. Sources without a repository always have the same
/// seed.
#[must_use]
pub fn seed() -> String {
    std::env::var(CHOICE_ENV).unwrap_or_else(|_| {
        let commit = Cmd::new("git").dir(paths::repository()).args(["rev-parse", "HEAD"]).run();
        commit.map_or_else(|_| String::new(), |commit| commit.stdout.trim().to_owned())
    })
}

/// A number for a name and a seed: the same with every compiler (FNV-1a).
#[must_use]
pub fn draw(seed: &str, name: &str) -> u64 {
    seed.bytes().chain(name.bytes()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Every second item, from the first or the second one; in the long form all.
#[must_use]
pub fn half<T: Copy>(test: &str, items: &[T]) -> Vec<T> {
    let is_chosen = |at: usize| turn(test, 2).is_none_or(|turn| at % 2 == turn);
    let chosen = items.iter().enumerate().filter(|(at, _)| is_chosen(*at));
    chosen.map(|(_, item)| *item).collect()
}

/// Each item with one of the alternatives, its neighbours with others; in the long form with each
/// of them. What has the same alternative is together.
#[must_use]
pub fn pairs<'a, A: Copy, T>(test: &str, alternatives: &[A], items: &'a [T]) -> Vec<(A, &'a T)> {
    let of = alternatives.len();
    let turn = turn(test, of);
    let all = alternatives.iter().enumerate().flat_map(|(number, alternative)| {
        let is_dealt = move |at: usize| turn.is_none_or(|turn| (at + turn) % of == number);
        let dealt = items.iter().enumerate().filter(move |(at, _)| is_dealt(*at));
        dealt.map(|(_, item)| (*alternative, item))
    });
    all.collect()
}

/// Whether a test runs that takes turns with the others of a group; says so where it does not. In
/// the long form all of them run.
#[must_use]
pub fn has_turn<T: PartialEq + Debug>(group: &[T], test: &T) -> bool {
    let chosen = turn(&format!("{group:?}"), group.len()).map(|turn| &group[turn]);
    let has_turn = chosen.is_none_or(|chosen| chosen == test);
    if !has_turn {
        eprintln!(
            "{chosen:?} runs in place of {test:?}, by {CHOICE_ENV} or the commit; both with {LONG_ENV}=1"
        );
    }
    has_turn
}

/// Which of so many alternatives has its turn; all in the long form.
fn turn(name: &str, of: usize) -> Option<usize> {
    // The low bits alone depend on the low bits of the text only.
    let turn = || (draw(&seed(), name) >> 32) % of as u64;
    (!long_form()).then(|| usize::try_from(turn()).expect("less than a length"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_have_their_turn_and_each_item_one_of_them() {
        let first = |seed: u64| (draw(&seed.to_string(), "a_test") >> 32) % 3;
        assert!((0..3).all(|turn| (0..100).any(|seed| first(seed) == turn)));
        let dealt = pairs("a_test", &['a', 'b'], &[1, 2, 3, 4]);
        let of = |alternative| {
            let own = dealt.iter().filter(move |(one, _)| *one == alternative);
            own.map(|(_, item)| **item).collect::<Vec<_>>()
        };
        let both = [vec![1, 3], vec![2, 4]];
        assert!(both.contains(&of('a')) && both.contains(&of('b')) && of('a') != of('b'));
        assert!(both.contains(&half("a_test", &[1, 2, 3, 4])));
        let group = ["one", "two", "three"];
        assert_eq!(group.iter().filter(|one| has_turn(&group, one)).count(), 1);
    }
}
