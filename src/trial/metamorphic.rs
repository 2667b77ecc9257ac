//! Metamorphic checks: a case is run again in another form that must give the
//! same numbers, and the two results are compared output by output.
//!
//! No exact value is needed for this, so every output is compared, those that
//! the sample left out included. Two right results differ by no more than the
//! sum of their two bounds and half an ulp of each.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{Done, Event, TrialOptions};
use crate::backend::{Backend, RunOptions, Support};
use crate::bound::{Arithmetic, Bounds};
use crate::candidate::{Candidate, Repro};
use crate::dtype::Format;
use crate::error::{ErrorKind, Result};
use crate::fill::{Inputs, Regime};
use crate::judge::{FailureKind, Verdict, place};
use crate::oracle::{Class, Decided, Output, Value};
use crate::outcome::Outcome;
use crate::problem::{ConvProblem, Direction, Layout, Role};
use crate::tensor::Tensor;

/// Image elements that explicit padding may add, beside four times as many.
const SMALL_IMAGE: usize = 4096;

/// What a transformed case does otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    /// One sample of the batch alone.
    Sample(usize),
    /// Padding written out as zeros.
    Padding,
    /// The other memory layout.
    Layout,
    /// One group as a convolution of its own.
    Group(usize),
}

/// A case in another form. Coordinates of its tensors are those of the
/// original's less an offset; where the original has nothing, it has zeros.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Transformed {
    relation: Relation,
    problem: ConvProblem,
    /// Of x, w and y, per axis.
    offsets: [Vec<isize>; 3],
    /// Sizes of the original's tensors.
    sizes: [Vec<usize>; 3],
}

/// The forms in which `options` want `repro` run again: none for most cases,
/// one for the share that is checked, all of them where every case is.
pub(super) fn chosen(repro: &Repro, options: &TrialOptions) -> Vec<Transformed> {
    let share = u64::from(options.metamorphic);
    // Where data is not finite, zeros that are written out are not the same.
    if share == 0 || repro.fill.kind.regime() == Regime::Special {
        return Vec::new();
    }
    let draw = draw(repro);
    if !draw.is_multiple_of(share) {
        return Vec::new();
    }
    let mut forms = forms(&repro.problem, draw / share);
    if share > 1 && !forms.is_empty() {
        let one = (draw >> 32) as usize % forms.len();
        forms = vec![forms.swap_remove(one)];
    }
    forms
}

/// The lines of every form of a case: of two results that cannot both be right, the
/// one whose own trial passes is not the wrong one.
pub fn lines(repro: &Repro, share: u32) -> Vec<Repro> {
    let forms = forms(&repro.problem, draw(repro) / u64::from(share.max(1)));
    let line = |form: Transformed| Repro {
        problem: form.problem,
        ..repro.clone()
    };
    forms.into_iter().map(line).collect()
}

/// A number that depends on the case alone: 64-bit FNV-1a (Fowler, Noll, Vo) of
/// its line, the high bits mixed into the low ones.
fn draw(repro: &Repro) -> u64 {
    let line = format!("{} fill={}", repro.problem, repro.fill);
    let hash = line.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^ hash >> 29
}

/// Every form that `problem` has; `draw` picks the sample and the group.
fn forms(problem: &ConvProblem, draw: u64) -> Vec<Transformed> {
    let pick = |count: usize| (draw % count as u64) as usize;
    let mut relations = vec![Relation::Layout];
    if problem.n > 1 && problem.direction != Direction::BwdFilter {
        relations.push(Relation::Sample(pick(problem.n)));
    }
    if problem
        .pad_before
        .iter()
        .chain(&problem.pad_after)
        .any(|&p| p > 0)
    {
        relations.push(Relation::Padding);
    }
    if problem.groups > 1 {
        relations.push(Relation::Group(pick(problem.groups)));
    }
    let forms = relations.into_iter().map(|r| Transformed::new(problem, r));
    forms.filter(|form| form.is_affordable(problem)).collect()
}

