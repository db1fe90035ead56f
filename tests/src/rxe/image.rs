//! The guest's kernel and file system, built from Debian packages.
//!
//! No privilege is needed and nothing is installed. The result is kept under
//! `target/cache/rxe-peer`, one folder for each set of package versions and guest scripts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::BufWriter;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::cpio::Archive;
use super::elf;
use crate::packages::{Apt, unpack};
use crate::paths;
use crate::process::Cmd;

/// What the guest is made of; apt adds the libraries.
const PACKAGES: [&str; 12] = [
    "linux-image-amd64",
    "busybox-static",
    "iproute2",
    "libibverbs1",
    "ibverbs-providers",
    "ibverbs-utils",
    "rdmacm-utils",
    "perftest",
    "qperf",
    "iperf3",
    "tcpdump",
    "dropbear-bin",
];

/// What those packages depend on and a guest without an init system does not use.
const UNUSED: [&str; 8] =
    ["initramfs-tools", "kmod", "linux-base", "debconf", "perl-base", "adduser", "pci.ids", "dpkg"];

/// Folders of programs, and which of their files the guest gets (by prefix).
const PROGRAMS: [(&str, &[&str]); 4] = [
    ("bin", &["ip", "ss"]),
    ("sbin", &["tc", "bridge"]),
    (
        "usr/bin",
        &[
            "ib_",
            "ibv_",
            "raw_ethernet_",
            "rdma",
            "rping",
            "ucmatose",
            "udaddy",
            "mckey",
            "cmtime",
            "rstream",
            "rcopy",
            "riostream",
            "udpong",
            "qperf",
            "iperf3",
            "tcpdump",
        ],
    ),
    ("usr/sbin", &["rdma", "dropbear"]),
];

/// Kernel modules loaded at boot. rxe needs a crc32 that it does not name as a dependency.
const MODULES: [&str; 9] = [
    "virtio_pci",
    "virtio_net",
    "veth",
    "crc32_generic",
    "crc32_pclmul",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "ib_umad",
];

/// Where Debian keeps shared libraries.
const LIBRARY_DIRS: [&str; 2] = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];

/// Loaded by name at run time, so no program lists it: the C library ends threads with it.
const HIDDEN_LIBRARY: &str = "libgcc_s.so.1";

/// The scripts of the guest and where they go.
const SCRIPTS: [(&str, &str); 3] =
    [("init", "init"), ("agent", "bin/agent"), ("configure", "bin/configure")];

/// A kernel and an initial file system, ready to boot.
#[derive(Clone, Debug)]
pub struct Image {
    /// The kernel as an uncompressed ELF file.
    pub kernel: PathBuf,
    /// The uncompressed archive.
    pub initrd: PathBuf,
}

impl Image {
    /// The image of the current package versions, built when it is not there yet.
    ///
    /// # Errors
    /// When apt does not answer or a package has not what is expected of it.
    pub fn get() -> Result<Self> {
        let home = paths::cache("rxe-peer")?;
        let recipe = recipe_hash()?;
        let latest = home.join("latest");
        let state = format!("{recipe:016x} {}", lists_state());
        if let Ok(text) = fs::read_to_string(&latest)
            && let Some((seen, folder)) = text.split_once('\n')
            && seen == state
            && let Ok(image) = Self::open(&home.join(folder))
        {
            return Ok(image);
        }
        let apt = Apt::pretending(&UNUSED, &home)?;
        let mut hasher = DefaultHasher::new();
        (recipe, apt.resolve(&PACKAGES)?).hash(&mut hasher);
        let folder = format!("{:016x}", hasher.finish());
        let image = match Self::open(&home.join(&folder)) {
            Ok(image) => image,
            Err(_) => Self::build(&apt, &home, &folder)?,
        };
        // The lists may have been updated on the way.
        fs::write(&latest, format!("{recipe:016x} {}\n{folder}", lists_state()))?;
        Ok(image)
    }

    fn open(dir: &Path) -> Result<Self> {
        let (kernel, initrd) = (dir.join("vmlinux"), dir.join("initrd.cpio"));
        ensure!(kernel.is_file() && initrd.is_file(), "no image in {}", dir.display());
        Ok(Self { kernel, initrd })
    }

