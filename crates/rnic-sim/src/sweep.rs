//! Which seeds a sweep runs.

/// The environment variable that names one seed to replay.
pub const SEED: &str = "RNIC_SIM_SEED";
/// The environment variable that says how many seeds each sweep runs, or which: `1000..2000`.
pub const SEEDS: &str = "RNIC_SIM_SEEDS";

/// The environment variable that makes a failing world print every event instead of the last ones.
pub const TRACE: &str = "RNIC_SIM_TRACE";

/// `RNIC_SIM_SEED` alone, or what `RNIC_SIM_SEEDS` says, or `default` seeds.
///
/// # Panics
/// When a variable is not a number.
pub fn seeds(default: u64) -> std::ops::Range<u64> {
    if let Some(seed) = number(SEED) {
        return seed..seed + 1;
    }
    let Ok(wanted) = std::env::var(SEEDS) else { return 0..default };
    match wanted.split_once("..") {
        Some((first, end)) => parse(SEEDS, first)..parse(SEEDS, end),
        None => 0..parse(SEEDS, &wanted),
    }
}

/// One seed is being replayed: what a sweep says about many does not apply.
pub fn is_replay() -> bool {
    std::env::var_os(SEED).is_some()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| parse(name, &value))
}

fn parse(name: &str, value: &str) -> u64 {
    let Ok(number) = value.parse() else { panic!("{name}: {value:?} is not a number") };
    number
}