impl Transformed {
    fn new(original: &ConvProblem, relation: Relation) -> Self {
        let mut problem = original.clone();
        let axes = 2 + original.rank();
        let [mut x, mut w, mut y] = [const { Vec::new() }; 3].map(|mut v: Vec<isize>| {
            v.resize(axes, 0);
            v
        });
        match relation {
            Relation::Sample(sample) => {
                problem.n = 1;
                (x[0], y[0]) = (sample as isize, sample as isize);
            }
            Relation::Padding => {
                for d in 0..original.rank() {
                    problem.spatial[d] = original.padded_extent(d);
                    x[2 + d] = -(original.pad_before[d] as isize);
                }
                problem.pad_before.fill(0);
                problem.pad_after.fill(0);
            }
            Relation::Layout => {
                problem.layout = match original.layout {
                    Layout::Nchw => Layout::Nhwc,
                    Layout::Nhwc => Layout::Nchw,
                };
            }
            Relation::Group(group) => {
                (problem.c, problem.k) =
                    (original.c / original.groups, original.k / original.groups);
                problem.groups = 1;
                x[1] = (group * problem.c) as isize;
                (w[0], y[1]) = ((group * problem.k) as isize, (group * problem.k) as isize);
            }
        }
        Transformed {
            relation,
            problem,
            offsets: [x, w, y],
            sizes: [Role::X, Role::W, Role::Y].map(|role| original.dims(role)),
        }
    }

    /// Whether it is a problem at all, and not much larger than the original.
    fn is_affordable(&self, original: &ConvProblem) -> bool {
        let most = 4 * original.elements(Role::X) + SMALL_IMAGE;
        self.problem.validate().is_ok() && self.problem.elements(Role::X) <= most
    }

    /// The data of the transformed case.
    fn inputs(&self, original: &Inputs) -> Inputs {
        let [first, second] = self.problem.direction.operands();
        let result = self.problem.direction.result();
        Inputs {
            problem: self.problem.clone(),
            fill: original.fill,
            first: self.tensor(first, &original.first),
            second: self.tensor(second, &original.second),
            prior: original.prior.as_ref().map(|p| self.tensor(result, p)),
        }
    }

    fn tensor(&self, role: Role, original: &Tensor) -> Tensor {
        let dims = self.problem.dims(role);
        Tensor::from_fn(original.dtype(), &dims, |index| {
            self.origin(role, &dims, index)
                .map_or(0.0, |from| original.get(from))
        })
    }

    /// The original's logical offset of an element of sizes `dims`, if it has
    /// that element.
    fn origin(&self, role: Role, dims: &[usize], index: usize) -> Option<usize> {
        let at = role as usize;
        let (mut rest, mut step, mut from) = (index, 1, 0);
        for axis in (0..dims.len()).rev() {
            let coordinate = (rest % dims[axis]).checked_add_signed(self.offsets[at][axis])?;
            if coordinate >= self.sizes[at][axis] {
                return None;
            }
            from += coordinate * step;
            step *= self.sizes[at][axis];
            rest /= dims[axis];
        }
        Some(from)
    }

    /// What is compared, in words.
    fn words(&self) -> String {
        match self.relation {
            Relation::Sample(sample) => format!("sample {sample} of the batch alone"),
            Relation::Padding => "with the padding written out".to_owned(),
            Relation::Layout => format!("in {}", self.problem.layout.name()),
            Relation::Group(group) => format!("group {group} as a convolution of its own"),
        }
    }
}

/// A result with what it is judged by.
struct Side<'a> {
    inputs: &'a Inputs,
    bounds: &'a Bounds,
    result: &'a Tensor,
}

/// Where two right results could not differ so much: how many outputs, and the
/// first, in words.
fn disagreement(form: &Transformed, original: &Side<'_>, transformed: &Side<'_>) -> Option<String> {
    let role = form.problem.direction.result();
    let dims = form.problem.dims(role);
    let (mut ours, mut theirs) = (Allowance::new(original), Allowance::new(transformed));
    let (mut count, mut compared, mut first) = (0, 0, None);
    for index in 0..transformed.result.len() {
        let Some(from) = form.origin(role, &dims, index) else {
            continue;
        };
        let (Some(a), Some(b)) = (ours.at(from), theirs.at(index)) else {
            continue;
        };
        let (y, z) = (original.result.get(from), transformed.result.get(index));
        let allowed = if a.exact && b.exact {
            0.0
        } else {
            a.width + b.width
        };
        compared += 1;
        if !agree(original.result.dtype().format(), y, z, allowed) {
            count += 1;
            first.get_or_insert((from, y, z, allowed));
        }
    }
    let (at, y, z, allowed) = first?;
    Some(format!(
        "{} the result is another: {count} of {compared} outputs differ by more than both bounds \
         together, the first at {}: {y} against {z}, allowed {allowed:.3e}",
        form.words(),
        place(&original.inputs.problem, at)
    ))
}

