//! Judging single outputs, and what is summed up over them.

use super::{Case, FailureKind, Worst, describe};
use crate::bound::Bounds;
use crate::dtype::{DType, Format};
use crate::fill::Regime;
use crate::oracle::{Class, Decided, Output, Tally, Value, arbiter};
use crate::problem::Direction;
use crate::tensor::Tensor;

/// All outputs of a case, ready to judge any number of results.
pub struct Elements<'a> {
    case: Case<'a>,
    bounds: &'a Bounds,
    dtype: DType,
    /// All operands are integers.
    integers: bool,
    /// The data holds NaN or infinity.
    special: bool,
    /// A kernel that multiplies padding zeros rightly gets NaN from them.
    padding_spoils: bool,
    /// NaN is handed on through transforms too.
    strict_nan: bool,
}

/// What was found of one output.
struct Element {
    fault: Option<FailureKind>,
    /// Whether a wrong value could have been told here.
    informative: bool,
    arbitrated: bool,
    /// Largest accepted |actual − exact|.
    bound: f64,
    error: Option<f64>,
}

/// Sums over the judged outputs of one result.
#[derive(Default)]
pub struct Summary {
    pub fault: Option<FailureKind>,
    pub judged: u64,
    pub wrong: u64,
    pub informative: u64,
    pub nonzero: u64,
    pub with_products: u64,
    pub decided: Tally,
    pub max_ulp: Option<f64>,
    pub max_ratio: Option<f64>,
    pub worst: Option<Worst>,
    /// Median of bound / |exact|.
    pub detectable: Option<f64>,
    /// Median of bound / (|alpha|·S).
    pub width: Option<f64>,
    squared_error: f64,
    squared_s: f64,
    total_error: f64,
    finite: u64,
    worst_rank: Option<(bool, f64)>,
}

impl<'a> Elements<'a> {
    pub fn new(case: Case<'a>, bounds: &'a Bounds) -> Self {
        let kind = case.inputs.fill.kind;
        Elements {
            case,
            bounds,
            dtype: case.inputs.problem.result_type(),
            integers: kind.regime() == Regime::ExactInteger,
            special: case
                .reference
                .outputs
                .iter()
                .any(|o| o.class != Class::Finite),
            padding_spoils: padding_spoils(case),
            strict_nan: false,
        }
    }

    /// Whether the candidate promises to hand on every NaN.
    pub fn strict(self, strict_nan: bool) -> Self {
        Elements { strict_nan, ..self }
    }

    /// Judges every referenced output of `result`.
    pub fn judge(&self, result: &Tensor) -> Summary {
        let mut summary = Summary::default();
        let mut relative = Vec::new();
        let mut widths = Vec::new();
        let alpha = self.case.inputs.problem.alpha.0.abs();
        for output in &self.case.reference.outputs {
            let actual = result.get(output.index);
            let element = self.element(output, actual);
            if element.informative && output.class == Class::Finite && output.s > 0.0 {
                let exact = output.value.hi.abs();
                if exact > 0.0 {
                    relative.push(element.bound / exact);
                }
                widths.push(element.bound / (alpha * output.s).max(exact));
            }
            summary.add(self.dtype, output, actual, &element);
        }
        summary.detectable = median(&mut relative);
        summary.width = median(&mut widths);
        summary
    }

    /// What is accepted of every referenced output: a value and the largest
    /// distance from it. NaN stands for NaN; where infinity is due, it is the
    /// value, at distance 0.
    pub fn accepted(&self) -> Vec<(f64, f64)> {
        let outputs = self.case.reference.outputs.iter();
        outputs
            .map(|output| {
                let expected = describe::expected(output, self.dtype);
                if expected.is_infinite() && self.dtype.is_fp8() {
                    // NaN, infinity and the largest value are all right.
                    return (expected, f64::INFINITY);
                }
                if !expected.is_finite() {
                    return (expected, 0.0);
                }
                let probe = self.element(output, expected);
                let exact = self.integers && self.bounds.exact_for_integers(output);
                if exact {
                    (expected, 0.0)
                } else {
                    (output.value.hi, probe.bound)
                }
            })
            .collect()
    }

    /// Whether NaN is a right answer at logical offset `index`, as far as judged.
    pub fn nan_is_right(&self, index: usize) -> bool {
        let outputs = &self.case.reference.outputs;
        match outputs.binary_search_by_key(&index, |o| o.index) {
            Ok(at) => self.element(&outputs[at], f64::NAN).fault.is_none(),
            Err(_) => false,
        }
    }

    /// The mismatch in words, for the worst output.
    pub fn message(&self, summary: &Summary, result: &Tensor) -> String {
        describe::mismatch(self.case, summary, result)
    }

