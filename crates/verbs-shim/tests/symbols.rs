//! The shared libraries as an application's loader sees them: names, versions, flags.

mod support;

use std::{
    collections::BTreeSet,
    ffi::{CStr, CString, c_char, c_int, c_void},
    io, mem,
    path::Path,
};

use verbs_abi::link::Table;

use support::{dynamic, library_dir, readelf};

const EXPORTED_V44: &str = include_str!("data/exported-v44.txt");
const ADDED_BY_V64: &str = include_str!("data/added-by-v64.txt");
const IMPORTED: &str = include_str!("data/imported.txt");

/// Numbers of the private interface, the first that of v44.
const PRIVATE: [&str; 4] = ["34", "57", "59", "64"];

/// A version and a name; `(VERSION)` is one that must be asked for, as objdump prints it.
type Export = (String, String);

fn rows(table: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_whitespace().collect())
}

/// What `prefix`'s library must export: no more, no less.
fn expected(prefix: &str) -> BTreeSet<Export> {
    let mut exports = BTreeSet::new();
    let mut private = BTreeSet::new();
    for row in rows(EXPORTED_V44).chain(rows(ADDED_BY_V64)) {
        let (node, name) = (row[0], row[1]);
        if node.starts_with("IBVERBS_PRIVATE") || node == "PRIVATE" {
            private.insert(name);
        } else if node.trim_start_matches('(').starts_with(prefix) {
            exports.insert((node.to_owned(), name.to_owned()));
        }
    }
    assert!(private.remove("verbs_register_driver_34"), "v44 has it");
    if prefix == "IBVERBS_" {
        for number in PRIVATE {
            let node = format!("IBVERBS_PRIVATE_{number}");
            exports.insert((node.clone(), format!("verbs_register_driver_{number}")));
            let node = if number == PRIVATE[0] { node } else { format!("({node})") };
            exports.extend(private.iter().map(|name| (node.clone(), (*name).to_owned())));
        }
    }
    exports
}

/// What the library exports. A name without a version shows as version "none".
fn exported(library: &Path) -> BTreeSet<Export> {
    let mut exports = BTreeSet::new();
    for line in readelf("--dyn-syms", library) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, _, binding, _, section, name, ..] = words[..] else { continue };
        if binding != "GLOBAL" || section == "UND" {
            continue;
        }
        exports.insert(match (name.split_once("@@"), name.split_once('@')) {
            (Some((name, node)), _) => (node.to_owned(), name.to_owned()),
            (None, Some((name, node))) => (format!("({node})"), name.to_owned()),
            (None, None) => ("none".to_owned(), name.to_owned()),
        });
    }
    exports
}

#[test]
fn the_exports_are_those_of_rdma_core() {
    for (library, prefix) in [("libibverbs.so.1", "IBVERBS_"), ("librdmacm.so.1", "RDMACM_")] {
        let (expected, exported) = (expected(prefix), exported(&library_dir().join(library)));
        let missing: Vec<_> = expected.difference(&exported).collect();
        let surplus: Vec<_> = exported.difference(&expected).collect();
        assert!(
            missing.is_empty() && surplus.is_empty(),
            "missing {missing:?}, surplus {surplus:?}"
        );
        println!("{library}: {} names", exported.len());
    }
}

#[test]
fn every_name_that_a_debian_package_imports_is_exported() {
    let mut exports = exported(&library_dir().join("libibverbs.so.1"));
    exports.extend(exported(&library_dir().join("librdmacm.so.1")));
    for row in rows(IMPORTED) {
        let (node, name) = (row[0].to_owned(), row[1].to_owned());
        assert!(exports.contains(&(node, name)), "{} needs {} {}", row[2], row[0], row[1]);
    }
}

