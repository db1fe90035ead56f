//! Keeps the library where it is: its threads must survive an application that unloads modules.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librnic_function.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
