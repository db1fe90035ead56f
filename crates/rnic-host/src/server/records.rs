//! Doorbell records of one session.

use rnic_abi::doorbell::{AREA_WORDS, Bell, MAX_RECORDS, RecordIndex};
use rnic_abi::os::memory;
use rnic_abi::words::WORD;
use std::io;
use std::os::fd::OwnedFd;

/// Hands out records of the doorbell area and makes their pages exist.
#[derive(Debug)]
pub(super) struct Records {
    file: OwnedFd,
    bell: Bell,
    freed: Vec<RecordIndex>,
    /// Records never handed out yet start here.
    fresh: usize,
    /// Words of the area whose pages exist.
    populated: usize,
}

impl Records {
    /// Takes the file of a fresh area, with `bell` a view of it.
    ///
    /// # Errors
    /// When there is no memory for the area's head.
    pub(super) fn new(file: OwnedFd, bell: Bell) -> io::Result<Self> {
        memory::populate(&file, 0..FIRST_RECORD)?;
        Ok(Self { file, bell, freed: Vec::new(), fresh: 0, populated: FIRST_RECORD })
    }

    /// A record with producer index 0.
    ///
    /// # Errors
    /// `OutOfMemory` when all are in use; else what the kernel says.
    pub(super) fn allocate(&mut self) -> io::Result<RecordIndex> {
        if let Some(record) = self.freed.pop() {
            self.bell.publish(record, 0);
            return Ok(record);
        }
        let index = u32::try_from(self.fresh).ok().and_then(RecordIndex::new);
        let record = index.ok_or(io::ErrorKind::OutOfMemory)?;
        let word = FIRST_RECORD + self.fresh;
        if word >= self.populated {
            let end = (word + STEP).min(AREA_WORDS);
            memory::populate(&self.file, self.populated..end)?;
            self.populated = end;
        }
        self.fresh += 1;
        Ok(record)
    }

    /// Frees the pages, which the client could keep for itself else. No record is used any more.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn discard(&self) -> io::Result<()> {
        memory::discard(&self.file, (AREA_WORDS * WORD) as u64)
    }

    /// Takes a record back. The engine must not use it any more.
    pub(super) fn free(&mut self, record: RecordIndex) {
        self.freed.push(record);
    }
}

const FIRST_RECORD: usize = AREA_WORDS - MAX_RECORDS;
/// One page of records at a time.
const STEP: usize = 4096 / 8;

#[cfg(test)]
mod tests {
    use super::*;
    use rnic_abi::doorbell::Doorbells;

    #[test]
    fn a_record_that_comes_back_starts_at_zero() {
        let (file, words) = memory::create("test", AREA_WORDS).unwrap();
        let doorbells = Doorbells::new(words.clone()).unwrap();
        let bell = Bell::new(words).unwrap();
        let mut records = Records::new(file, bell.clone()).unwrap();
        let (a, b) = (records.allocate().unwrap(), records.allocate().unwrap());
        assert_ne!(a, b);
        bell.publish(a, 7);
        records.free(a);
        assert_eq!(records.allocate().unwrap(), a);
        assert_eq!(doorbells.producer(a), 0);
    }

    #[test]
    fn all_records_can_be_used_and_no_more() {
        let (file, words) = memory::create("test", AREA_WORDS).unwrap();
        let _doorbells = Doorbells::new(words.clone()).unwrap();
        let bell = Bell::new(words).unwrap();
        let mut records = Records::new(file, bell.clone()).unwrap();
        for _ in 0..MAX_RECORDS {
            bell.publish(records.allocate().unwrap(), 1);
        }
        assert_eq!(records.allocate().unwrap_err().kind(), io::ErrorKind::OutOfMemory);
    }
}