/// Whether two right results within bounds of `allowed` together may be these.
/// No distance at all is allowed where both must be correctly rounded.
fn agree(format: Format, y: f64, z: f64, allowed: f64) -> bool {
    if y == z {
        return true;
    }
    if y.is_nan() || z.is_nan() || allowed == 0.0 {
        return y.is_nan() && z.is_nan();
    }
    // Infinity stands for anything from the largest finite value on.
    let largest = format.max_finite();
    let (y, z) = (y.clamp(-largest, largest), z.clamp(-largest, largest));
    (y - z).abs() <= (allowed + 0.5 * (format.ulp(y) + format.ulp(z))).next_up()
}

/// How far results may be from the exact value before they are rounded.
#[derive(Clone, Copy)]
struct Width {
    width: f64,
    /// Only the correctly rounded value is right.
    exact: bool,
}

/// The bounds of every output, from an upper bound of S alone.
struct Allowance<'a> {
    side: &'a Side<'a>,
    /// Upper bound of S of the outputs that share the first two indices.
    rows: Vec<f64>,
    prior: f64,
    /// Outputs per row.
    run: usize,
    integers: bool,
    known: Option<(usize, Option<Width>)>,
}

impl<'a> Allowance<'a> {
    fn new(side: &'a Side<'a>) -> Self {
        let problem = &side.inputs.problem;
        let dims = problem.dims(problem.direction.result());
        let prior = side.inputs.prior.as_ref().map(Tensor::to_f64);
        Allowance {
            side,
            rows: absolute_rows(side.inputs),
            prior: largest(&prior.unwrap_or_default()),
            run: dims[2..].iter().product(),
            integers: side.inputs.fill.kind.regime() == Regime::ExactInteger,
            known: None,
        }
    }

    /// `None` where intermediate results may overflow.
    fn at(&mut self, index: usize) -> Option<Width> {
        let row = index / self.run;
        match self.known {
            Some((same, width)) if same == row && !self.side.bounds.spreads() => width,
            _ => {
                let width = self.width(index, self.rows[row]);
                self.known = Some((row, width));
                width
            }
        }
    }

    fn width(&self, index: usize, s: f64) -> Option<Width> {
        let problem = &self.side.inputs.problem;
        let largest = problem.alpha.0.abs() * s + problem.beta.0.abs() * self.prior;
        let output = Output {
            index,
            value: Value::exact(largest),
            s,
            nonzero: problem.reduction_length() as u64,
            class: Class::Finite,
            decided: Decided::Certified,
        };
        let bounds = self.side.bounds;
        (!bounds.may_overflow(&output)).then(|| Width {
            width: bounds.at(&output),
            exact: self.integers && bounds.exact_for_integers(&output),
        })
    }
}

/// An upper bound of S = Σ|a·b| for every row of outputs, the first two indices
/// of the result: the largest |element| of one operand times the sum of the
/// other's |elements| that meet it (Hölder's inequality).
fn absolute_rows(inputs: &Inputs) -> Vec<f64> {
    let p = &inputs.problem;
    let (first, second) = (inputs.first.to_f64(), inputs.second.to_f64());
    let (cg, kg) = (p.c / p.groups, p.k / p.groups);
    match p.direction {
        Direction::Fwd => {
            let images = per_part(&first, p.n, largest);
            let filters = per_part(&second, p.k, sum);
            let filter = |row: usize| filters[row % p.k];
            (0..p.n * p.k)
                .map(|row| images[row / p.k] * filter(row))
                .collect()
        }
        Direction::BwdData => {
            let images = per_part(&second, p.n, largest);
            let slices = per_part(&first, p.k * cg, sum);
            let column = |c: usize| {
                let slice = |k| slices[(c / cg * kg + k) * cg + c % cg];
                upwards((0..kg).map(slice).sum(), kg)
            };
            let columns: Vec<f64> = (0..p.c).map(column).collect();
            (0..p.n * p.c)
                .map(|row| images[row / p.c] * columns[row % p.c])
                .collect()
        }
        Direction::BwdFilter => {
            let image = largest(&first);
            let planes = per_part(&second, p.n * p.k, sum);
            let channel = |k: usize| upwards((0..p.n).map(|n| planes[n * p.k + k]).sum(), p.n);
            (0..p.k * cg).map(|row| image * channel(row / cg)).collect()
        }
    }
}

