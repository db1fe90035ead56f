//! Writes the seed corpora in `fuzz/seeds`: frames of real NICs from roce-wire's vectors, scripts
//! for the engine targets, one control message of each kind, short captures.
//!
//! `cargo run -p rnic-fuzz-targets --example seeds`

mod control;
mod frames;
mod observations;
mod scripts;

use std::fs;
use std::path::{Path, PathBuf};

/// Name and bytes of an input.
type Seed = (String, Vec<u8>);

fn main() -> std::io::Result<()> {
    let repository = repository();
    let captures = repository.join("crates/roce-wire/tests/vectors");
    let corpora = [
        ("frame", frames::seeds(&captures)?),
        ("engine_rx", scripts::engine_rx()),
        ("wqe", scripts::wqe()),
        ("control", control::seeds()),
        ("capture", frames::captures(&captures)?),
        ("mad", frames::mads(&captures)?),
        ("cm", scripts::cm()),
        ("observe", observations::seeds()),
        ("rsocket", scripts::rsocket()),
    ];
    for (target, seeds) in corpora {
        let folder = repository.join("fuzz/seeds").join(target);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        for (name, bytes) in &seeds {
            fs::write(folder.join(name), bytes)?;
        }
        println!("{target}: {} seeds", seeds.len());
    }
    Ok(())
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