#[test]
fn the_loader_finds_the_libraries_by_name_and_keeps_them() {
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        let file = library_dir().join(library);
        assert_eq!(dynamic(&file, "SONAME"), [library]);
        assert!(readelf("-d", &file).iter().any(|line| line.contains("NODELETE")), "{library}");
    }
    let needed = dynamic(&library_dir().join("librdmacm.so.1"), "NEEDED");
    assert!(needed.contains(&"libibverbs.so.1".to_owned()), "{needed:?}");
}

/// A library loaded the way NCCL loads it.
struct Loaded(*mut c_void);

impl Loaded {
    fn open(library: &str) -> Self {
        let path = library_dir().join(library).into_os_string().into_string().expect("UTF-8");
        let path = CString::new(path).expect("no zero byte");
        // SAFETY: the path is a C string; loading the library runs no code of ours.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{library} does not load");
        Self(handle)
    }

    fn find(&self, name: &str, node: &str) -> *mut c_void {
        let (name, node) = (CString::new(name).unwrap(), CString::new(node).unwrap());
        // SAFETY: the handle is open and both strings are C strings.
        unsafe { libc::dlvsym(self.0, name.as_ptr(), node.as_ptr()) }
    }
}

#[test]
fn dlvsym_finds_every_name_under_its_version() {
    // The order matters: librdmacm needs a libibverbs, and the one that is loaded already is ours.
    for (library, prefix) in [("libibverbs.so.1", "IBVERBS_"), ("librdmacm.so.1", "RDMACM_")] {
        let loaded = Loaded::open(library);
        for (node, name) in expected(prefix) {
            let node = node.trim_matches(['(', ')']);
            assert!(!loaded.find(&name, node).is_null(), "{name}@{node}");
        }
        assert!(loaded.find("ibv_open_device", "IBVERBS_9.9").is_null());
    }
}

#[test]
fn a_trampoline_reaches_its_function_with_arguments_and_result() {
    let loaded = Loaded::open("libibverbs.so.1");
    let address = loaded.find("ibv_wc_status_str", "IBVERBS_1.1");
    assert!(!address.is_null());
    // SAFETY: that is the function's C signature.
    let name: extern "C" fn(c_int) -> *const c_char = unsafe { mem::transmute(address) };
    // SAFETY: the function returns a static C string.
    assert_eq!(unsafe { CStr::from_ptr(name(12)) }, c"transport retry counter exceeded");
}

/// How the callers of a function see that it failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    /// An errno value, which is also set.
    Errno,
    /// -1 and errno.
    MinusOne,
    /// NULL and errno.
    Null,
    /// NULL and errno, and the length of the list is 0.
    NoList,
    /// No result, or one that says "nothing".
    Nothing,
}

/// What the C prototypes of refused functions make of a refusal; `*` ends a prefix. All others of
/// libibverbs return an errno value, those of librdmacm -1.
const REFUSALS: [(Refusal, &[&str]); 4] = [
    (
        Refusal::MinusOne,
        &[
            "ibv_dm_export_dmabuf_fd",
            "ibv_get_async_event",
            "ibv_get_cq_event",
            "ibv_query_gid",
            "ibv_query_pkey",
            "ibv_read_ibdev_sysfs_file",
        ],
    ),
    (
        Refusal::Null,
        &[
            "_verbs_init_and_alloc_context",
            "ibv_alloc_buf",
            "ibv_alloc_dmah",
            "ibv_alloc_pd",
            "ibv_create_*",
            "ibv_dmabuf_heap_alloc",
            "ibv_dmabuf_heap_cc_shared_init",
            "ibv_get_device_name",
            "ibv_import_*",
            "ibv_open_device",
            "ibv_reg_*",
            "rdma_create_event_channel",
            "verbs_open_device",
        ],
    ),
    (Refusal::NoList, &["ibv_get_device_list"]),
    (
        Refusal::Nothing,
        &[
            "__ioctl_final_num_attrs",
            "__verbs_log",
            "ibv_ack_*",
            "ibv_dmabuf_heap_destroy",
            "ibv_dmabuf_heap_free",
            "ibv_dofork_range",
            "ibv_dontfork_range",
            "ibv_free_*",
            "ibv_get_device_guid",
            "ibv_query_qp_data_in_order",
            "ibv_register_driver",
            "ibv_unimport_*",
            "rdma_destroy_ep",
            "rdma_destroy_event_channel",
            "rdma_destroy_qp",
            "rdma_destroy_srq",
            "rdma_free*",
            "verbs_init_cq",
            "verbs_register_driver_*",
            "verbs_set_ops",
            "verbs_uninit_context",
        ],
    ),
];

