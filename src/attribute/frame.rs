//! The exact result of a changed problem, and whether an output is that result.

use crate::bound::{Arithmetic, Bounds, Family};
use crate::dtype::{DType, Format};
use crate::fill::{Inputs, Regime};
use crate::geometry::Geometry;
use crate::lowering::Lowering;
use crate::oracle::{Class, Decided, Output, Value, two_sum};
use crate::problem::Direction;

use super::cause::Cause;

/// A problem as a matrix product per group, with what is accepted of it.
pub struct Frame<'a> {
    /// The data.
    pub inputs: &'a Inputs,
    /// Its index arithmetic.
    pub geometry: Geometry,
    /// The matrix product.
    pub lowering: Lowering,
    /// What the candidate declares.
    pub bounds: Bounds,
    /// Channels (batch for bwd_filter) and taps (output positions) of a sum.
    pub outer: usize,
    /// See `outer`.
    pub inner: usize,
    /// Values of the operand that patches come from, and of the weights'.
    pub patches: Vec<f64>,
    /// See `patches`.
    pub weights: Vec<f64>,
    dtype: DType,
    integers: bool,
}

/// The products of one output, as offsets into the operands; r runs over
/// (outer, inner).
#[derive(Clone, Debug)]
pub struct Terms {
    /// The group at work.
    pub group: usize,
    /// Patch.
    pub position: usize,
    /// Offsets into the patches' operand; `None` in the padding.
    pub patch: Vec<Option<usize>>,
    /// Offsets into the weights' operand.
    pub weights: Vec<usize>,
    /// What stands in the padding.
    pub padding: f64,
}

type Edit<'h> = Box<dyn Fn(&Frame<'_>, &mut Terms) + Sync + 'h>;
type Emulate<'h> = Box<dyn Fn(&[(f64, f64)]) -> f64 + Sync + 'h>;
type Store<'h> = Box<dyn Fn(Format, f64) -> f64 + Sync + 'h>;

/// A changed problem that may explain the output.
pub struct Hypothesis<'h> {
    /// What it would mean.
    pub cause: Cause,
    /// How many hypotheses its parameters were chosen from.
    pub choices: f64,
    edit: Option<Edit<'h>>,
    operand: Option<fn(f64) -> f64>,
    scales: Option<(f64, f64)>,
    store: Option<Store<'h>>,
    emulate: Option<Emulate<'h>>,
}

impl<'h> Hypothesis<'h> {
    /// The problem as it is, under the name of `cause`.
    pub fn new(cause: Cause) -> Self {
        Hypothesis {
            cause,
            choices: 1.0,
            edit: None,
            operand: None,
            scales: None,
            store: None,
            emulate: None,
        }
    }

    /// Which products are summed.
    pub fn edit(mut self, edit: impl Fn(&Frame<'_>, &mut Terms) + Sync + 'h) -> Self {
        self.edit = Some(Box::new(edit));
        self
    }

    /// What happens to operands.
    pub fn operand(mut self, map: fn(f64) -> f64) -> Self {
        self.operand = Some(map);
        self
    }

    /// Other factors alpha and beta.
    pub fn scales(mut self, alpha: f64, beta: f64) -> Self {
        self.scales = Some((alpha, beta));
        self
    }

    /// How values become results, instead of rounding to nearest.
    pub fn store(mut self, store: impl Fn(Format, f64) -> f64 + Sync + 'h) -> Self {
        self.store = Some(Box::new(store));
        self
    }

    /// The sum of products, bit for bit, instead of exactly.
    pub fn emulate(mut self, sum: impl Fn(&[(f64, f64)]) -> f64 + Sync + 'h) -> Self {
        self.emulate = Some(Box::new(sum));
        self
    }

    /// Says how many hypotheses its parameters were chosen from.
    pub fn among(mut self, choices: usize) -> Self {
        self.choices = choices.max(1) as f64;
        self
    }
}

/// What a hypothesis makes of one output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// The value, before it is stored and as stored.
    pub value: f64,
    /// Least and largest result that fit, and the likeliest.
    pub low: f64,
    /// See `low`.
    pub stored: f64,
    /// See `low`.
    pub high: f64,
    /// Distance that cannot be told from rounding.
    pub blur: f64,
    /// Infinity and NaN may arise on the way.
    pub open: bool,
}

/// How an output fits a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The very bits.
    Bits,
    /// Within what rounding allows.
    Within,
    /// Not at all.
    No,
}

impl Prediction {
    /// How `actual` fits.
    pub fn fit(&self, actual: f64) -> Fit {
        let or_nan = self.low.is_nan() || self.high.is_nan();
        let finite_part = |v: f64, limit: f64| if v.is_nan() { limit } else { v };
        let low = finite_part(self.low, f64::NEG_INFINITY);
        let high = finite_part(self.high, f64::INFINITY);
        if same(self.stored, actual) {
            Fit::Bits
        } else if (or_nan && actual.is_nan()) || (self.open && !actual.is_finite()) {
            Fit::Within
        } else if self.stored.is_nan() && self.low.is_nan() && self.high.is_nan() {
            Fit::No
        } else if low <= actual && actual <= high {
            Fit::Within
        } else {
            Fit::No
        }
    }
}

