//! What the kernel lets the daemon have.

use std::path::{Path, PathBuf};

/// See the [module](self). Without a limit it is what the machine has, or very large.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Bytes of memory.
    pub memory: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// Threads.
    pub tasks: u64,
    /// Mappings of one address space.
    pub mappings: u64,
}

impl Machine {
    /// Looks.
    #[must_use]
    pub fn look() -> Self {
        use rustix::process::{Resource, getrlimit};
        let limit = |resource| getrlimit(resource).current.unwrap_or(u64::MAX);
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        // Where control groups are mounted. `ip netns exec` hides that from the program that it
        // starts, but not from its parent.
        let parent = rustix::process::getppid().map_or(1, |parent| parent.as_raw_nonzero().get());
        let mounts = ["/".to_owned(), format!("/proc/{parent}/root"), "/proc/1/root".to_owned()]
            .map(|root| Path::new(&root).join("sys/fs/cgroup"));
        let control = |file| {
            let limits = mounts.iter().map(|mounts| control_group_limit(mounts, &own, file));
            limits.min().unwrap_or(u64::MAX)
        };
        let info = rustix::system::sysinfo();
        let installed = info.totalram.saturating_mul(u64::from(info.mem_unit));
        // What the program itself takes of its address space.
        let taken = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let taken: u64 = taken.split(' ').next().and_then(|pages| pages.parse().ok()).unwrap_or(0);
        let taken = taken.saturating_mul(rustix::param::page_size() as u64);
        let space = limit(Resource::As).saturating_sub(taken);
        let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count");
        let mappings = mappings.ok().and_then(|text| text.trim().parse().ok());
        Self {
            memory: installed.min(space).min(control(&MEMORY)),
            descriptors: limit(Resource::Nofile),
            tasks: control(&TASKS),
            mappings: mappings.unwrap_or(65_530),
        }
    }
}

/// A limit of control groups: its controller in version 1, and its file in versions 1 and 2.
struct LimitFile {
    controller: &'static str,
    names: [&'static str; 2],
}

const MEMORY: LimitFile =
    LimitFile { controller: "memory", names: ["memory.limit_in_bytes", "memory.max"] };
const TASKS: LimitFile = LimitFile { controller: "pids", names: ["pids.max", "pids.max"] };

/// The smallest limit of the control groups that a process is in, as its `/proc/PID/cgroup` lists
/// them, and of those above.
fn control_group_limit(mounts: &Path, groups: &str, file: &LimitFile) -> u64 {
    let mut least = u64::MAX;
    for line in groups.lines() {
        // "number:controllers:path"; version 2 has number 0 and no controllers.
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let roots: Vec<(PathBuf, &str)> = if controllers.is_empty() {
            let [_, name] = file.names;
            vec![(mounts.to_owned(), name), (mounts.join("unified"), name)]
        } else if controllers.split(',').any(|one| one == file.controller) {
            vec![(mounts.join(controllers), file.names[0])]
        } else {
            continue;
        };
        let path = path.trim_start_matches('/');
        for (root, name) in roots {
            for group in Path::new(path).ancestors() {
                // "max", or no such file: no limit.
                let text = std::fs::read_to_string(root.join(group).join(name));
                let limit = text.ok().and_then(|text| text.trim().parse().ok());
                least = least.min(limit.unwrap_or(u64::MAX));
            }
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A folder with files, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn with(name: &str, files: &[(&str, &str)]) -> Self {
            let name = format!("rnicd-machine-{name}-{}", std::process::id());
            let folder = Self(std::env::temp_dir().join(name));
            for (file, text) in files {
                let path = folder.0.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            folder
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_smallest_limit_above_a_process_holds() {
        let files = [
            ("system.slice/memory.max", "3000\n"),
            ("system.slice/rnicd.service/memory.max", "max\n"),
            ("system.slice/rnicd.service/pids.max", "77\n"),
            ("system.slice/other.service/memory.max", "1\n"),
        ];
        let folder = Folder::with("second", &files);
        let groups = "0::/system.slice/rnicd.service\n";
        assert_eq!(control_group_limit(&folder.0, groups, &MEMORY), 3000);
        assert_eq!(control_group_limit(&folder.0, groups, &TASKS), 77);
        assert_eq!(control_group_limit(&folder.0, "0::/elsewhere\n", &MEMORY), u64::MAX);
        assert_eq!(control_group_limit(&folder.0, "nonsense", &MEMORY), u64::MAX);
    }

    #[test]
    fn groups_of_the_first_version_are_found_by_their_controller() {
        let files = [
            ("memory/box/memory.limit_in_bytes", "5000\n"),
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("cpu,cpuacct/box/memory.limit_in_bytes", "1\n"),
            ("pids/box/pids.max", "max\n"),
            ("unified/box/memory.max", "4000\n"),
        ];
        let folder = Folder::with("first", &files);
        let groups = "9:cpu,cpuacct:/box\n4:memory:/box\n3:pids:/box\n";
        assert_eq!(control_group_limit(&folder.0, groups, &MEMORY), 5000);
        assert_eq!(control_group_limit(&folder.0, groups, &TASKS), u64::MAX);
        let both = format!("{groups}0::/box\n");
        assert_eq!(control_group_limit(&folder.0, &both, &MEMORY), 4000);
    }
}
