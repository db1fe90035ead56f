//! Bytes and what they mean, field by field.

use crate::{Block, Field};
use std::fmt::{Display, Write};

/// A block that grows field by field.
#[derive(Debug)]
pub struct Fields {
    block: Block,
}

impl Fields {
    /// None yet.
    pub fn new(title: String, bytes: &[u8]) -> Self {
        Self { block: Block { title, hex: hex(bytes), fields: Vec::new() } }
    }

    /// `len` bytes from `start` on are called `name`.
    pub fn add(
        &mut self,
        (start, len): (usize, usize),
        name: &str,
        value: impl Display,
        note: &str,
    ) {
        self.block.fields.push(Field {
            start,
            len,
            name: name.to_owned(),
            value: value.to_string(),
            note: note.to_owned(),
        });
    }
}

impl Fields {
    /// Bytes that mean nothing here, together with those like them right before.
    pub fn unused(&mut self, (start, len): (usize, usize)) {
        match self.block.fields.last_mut().filter(|last| last.name == UNUSED) {
            Some(last) => last.len += len,
            None => self.add((start, len), UNUSED, 0, ""),
        }
    }

    /// The block.
    pub fn finish(self) -> Block {
        self.block
    }
}

/// The name of fields that an operation does not use.
const UNUSED: &str = "not used here";

/// Two digits a byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Bytes as text, as far as they are that.
pub fn text(bytes: &[u8]) -> String {
    let shown = |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { *byte } else { b'.' };
    let text: Vec<u8> = bytes.iter().map(shown).take(MOST).collect();
    let more = if bytes.len() > MOST { " ..." } else { "" };
    format!("\"{}\"{more}", String::from_utf8_lossy(&text))
}

/// Bytes that are shown as text.
const MOST: usize = 32;