    fn build(apt: &Apt, home: &Path, folder: &str) -> Result<Self> {
        eprintln!("building the rxe guest from Debian packages");
        let debs = home.join("debs");
        // Packages of earlier versions would be unpacked over the current ones.
        let _ = fs::remove_dir_all(&debs);
        let work = home.join(format!("work-{}", std::process::id()));
        let (packages, root) = (work.join("packages"), work.join("root"));
        for deb in apt.download(&PACKAGES, &debs)? {
            unpack(&deb, &packages)?;
        }
        let tree = Tree { packages, root };
        tree.add_base()?;
        tree.add_programs()?;
        tree.add_verbs_provider()?;
        tree.add_libraries()?;
        tree.add_modules()?;
        let mut archive = Archive::new(BufWriter::new(File::create(work.join("initrd.cpio"))?));
        archive.add_tree(&tree.root)?;
        archive.finish()?;
        extract_kernel(&tree.packages.join("boot"), &work)?;
        fs::remove_dir_all(&tree.packages)?;
        fs::remove_dir_all(&tree.root)?;
        fs::remove_dir_all(&debs)?;
        let finished = home.join(folder);
        let _ = fs::remove_dir_all(&finished);
        fs::rename(&work, &finished)?;
        Self::open(&finished)
    }
}

/// The unpacked packages and the guest's file system that is made of them.
struct Tree {
    packages: PathBuf,
    root: PathBuf,
}

impl Tree {
    /// Folders, busybox under all its names, our scripts, and the few files of `/etc`.
    fn add_base(&self) -> Result<()> {
        for dir in ["bin", "sbin", "dev", "proc", "sys", "tmp", "run", "root", "etc", "lib/modules"]
        {
            fs::create_dir_all(self.root.join(dir))?;
        }
        self.copy("bin/busybox")?;
        let names = Cmd::new(self.root.join("bin/busybox")).arg("--list").check()?;
        for name in names.lines().filter(|name| *name != "busybox") {
            symlink("busybox", self.root.join("bin").join(name))?;
        }
        for (script, place) in SCRIPTS {
            let to = self.root.join(place);
            fs::copy(scripts().join(script), &to)?;
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
        }
        fs::write(self.root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\n")?;
        fs::write(self.root.join("etc/group"), "root:x:0:\n")?;
        fs::write(self.root.join("etc/hosts"), "127.0.0.1 localhost\n")?;
        Ok(())
    }

    fn add_programs(&self) -> Result<()> {
        for (dir, prefixes) in PROGRAMS {
            let Ok(entries) = fs::read_dir(self.packages.join(dir)) else { continue };
            for entry in entries {
                let name = entry?.file_name().into_string().unwrap_or_default();
                if prefixes.iter().any(|prefix| name.starts_with(prefix)) {
                    self.copy(&format!("{dir}/{name}"))?;
                }
            }
        }
        for program in ["usr/bin/ib_write_bw", "usr/bin/ibv_rc_pingpong", "bin/ip"] {
            ensure!(self.root.join(program).exists(), "the Debian packages have no {program}");
        }
        Ok(())
    }

    /// libibverbs finds rxe through a configuration file and a plug-in.
    fn add_verbs_provider(&self) -> Result<()> {
        self.copy("etc/libibverbs.d/rxe.driver")?;
        let plugins = format!("{}/libibverbs", LIBRARY_DIRS[1]);
        for entry in fs::read_dir(self.packages.join(&plugins))? {
            let name = entry?.file_name().into_string().unwrap_or_default();
            if name.starts_with("librxe-") {
                self.copy(&format!("{plugins}/{name}"))?;
            }
        }
        Ok(())
    }

    /// The shared libraries that the guest's programs need, and those that these need.
    fn add_libraries(&self) -> Result<()> {
        let mut todo = files_under(&self.root)?;
        todo.push(self.add_library(HIDDEN_LIBRARY)?);
        let mut done = BTreeSet::from([HIDDEN_LIBRARY.to_owned()]);
        while let Some(file) = todo.pop() {
            for name in elf::needed_libraries(&file)? {
                if done.insert(name.clone()) {
                    let needed_by = || format!("{} needs {name}", file.display());
                    todo.push(self.add_library(&name).with_context(needed_by)?);
                }
            }
        }
        // The loader's path is part of the ABI.
        self.copy("lib64/ld-linux-x86-64.so.2")?;
        Ok(())
    }

    fn add_library(&self, name: &str) -> Result<PathBuf> {
        let mut places = LIBRARY_DIRS.iter().map(|dir| format!("{dir}/{name}"));
        let place = places.find(|place| self.packages.join(place).exists());
        self.copy(&place.with_context(|| format!("no Debian package has {name}"))?)
    }

    /// The modules with what they depend on, and `order`, the file that says when each is loaded.
    fn add_modules(&self) -> Result<()> {
        let files: BTreeMap<_, _> = files_under(&self.packages.join("lib/modules"))?
            .into_iter()
            .filter_map(|path| Some((module_name(&path)?, path)))
            .collect();
        let mut order = Vec::new();
        for name in MODULES {
            add_module(name, &files, &mut order)?;
        }
        let dir = self.root.join("lib/modules");
        let mut list = String::new();
        for name in &order {
            fs::copy(&files[name], dir.join(format!("{name}.ko")))?;
            list.push_str(&format!("{name}.ko\n"));
        }
        fs::write(dir.join("order"), list)?;
        Ok(())
    }

    /// Copies a file of the packages to the same place of the guest; links are followed.
    fn copy(&self, place: &str) -> Result<PathBuf> {
        let to = self.root.join(place);
        fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
        if fs::symlink_metadata(&to).is_ok() {
            // busybox has a command of this name: the package's own comes first.
            fs::remove_file(&to)?;
        }
        fs::copy(self.packages.join(place), &to)
            .with_context(|| format!("the Debian packages have no {place}"))?;
        Ok(to)
    }
}

/// Puts a module behind everything it depends on. What has no file is built into the kernel.
fn add_module(
    name: &str,
    files: &BTreeMap<String, PathBuf>,
    order: &mut Vec<String>,
) -> Result<()> {
    let Some(file) = files.get(name) else { return Ok(()) };
    if order.iter().any(|done| done == name) {
        return Ok(());
    }
    for dependency in elf::module_dependencies(file)? {
        ensure!(files.contains_key(&dependency), "{name} needs {dependency}, which has no file");
        add_module(&dependency, files, order)?;
    }
    order.push(name.to_owned());
    Ok(())
}

fn module_name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.strip_suffix(".ko")?.replace('-', "_"))
}

