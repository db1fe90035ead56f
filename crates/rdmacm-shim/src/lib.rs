//! Drop-in librdmacm.so.1 for soft-rnic
