//! Convolution as a matrix product over gathered patches, with hooks where
//! faults are planted.

use super::arena::Arena;
use super::faults::Fault;
use super::sum::{Prepared, Sum, round};
use crate::bound::{Accumulator, OperandRounding};
use crate::dtype::Format;
use crate::fill::Inputs;
use crate::geometry::Geometry;
use crate::lowering::Lowering;

/// A matrix product's arithmetic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemm {
    /// How products are summed.
    pub sum: Sum,
    /// Operands are rounded to nearest in this format first.
    pub operands: OperandRounding,
    /// Type of alpha, beta and the epilogue.
    pub compute: Accumulator,
}

/// What a hook may look at.
pub struct Site<'a> {
    /// The problem and its data.
    pub inputs: &'a Inputs,
    /// Its index arithmetic.
    pub geometry: &'a Geometry,
    /// The group at work.
    pub group: usize,
    /// Taps of the kernel, or inner indices of the reduction.
    pub inner: usize,
    /// Elements per image plane of the patches' operand.
    pub plane: usize,
    /// Number of runs made by this backend so far.
    pub run: u64,
}

/// Where the values of one position lie, `None` in the padding. Kept from one
/// position to the next for its memory.
#[derive(Default)]
struct Patch {
    offsets: Vec<Option<usize>>,
    index: Vec<Option<usize>>,
}

impl Patch {
    fn find(&mut self, lowering: &Lowering, group: usize, position: usize) {
        let base = lowering.patch(group, position, &mut self.offsets);
        self.index.clear();
        let mut start = base.start;
        while self.index.len() < lowering.depth() {
            let offsets = self.offsets.iter();
            let places = offsets.map(|offset| offset.map(|offset| start + offset));
            self.index.extend(places);
            start += base.step;
        }
    }
}

impl Gemm {
    /// Computes every output into `arena`. The workspace holds one patch of
    /// values; `fault` may step in at every stage.
    pub fn run(&self, inputs: &Inputs, arena: &mut Arena, fault: Option<&Fault>, run: u64) {
        let geometry = Geometry::new(&inputs.problem);
        let lowering = Lowering::new(&geometry);
        let volume = |s: [usize; 3]| s.iter().product::<usize>();
        let mut site = Site {
            inputs,
            geometry: &geometry,
            group: 0,
            inner: 1,
            plane: if lowering.patches_first {
                volume(geometry.input)
            } else {
                volume(geometry.output)
            },
            run,
        };
        let mut patch = Patch::default();
        for group in 0..lowering.groups {
            site.group = group;
            let rows = self.rows(&lowering, &site, arena, fault);
            for position in 0..lowering.positions {
                patch.find(&lowering, group, position);
                self.position(
                    &lowering,
                    &mut site,
                    position,
                    (&rows, &mut patch),
                    arena,
                    fault,
                );
            }
        }
    }

    /// Workspace in elements: one patch.
    pub fn workspace(inputs: &Inputs) -> usize {
        inputs.problem.reduction_length()
    }

    /// The weights of a group, one prepared row per channel.
    fn rows(
        &self,
        lowering: &Lowering,
        site: &Site<'_>,
        arena: &Arena,
        fault: Option<&Fault>,
    ) -> Vec<Prepared> {
        let operand = if lowering.patches_first {
            &arena.second
        } else {
            &arena.first
        };
        (0..lowering.channels)
            .map(|channel| {
                let mut index: Vec<usize> = (0..lowering.depth())
                    .map(|r| lowering.weight(site.group, channel, r))
                    .collect();
                if let Some(fault) = fault {
                    fault.weights(site, channel, &mut index);
                }
                let values: Vec<f64> = index
                    .iter()
                    .map(|&i| self.operand(operand[i], fault))
                    .collect();
                self.sum(fault).prepare(&values)
            })
            .collect()
    }

    fn position(
        &self,
        lowering: &Lowering,
        site: &mut Site<'_>,
        position: usize,
        (rows, patch): (&[Prepared], &mut Patch),
        arena: &mut Arena,
        fault: Option<&Fault>,
    ) {
        site.inner = patch.offsets.len();
        if let Some(fault) = fault {
            fault.patch(site, position, &mut patch.index);
        }
        let first = (site.group, position) == (0, 0);
        self.gather(lowering, &patch.index, arena, fault, first);
        let patch = self.sum(fault).prepare(&arena.workspace);
        for (channel, row) in rows.iter().enumerate() {
            let output = lowering.output(site.group, channel, position);
            let mut value = self.sum(fault).of(row, &patch);
            if let Some(fault) = fault {
                value = fault.sum_of(site, output, value, row, &patch);
            }
            self.store(site, output, value, arena, fault);
        }
    }

    /// Copies a patch, the `first` of a run or another, into the workspace,
    /// zeros in the padding.
    fn gather(
        &self,
        lowering: &Lowering,
        index: &[Option<usize>],
        arena: &mut Arena,
        fault: Option<&Fault>,
        first: bool,
    ) {
        let leftovers = first && fault.is_some_and(Fault::keeps_leftovers);
        for (r, index) in index.iter().enumerate() {
            let value = match index {
                Some(i) if lowering.patches_first => arena.first[*i],
                Some(i) => arena.second[*i],
                // Leaving the old contents is a fault that can be planted.
                None if fault.is_some_and(Fault::leaves_padding) => arena.workspace[r],
                None if leftovers => finite(arena.workspace[r]),
                None if fault.is_some_and(Fault::masks_padding) => {
                    let image = match lowering.patches_first {
                        true => &arena.first,
                        false => &arena.second,
                    };
                    0.0 * image.read(image.len() as isize)
                }
                None => fault.map_or(0.0, Fault::padding_value),
            };
            arena.workspace[r] = self.operand(value, fault);
        }
    }

    fn operand(&self, value: f64, fault: Option<&Fault>) -> f64 {
        let value = self
            .operands
            .format()
            .map_or(value, |f: Format| f.round(value));
        fault.map_or(value, |fault| fault.operand(value))
    }

    fn sum(&self, fault: Option<&Fault>) -> Sum {
        fault.and_then(Fault::replaced_sum).unwrap_or(self.sum)
    }

    fn store(
        &self,
        site: &Site<'_>,
        output: usize,
        sum: f64,
        arena: &mut Arena,
        fault: Option<&Fault>,
    ) {
        let (mut alpha, mut beta) = (site.inputs.problem.alpha.0, site.inputs.problem.beta.0);
        if let Some(fault) = fault {
            (alpha, beta) = fault.scales(alpha, beta);
        }
        let prior = if beta == 0.0 {
            0.0
        } else {
            arena.prior(output)
        };
        let mut value = epilogue(self.compute, sum, alpha, beta, prior);
        if fault.is_some_and(Fault::reads_prior) {
            value += beta * arena.contents(output);
        }
        let stored = match fault {
            Some(fault) => fault.output(site, output, value),
            None => Some(value),
        };
        if let Some(value) = stored {
            arena.store(output as isize, value);
        }
    }
}

/// A number as it is, anything else as zero.
fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

/// alpha · sum + beta · prior in the compute type.
pub fn epilogue(compute: Accumulator, sum: f64, alpha: f64, beta: f64, prior: f64) -> f64 {
    if alpha == 1.0 && beta == 0.0 {
        return sum;
    }
    let scaled = round(compute, alpha * sum);
    if beta == 0.0 {
        return scaled;
    }
    round(compute, scaled + round(compute, beta * prior))
}
