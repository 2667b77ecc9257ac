//! What a candidate did instead of what it declares: the rung of lower
//! precision that explains its results.
//!
//! Rounding the operands is a known change of every output, d = y(rounded) − y.
//! Where the errors e = Y − y follow d, with slope ⟨e,d⟩/⟨d,d⟩ near 1 and little
//! left over, the candidate rounded its operands. Sums in a narrow type leave
//! no such trace; they are told by the size of the errors.

use super::{Case, FailureKind, Judgement, Verdict};
use crate::bound::{Accumulator, Arithmetic, Bounds, Family};
use crate::dtype::{BF16, FP16, FP32, Format, TF32, exp2};
use crate::fill::{FillKind, Inputs, Regime};
use crate::oracle::{self, Class, Output, Reference, Sample};
use crate::tensor::Tensor;

/// Fewest outputs that a slope is taken over. Errors of random direction in so
/// many dimensions leave at most [`REMAINDER`] of their square with probability
/// below (1/64)^7.5 = 3·10⁻¹⁴.
const LEAST_OUTPUTS: usize = 16;

/// Most of ⟨d,d⟩ that ⟨e−d,e−d⟩ may be: an eighth in root mean square. Chosen;
/// it also holds the slope within an eighth of 1 (Cauchy and Schwarz).
const REMAINDER: f64 = 1.0 / 64.0;

/// A rounding of the operands that a candidate may have done without saying so.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rung {
    name: &'static str,
    format: Format,
    truncated: bool,
}

/// From the narrowest change to the widest.
const RUNGS: [Rung; 6] = [
    rung("fp32", FP32, false),
    rung("TF32", TF32, false),
    rung("TF32, truncated", TF32, true),
    rung("fp16", FP16, false),
    rung("bf16", BF16, false),
    rung("bf16, truncated", BF16, true),
];

const fn rung(name: &'static str, format: Format, truncated: bool) -> Rung {
    Rung {
        name,
        format,
        truncated,
    }
}

/// The exact values of a case after each rung's rounding, computed when first
/// asked for and shared by all candidates.
#[derive(Debug, Default)]
pub struct Ladder {
    known: Vec<(&'static str, Reference)>,
}

/// How well a rung explains a result.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Fit {
    outputs: usize,
    slope: f64,
    /// ⟨e−d,e−d⟩/⟨d,d⟩.
    remainder: f64,
}

impl Ladder {
    /// Fails the judged trial as undeclared when a rung below what `arithmetic`
    /// declares explains `result`. Trials that failed for another reason than
    /// their values stay as they are.
    pub fn attribute(
        &mut self,
        case: Case<'_>,
        arithmetic: &Arithmetic,
        result: &Tensor,
        judgement: &mut Judgement,
    ) {
        if arithmetic.family != Family::InnerProduct || !is_about_values(judgement.verdict) {
            return;
        }
        let words = self
            .operands(case, arithmetic, result, judgement)
            .or_else(|| narrow_sums(case, arithmetic, result, judgement));
        if let Some(words) = words {
            judgement.verdict = Verdict::Failed(FailureKind::Undeclared);
            judgement.detail = Some(match judgement.detail.take() {
                Some(detail) => format!("{words}; {detail}"),
                None => words,
            });
        }
    }

    fn operands(
        &mut self,
        case: Case<'_>,
        arithmetic: &Arithmetic,
        result: &Tensor,
        judgement: &Judgement,
    ) -> Option<String> {
        let declared = declared_precision(case.inputs, arithmetic);
        let rungs = RUNGS.iter().filter(|r| r.format.precision < declared);
        let rungs: Vec<&Rung> = rungs.collect();
        if case.reference.outputs.len() < LEAST_OUTPUTS
            || !worth_asking(case.inputs, &rungs, judgement)
        {
            return None;
        }
        let least = flushed_away(case.inputs, arithmetic);
        rungs.iter().find_map(|rung| {
            let fit = fit(case.reference, self.reference(case, rung), result, least)?;
            Some(format!(
                "operands rounded to {}, which is not declared: the errors of {} outputs follow \
                 that rounding with slope {:.4}, {:.1}% left over",
                rung.name,
                fit.outputs,
                fit.slope,
                100.0 * fit.remainder.sqrt()
            ))
        })
    }

    fn reference(&mut self, case: Case<'_>, rung: &Rung) -> &Reference {
        let at = self.known.iter().position(|(name, _)| *name == rung.name);
        let at = at.unwrap_or_else(|| {
            let sample = match case.reference.outputs.len() == case.reference.total {
                true => Sample::All,
                false => Sample::Some(case.reference.outputs.iter().map(|o| o.index).collect()),
            };
            let exact = oracle::reference(&rung.rounded(case.inputs), &sample);
            self.known.push((rung.name, exact));
            self.known.len() - 1
        });
        &self.known[at].1
    }
}