    fn element(&self, output: &Output, actual: f64) -> Element {
        let actual = self.as_overflow(output, actual);
        match output.class {
            Class::Finite if actual.is_finite() => self.finite(output, actual),
            Class::Finite => self.finite_expected(output, actual),
            // Transforms may clamp a NaN on its way: cuDNN promises to hand it on
            // only where an engine has the note STRICT_NAN_PROP.
            Class::Nan if self.loses_nan() && !actual.is_nan() => Element {
                informative: false,
                ..verdict_only(true, FailureKind::WrongNan)
            },
            Class::Nan => verdict_only(actual.is_nan(), FailureKind::WrongNan),
            Class::Infinite { negative } => self.infinite_expected(negative, actual),
        }
    }

    /// An FP8 result that overflows may be stored as NaN or as the largest value
    /// too (conversions saturate or not): such a result as the infinity it stands
    /// for, others as they are.
    fn as_overflow(&self, output: &Output, actual: f64) -> f64 {
        let format = self.dtype.format();
        let stands = actual.is_nan() || actual.abs() == format.max_finite();
        if !self.dtype.is_fp8() || !stands {
            return actual;
        }
        let due = match output.class {
            Class::Nan => actual,
            Class::Infinite { negative } => {
                if negative {
                    f64::NEG_INFINITY
                } else {
                    f64::INFINITY
                }
            }
            Class::Finite => {
                let reach = Interval::outward(format, &output.value, self.bounds.at(output));
                let ends = [format.round(output.value.hi), reach.low, reach.high];
                let near = if actual.is_nan() {
                    &ends[..]
                } else {
                    &ends[..1]
                };
                near.iter()
                    .copied()
                    .find(|v| v.is_infinite())
                    .unwrap_or(actual)
            }
        };
        let same_side = actual.is_nan() || (due > 0.0) == (actual > 0.0);
        if same_side { due } else { actual }
    }

    fn loses_nan(&self) -> bool {
        self.bounds.spreads() && !self.strict_nan
    }

    /// A number where a number is due.
    fn finite(&self, output: &Output, actual: f64) -> Element {
        if self.integers && self.bounds.exact_for_integers(output) {
            self.exact(output, actual)
        } else {
            self.bounded(output, actual)
        }
    }

    /// All sums are exact: only the correctly rounded value will do.
    fn exact(&self, output: &Output, actual: f64) -> Element {
        let certain = output.value.rounded(self.dtype);
        let expected =
            certain.unwrap_or_else(|| arbiter::rounded(self.case.inputs, output.index, self.dtype));
        let fault = if actual == expected {
            None
        } else if expected.is_infinite() {
            Some(FailureKind::WrongInfinity)
        } else {
            Some(FailureKind::Mismatch)
        };
        Element {
            fault,
            informative: true,
            arbitrated: certain.is_none(),
            bound: 0.5 * self.dtype.format().ulp(output.value.hi),
            error: Some(output.value.error_above(actual)),
        }
    }

    fn bounded(&self, output: &Output, actual: f64) -> Element {
        let width = self.bounds.at(output);
        let format = self.dtype.format();
        let mut value = output.value;
        let mut accepted = accepts(format, &value, width, actual);
        let arbitrated = accepted.is_none();
        if arbitrated {
            value = arbiter::output(self.case.inputs, output.index).value;
            // What even exact values leave open is a hair's breadth from the
            // bound, which is rounded up itself.
            accepted = accepts(format, &value, width, actual).or(Some(true));
        }
        let reach = Interval::outward(format, &value, width);
        let fault = match accepted {
            Some(true) => None,
            _ if reach.low.is_infinite() || reach.high == f64::NEG_INFINITY => {
                Some(FailureKind::WrongInfinity)
            }
            _ => Some(FailureKind::OutOfBound),
        };
        // Transforms that overflow inside, or take in NaN or infinity, leave
        // nothing to go by: a kernel may clamp the NaN that comes of it.
        let overflows = self.bounds.may_overflow(output);
        let lost = self.bounds.spreads() && (overflows || self.special);
        Element {
            fault: fault.filter(|_| !lost),
            informative: !lost && (!overflows || width < output.s),
            arbitrated,
            bound: reach.reach(&value, width, format),
            error: (!lost).then(|| value.error_above(actual)),
        }
    }

    /// NaN or infinity where the exact value is a number.
    fn finite_expected(&self, output: &Output, actual: f64) -> Element {
        let width = self.bounds.at(output);
        let reach = Interval::outward(self.dtype.format(), &output.value, width);
        let rounds_to_it = actual == reach.low || actual == reach.high;
        let may_be = self.bounds.may_overflow(output)
            || (self.special && self.bounds.spreads())
            || (self.padding_spoils && actual.is_nan());
        let kind = if actual.is_nan() {
            FailureKind::WrongNan
        } else {
            FailureKind::WrongInfinity
        };
        Element {
            informative: rounds_to_it || !may_be,
            ..verdict_only(rounds_to_it || may_be, kind)
        }
    }

    /// Infinite products of one sign.
    fn infinite_expected(&self, negative: bool, actual: f64) -> Element {
        let expected = if negative {
            f64::NEG_INFINITY
        } else {
            f64::INFINITY
        };
        let loose = self.bounds.spreads();
        let spoiled = self.padding_spoils && actual.is_nan();
        verdict_only(
            actual == expected || loose || spoiled,
            FailureKind::WrongInfinity,
        )
    }
}

