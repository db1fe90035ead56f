//! RoCEv2 frames: checked views, builders, the opcode table and the ICRC