impl Rung {
    /// The case with its operands rounded.
    fn rounded(&self, inputs: &Inputs) -> Inputs {
        let round = |tensor: &Tensor| {
            Tensor::from_fn(tensor.dtype(), tensor.dims(), |i| {
                match (self.truncated, tensor.get(i)) {
                    (true, v) => self.format.truncate(v),
                    (false, v) => self.format.round(v),
                }
            })
        };
        Inputs {
            first: round(&inputs.first),
            second: round(&inputs.second),
            ..inputs.clone()
        }
    }
}

/// Whether only the values of a trial, if anything, are wrong.
fn is_about_values(verdict: Verdict) -> bool {
    matches!(
        verdict,
        Verdict::Passed
            | Verdict::Untrusted(_)
            | Verdict::Failed(
                FailureKind::OutOfBound | FailureKind::WrongInfinity | FailureKind::WrongNan
            )
    )
}

/// Bits that the declared arithmetic leaves of the operands.
fn declared_precision(inputs: &Inputs, arithmetic: &Arithmetic) -> i32 {
    let stored = |t: &Tensor| t.dtype().format().precision;
    let stored = stored(&inputs.first).max(stored(&inputs.second));
    let format = arithmetic.operands.format();
    format.map_or(stored, |f| f.precision.min(stored))
}

/// Whether the errors are as large as the smallest that a rung makes: the ladder
/// costs a convolution per rung. Rounded operands change an output by at least
/// a quarter of 2⁻ᵖ·P in root mean square, and P ≥ S/√K (Cauchy and Schwarz).
fn worth_asking(inputs: &Inputs, rungs: &[&Rung], judgement: &Judgement) -> bool {
    let finest = rungs.iter().map(|rung| rung.format.precision).max();
    let (Some(finest), Some(spread)) = (finest, judgement.spread) else {
        return false;
    };
    let depth = inputs.problem.reduction_length() as f64;
    inputs.fill.kind.regime() == Regime::RoundingSensitive
        && spread >= 0.25 * exp2(-finest) / depth.sqrt()
}

/// Most that flushing subnormals to zero, where that is declared, changes an
/// output: every operand, product and partial sum may be flushed.
fn flushed_away(inputs: &Inputs, arithmetic: &Arithmetic) -> f64 {
    if !arithmetic.flush_to_zero {
        return 0.0;
    }
    let finite = |t: &Tensor| t.to_f64().into_iter().filter(|v| v.is_finite());
    let operands = finite(&inputs.first).chain(finite(&inputs.second));
    let largest = operands.fold(1.0, |most: f64, v| most.max(v.abs()));
    let depth = inputs.problem.reduction_length() as f64;
    (4.0 * depth + 1.0) * arithmetic.accumulator.format().min_normal() * largest
}

/// `None` unless the rung explains the result. Outputs that it changes by no
/// more than `least` say nothing.
fn fit(exact: &Reference, rounded: &Reference, result: &Tensor, least: f64) -> Option<Fit> {
    let (mut outputs, mut dd, mut ed, mut rest) = (0, 0.0, 0.0, 0.0);
    for (a, b) in exact.outputs.iter().zip(&rounded.outputs) {
        let actual = result.get(a.index);
        if a.class != Class::Finite {
            continue;
        }
        if b.class != Class::Finite || !actual.is_finite() {
            // The rung's infinities must be the result's.
            if (b.class == Class::Finite) == actual.is_finite() {
                continue;
            }
            return None;
        }
        let (d, e) = (difference(b, a), error(actual, a));
        if d != 0.0 && d.abs() <= least {
            continue;
        }
        outputs += usize::from(d != 0.0);
        dd += d * d;
        ed += e * d;
        rest += (e - d) * (e - d);
    }
    let fit = Fit {
        outputs,
        slope: ed / dd,
        remainder: rest / dd,
    };
    (outputs >= LEAST_OUTPUTS && fit.remainder <= REMAINDER).then_some(fit)
}

fn difference(a: &Output, b: &Output) -> f64 {
    (a.value.hi - b.value.hi) + (a.value.lo - b.value.lo)
}

fn error(actual: f64, exact: &Output) -> f64 {
    (actual - exact.value.hi) - exact.value.lo
}

/// Least share of outputs outside the declared bound for sums to be called
/// narrow. Chosen.
const LEAST_WRONG: f64 = 0.05;