/// Whether the operand that meets padding zeros holds NaN or infinity: the
/// filter in fwd and bwd_data, dy in bwd_filter. Zero times these is NaN.
fn padding_spoils(case: Case<'_>) -> bool {
    let problem = &case.inputs.problem;
    let meets_padding = match problem.direction {
        Direction::Fwd | Direction::BwdFilter => &case.inputs.second,
        Direction::BwdData => &case.inputs.first,
    };
    let padded = problem.direction == Direction::BwdData
        || problem
            .pad_before
            .iter()
            .chain(&problem.pad_after)
            .any(|&pad| pad > 0);
    padded && (0..meets_padding.len()).any(|i| !meets_padding.get(i).is_finite())
}

fn verdict_only(right: bool, kind: FailureKind) -> Element {
    Element {
        fault: (!right).then_some(kind),
        informative: true,
        arbitrated: false,
        bound: 0.0,
        error: None,
    }
}

/// The values of the output type that are right.
struct Interval {
    low: f64,
    high: f64,
}

impl Interval {
    /// No smaller than the truth.
    fn outward(format: Format, value: &Value, width: f64) -> Self {
        let width = width + value.radius;
        Interval {
            low: format.round((value.hi + (value.lo - width).next_down()).next_down()),
            high: format.round((value.hi + (value.lo + width).next_up()).next_up()),
        }
    }

    /// No larger than the truth.
    fn inward(format: Format, value: &Value, width: f64) -> Self {
        let width = (width - value.radius).max(0.0);
        Interval {
            low: format.round((value.hi + (value.lo - width).next_up()).next_up()),
            high: format.round((value.hi + (value.lo + width).next_down()).next_down()),
        }
    }

    fn holds(&self, actual: f64) -> bool {
        self.low <= actual && actual <= self.high
    }

    /// Largest accepted distance from the exact value.
    fn reach(&self, value: &Value, width: f64, format: Format) -> f64 {
        let far = value
            .error_above(self.low)
            .max(value.error_above(self.high));
        if far.is_finite() {
            far
        } else {
            width + 0.5 * format.ulp(value.hi)
        }
    }
}

/// Whether `actual` is right; `None` when the radius leaves it open.
fn accepts(format: Format, value: &Value, width: f64, actual: f64) -> Option<bool> {
    if Interval::inward(format, value, width).holds(actual) {
        Some(true)
    } else if Interval::outward(format, value, width).holds(actual) {
        None
    } else {
        Some(false)
    }
}

fn median(values: &mut [f64]) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    let middle = values.len() / 2;
    Some(*values.select_nth_unstable_by(middle, f64::total_cmp).1)
}

impl Summary {
    fn add(&mut self, dtype: DType, output: &Output, actual: f64, element: &Element) {
        self.judged += 1;
        self.wrong += u64::from(element.fault.is_some());
        self.informative += u64::from(element.informative);
        self.nonzero += output.nonzero;
        self.with_products += u64::from(output.s > 0.0);
        self.decided.count(if element.arbitrated {
            Decided::Arbiter
        } else {
            output.decided
        });
        self.fault = match (self.fault, element.fault) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let mut ratio = f64::INFINITY;
        if let Some(error) = element.error {
            ratio = if error == 0.0 {
                0.0
            } else {
                error / element.bound
            };
            if element.fault.is_none() {
                // More than the bound only because both are rounded up.
                ratio = ratio.min(1.0);
            }
            let ulp = error / dtype.format().ulp(output.value.hi);
            self.max_ulp = Some(self.max_ulp.map_or(ulp, |m| m.max(ulp)));
            self.max_ratio = Some(self.max_ratio.map_or(ratio, |m| m.max(ratio)));
            self.squared_error += error * error;
            self.squared_s += output.s * output.s;
            self.total_error += error;
            self.finite += 1;
        } else if element.fault.is_none() {
            ratio = 0.0;
        }
        self.keep_worst(dtype, output, actual, element, ratio);
    }

    fn keep_worst(
        &mut self,
        dtype: DType,
        output: &Output,
        actual: f64,
        element: &Element,
        ratio: f64,
    ) {
        let rank = (element.fault.is_some(), ratio);
        if self.worst_rank.is_some_and(|worst| worst >= rank) {
            return;
        }
        self.worst_rank = Some(rank);
        self.worst = Some(Worst {
            index: output.index,
            expected: describe::expected(output, dtype),
            actual,
            bound: element.bound,
        });
    }

    /// Root mean square error over root mean square S.
    pub fn spread(&self) -> Option<f64> {
        (self.squared_s > 0.0).then(|| (self.squared_error / self.squared_s).sqrt())
    }

    /// Mean error over finite outputs.
    pub fn mean_error(&self) -> Option<f64> {
        (self.finite > 0).then(|| self.total_error / self.finite as f64)
    }
}
