//! The four rings an AF_XDP socket shares with the kernel, typed by element and direction.
//!
//! Each ring is a power-of-two array with two free-running 32-bit counters in shared memory. The
//! side that produces stores `producer` with release order after writing elements; the side that
//! consumes loads it with acquire order before reading them, and the reverse holds for `consumer`.
//! Each side keeps its own counter in a local variable and a cached copy of the other's, so that a
//! burst touches the shared cache lines once.

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::umem::MappedMemory;

/// One packet descriptor (`struct xdp_desc`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Descriptor {
    /// UMEM address of the first byte.
    pub(crate) address: u64,
    /// Length in bytes.
    pub(crate) len: u32,
    /// [`CONTINUED`] or 0.
    pub(crate) options: u32,
}

const _: () = assert!(size_of::<Descriptor>() == 16);

/// Descriptor option: the frame continues in the next descriptor.
pub(crate) const CONTINUED: u32 = libc::XDP_PKT_CONTD;

/// What a ring can hold.
///
/// # Safety
/// Every bit pattern must be a valid value.
pub(crate) unsafe trait Element: Copy {}
// SAFETY: an integer.
unsafe impl Element for u64 {}
// SAFETY: integers only, without padding.
unsafe impl Element for Descriptor {}

/// The mapped ring and where its parts are.
struct Shared<T> {
    /// Keeps the pointers below alive. Unmapped before the socket is closed, because a mapping
    /// holds the socket, and with it the queue, in use.
    _mapping: MappedMemory,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    elements: NonNull<T>,
    size: u32,
    element: PhantomData<T>,
}

// SAFETY: the pointers lead into the mapping this value owns; nothing is bound to a thread.
unsafe impl<T> Send for Shared<T> {}

