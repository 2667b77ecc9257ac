//! Device buffers between redzones, and the poison that shows what was never
//! written or should not have been read.
//!
//! A buffer of `len` bytes lies inside an allocation of its own:
//! `[REDZONE bytes | len bytes | REDZONE bytes | SLACK bytes]`, or up to SLACK
//! bytes further on ([`Buffer::place`]). The redzone behind starts at
//! the very next byte whatever the size, so a stray write of one element shows
//! even where `len` is a multiple of the page.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::LazyLock;

use cudarc::driver::sys::CUdeviceptr;

use super::driver::{Allocation, Called, Driver};
use crate::dtype::DType;
use crate::outcome::{MemoryFault, MemoryFaultKind};

/// Bytes on either side of a buffer: a whole 128 × 128 tile of fp32, the
/// largest that a kernel writes at once, and a multiple of the 512 bytes that
/// device addresses are aligned to.
pub const REDZONE: usize = 64 << 10;

/// How far a buffer can be moved inside its allocation, bytes: allocations are
/// aligned to 256 at least, so every smaller alignment can be had.
pub const SLACK: usize = 256;

/// A device buffer between redzones.
pub struct Buffer {
    name: &'static str,
    allocation: Allocation,
    len: usize,
    /// Offset of the first byte.
    start: Cell<usize>,
}

impl Buffer {
    /// Allocates a buffer of `len` bytes; `name` is what faults call it.
    pub fn new(driver: &Rc<Driver>, name: &'static str, len: usize) -> Called<Buffer> {
        let allocation = Allocation::new(driver, len + 2 * REDZONE + SLACK)?;
        let buffer = Buffer {
            name,
            allocation,
            len,
            start: Cell::new(REDZONE),
        };
        buffer.guard()?;
        Ok(buffer)
    }

    /// What faults call it.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Bytes between the redzones.
    pub fn bytes(&self) -> usize {
        self.len
    }

    /// The largest length [`Buffer::set_len`] takes.
    pub fn capacity(&self) -> usize {
        self.allocation.bytes() - 2 * REDZONE - SLACK
    }

    /// Changes the length inside the capacity; the redzone behind moves along.
    pub fn set_len(&mut self, len: usize) -> Called {
        assert!(len <= self.capacity(), "buffers grow by a new allocation");
        self.len = len;
        self.guard()
    }

    /// Device address of the first byte.
    pub fn address(&self) -> CUdeviceptr {
        self.allocation.address(self.start.get())
    }

    /// Moves the buffer to `shift` bytes (at most [`SLACK`]) from where it was
    /// allocated, its redzones with it; whether it had lain elsewhere, and its
    /// contents are gone.
    pub fn place(&self, shift: usize) -> Called<bool> {
        assert!(shift <= SLACK, "{shift} bytes are more than the slack");
        let moved = self.start.replace(REDZONE + shift) != REDZONE + shift;
        if moved {
            self.guard()?;
        }
        Ok(moved)
    }

    /// Writes both redzones anew.
    pub fn guard(&self) -> Called {
        let start = self.start.get();
        self.allocation.upload(start - REDZONE, pattern())?;
        self.allocation.upload(start + self.len, pattern())
    }

    /// Copies `data` to the start of the buffer.
    pub fn upload(&self, data: &[u8]) -> Called {
        assert!(
            data.len() <= self.len,
            "{} bytes into {}",
            data.len(),
            self.len
        );
        self.allocation.upload(self.start.get(), data)
    }

    /// The whole buffer.
    pub fn download(&self) -> Called<Vec<u8>> {
        let mut data = vec![0; self.len];
        self.allocation.download(self.start.get(), &mut data)?;
        Ok(data)
    }

    /// Sets every byte.
    pub fn fill(&self, byte: u8) -> Called {
        self.allocation.fill_8(self.start.get(), byte, self.len)
    }

    /// Sets every element of a buffer of `dtype` to `poison`.
    pub fn poison(&self, dtype: DType, poison: Poison) -> Called {
        let start = self.start.get();
        match dtype.size() {
            1 => self.fill(poison.bits(dtype) as u8),
            2 => {
                let word = poison.bits(dtype) as u16;
                self.allocation.fill_16(start, word, self.len / 2)
            }
            _ => {
                // fp64 poison is one 32-bit word twice.
                let word = poison.bits(dtype) as u32;
                self.allocation.fill_32(start, word, self.len / 4)
            }
        }
    }

    /// What was written to the redzones since [`Buffer::guard`].
    pub fn damage(&self) -> Called<Vec<MemoryFault>> {
        let mut zone = vec![0; REDZONE];
        let start = self.start.get();
        self.allocation.download(start - REDZONE, &mut zone)?;
        let before = self.fault(&zone, MemoryFaultKind::Before, -(REDZONE as i64));
        self.allocation.download(start + self.len, &mut zone)?;
        let behind = self.fault(&zone, MemoryFaultKind::Behind, self.len as i64);
        Ok(before.into_iter().chain(behind).collect())
    }

    fn fault(&self, zone: &[u8], kind: MemoryFaultKind, start: i64) -> Option<MemoryFault> {
        difference(zone, pattern(), self.name, kind, start)
    }
}