/// Takes the ELF kernel out of the self-extracting one. QEMU enters it directly (PVH), which
/// saves the decompression under emulation: half of the boot.
fn extract_kernel(boot: &Path, to: &Path) -> Result<()> {
    let mut files = files_under(boot)?.into_iter();
    let bzimage = files
        .find(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("vmlinuz-")))
        .context("the kernel package has no vmlinuz")?;
    let bytes = fs::read(&bzimage)?;
    let payload = kernel_payload(&bytes).context("vmlinuz has no Linux boot header")?;
    let unpacker = match payload {
        [0xfd, b'7', b'z', b'X', b'Z', ..] => "xz",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd",
        [0x1f, 0x8b, ..] => "gzip",
        _ => bail!("the kernel is compressed in an unknown way"),
    };
    let packed = to.join("vmlinux.packed");
    fs::write(&packed, payload)?;
    // The last four bytes are the unpacked size: unpackers complain, or must be told to stop.
    let script = match unpacker {
        "xz" => "xz -dc --single-stream \"$1\" > \"$2\"".to_owned(),
        other => format!("{other} -dc \"$1\" > \"$2\" 2>/dev/null || test -s \"$2\""),
    };
    let kernel = to.join("vmlinux");
    Cmd::new("sh").args(["-c", &script, "sh"]).arg(&packed).arg(&kernel).check()?;
    fs::remove_file(packed)?;
    ensure!(fs::read(&kernel)?.starts_with(b"\x7fELF"), "the unpacked kernel is no ELF file");
    Ok(())
}

/// The compressed kernel inside a bzImage (Linux x86 boot protocol 2.08: `payload_offset` and
/// `payload_length` count from the protected-mode code behind the setup sectors).
fn kernel_payload(bzimage: &[u8]) -> Option<&[u8]> {
    const SECTOR: usize = 512;
    let field = |at: usize| {
        let bytes = bzimage.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    (bzimage.get(0x202..0x206)? == b"HdrS").then_some(())?;
    let setup_sectors = usize::from(*bzimage.get(0x1f1)?);
    let start = ((setup_sectors + 1) * SECTOR).checked_add(field(0x248)?)?;
    bzimage.get(start..start.checked_add(field(0x24c)?)?)
}

/// Every regular file under a folder.
fn files_under(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    Ok(files)
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guest")
}

/// Changes with the guest's scripts and with this file.
fn recipe_hash() -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    include_str!("image.rs").hash(&mut hasher);
    for (script, _) in SCRIPTS {
        fs::read(scripts().join(script))?.hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// Changes when apt's lists are updated: until then the versions are the same.
fn lists_state() -> String {
    let modified = |dir: &str| fs::metadata(dir).and_then(|metadata| metadata.modified()).ok();
    let since = modified("/var/lib/apt/lists")
        .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
        .unwrap_or(Duration::ZERO);
    format!("{}", since.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_is_found_by_the_boot_header() {
        let mut image = vec![0_u8; 4096];
        image[0x1f1] = 3;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&16_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&4_u32.to_le_bytes());
        image[2064..2068].copy_from_slice(b"load");
        assert_eq!(kernel_payload(&image), Some(&b"load"[..]));
        image[0x24c..0x250].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(kernel_payload(&image), None);
    }

    #[test]
    fn a_file_without_boot_header_has_no_payload() {
        assert_eq!(kernel_payload(&[0; 4096]), None);
        assert_eq!(kernel_payload(b"short"), None);
    }
}