/// `measure` of each of `count` equal parts.
fn per_part(values: &[f64], count: usize, measure: fn(&[f64]) -> f64) -> Vec<f64> {
    values.chunks(values.len() / count).map(measure).collect()
}

fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |most: f64, v| most.max(v.abs()))
}

fn sum(values: &[f64]) -> f64 {
    upwards(values.iter().map(|v| v.abs()).sum(), values.len())
}

/// No smaller than the exact sum of `count` nonnegative numbers, which doubles
/// gave as `sum`, nor than that times another number: relative error count·2⁻⁵³
/// (Jeannerod, Rump 2013), taken four times.
fn upwards(sum: f64, count: usize) -> f64 {
    sum * (1.0 + (count + 2) as f64 * (2.0 * f64::EPSILON))
}

/// The candidates of a case, run on another form of it.
pub(super) struct Rerun<'a> {
    backend: &'a mut dyn Backend,
    form: &'a Transformed,
    original: &'a Inputs,
    inputs: Inputs,
    bounds: HashMap<Arithmetic, Option<Bounds>>,
}

impl<'a> Rerun<'a> {
    pub fn new(backend: &'a mut dyn Backend, form: &'a Transformed, original: &'a Inputs) -> Self {
        Rerun {
            backend,
            form,
            original,
            inputs: form.inputs(original),
            bounds: HashMap::new(),
        }
    }

    /// Runs the candidate of `done` and fails the trial if the numbers are
    /// others than `bounds` of the original and its own together allow. A trial
    /// that failed already, and a form that the candidate refuses, say nothing.
    pub fn check(
        &mut self,
        bounds: &Bounds,
        done: &mut Done,
        on: &mut dyn FnMut(Event),
    ) -> Result<()> {
        let started = Instant::now();
        let mut in_library = Duration::ZERO;
        let failed = matches!(&done.rated, Some((_, j)) if matches!(j.verdict, Verdict::Failed(_)));
        if let (Some(result), false) = (&done.result, failed)
            && let Some(words) = self.compare(bounds, result, &done.repro, &mut in_library, on)?
        {
            fail(done, words);
        }
        let own = started.elapsed().saturating_sub(in_library);
        add(&mut done.record.library_ms, in_library);
        add(&mut done.record.own_ms, own);
        Ok(())
    }

    fn compare(
        &mut self,
        bounds: &Bounds,
        result: &Tensor,
        repro: &Repro,
        in_library: &mut Duration,
        on: &mut dyn FnMut(Event),
    ) -> Result<Option<String>> {
        let Some(candidate) = &repro.via else {
            return Ok(None);
        };
        on(Event::Starting(repro.clone()));
        let launched = Instant::now();
        let Some(arithmetic) = self.arithmetic(candidate)? else {
            return Ok(None);
        };
        let run = RunOptions { repeats: 0 };
        let outcome = self.backend.run(&self.inputs, candidate, &run)?;
        *in_library = launched.elapsed();
        let inputs = &self.inputs;
        let bounds_here = self
            .bounds
            .entry(arithmetic)
            .or_insert_with(|| Bounds::new(inputs, &arithmetic));
        Ok(match (&outcome, bounds_here) {
            (Outcome::ExecutionFailed { status, message }, _) => Some(format!(
                "{} it fails to execute: {status}: {message}",
                self.form.words()
            )),
            (Outcome::Ran(seen), Some(bounds_here)) => disagreement(
                self.form,
                &Side {
                    inputs: self.original,
                    bounds,
                    result,
                },
                &Side {
                    inputs,
                    bounds: bounds_here,
                    result: &seen.result,
                },
            ),
            _ => None,
        })
    }

