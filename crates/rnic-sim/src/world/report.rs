//! How a world fails: what it says of itself.

use super::World;
use crate::sweep;
use std::path::{Path, PathBuf};

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

fn target_folder() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
    }
}
