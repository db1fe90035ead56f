//! Memory files and descriptor passing.