/// How much smaller than is usual the errors of narrow sums may be. Chosen: a
/// single rounding gives a tenth, transforms in fp32 less than a thousandth.
const LEAST_NARROW: f64 = 64.0;

/// Sums kept in a narrower type than declared: every output inside that type's
/// bound, and errors no larger than such sums make on data of mean zero, where
/// K roundings of partial sums of size √j·σ add up to u·√(K/6)·P in root mean
/// square (Higham, Mary, SIAM J. Sci. Comput. 41(5), 2019), P from the values
/// themselves; and no smaller than a [`LEAST_NARROW`]th of that. One lost product
/// would give P/√K: sums are told from it only while K·u is small.
fn narrow_sums(
    case: Case<'_>,
    arithmetic: &Arithmetic,
    result: &Tensor,
    judgement: &Judgement,
) -> Option<String> {
    let problem = &case.inputs.problem;
    let plain = (problem.alpha.0, problem.beta.0) == (1.0, 0.0);
    let failed = judgement.verdict == Verdict::Failed(FailureKind::OutOfBound);
    // Narrow sums show in many outputs; a few wrong ones are something else.
    let enough = case.reference.outputs.len() >= LEAST_OUTPUTS
        && judgement.wrong as f64 >= LEAST_WRONG * judgement.judged as f64;
    if !failed || !plain || !enough || case.inputs.fill.kind != FillKind::Normal {
        return None;
    }
    let depth = problem.reduction_length() as f64;
    let rms = root_mean_square(case.reference.outputs.iter().map(|o| o.value.hi));
    let outputs = || case.reference.outputs.iter();
    let errors = root_mean_square(outputs().map(|o| error(result.get(o.index), o)));
    [("fp16", Accumulator::Fp16), ("bf16", Accumulator::Bf16)]
        .into_iter()
        .find_map(|(name, narrow)| {
            let u = narrow.format().unit_roundoff();
            let usual = u * (depth.sqrt() + 1.0) * rms;
            let told = narrow < arithmetic.accumulator.min(arithmetic.partials)
                && depth * u <= 0.25
                && (usual / LEAST_NARROW..=usual).contains(&errors)
                && inside(case, arithmetic, narrow, result);
            told.then(|| {
                format!(
                    "sums kept in {name}, which is not declared: every output is within the bound \
                     for that, and the errors ({errors:.1e} in root mean square) are of its size"
                )
            })
        })
}

fn inside(case: Case<'_>, declared: &Arithmetic, narrow: Accumulator, result: &Tensor) -> bool {
    let arithmetic = Arithmetic {
        accumulator: narrow,
        partials: narrow,
        ..*declared
    };
    let Some(bounds) = Bounds::new(case.inputs, &arithmetic) else {
        return false;
    };
    let summary = super::element::Elements::new(case, &bounds).judge(result);
    summary.fault.is_none()
}