/// Equal as values: zeros of both signs are, and all NaNs.
pub fn same(a: f64, b: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan())
}

impl<'a> Frame<'a> {
    /// The frame of a case. Where the family has no bound for the problem, that
    /// of a plain sum is used.
    pub fn new(inputs: &'a Inputs, arithmetic: &Arithmetic) -> Option<Self> {
        let plain = Arithmetic {
            family: Family::InnerProduct,
            ..*arithmetic
        };
        let bounds = Bounds::new(inputs, arithmetic).or_else(|| Bounds::new(inputs, &plain))?;
        let geometry = Geometry::new(&inputs.problem);
        let lowering = Lowering::new(&geometry);
        let mut offsets = Vec::new();
        lowering.patch(0, 0, &mut offsets);
        let (mut patches, mut weights) = (inputs.first.to_f64(), inputs.second.to_f64());
        if !lowering.patches_first {
            std::mem::swap(&mut patches, &mut weights);
        }
        Some(Frame {
            inputs,
            bounds,
            outer: lowering.depth() / offsets.len(),
            inner: offsets.len(),
            patches,
            weights,
            dtype: inputs.problem.result_type(),
            integers: inputs.fill.kind.regime() == Regime::ExactInteger,
            geometry,
            lowering,
        })
    }

    /// Whether the kernel's taps are the inner index of a sum.
    pub fn inner_is_taps(&self) -> bool {
        self.geometry.direction != Direction::BwdFilter
    }

    /// Elements of one image plane of the patches' operand.
    pub fn plane(&self) -> usize {
        let size = if self.lowering.patches_first {
            self.geometry.input
        } else {
            self.geometry.output
        };
        size.iter().product()
    }

    /// Channels of the patches' operand.
    pub fn patch_channels(&self) -> usize {
        if self.lowering.patches_first {
            self.geometry.c
        } else {
            self.geometry.k
        }
    }

    /// The products of the output at logical offset `index`.
    pub fn terms(&self, index: usize) -> Terms {
        let (group, channel, position) = self.place(index);
        let depth = self.lowering.depth();
        let weight = |r| self.lowering.weight(group, channel, r);
        Terms {
            group,
            position,
            patch: patch(&self.lowering, group, position, self.outer),
            weights: (0..depth).map(weight).collect(),
            padding: 0.0,
        }
    }

    /// Group, channel and position: the inverse of [`Lowering::output`].
    fn place(&self, index: usize) -> (usize, usize, usize) {
        let g = &self.geometry;
        let volume = |s: [usize; 3]| s.iter().product::<usize>();
        let (all, per_group, size) = match g.direction {
            Direction::Fwd => (g.k, g.k / g.groups, volume(g.output)),
            Direction::BwdData => (g.c, g.c / g.groups, volume(g.input)),
            Direction::BwdFilter => (g.k, g.k / g.groups, self.lowering.positions),
        };
        let (outer, at) = (index / size, index % size);
        let (n, row) = (outer / all, outer % all);
        (row / per_group, row % per_group, n * size + at)
    }

    /// Values of the products under a hypothesis, padding included.
    pub fn pairs(&self, hypothesis: &Hypothesis<'_>, index: usize) -> Vec<(f64, f64)> {
        let mut terms = self.terms(index);
        if let Some(edit) = &hypothesis.edit {
            edit(self, &mut terms);
        }
        let map = hypothesis.operand.unwrap_or(|v| v);
        let patch = |at: &Option<usize>| at.map_or(terms.padding, |i| self.patches[i]);
        terms
            .patch
            .iter()
            .zip(&terms.weights)
            // A product with plain padding is none, whatever the weight.
            .map(|(p, &w)| match p {
                None if terms.padding == 0.0 => (0.0, 0.0),
                _ => (map(patch(p)), map(self.weights[w])),
            })
            .collect()
    }