fn refusal_of(symbol: &str) -> Refusal {
    let is = |pattern: &&&str| match pattern.strip_suffix('*') {
        Some(start) => symbol.starts_with(start),
        None => symbol == **pattern,
    };
    let of_libibverbs = symbol.starts_with("ibv_") || symbol.starts_with("execute_");
    let other = if of_libibverbs { Refusal::Errno } else { Refusal::MinusOne };
    // The last first: "ibv_register_driver" is in the way of "ibv_reg_*".
    let mut rows = REFUSALS.iter().rev();
    rows.find(|(_, names)| names.iter().any(|name| is(&name))).map_or(other, |(kind, _)| *kind)
}

/// Calls a refused function with pointers to six outputs; its result and errno.
fn call(function: *mut c_void, outputs: &mut [[u8; 64]; 6]) -> (isize, Option<c_int>) {
    type Function = extern "C" fn(
        *mut [u8; 64],
        *mut [u8; 64],
        *mut [u8; 64],
        *mut [u8; 64],
        *mut [u8; 64],
        *mut [u8; 64],
    ) -> isize;
    // SAFETY: integers and pointers go in registers, and a refused function looks at none but those
    // that its prototype has.
    let function: Function = unsafe { mem::transmute(function) };
    let [a, b, c, d, e, f] = outputs;
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = 0 };
    let result = function(a, b, c, d, e, f);
    (result, io::Error::last_os_error().raw_os_error())
}

#[test]
fn what_is_refused_answers_as_its_callers_expect() {
    const UNTOUCHED: [u8; 64] = [0x5a; 64];
    let tables = [
        ("libibverbs.so.1", include_str!("../exports.txt")),
        ("librdmacm.so.1", include_str!("../../rdmacm-shim/exports.txt")),
    ];
    let mut seen = 0;
    for (library, table) in tables {
        let loaded = Loaded::open(library);
        let exports = Table::parse(table).unwrap().exports;
        for export in exports.iter().filter(|export| export.kind != "impl" && !export.is_data()) {
            let mut outputs = [UNTOUCHED; 6];
            let function = loaded.find(&export.symbol, &export.node);
            let (result, errno) = call(function, &mut outputs);
            // Half of a register is undefined where a function returns an int.
            let number = result as c_int;
            let refusal = refusal_of(&export.symbol);
            let (right, errnos): (bool, &[c_int]) = match refusal {
                Refusal::Errno => (number == libc::EOPNOTSUPP, &[libc::EOPNOTSUPP]),
                Refusal::MinusOne => (result == -1, &[libc::EOPNOTSUPP]),
                Refusal::Null | Refusal::NoList => (result == 0, &[libc::EOPNOTSUPP, libc::ENODEV]),
                Refusal::Nothing => (result == 0, &[0]),
            };
            let errno_right = errnos.contains(&errno.unwrap_or(-1));
            let name = format!("{}@{}: {refusal:?}", export.symbol, export.node);
            assert!(right && errno_right, "{name}: {result:#x}, errno {errno:?}");
            if refusal == Refusal::NoList {
                assert_eq!(outputs[0][..4], [0; 4], "{name}");
                outputs[0][..4].fill(0x5a);
            }
            assert!(outputs == [UNTOUCHED; 6], "{name}: an output was written");
            seen += 1;
        }
    }
    println!("{seen} refused functions");
    assert!(seen > 200, "{seen}");
}
