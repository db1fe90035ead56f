//! The fuzz targets on every toolchain: seeds, inputs that once found something, and mutated inputs
//! from a fixed seed.

use rnic_fuzz_targets::{TARGETS, Target};
use rnic_sim::rng::Rng;
use std::fs;
use std::path::{Path, PathBuf};

/// Mutated inputs for each target.
const GARBLED: usize = 3_000;

fn files(kind: &str, target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(kind).join(target);
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a folder entry").path()).collect();
    files.sort();
    files
}

fn inputs(target: &str) -> Vec<Vec<u8>> {
    let files = [files("seeds", target), files("regressions", target)].concat();
    files.iter().map(|file| fs::read(file).expect("a readable file")).collect()
}

/// Prints the input when a target panics.
fn try_input(name: &str, target: Target, input: &[u8]) {
    if let Err(panic) = std::panic::catch_unwind(|| target(input)) {
        eprintln!("{name} fails with {input:02x?}");
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn seeds_and_regressions_keep_every_promise() {
    for (name, target) in TARGETS {
        let inputs = inputs(name);
        assert!(inputs.len() > 5, "{name} has no seeds in fuzz/seeds");
        inputs.iter().for_each(|input| try_input(name, target, input));
    }
}

#[test]
fn garbled_seeds_keep_every_promise() {
    for (nth, (name, target)) in (0..).zip(TARGETS) {
        let mut rng = Rng::new(nth);
        let inputs = inputs(name);
        for _ in 0..GARBLED {
            try_input(name, target, &garble(&mut rng, &inputs));
        }
    }
}

/// Two inputs spliced, some bytes changed.
fn garble(rng: &mut Rng, inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut pick = || {
        let input = &inputs[rng.below32(u32::try_from(inputs.len()).expect("few")) as usize];
        let cut = rng.below(input.len() as u64 + 1);
        input.split_at(usize::try_from(cut).expect("an index"))
    };
    let (head, _) = pick();
    let (_, tail) = pick();
    let mut garbled = [head, tail].concat();
    for _ in 0..rng.below(4) {
        let at = usize::try_from(rng.below(garbled.len() as u64)).expect("an index");
        if let Some(byte) = garbled.get_mut(at) {
            *byte = rng.below32(256).to_le_bytes()[0];
        }
    }
    garbled
}
