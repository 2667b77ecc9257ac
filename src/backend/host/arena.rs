//! Memory of one run, guarded as on a GPU: the result between redzones and full
//! of poison, the workspace poisoned, the operands copies that can be compared
//! with their originals.

use crate::fill::Inputs;
use crate::outcome::{MemoryFault, MemoryFaultKind};
use crate::tensor::Tensor;

/// Elements of redzone on each side of the result.
const REDZONE: usize = 64;

/// What an algorithm may touch.
pub struct Arena {
    /// First operand, decoded.
    pub first: Vec<f64>,
    /// Second operand, decoded.
    pub second: Vec<f64>,
    /// Scratch memory, as the caller filled it.
    pub workspace: Vec<f64>,
    result: Vec<u64>,
    template: Tensor,
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
    pub fn new(inputs: &Inputs, workspace: Vec<f64>, poison: Poison) -> Self {
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
            first: inputs.first.to_f64(),
            second: inputs.second.to_f64(),
            workspace,
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
                    buffer: inputs.problem.direction.result().name(),
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
            Poison::Other => ones - 1,
        }
    }
}

fn changed(buffer: &'static str, now: &[f64], before: &Tensor) -> Option<MemoryFault> {
    let size = before.dtype().size();
    let differs = |&i: &usize| now[i].to_bits() != before.get(i).to_bits();
    let broken: Vec<usize> = (0..now.len()).filter(differs).collect();
    broken.first().map(|&first| MemoryFault {
        buffer,
        kind: MemoryFaultKind::InputChanged,
        offset: (first * size) as i64,
        bytes: (broken.len() * size) as u64,
    })
}
