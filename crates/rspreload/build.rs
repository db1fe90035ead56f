//! Makes the library need our librdmacm, which it finds in the folder above its own.

fn main() {
    verbs_abi::link::import_library("../rdmacm-shim/exports.txt", "librdmacm.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librspreload.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-rpath,$ORIGIN/..");
    println!("cargo::rerun-if-changed=build.rs");
}
