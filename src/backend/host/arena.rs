//! Memory of one run, guarded as on a GPU: the result between redzones and full
//! of poison, the workspace poisoned, the operands copies that can be compared
//! with their originals.

use std::ops::{Deref, DerefMut};

use crate::fill::Inputs;
use crate::outcome::{MemoryFault, MemoryFaultKind};
use crate::tensor::Tensor;

/// Elements of redzone on each side of the result.
const REDZONE: usize = 64;

/// What an algorithm may touch.
pub struct Arena {
    /// First operand, decoded.
    pub first: Guarded,
    /// Second operand, decoded.
    pub second: Guarded,
    /// Scratch memory, as the caller filled it.
    pub workspace: Guarded,
    result: Vec<u64>,
    template: Tensor,
}

/// Memory between redzones of NaN: what is read there shows in the result.
pub struct Guarded {
    cells: Vec<f64>,
}

impl Guarded {
    fn new(values: &[f64]) -> Self {
        let zone = [f64::from_bits(REDZONE_BITS); REDZONE];
        Guarded {
            cells: [&zone, values, &zone].concat(),
        }
    }

    /// Element `i`; like a pointer, it takes offsets outside, down to the
    /// redzones' ends.
    pub fn read(&self, i: isize) -> f64 {
        self.cells[self.place(i)]
    }

    /// Writes element `i`, likewise.
    pub fn write(&mut self, i: isize, value: f64) {
        let place = self.place(i);
        self.cells[place] = value;
    }

    fn place(&self, i: isize) -> usize {
        (i + REDZONE as isize).clamp(0, self.cells.len() as isize - 1) as usize
    }

    /// Damage to the redzones, in bytes of elements of `size`.
    fn damage(&self, buffer: &'static str, size: usize) -> Vec<MemoryFault> {
        let len = self.len() as isize;
        let zones = [
            (MemoryFaultKind::Before, -(REDZONE as isize)),
            (MemoryFaultKind::Behind, len),
        ];
        let broken = |&i: &isize| self.read(i).to_bits() != REDZONE_BITS;
        let faults = zones.into_iter().filter_map(|(kind, start)| {
            let places: Vec<isize> = (start..start + REDZONE as isize).filter(broken).collect();
            places.first().map(|&first| MemoryFault {
                buffer: buffer.to_owned(),
                kind,
                offset: first as i64 * size as i64,
                bytes: (places.len() * size) as u64,
            })
        });
        faults.collect()
    }
}

impl Deref for Guarded {
    type Target = [f64];

    fn deref(&self) -> &[f64] {
        &self.cells[REDZONE..self.cells.len() - REDZONE]
    }
}

impl DerefMut for Guarded {
    fn deref_mut(&mut self) -> &mut [f64] {
        let end = self.cells.len() - REDZONE;
        &mut self.cells[REDZONE..end]
    }
}

/// Poison written to the result before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poison {
    /// NaN with all bits set.
    Ones,
    /// NaN with another payload.
    Other,
}

impl Arena {
    /// Memory for a run on `inputs`.
    pub fn new(inputs: &Inputs, workspace: &[f64], poison: Poison) -> Self {
        let problem = &inputs.problem;
        let role = problem.direction.result();
        let template = match &inputs.prior {
            Some(prior) => prior.clone(),
            None => Tensor::from_fn(problem.dtype(role), &problem.dims(role), |_| 0.0),
        };
        let mut result = vec![REDZONE_BITS; template.len() + 2 * REDZONE];
        for i in 0..template.len() {
            result[REDZONE + i] = match inputs.prior {
                Some(_) => template.bits(i),
                None => poison.bits(&template),
            };
        }
        Arena {
            first: Guarded::new(&inputs.first.to_f64()),
            second: Guarded::new(&inputs.second.to_f64()),
            workspace: Guarded::new(workspace),
            result,
            template,
        }
    }

    /// Number of elements of the result.
    pub fn len(&self) -> usize {
        self.template.len()
    }

    /// Previous contents of the result tensor at logical offset `i`.
    pub fn prior(&self, i: usize) -> f64 {
        self.template.get(i)
    }

    /// What the result tensor holds now at logical offset `i`.
    pub fn contents(&self, i: usize) -> f64 {
        self.template.dtype().from_bits(self.result[REDZONE + i])
    }

    /// Writes `value`, rounded to the result type, at element `i`; like a
    /// pointer, it takes offsets outside the tensor, down to the redzones' ends.
    pub fn store(&mut self, i: isize, value: f64) {
        let at = (i + REDZONE as isize).clamp(0, self.result.len() as isize - 1);
        self.result[at as usize] = self.template.dtype().to_bits(value);
    }

    /// The result, and where it still holds the poison.
    pub fn take_result(&self, poison: Poison, poisoned: bool) -> (Tensor, Vec<usize>) {
        let mut tensor = self.template.clone();
        let mut unwritten = Vec::new();
        for i in 0..tensor.len() {
            let bits = self.result[REDZONE + i];
            tensor.set_bits(i, bits);
            if poisoned && bits == poison.bits(&self.template) {
                unwritten.push(i);
            }
        }
        (tensor, unwritten)
    }

    /// Damage to redzones and operands.
    pub fn damage(&self, inputs: &Inputs) -> Vec<MemoryFault> {
        let size = self.template.dtype().size() as i64;
        let len = self.template.len();
        let mut faults = Vec::new();
        let mut zone = |kind, cells: &[u64], start: i64| {
            let broken: Vec<usize> = (0..cells.len())
                .filter(|&i| cells[i] != REDZONE_BITS)
                .collect();
            if let Some(&first) = broken.first() {
                faults.push(MemoryFault {
                    buffer: inputs.problem.direction.result().name().to_owned(),
                    kind,
                    offset: (start + first as i64) * size,
                    bytes: broken.len() as u64 * size as u64,
                });
            }
        };
        zone(
            MemoryFaultKind::Before,
            &self.result[..REDZONE],
            -(REDZONE as i64),
        );
        zone(
            MemoryFaultKind::Behind,
            &self.result[REDZONE + len..],
            len as i64,
        );
        let [first, second] = inputs.problem.direction.operands();
        for (name, memory, size) in [
            (first.name(), &self.first, inputs.first.dtype().size()),
            (second.name(), &self.second, inputs.second.dtype().size()),
            ("workspace", &self.workspace, size_of::<f64>()),
        ] {
            faults.extend(memory.damage(name, size));
        }
        faults.extend(changed(first.name(), &self.first, &inputs.first));
        faults.extend(changed(second.name(), &self.second, &inputs.second));
        faults
    }
}

/// A pattern that no rounded value has: wider than any element but fp64's, and
/// a signalling NaN there.
const REDZONE_BITS: u64 = 0x7ff4_dead_beef_a5a5;

impl Poison {
    fn bits(self, tensor: &Tensor) -> u64 {
        let ones = u64::MAX >> (64 - 8 * tensor.dtype().size());
        match self {
            Poison::Ones => ones,
            // A number, so that a result it goes into shows more than NaN.
            Poison::Other => tensor.dtype().to_bits(3.0),
        }
    }
}

fn changed(buffer: &'static str, now: &[f64], before: &Tensor) -> Option<MemoryFault> {
    let size = before.dtype().size();
    let differs = |&i: &usize| now[i].to_bits() != before.get(i).to_bits();
    let broken: Vec<usize> = (0..now.len()).filter(differs).collect();
    broken.first().map(|&first| MemoryFault {
        buffer: buffer.to_owned(),
        kind: MemoryFaultKind::InputChanged,
        offset: (first * size) as i64,
        bytes: (broken.len() * size) as u64,
    })
}
