//! Real programs and libraries of the distribution, linked against ours by the real loader.
//!
//! Every ELF file of the packages below that needs libibverbs or librdmacm goes through `ldd -r`
//! with immediate binding: no name of ours may be missing, no version unknown. The packages are
//! only unpacked, into cargo's target directory, so neither root nor an installed package is
//! needed. Without network the test is skipped, except under `CI=true`.

mod support;

use std::{
    collections::BTreeSet,
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::LazyLock,
};

use support::{dynamic, library_dir};

/// Packages with consumers. librdmacm1 has librspreload and a librdmacm that may be put over our
/// libibverbs.
const PACKAGES: [&str; 11] = [
    "fio",
    "ibverbs-providers",
    "ibverbs-utils",
    "libfabric1",
    "libopenmpi3",
    "librdmacm1",
    "libucx0",
    "perftest",
    "python3-pyverbs",
    "qperf",
    "rdmacm-utils",
];

/// The programs, and the libraries and modules that other programs load, without their versions:
/// all must have been looked at, so that the check cannot become empty unseen.
const LANDMARKS: [&str; 57] = [
    "cmtime",
    "fio",
    "ib_atomic_bw",
    "ib_atomic_lat",
    "ib_read_bw",
    "ib_read_lat",
    "ib_send_bw",
    "ib_send_lat",
    "ib_write_bw",
    "ib_write_lat",
    "ibv_asyncwatch",
    "ibv_devices",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "ibv_srq_pingpong",
    "ibv_uc_pingpong",
    "ibv_ud_pingpong",
    "ibv_xsrq_pingpong",
    "mckey",
    "qperf",
    "raw_ethernet_burst_lat",
    "raw_ethernet_bw",
    "raw_ethernet_fs_rate",
    "raw_ethernet_lat",
    "rcopy",
    "rdma_client",
    "rdma_server",
    "rdma_xclient",
    "rdma_xserver",
    "riostream",
    "rping",
    "rstream",
    "ucmatose",
    "udaddy",
    "udpong",
    "addr.",
    "cmid.",
    "cq.",
    "device.",
    "mlx5_vfio.",
    "mr.",
    "pd.",
    "qp.",
    "srq.",
    "libefa.so.1",
    "libfabric.so.1",
    "libmana.so.1",
    "libmca_common_verbs.so",
    "libmlx4.so.1",
    "libmlx5.so.1",
    "librdmacm.so.1",
    "librspreload.so",
    "librxe-rdmav34.so",
    "libsiw-rdmav34.so",
    "libuct_ib.so.0",
    "libuct_rdmacm.so.0",
    "mca_btl_openib.so",
];

fn cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("consumers")
}

/// Where the packages are unpacked; the first test to ask does the work.
static UNPACKED: LazyLock<Result<PathBuf, String>> = LazyLock::new(unpack_packages);

/// Downloads and unpacks the packages, unless an earlier run has done so.
fn unpack_packages() -> Result<PathBuf, String> {
    let (archives, root) = (cache().join("archives"), cache().join("root"));
    let stamp = cache().join("complete");
    if fs::read_to_string(&stamp).is_ok_and(|packages| packages == PACKAGES.join(" ")) {
        return Ok(root);
    }
    fs::create_dir_all(&archives).map_err(|error| error.to_string())?;
    download(&archives)?;
    for entry in fs::read_dir(&archives).map_err(|error| error.to_string())? {
        let archive = entry.map_err(|error| error.to_string())?.path();
        run(Command::new("dpkg-deb").arg("-x").arg(archive).arg(&root))?;
    }
    fs::write(stamp, PACKAGES.join(" ")).map_err(|error| error.to_string())?;
    Ok(root)
}

/// With the system's package lists, or with fresh ones of our own where those are missing or stale.
fn download(archives: &Path) -> Result<(), String> {
    let apt = |options: &[String], command: &[&str]| {
        let mut apt = Command::new("apt-get");
        run(apt.current_dir(archives).args(options).args(command)).map(drop)
    };
    let command: Vec<&str> = ["download"].into_iter().chain(PACKAGES).collect();
    apt(&[], &command).or_else(|_| {
        let lists = cache().join("lists");
        fs::create_dir_all(lists.join("partial")).map_err(|error| error.to_string())?;
        let options = [
            format!("-oDir::State::lists={}", lists.display()),
            format!("-oDir::Cache={}", cache().join("apt").display()),
            "-oDebug::NoLocking=true".to_owned(),
        ];
        apt(&options, &["update"])?;
        apt(&options, &command)
    })
}

