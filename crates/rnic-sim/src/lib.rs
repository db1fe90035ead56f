//! A deterministic world of engines and faulty links
