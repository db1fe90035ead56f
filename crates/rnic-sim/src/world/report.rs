//! How a world fails: what it says of itself.

use super::World;
use crate::sweep;
use std::path::PathBuf;

impl World {
    /// Ends the test with everything that is known. The details come from [`Drop`].
    ///
    /// # Panics
    /// Always.
    pub fn fail(&self, why: &str) -> ! {
        panic!("seed {}: {why}", self.seed);
    }

    /// A failure of this world is expected: it prints nothing.
    pub fn be_quiet(&mut self) {
        self.quiet = true;
    }

    fn report(&self) {
        eprintln!("--- the world of seed {} at {} ns ---", self.seed, self.now.as_nanos());
        for (id, host) in self.hosts.iter().enumerate() {
            eprintln!("--- last events of host {id}, {} ---\n{}", host.ip, host.trace);
            for qp in host.engine.qps() {
                eprintln!("{qp:?}");
            }
            eprintln!("{:?}", host.engine.counters());
        }
        eprintln!("faults: {:?}", self.fault_counts());
        match self.write_capture() {
            Ok(path) => eprintln!("what the links carried: {}", path.display()),
            Err(error) => eprintln!("the capture could not be written: {error}"),
        }
        let (seed, trace) = (sweep::SEED, sweep::TRACE);
        eprintln!("replay: {seed}={} {trace}=1 cargo test -p rnic-sim TEST", self.seed);
    }

    fn write_capture(&self) -> std::io::Result<PathBuf> {
        let folder = target_folder().join("rnic-sim");
        std::fs::create_dir_all(&folder)?;
        let path = folder.join(format!("seed-{}.pcap", self.seed));
        let mut file = std::io::BufWriter::new(std::fs::File::create(&path)?);
        self.capture.write(&mut file)?;
        Ok(path)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.quiet {
            self.report();
        }
    }
}

/// Where cargo builds. It says so when it runs tests; the place of the source in the program would
/// make programs of two checkouts differ.
fn target_folder() -> PathBuf {
    let of_cargo = |variable| std::env::var_os(variable).map(PathBuf::from);
    let beside = |manifest: PathBuf| manifest.join("../../target");
    of_cargo("CARGO_TARGET_DIR")
        .or_else(|| of_cargo("CARGO_MANIFEST_DIR").map(beside))
        .unwrap_or_else(std::env::temp_dir)
}