fn root_mean_square(values: impl Iterator<Item = f64>) -> f64 {
    let (count, squares) = values.fold((0.0, 0.0), |(n, sum), v| (n + 1.0, sum + v * v));
    (squares / f64::max(count, 1.0)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::OperandRounding;
    use crate::candidate::Repro;
    use crate::judge::{Promises, judge};
    use crate::outcome::{Observation, Outcome};
    use std::time::Duration;

    /// What becomes of `result` of the case, given its exact values after the
    /// operands were changed.
    fn attributed(
        line: &str,
        declared: &Arithmetic,
        change: impl Fn(&Inputs) -> Inputs,
        spoil: impl Fn(usize, f64) -> f64 + Sync,
    ) -> Judgement {
        let repro: Repro = line.parse().unwrap();
        let inputs = Inputs::generate(&repro.problem, repro.fill);
        let reference = oracle::reference(&inputs, &Sample::All);
        let changed = oracle::reference(&change(&inputs), &Sample::All);
        let dims = inputs.problem.dims(inputs.problem.direction.result());
        let result = Tensor::from_fn(inputs.problem.result_type(), &dims, |i| {
            let output = &changed.outputs[i];
            match output.class {
                Class::Finite => spoil(i, output.value.hi),
                Class::Nan => f64::NAN,
                Class::Infinite { negative: true } => f64::NEG_INFINITY,
                Class::Infinite { negative: false } => f64::INFINITY,
            }
        });
        let case = Case {
            inputs: &inputs,
            reference: &reference,
        };
        let bounds = Bounds::new(&inputs, declared).unwrap();
        let seen = Outcome::Ran(Box::new(Observation {
            result: result.clone(),
            unwritten: vec![],
            memory: vec![],
            deviations: vec![],
            repeated: 0,
            workspace: 0,
            elapsed: Duration::ZERO,
        }));
        let mut judgement = judge(case, Some(&bounds), Promises::default(), &seen);
        Ladder::default().attribute(case, declared, &result, &mut judgement);
        judgement
    }

    const LINE: &str = "bwd_data c=8 k=64 in=9x9 ker=3x3 pad=1x1 fill=normal:1";

    #[test]
    fn attribute_every_rung_is_named_inside_the_bound_or_not() {
        let declared = Arithmetic::simt(Accumulator::Fp32);
        for rung in &RUNGS[1..] {
            let judgement = attributed(LINE, &declared, |i| rung.rounded(i), |_, v| v);
            let undeclared = Verdict::Failed(FailureKind::Undeclared);
            assert_eq!(judgement.verdict, undeclared, "{rung:?}");
            let words = judgement.detail.unwrap();
            // On data of this range, fp16 keeps what TF32 keeps.
            let name = if rung.name == "fp16" {
                "TF32"
            } else {
                rung.name
            };
            assert!(words.contains(&format!("rounded to {name},")), "{words}");
        }
    }

    #[test]
    fn attribute_fp16_is_told_by_its_range() {
        let declared = Arithmetic::simt(Accumulator::Fp32);
        // A product an output, one operand in ten beyond 65504.
        let line = "fwd c=64 k=64 g=64 in=5x5 ker=1x1 fill=loguniform:1";
        let judgement = attributed(line, &declared, |i| RUNGS[3].rounded(i), |_, v| v);
        let words = judgement.detail.unwrap();
        assert!(words.contains("rounded to fp16,"), "{words}");
    }

    #[test]
    fn attribute_declared_rungs_and_honest_results_pass() {
        let mut declared = Arithmetic::simt(Accumulator::Fp32);
        let honest = attributed(LINE, &declared, Inputs::clone, |_, v| v);
        assert_eq!(honest.verdict, Verdict::Passed);
        declared.operands = OperandRounding::Tf32;
        for rung in &RUNGS[1..3] {
            let judgement = attributed(LINE, &declared, |i| rung.rounded(i), |_, v| v);
            assert_eq!(judgement.verdict, Verdict::Passed, "{rung:?}");
        }
    }

    /// Data of the range that flushing and rounding to fp16 both take to zero:
    /// the first is declared, so nothing undeclared is seen.
    #[test]
    fn attribute_declared_flushing_is_no_rounding_to_fp16() {
        let line = "bwd_data c=16 k=64 in=5x4 ker=5x4 fill=subnormal:948214648";
        let flush = |inputs: &Inputs| {
            let flushed = |t: &Tensor| {
                Tensor::from_fn(t.dtype(), t.dims(), |i| match t.get(i) {
                    v if v.abs() < FP32.min_normal() => 0.0,
                    v => v,
                })
            };
            Inputs {
                first: flushed(&inputs.first),
                second: flushed(&inputs.second),
                ..inputs.clone()
            }
        };
        let mut declared = Arithmetic::simt(Accumulator::Fp32);
        declared.flush_to_zero = true;
        let judgement = attributed(line, &declared, flush, |_, v| v);
        assert!(matches!(judgement.verdict, Verdict::Untrusted(_)));
        declared.flush_to_zero = false;
        let judgement = attributed(line, &declared, flush, |_, v| v);
        assert!(matches!(judgement.verdict, Verdict::Failed(_)));
    }

    /// Errors far smaller than those of sums in fp16 are not called that.
    #[test]
    fn attribute_small_errors_in_every_output_are_not_narrow_sums() {
        let declared = Arithmetic::simt(Accumulator::Fp32);
        let line = "bwd_data n=2 c=7 k=21 in=15 ker=5 g=7 fill=normal:1133152173";
        let wave = |i: usize, v: f64| v + [2e-6, -1e-6, 1e-6][i % 3];
        let judgement = attributed(line, &declared, Inputs::clone, wave);
        let failed = Verdict::Failed(FailureKind::OutOfBound);
        assert_eq!(judgement.verdict, failed, "{:?}", judgement.detail);
    }

    #[test]
    fn attribute_structural_faults_stay_out_of_bound() {
        let declared = Arithmetic::simt(Accumulator::Fp32);
        let wrong = |i: usize, v: f64| if i % 7 == 3 { 1.01 * v } else { v };
        for types in ["", "type=fp16"] {
            let line = format!("{LINE} {types}");
            let judgement = attributed(&line, &declared, Inputs::clone, wrong);
            assert_eq!(
                judgement.verdict,
                Verdict::Failed(FailureKind::OutOfBound),
                "{types}"
            );
        }
    }
}
