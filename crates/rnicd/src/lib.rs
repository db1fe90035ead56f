//! The soft-rnic daemon and its command-line tool