/// The fault of a memory that should hold `expected`, if any; `start` is the
/// offset of its first byte.
pub fn difference(
    found: &[u8],
    expected: &[u8],
    buffer: &'static str,
    kind: MemoryFaultKind,
    start: i64,
) -> Option<MemoryFault> {
    if found == expected {
        return None;
    }
    let damaged = |&i: &usize| found[i] != expected[i];
    let first = (0..found.len()).find(damaged)?;
    Some(MemoryFault {
        buffer: buffer.to_owned(),
        kind,
        offset: start + first as i64,
        bytes: (first..found.len()).filter(damaged).count() as u64,
    })
}

/// What redzones hold: NaN as fp16, bf16, fp32 and fp64 alike (the 16-bit words
/// are 0xFFF1 to 0xFFFF; every second byte is NaN as FP8), so that reading them and
/// using what was read shows in the result; and changing from word to word, so that a redzone copied onto
/// itself with an offset shows too.
fn pattern() -> &'static [u8] {
    static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
        (0..REDZONE as u32 / 2)
            .flat_map(|i| (0xFFF1 + (i * 7 + i / 15) as u16 % 15).to_le_bytes())
            .collect()
    });
    &PATTERN
}

/// What a result tensor holds before the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poison {
    /// NaN, with a payload that no arithmetic makes.
    Nan,
    /// Large and finite: where NaN and this give different results, the old
    /// contents were read.
    Finite,
}

impl Poison {
    /// The bits of an element.
    pub fn bits(self, dtype: DType) -> u64 {
        match (self, dtype) {
            (Poison::Nan, DType::Fp8E4m3) => 0xFF,
            (Poison::Nan, DType::Fp8E5m2) => 0xFE,
            (Poison::Nan, DType::Fp16) => 0xFEDB,
            (Poison::Nan, DType::Bf16) => 0xFFDB,
            (Poison::Nan, DType::Fp32) => 0xFFFA_DBAD,
            (Poison::Nan, DType::Fp64) => 0xFFFA_DBAD_FFFA_DBAD,
            (Poison::Finite, DType::Fp8E4m3) => 0x7B,
            (Poison::Finite, DType::Fp8E5m2) => 0x7A,
            (Poison::Finite, DType::Fp16) => 0x7A5B,
            (Poison::Finite, DType::Bf16) => 0x7A5B,
            (Poison::Finite, DType::Fp32) => 0x7A5B_C5A7,
            (Poison::Finite, DType::Fp64) => 0x7A5B_C5A7_7A5B_C5A7,
        }
    }
}

/// Every byte of a poisoned workspace: NaN in every type.
pub const WORKSPACE_POISON: u8 = 0xFF;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poison_is_nan_or_finite_in_every_type() {
        for dtype in DType::ALL {
            assert!(dtype.from_bits(Poison::Nan.bits(dtype)).is_nan());
            let large = 0.5 * dtype.format().max_finite();
            let least = large.min(1e4);
            assert!(dtype.from_bits(Poison::Finite.bits(dtype)) > least);
            assert!(dtype.from_bits(Poison::Finite.bits(dtype)).is_finite());
            let fill = [WORKSPACE_POISON; 8];
            assert!(
                dtype
                    .from_bits(u64::from_le_bytes(fill) >> (64 - 8 * dtype.size()))
                    .is_nan()
            );
        }
    }

    #[test]
    fn poison_fp64_is_one_word_twice() {
        for poison in [Poison::Nan, Poison::Finite] {
            let bits = poison.bits(DType::Fp64);
            assert_eq!(bits >> 32, bits & 0xFFFF_FFFF);
        }
    }

    #[test]
    fn pattern_is_nan_in_every_type_at_every_element() {
        let pattern = pattern();
        assert_eq!(pattern.len(), REDZONE);
        for dtype in DType::USUAL {
            for element in pattern.chunks(dtype.size()) {
                let mut bits = [0; 8];
                bits[..element.len()].copy_from_slice(element);
                assert!(dtype.from_bits(u64::from_le_bytes(bits)).is_nan());
            }
        }
        for dtype in [DType::Fp8E4m3, DType::Fp8E5m2] {
            let odd = pattern.iter().skip(1).step_by(2);
            assert!(
                odd.clone()
                    .all(|&byte| dtype.from_bits(byte.into()).is_nan())
            );
        }
    }

    #[test]
    fn pattern_shifted_by_a_few_elements_differs_almost_everywhere() {
        let pattern = pattern();
        for shift in [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] {
            let same = (0..REDZONE - shift)
                .step_by(2)
                .filter(|&i| pattern[i] == pattern[i + shift])
                .count();
            assert!(same < REDZONE / 2 / 2, "shift {shift}: {same} words agree");
        }
    }

    #[test]
    fn difference_counts_and_places_the_damage() {
        let expected = vec![7u8; 100];
        let mut found = expected.clone();
        found[10] = 0;
        found[90] = 0;
        let fault = difference(&found, &expected, "y", MemoryFaultKind::Behind, 1000).unwrap();
        assert_eq!((fault.offset, fault.bytes), (1010, 2));
        let none = difference(&expected, &expected, "y", MemoryFaultKind::Behind, 0);
        assert_eq!(none, None);
    }
}