    /// What the candidate declares for the form, if it takes it.
    fn arithmetic(&mut self, candidate: &Candidate) -> Result<Option<Arithmetic>> {
        match self.backend.support(&self.form.problem, candidate) {
            Ok(Support::Offered { arithmetic, .. }) => Ok(Some(arithmetic)),
            Ok(Support::Refused(_)) => Ok(None),
            // There is no such candidate for the form.
            Err(error) if error.kind() == ErrorKind::Usage => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Adds to a time of a record, milliseconds.
fn add(time: &mut Option<f64>, more: Duration) {
    *time = Some(time.unwrap_or(0.0) + more.as_secs_f64() * 1e3);
}

fn fail(done: &mut Done, words: String) {
    let verdict = Verdict::Failed(FailureKind::Metamorphic);
    done.record.set_verdict(verdict);
    done.record.detail = Some(words);
    if let Some((_, judgement)) = &mut done.rated {
        judgement.verdict = verdict;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Geometry;
    use crate::oracle::{self, Sample};
    use crate::strategy::{Limits, draw as case};
    use proptest::prelude::*;

    fn limits() -> Limits {
        Limits {
            max_macs: 20_000,
            ..Limits::default()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]
        /// Every form sums the very products of the original.
        #[test]
        fn forms_have_the_same_exact_values(drawn in case(&limits()), draw: u64) {
            let fill = drawn.fills.into_iter().find(|f| f.kind.regime() != Regime::Special);
            prop_assume!(fill.is_some());
            let inputs = Inputs::generate(&drawn.problem, fill.unwrap());
            let exact = oracle::reference(&inputs, &Sample::All);
            for form in forms(&drawn.problem, draw) {
                let other = form.inputs(&inputs);
                let values = oracle::reference(&other, &Sample::All);
                let role = form.problem.direction.result();
                let dims = form.problem.dims(role);
                let mut shared = 0;
                for output in &values.outputs {
                    if let Some(from) = form.origin(role, &dims, output.index) {
                        let (a, b) = (exact.outputs[from].value, output.value);
                        let apart = ((a.hi - b.hi) + (a.lo - b.lo)).abs();
                        prop_assert!(apart <= 2.0 * (a.radius + b.radius), "{:?} {}", form.relation, from);
                        shared += 1;
                    }
                }
                prop_assert!(shared > 0);
            }
        }

        #[test]
        fn absolute_rows_are_no_smaller_than_any_s(drawn in case(&limits())) {
            let fill = drawn.fills.into_iter().find(|f| f.kind.regime() != Regime::Special);
            prop_assume!(fill.is_some());
            let inputs = Inputs::generate(&drawn.problem, fill.unwrap());
            let rows = absolute_rows(&inputs);
            let run = Geometry::new(&drawn.problem).outputs() / rows.len();
            let (a, b) = (inputs.first.to_f64(), inputs.second.to_f64());
            for index in 0..run * rows.len() {
                let mut s = 0.0;
                Geometry::new(&drawn.problem).for_each_product(index, |i, j| s += (a[i] * b[j]).abs());
                prop_assert!(s <= rows[index / run], "{index}: {s} {}", rows[index / run]);
            }
        }
    }

    #[test]
    fn chosen_is_one_form_of_a_share_of_the_cases_and_all_where_every_case_is() {
        let options = |metamorphic| TrialOptions {
            metamorphic,
            ..TrialOptions::default()
        };
        let mut some = 0;
        for seed in 0..400 {
            let line = format!("fwd n=3 c=4 k=4 in=5x5 ker=3x3 pad=1x1 g=2 fill=normal:{seed}");
            let repro: Repro = line.parse().unwrap();
            assert_eq!(chosen(&repro, &options(0)), []);
            assert_eq!(chosen(&repro, &options(1)).len(), 4);
            let few = chosen(&repro, &options(8));
            assert!(few.len() <= 1);
            assert_eq!(few, chosen(&repro, &options(8)));
            some += few.len();
        }
        assert!((25..80).contains(&some), "{some}");
        let special: Repro = "fwd n=3 c=4 k=4 in=5x5 ker=3x3 fill=nan:1".parse().unwrap();
        assert_eq!(chosen(&special, &options(1)), []);
    }

    #[test]
    fn agree_takes_both_bounds_and_roundings_and_no_more() {
        let half = crate::dtype::FP16;
        assert!(agree(half, 1.0, 1.0, 0.0));
        assert!(!agree(half, 1.0, 1.0 + half.ulp(1.0), 0.0));
        assert!(agree(half, 1.0, 1.5, 0.5));
        assert!(!agree(half, 1.0, 1.51, 0.5));
        assert!(!agree(half, 1.0, f64::NAN, 0.5));
        assert!(agree(half, f64::INFINITY, 65504.0, 1.0));
        assert!(!agree(half, f64::INFINITY, 60000.0, 1.0));
        assert!(!agree(half, f64::INFINITY, f64::NEG_INFINITY, 1.0));
    }
}