fn run(command: &mut Command) -> Result<Output, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        Ok(output)
    } else {
        Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// The unpacked packages, or `None` after saying why there are none.
fn packages_or_skip() -> Option<&'static Path> {
    match &*UNPACKED {
        Ok(root) => Some(root),
        Err(error) if env::var("CI").is_ok_and(|ci| ci == "true") => panic!("{error}"),
        Err(error) => {
            // Written past the test harness, which would keep it to itself.
            let _ = writeln!(std::io::stderr(), "SKIPPED: no Debian packages to link: {error}");
            None
        }
    }
}

fn files_below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a readable directory") {
        let entry = entry.expect("a readable entry");
        let kind = entry.file_type().expect("a type");
        if kind.is_dir() {
            files_below(&entry.path(), found);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
}

/// ELF files that need one of our libraries.
fn consumers(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    files_below(root, &mut files);
    files.retain(|file| {
        let mut magic = [0; 4];
        let head = fs::File::open(file)
            .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut magic));
        head.is_ok()
            && magic == *b"\x7fELF"
            && dynamic(file, "NEEDED").iter().any(|library| is_ours(library))
    });
    files.sort();
    files
}

fn is_ours(library: &str) -> bool {
    matches!(library, "libibverbs.so.1" | "librdmacm.so.1")
}

/// Ours first, then every directory with libraries of the packages.
fn library_path(root: &Path) -> String {
    let mut files = Vec::new();
    files_below(root, &mut files);
    let libraries = files.iter().filter(|file| file.to_string_lossy().contains(".so"));
    let theirs: BTreeSet<&Path> = libraries.filter_map(|file| file.parent()).collect();
    let ours = library_dir();
    let directories = [ours.as_path()].into_iter().chain(theirs);
    directories.map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(":")
}

/// Lines of `ldd -r` that blame one of our libraries. Other libraries may be absent on this
/// machine.
fn complaints(report: &str) -> Vec<&str> {
    let about_us = |line: &str| {
        ["IBVERBS_", "RDMACM_", "libibverbs.so", "librdmacm.so"]
            .iter()
            .any(|ours| line.contains(ours))
    };
    report
        .lines()
        .filter(|line| {
            line.contains("undefined symbol")
                || line.contains("no version information")
                || line.contains("not found")
        })
        .filter(|line| about_us(line))
        .collect()
}

#[test]
fn every_consumer_links_completely() {
    let Some(root) = packages_or_skip() else { return };
    let path = library_path(root);
    let ours = library_dir();
    let mut seen = BTreeSet::new();
    let mut failures = Vec::new();
    for file in consumers(root) {
        let output = Command::new("ldd")
            .arg("-r")
            .arg(&file)
            .env("LD_LIBRARY_PATH", &path)
            .env("LD_BIND_NOW", "1")
            .output()
            .expect("ldd runs");
        let report = [output.stdout, output.stderr].concat();
        let report = String::from_utf8_lossy(&report);
        let bound = report.lines().filter(|line| line.contains(&*ours.to_string_lossy())).count();
        if bound == 0 {
            failures.push(format!("{}: not linked against ours:\n{report}", file.display()));
        }
        failures
            .extend(complaints(&report).iter().map(|line| format!("{}: {line}", file.display())));
        seen.insert(file.file_name().expect("a file").to_string_lossy().into_owned());
    }
    println!("{} files link: {seen:?}", seen.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    for landmark in LANDMARKS {
        let found = seen.iter().any(|name| name.starts_with(landmark));
        assert!(found, "{landmark} was not looked at; did its package change?");
    }
}

#[test]
fn ibv_devices_prints_an_empty_list_where_no_daemon_runs() {
    let Some(root) = packages_or_skip() else { return };
    let output = Command::new(root.join("usr/bin/ibv_devices"))
        .env("LD_LIBRARY_PATH", library_dir())
        .env("LD_BIND_NOW", "1")
        .env("RNIC_SOCKET", "/nonexistent/rnicd.sock")
        .output()
        .expect("ibv_devices starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(text.lines().count(), 2, "a heading of two lines and no device: {text}");
}
