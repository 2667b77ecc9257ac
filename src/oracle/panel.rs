//! Packing: patches and weights in the order in which the inner loops read them,
//! one plane per part and purpose.

use std::ops::Range;

use super::blocked::DEPTH_BLOCK;
use super::kernel::{CHANNELS, Dispatched, LANES, dispatch};
use super::pass::{Cut, Pass};

/// Rows of N values per step of the reduction, in several planes.
pub struct Planes<const N: usize> {
    /// The parts of the values, then their magnitudes unless in single precision.
    pub double: Vec<Vec<[f64; N]>>,
    /// The magnitudes if in single precision, then ones where a value is not
    /// zero, if that is asked for.
    pub single: Vec<Vec<[f32; N]>>,
}

impl<const N: usize> Planes<N> {
    fn new(pass: &Pass<'_>, cut: Cut, rows: usize) -> Self {
        let double = cut.parts + usize::from(!pass.single);
        let single = usize::from(pass.single) + usize::from(pass.count_zeros);
        Planes {
            double: vec![vec![[0.0; N]; rows]; double],
            single: vec![vec![[0.0; N]; rows]; single],
        }
    }

    /// Makes all planes from the values, which lie in the first.
    #[inline(always)]
    fn derive(&mut self, pass: &Pass<'_>, cut: Cut, rows: usize) {
        let (parts, magnitudes) = self.double.split_at_mut(cut.parts);
        let values = parts[0][..rows].as_flattened();
        let mut single = self.single.iter_mut();
        if pass.single {
            let plane = single.next().map(|plane| plane.as_flattened_mut());
            set(plane, values, |v| v.abs() as f32);
        } else {
            let plane = magnitudes.first_mut().map(|plane| plane.as_flattened_mut());
            set(plane, values, f64::abs);
        }
        let present = single.next().map(|plane| plane.as_flattened_mut());
        set(present, values, |v| f32::from(u8::from(v != 0.0)));
        for part in 1..cut.parts {
            let [high, low] = &mut parts[part - 1..=part] else {
                continue;
            };
            let (high, low) = (high.as_flattened_mut(), low.as_flattened_mut());
            cut_off(&mut high[..rows * N], low, cut.quanta[part - 1]);
        }
    }
}

#[inline(always)]
fn set<T>(plane: Option<&mut [T]>, values: &[f64], of: impl Fn(f64) -> T) {
    for (to, &value) in plane.unwrap_or_default().iter_mut().zip(values) {
        *to = of(value);
    }
}

/// Leaves whole quanta in `high`, and the rest in `low`.
#[inline(always)]
fn cut_off(high: &mut [f64], low: &mut [f64], quantum: f64) {
    let per_quantum = 1.0 / quantum;
    for (high, low) in high.iter_mut().zip(low) {
        let whole = (*high * per_quantum).trunc() * quantum;
        *low = *high - whole;
        *high = whole;
    }
}

impl Planes<CHANNELS> {
    /// The weights of the `block`-th CHANNELS channels of a group.
    pub fn of_weights(pass: &Pass<'_>, group: usize, block: usize) -> Self {
        dispatch(PackWeights { pass, group, block })
    }
}

struct PackWeights<'a> {
    pass: &'a Pass<'a>,
    group: usize,
    block: usize,
}

impl Dispatched for PackWeights<'_> {
    type Output = Planes<CHANNELS>;

    #[inline(always)]
    fn call(self) -> Planes<CHANNELS> {
        let lowering = &self.pass.lowering;
        let (depth, cut) = (lowering.depth(), self.pass.method.cuts()[1]);
        let mut planes = Planes::new(self.pass, cut, depth);
        let first = self.block * CHANNELS;
        let channels = first..(first + CHANNELS).min(lowering.channels);
        for (column, channel) in channels.enumerate() {
            let rows = planes.double[0].chunks_mut(lowering.inner());
            for (rows, start) in rows.zip(lowering.weight_rows(self.group, channel)) {
                let weights = &self.pass.weights.values[start..start + lowering.inner()];
                for (row, &weight) in rows.iter_mut().zip(weights) {
                    row[column] = weight;
                }
            }
        }
        planes.derive(self.pass, cut, depth);
        planes
    }
}

