#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rnic_fuzz_targets::mad::run(input));
