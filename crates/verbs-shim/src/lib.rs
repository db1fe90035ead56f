//! Drop-in libibverbs.so.1 for soft-rnic
