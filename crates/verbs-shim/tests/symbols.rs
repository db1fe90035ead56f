//! The shared libraries as an application's loader sees them: names, versions, flags.

mod support;

use std::{
    collections::BTreeSet,
    ffi::{CStr, CString, c_char, c_int, c_void},
    mem,
    path::Path,
};

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