impl<T: Element> Shared<T> {
    fn map(
        fd: BorrowedFd<'_>,
        page_offset: u64,
        offsets: &libc::xdp_ring_offset,
        size: u32,
    ) -> io::Result<Self> {
        assert!(size.is_power_of_two());
        let len = offsets.desc as usize + size as usize * size_of::<T>();
        let mapping = MappedMemory::shared(fd, len, page_offset)?;
        let at = |offset: u64, bytes: usize, align: usize| {
            let offset = offset as usize;
            if offset + bytes > len || !offset.is_multiple_of(align) {
                return Err(io::Error::from(io::ErrorKind::InvalidData));
            }
            // SAFETY: checked to lie inside the mapping.
            let at = unsafe { mapping.start().add(offset) };
            NonNull::new(at).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
        };
        let word = |offset| at(offset, 4, 4).map(NonNull::cast::<AtomicU32>);
        Ok(Shared {
            producer: word(offsets.producer)?,
            consumer: word(offsets.consumer)?,
            flags: word(offsets.flags)?,
            elements: at(offsets.desc, size as usize * size_of::<T>(), align_of::<T>())?.cast(),
            size,
            element: PhantomData,
            _mapping: mapping,
        })
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: `map` checked range and alignment; the mapping lives as long as `self`.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    fn needs_wakeup(&self) -> bool {
        // SAFETY: as above.
        let flags = unsafe { self.flags.as_ref() };
        flags.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    fn element(&self, counter: u32) -> *mut T {
        let index = (counter & (self.size - 1)) as usize;
        // SAFETY: the index is below `size`, and `map` checked that `size` elements are mapped.
        unsafe { self.elements.as_ptr().add(index) }
    }
}

/// A ring this process fills: FILL and TX.
pub(crate) struct Producer<T> {
    shared: Shared<T>,
    /// The next element to write; published by [`Producer::publish`].
    next: u32,
    cached_consumer: u32,
}

impl<T: Element> Producer<T> {
    /// Maps the ring at `page_offset` of the socket.
    pub(crate) fn map(
        fd: BorrowedFd<'_>,
        page_offset: u64,
        offsets: &libc::xdp_ring_offset,
        size: u32,
    ) -> io::Result<Self> {
        let shared = Shared::map(fd, page_offset, offsets, size)?;
        let next = shared.producer().load(Ordering::Relaxed);
        let cached_consumer = shared.consumer().load(Ordering::Acquire);
        Ok(Producer { shared, next, cached_consumer })
    }

    /// Free elements. Looks at the kernel's counter only when the cached one leaves fewer than
    /// `wanted`.
    pub(crate) fn free(&mut self, wanted: u32) -> u32 {
        if self.free_by_cache() < wanted {
            // Pairs with the kernel's release store after it has read the elements.
            self.cached_consumer = self.shared.consumer().load(Ordering::Acquire);
        }
        self.free_by_cache()
    }

    fn free_by_cache(&self) -> u32 {
        self.shared.size.saturating_sub(self.next.wrapping_sub(self.cached_consumer))
    }

    /// Writes the next element; the kernel sees it after [`Producer::publish`]. False, and nothing
    /// written, when the ring is full.
    #[must_use]
    pub(crate) fn push(&mut self, value: T) -> bool {
        if self.free(1) == 0 {
            return false;
        }
        // SAFETY: the element is ours: the kernel reads only below the published producer counter,
        // and has consumed the element that was here before (`free`).
        unsafe { self.shared.element(self.next).write(value) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Makes the pushed elements visible to the kernel.
    pub(crate) fn publish(&mut self) {
        // Pairs with the kernel's acquire load before it reads the elements.
        self.shared.producer().store(self.next, Ordering::Release);
    }

    /// Published elements the kernel has not consumed.
    pub(crate) fn unconsumed(&mut self) -> u32 {
        self.cached_consumer = self.shared.consumer().load(Ordering::Acquire);
        self.next.wrapping_sub(self.cached_consumer)
    }

    /// Replaces the published elements that the kernel has not consumed.
    ///
    /// A device that takes elements without a system call may be reading one of them meanwhile, and
    /// then sees its old value, its new one, or a mixture.
    pub(crate) fn replace_unconsumed(&mut self, mut with: impl FnMut(T) -> T) {
        let unconsumed = self.unconsumed().min(self.shared.size);
        for behind in 1..=unconsumed {
            let element = self.shared.element(self.next.wrapping_sub(behind));
            // SAFETY: an element of the mapped ring. Only this side writes it, through `&mut self`,
            // and the kernel validates every element that it reads.
            unsafe { element.write(with(element.read())) };
        }
    }

    /// As [`needs_wakeup`](Self::needs_wakeup), for what was published just now: a driver that has
    /// seen none of it has asked for the system call, or will see it.
    ///
    /// Without the fence the flag could be read before the counter is stored. A driver that looks
    /// at the ring between the two, finds it empty and sets the flag would then wait for a system
    /// call that does not come.
    pub(crate) fn needs_wakeup_for_published(&self) -> bool {
        fence(Ordering::SeqCst);
        self.shared.needs_wakeup()
    }

    /// True when the kernel wants a system call to go on with this ring.
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.shared.needs_wakeup()
    }
}

/// A ring the kernel fills: RX and COMPLETION.
pub(crate) struct Consumer<T> {
    shared: Shared<T>,
    /// The next element to read; given back by [`Consumer::release`].
    next: u32,
    cached_producer: u32,
}

impl<T: Element> Consumer<T> {
    /// Maps the ring at `page_offset` of the socket.
    pub(crate) fn map(
        fd: BorrowedFd<'_>,
        page_offset: u64,
        offsets: &libc::xdp_ring_offset,
        size: u32,
    ) -> io::Result<Self> {
        let shared = Shared::map(fd, page_offset, offsets, size)?;
        let next = shared.consumer().load(Ordering::Relaxed);
        Ok(Consumer { shared, next, cached_producer: next })
    }

    /// Elements that can be read. Looks at the kernel's counter only when none is known.
    pub(crate) fn available(&mut self) -> u32 {
        if self.cached_producer == self.next {
            self.refresh();
        }
        self.cached_producer.wrapping_sub(self.next).min(self.shared.size)
    }

    /// Looks at the kernel's counter again.
    pub(crate) fn refresh(&mut self) {
        // Pairs with the kernel's release store after it has written the elements.
        self.cached_producer = self.shared.producer().load(Ordering::Acquire);
    }

    /// A copy of the element `ahead` of the next one; the caller keeps `ahead` below
    /// [`Consumer::available`].
    pub(crate) fn peek(&self, ahead: u32) -> T {
        debug_assert!(ahead < self.cached_producer.wrapping_sub(self.next));
        // SAFETY: the kernel published the element (acquire load in `refresh`) and does not write
        // it again before `release` has moved the consumer counter past it. Every bit pattern is
        // a valid element in any case.
        unsafe { self.shared.element(self.next.wrapping_add(ahead)).read() }
    }

    /// Steps over `count` elements.
    pub(crate) fn advance(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count);
    }

    /// Gives the elements stepped over back to the kernel.
    pub(crate) fn release(&mut self) {
        // Pairs with the kernel's acquire load before it reuses the elements.
        self.shared.consumer().store(self.next, Ordering::Release);
    }
}
