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
            let sums = match self.pass.method {
                Method::Exact(_) => places.sum(self.pass, add_fixed),
                Method::Plain => places.sum(self.pass, add),
                Method::Twice => places.sum(self.pass, add_twice),
            };
            let output = Some(sums)
                .filter(|sums| sums.magnitude.is_finite())
                .and_then(|sums| self.pass.output(index, sums.found(self.pass)));
            outputs.push(output.unwrap_or_else(|| arbiter::output(self.pass.inputs, index)));
        }
        outputs
    }
}

/// Sums of one output.
#[derive(Clone, Copy, Default)]
struct Sums {
    sum: f64,
    /// Dot2's correction.
    correction: f64,
    /// In units of 2^-48.
    fixed: i128,
    magnitude: f64,
    nonzero: u64,
}

impl Sums {
    fn found(self, pass: &Pass<'_>) -> Found {
        Found {
            sum: match pass.method {
                Method::Exact(_) => double_double(self.fixed, exp2(-2 * FP16_QUANTUM)),
                _ => [self.sum, self.correction],
            },
            s: pass.s_of_double(self.magnitude),
            nonzero: self.nonzero,
        }
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
    fn sum(&self, pass: &Pass<'_>, add: impl Fn(&mut Sums, f64, f64)) -> Sums {
        let mut sums = Sums::default();
        for outer in 0..self.outer {
            let patch = &pass.patches.values[self.patch.start + outer * self.patch.step..];
            let weight = &pass.weights.values[self.weight.start + outer * self.weight.step..];
            for &(t, offset) in &self.inside {
                let (a, b) = (patch[offset], weight[t]);
                add(&mut sums, a, b);
                sums.magnitude += (a * b).abs();
                sums.nonzero += u64::from(a != 0.0 && b != 0.0);
            }
        }
        sums
    }
}

/// Exact: products of 40-bit integers, units of 2^-48.
#[inline(always)]
fn add_fixed(sums: &mut Sums, a: f64, b: f64) {
    let fixed = |v: f64| (v * const { (1u64 << FP16_QUANTUM) as f64 }) as i64;
    sums.fixed += i128::from(fixed(a)) * i128::from(fixed(b));
}

/// The product is exact.
#[inline(always)]
fn add(sums: &mut Sums, a: f64, b: f64) {
    sums.sum += a * b;
}

/// Dot2, as in [`super::kernel::add_products_twice`].
#[inline(always)]
fn add_twice(sums: &mut Sums, a: f64, b: f64) {
    let product = a * b;
    let product_error = a.mul_add(b, -product);
    let next = sums.sum + product;
    let back = next - sums.sum;
    let sum_error = (sums.sum - (next - back)) + (product - back);
    sums.correction += product_error + sum_error;
    sums.sum = next;
}
