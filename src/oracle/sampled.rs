//! Single outputs, wherever they are: what large problems are sampled with, and
//! what is left of data with NaN or infinity.
//!
//! The same methods and radii as in [`super::pass`], one output at a time;
//! outputs with a product that is not finite go to the arbiter.

use rayon::prelude::*;

use super::kernel::{Dispatched, dispatch};
use super::pass::{Found, Method, Pass, double_double, with_pass};
use super::{Output, arbiter};
use crate::dtype::exp2;
use crate::fill::Inputs;

/// Outputs per task.
const PART: usize = 64;

/// Computes the outputs at the logical offsets of `list`, or `None` where fp64
/// products could leave the range of doubles.
pub fn outputs(inputs: &Inputs, list: &[usize]) -> Option<Vec<Output>> {
    with_pass(inputs, |pass| {
        let parts = list.par_chunks(PART);
        let done: Vec<Vec<Output>> = parts.map(|list| dispatch(Part { pass, list })).collect();
        Some(done.concat())
    })
}

/// Some outputs of a case.
struct Part<'a> {
    pass: &'a Pass<'a>,
    list: &'a [usize],
}

impl Dispatched for Part<'_> {
    type Output = Vec<Output>;

    #[inline(always)]
    fn call(self) -> Vec<Output> {
        let mut places = Places::default();
        let mut outputs = Vec::with_capacity(self.list.len());
        for &index in self.list {
            places.locate(self.pass, index);
            places.gather(self.pass);
            let output = places
                .found(self.pass)
                .and_then(|found| self.pass.output(index, found));
            outputs.push(output.unwrap_or_else(|| arbiter::output(self.pass.inputs, index)));
        }
        outputs
    }
}

/// fp16 values are integers times 2^-24.
const FP16_QUANTUM: i32 = 24;

/// Where the products of one output lie.
#[derive(Default)]
struct Places {
    offsets: Vec<Option<usize>>,
    /// Inner indices whose products are not with padding, and their offsets.
    inside: Vec<(usize, usize)>,
    outer: usize,
    patch: Walk,
    weight: Walk,
    /// The factors of its products, padding left out.
    a: Vec<f64>,
    b: Vec<f64>,
}

/// Start and step per outer index.
#[derive(Clone, Copy, Default)]
struct Walk {
    start: usize,
    step: usize,
}

impl Places {
    fn locate(&mut self, pass: &Pass<'_>, index: usize) {
        let lowering = &pass.lowering;
        let (group, channel, position) = lowering.locate(index);
        let base = lowering.patch(group, position, &mut self.offsets);
        self.inside.clear();
        let offsets = self.offsets.iter().enumerate();
        self.inside
            .extend(offsets.filter_map(|(t, offset)| Some((t, (*offset)?))));
        let inner = self.offsets.len();
        self.outer = lowering.depth() / inner;
        self.patch = Walk {
            start: base.start,
            step: base.step,
        };
        let start = lowering.weight(group, channel, 0);
        let step = match self.outer {
            1 => 0,
            _ => lowering.weight(group, channel, inner) - start,
        };
        self.weight = Walk { start, step };
    }

    #[inline(always)]
    fn gather(&mut self, pass: &Pass<'_>) {
        let width = self.inside.len();
        self.a.resize(self.outer * width, 0.0);
        self.b.resize(self.outer * width, 0.0);
        // At least 1: a patch may lie in the padding altogether.
        let rows = self.a.chunks_exact_mut(width.max(1));
        let rows = rows.zip(self.b.chunks_exact_mut(width.max(1)));
        for (outer, (a, b)) in rows.enumerate() {
            let patch = &pass.patches.values[self.patch.start + outer * self.patch.step..];
            let weight = &pass.weights.values[self.weight.start + outer * self.weight.step..];
            for ((a, b), &(t, offset)) in a.iter_mut().zip(b).zip(&self.inside) {
                (*a, *b) = (patch[offset], weight[t]);
            }
        }
    }

    /// What the products sum to, or `None` where one is not finite.
    #[inline(always)]
    fn found(&self, pass: &Pass<'_>) -> Option<Found> {
        let sums = sum_in_lanes(&self.a, &self.b);
        let pairs = self.a.iter().copied().zip(self.b.iter().copied());
        let sum = match pass.method {
            Method::Exact(_) => double_double(pairs.fold(0, add_fixed), exp2(-2 * FP16_QUANTUM)),
            Method::Plain => [sums.value, 0.0],
            Method::Twice => pairs.fold([0.0; 2], add_twice),
        };
        sums.magnitude.is_finite().then(|| Found {
            sum,
            s: pass.s_of_double(sums.magnitude),
            nonzero: sums.nonzero,
        })
    }
}

/// Products summed side by side; radii hold for any order.
const LANES: usize = 8;

struct Sums {
    value: f64,
    magnitude: f64,
    nonzero: u64,
}

/// Σ a·b, Σ |a·b| and the number of nonzero products. No product of nonzero
/// factors is zero: see [`with_pass`] for fp64, and other types' are far from it.
#[inline(always)]
fn sum_in_lanes(a: &[f64], b: &[f64]) -> Sums {
    let (mut values, mut magnitudes) = ([0.0; LANES], [0.0; LANES]);
    let mut counts = [0u64; LANES];
    let mut add = |i: usize, a: f64, b: f64| {
        let product = a * b;
        values[i] += product;
        magnitudes[i] += product.abs();
        counts[i] += u64::from(product != 0.0);
    };
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            add(i, a[i], b[i]);
        }
    }
    for (i, (&a, &b)) in a_rest.iter().zip(b_rest).enumerate() {
        add(i, a, b);
    }
    Sums {
        value: values.iter().sum(),
        magnitude: magnitudes.iter().sum(),
        nonzero: counts.iter().sum(),
    }
}

/// Exact: products of 40-bit integers, units of 2^-48.
#[inline(always)]
fn add_fixed(sum: i128, (a, b): (f64, f64)) -> i128 {
    let fixed = |v: f64| (v * const { (1u64 << FP16_QUANTUM) as f64 }) as i64;
    sum + i128::from(fixed(a)) * i128::from(fixed(b))
}

/// Dot2, as in [`super::kernel::add_products_twice`].
#[inline(always)]
fn add_twice([sum, correction]: [f64; 2], (a, b): (f64, f64)) -> [f64; 2] {
    let product = a * b;
    let product_error = a.mul_add(b, -product);
    let next = sum + product;
    let back = next - sum;
    let sum_error = (sum - (next - back)) + (product - back);
    [next, correction + (product_error + sum_error)]
}