    /// What a hypothesis predicts at logical offset `index`.
    pub fn predict(&self, hypothesis: &Hypothesis<'_>, index: usize) -> Prediction {
        let pairs = self.pairs(hypothesis, index);
        if let Some(sum) = &hypothesis.emulate {
            return self.emulated(sum(&pairs), index);
        }
        let output = self.output(hypothesis, &pairs, index);
        let format = self.dtype.format();
        let store = |v: f64| match &hypothesis.store {
            Some(store) => format.round(store(format, v)),
            None => format.round(v),
        };
        let fixed = |value: f64| Prediction {
            value,
            low: store(value),
            stored: store(value),
            high: store(value),
            blur: 0.0,
            open: false,
        };
        match output.class {
            Class::Nan => return fixed(f64::NAN),
            Class::Infinite { negative } => {
                return fixed(f64::INFINITY * if negative { -1.0 } else { 1.0 });
            }
            Class::Finite => {}
        }
        let whole = |v: f64| v.fract() == 0.0;
        let integral = self.integers && pairs.iter().all(|&(a, b)| whole(a) && whole(b));
        let exact = integral && self.bounds.exact_for_integers(&output);
        let width = if exact { 0.0 } else { self.bounds.at(&output) };
        let value = output.value.hi;
        let plain = hypothesis
            .store
            .is_none()
            .then(|| output.value.rounded(self.dtype));
        let lattice = if exact {
            0.5 * self.inputs.problem.alpha.0.abs()
        } else {
            0.0
        };
        Prediction {
            value,
            low: store(value - width),
            stored: plain.flatten().unwrap_or_else(|| store(value)),
            high: store(value + width),
            blur: width.max(0.5 * format.ulp(value)).max(lattice),
            open: hypothesis.store.is_none() && self.bounds.may_overflow(&output),
        }
    }

    /// A sum known bit for bit, with its epilogue in the compute type.
    fn emulated(&self, sum: f64, index: usize) -> Prediction {
        let problem = &self.inputs.problem;
        let compute = problem.compute.dtype().format();
        let (alpha, beta) = (problem.alpha.0, problem.beta.0);
        let mut value = sum;
        if alpha != 1.0 || beta != 0.0 {
            value = compute.round(alpha * sum);
        }
        if beta != 0.0 {
            value = compute.round(value + compute.round(beta * self.prior(index)));
        }
        let stored = self.dtype.format().round(value);
        Prediction {
            value,
            low: stored,
            stored,
            high: stored,
            blur: 0.5 * self.dtype.format().ulp(stored),
            open: false,
        }
    }

    fn prior(&self, index: usize) -> f64 {
        self.inputs.prior.as_ref().map_or(0.0, |p| p.get(index))
    }

    fn output(&self, hypothesis: &Hypothesis<'_>, pairs: &[(f64, f64)], index: usize) -> Output {
        let problem = &self.inputs.problem;
        let (alpha, beta) = hypothesis
            .scales
            .unwrap_or((problem.alpha.0, problem.beta.0));
        let prior = if beta == 0.0 { 0.0 } else { self.prior(index) };
        let mut special = 0.0;
        for &(a, b) in pairs {
            if !(a.is_finite() && b.is_finite()) {
                special += a * b;
            }
        }
        special *= alpha;
        if !prior.is_finite() {
            special += beta * prior;
        }
        let (sum, s, nonzero) = dot(pairs);
        let value = sum
            .scaled(alpha, beta, prior)
            .unwrap_or_else(|| rough(alpha * sum.hi + beta * prior));
        Output {
            index,
            value,
            s,
            nonzero,
            class: class(special),
            decided: Decided::Certified,
        }
    }
}

fn class(special: f64) -> Class {
    if special.is_nan() {
        Class::Nan
    } else if special.is_infinite() {
        Class::Infinite {
            negative: special < 0.0,
        }
    } else {
        Class::Finite
    }
}

/// A value with a radius of a few roundings.
fn rough(value: f64) -> Value {
    Value {
        hi: value,
        lo: 0.0,
        radius: value.abs() * f64::EPSILON * 4.0,
    }
}

/// Dot2 (Ogita, Rump, Oishi, SIAM J. Sci. Comput. 26(6), 2005) of the finite
/// products, with S and the number of nonzero ones.
fn dot(pairs: &[(f64, f64)]) -> (Value, f64, u64) {
    let (mut hi, mut lo, mut s, mut errors, mut nonzero) = (0.0_f64, 0.0_f64, 0.0, 0.0, 0);
    for &(a, b) in pairs {
        let product = a * b;
        if product == 0.0 || !product.is_finite() {
            continue;
        }
        let tail = libm::fma(a, b, -product);
        let (sum, error) = two_sum(hi, product);
        hi = sum;
        lo += tail + error;
        errors += tail.abs() + error.abs();
        s += product.abs();
        nonzero += 1;
    }
    let (sum, rest) = two_sum(hi, lo);
    let depth = nonzero as f64 + 4.0;
    let value = Value {
        hi: sum,
        lo: rest,
        // Each addition to lo rounds once, relative to the errors it collects.
        radius: errors * depth * f64::EPSILON,
    };
    (value, s * (1.0 + depth * f64::EPSILON), nonzero)
}

/// The whole patch at `position`.
pub fn patch(
    lowering: &Lowering,
    group: usize,
    position: usize,
    outer: usize,
) -> Vec<Option<usize>> {
    let mut offsets = Vec::new();
    let base = lowering.patch(group, position, &mut offsets);
    let plane = |o: usize| base.start + o * base.step;
    (0..outer)
        .flat_map(|o| offsets.iter().map(move |i| i.map(|i| plane(o) + i)))
        .collect()
}
