//! Gives the cdylib the name, versions and symbols of librdmacm, and makes it need our libibverbs.

fn main() {
    verbs_abi::link::cdylib("exports.txt", "librdmacm.so.1");
    verbs_abi::link::import_library("../verbs-shim/exports.txt", "libibverbs.so.1");
}