impl Planes<LANES> {
    /// Room for `rows` steps of a panel of patches.
    pub fn of_patches(pass: &Pass<'_>, rows: usize) -> Self {
        Planes::new(pass, pass.method.cuts()[0], rows)
    }

    /// Fills the planes with some steps of a panel; padding is zero in all.
    #[inline(always)]
    pub fn gather(
        &mut self,
        pass: &Pass<'_>,
        sources: &Sources,
        panel: usize,
        steps: Range<usize>,
    ) {
        debug_assert!(steps.len() <= DEPTH_BLOCK);
        let inner = pass.lowering.inner();
        let (mut outer, mut t) = (steps.start / inner, steps.start % inner);
        for row in &mut self.double[0][..steps.len()] {
            let values = &pass.patches.values[outer * sources.step..];
            sources.rows[panel * inner + t].copy(values, row);
            t += 1;
            if t == inner {
                (outer, t) = (outer + 1, 0);
            }
        }
        self.derive(pass, pass.method.cuts()[0], steps.len());
    }
}

/// Where the patches of a run of positions lie.
pub struct Sources {
    /// Panel → inner index of the reduction.
    rows: Vec<Source>,
    /// Offset per outer index.
    step: usize,
    /// Per position: products that are not with padding.
    pub valid: Vec<u64>,
}

impl Sources {
    /// The sources of `positions` of a group.
    pub fn new(pass: &Pass<'_>, group: usize, positions: Range<usize>) -> Self {
        let lowering = &pass.lowering;
        let inner = lowering.inner();
        let mut sources = Sources {
            rows: vec![Source::OUTSIDE; positions.len().div_ceil(LANES) * inner],
            step: 0,
            valid: Vec::with_capacity(positions.len()),
        };
        let mut offsets = Vec::with_capacity(inner);
        for (at, position) in positions.enumerate() {
            let base = lowering.patch(group, position, &mut offsets);
            let rows = &mut sources.rows[at / LANES * inner..][..inner];
            for (row, offset) in rows.iter_mut().zip(&offsets) {
                row.offsets[at % LANES] = offset.map_or(OUTSIDE, |offset| base.start + offset);
            }
            let inside = offsets.iter().flatten().count() * (lowering.depth() / inner);
            sources.valid.push(inside as u64);
            sources.step = base.step;
        }
        sources.rows.iter_mut().for_each(Source::find_runs);
        sources
    }
}

/// Where the values of LANES positions lie, for one inner index and outer index 0.
#[derive(Clone)]
struct Source {
    offsets: [usize; LANES],
    /// Whether RUN neighbours are neighbours there too.
    runs: [bool; LANES / RUN],
}

/// Positions that may be copied together.
const RUN: usize = 8;

/// In the padding: beyond the end of any operand, at any outer index.
const OUTSIDE: usize = usize::MAX / 2;

impl Source {
    const OUTSIDE: Source = Source {
        offsets: [OUTSIDE; LANES],
        runs: [false; LANES / RUN],
    };

    fn find_runs(&mut self) {
        let (parts, _) = self.offsets.as_chunks::<RUN>();
        for (run, part) in self.runs.iter_mut().zip(parts) {
            let neighbours = |pair: &[usize]| pair[1] == pair[0] + 1;
            *run = part[0] != OUTSIDE && part.windows(2).all(neighbours);
        }
    }

    #[inline(always)]
    fn copy(&self, values: &[f64], row: &mut [f64; LANES]) {
        let (offsets, _) = self.offsets.as_chunks::<RUN>();
        let (parts, _) = row.as_chunks_mut::<RUN>();
        for ((part, offsets), &run) in parts.iter_mut().zip(offsets).zip(&self.runs) {
            if run {
                part.copy_from_slice(&values[offsets[0]..offsets[0] + RUN]);
            } else {
                for (to, &offset) in part.iter_mut().zip(offsets) {
                    *to = values.get(offset).copied().unwrap_or(0.0);
                }
            }
        }
    }
}
