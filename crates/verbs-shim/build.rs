//! Gives the cdylib the name, versions and symbols of libibverbs.

fn main() {
    verbs_abi::link::cdylib("exports.txt", "libibverbs.so.1");
}
