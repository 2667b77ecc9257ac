//! The oracle against independent exact arithmetic, and the fast paths against
//! the arbiter.

use num_bigint::BigInt;
use proptest::prelude::*;

use super::*;
use crate::candidate::Repro;
use crate::dtype::{FP16, Format, exp2};
use crate::fill::FillKind;

mod hard;

fn inputs(line: &str) -> Inputs {
    let repro: Repro = line.parse().unwrap();
    Inputs::generate(&repro.problem, repro.fill)
}

/// value = integer · 2^exponent, exactly.
fn big(value: f64) -> (BigInt, i32) {
    let bits = value.to_bits();
    let field = (bits >> 52 & 0x7ff) as i32;
    let fraction = bits & ((1 << 52) - 1);
    let (m, e) = if field == 0 {
        (fraction, -1074)
    } else {
        (fraction | 1 << 52, field - 1075)
    };
    let magnitude = BigInt::from(m);
    (if value < 0.0 { -magnitude } else { magnitude }, e)
}

/// Σ a·b in units of 2^-2200, by big integers: independent of MPFR and doubles.
const UNIT: i32 = -2200;

fn big_sum(inputs: &Inputs, index: usize) -> BigInt {
    let mut sum = BigInt::from(0);
    Geometry::new(&inputs.problem).for_each_product(index, |a, b| {
        let ((ma, ea), (mb, eb)) = (big(inputs.first.get(a)), big(inputs.second.get(b)));
        sum += (ma * mb) << (ea + eb - UNIT) as usize;
    });
    sum
}

/// Round-to-nearest-even of sum · 2^UNIT to `format`, in integers.
fn big_round(sum: &BigInt, format: Format) -> f64 {
    let negative = sum.sign() == num_bigint::Sign::Minus;
    let magnitude = sum.magnitude();
    if *magnitude == num_bigint::BigUint::ZERO {
        return 0.0;
    }
    let exponent = magnitude.bits() as i32 - 1 + UNIT;
    let quantum = exponent.max(format.emin) - format.precision + 1;
    let shift = (quantum - UNIT) as usize;
    let floor = magnitude >> shift;
    let rest = magnitude - (&floor << shift);
    let half = num_bigint::BigUint::from(1u8) << (shift - 1);
    let odd = floor.bit(0);
    let up = rest > half || (rest == half && odd);
    let units: u64 = (floor + u8::from(up)).try_into().unwrap();
    let rounded = libm::ldexp(units as f64, quantum);
    let rounded = if rounded > format.max_finite() {
        f64::INFINITY
    } else {
        rounded
    };
    if negative { -rounded } else { rounded }
}

const FINITE_FILLS: [FillKind; 11] = [
    FillKind::Constant,
    FillKind::Impulse,
    FillKind::Integers,
    FillKind::Sparse,
    FillKind::Normal,
    FillKind::UniformPositive,
    FillKind::LogUniform,
    FillKind::Cancelling,
    FillKind::LargeThenSmall,
    FillKind::NearOverflow,
    FillKind::Subnormal,
];

fn lines() -> impl Strategy<Value = String> {
    (
        prop::sample::select(vec!["fwd", "bwd_data", "bwd_filter"]),
        prop::sample::select(DType::ALL.map(DType::name).to_vec()),
        prop::sample::select(FINITE_FILLS.to_vec()),
        (1usize..3, 1usize..20, 1usize..10, 1usize..3),
        (1usize..6, 1usize..4, 1usize..3, 0usize..3),
        any::<u64>(),
    )
        .prop_map(|(head, dtype, kind, (n, c, k, g), (size, ker, stride, pad), seed)| {
            format!(
                "{head} n={n} c={} k={} in={}x3 ker={ker}x2 stride={stride}x1 pad={pad}x1 g={g} type={dtype} fill={}:{seed}",
                c * g, k * g, size + ker, kind.name()
            )
        })
}

proptest! {
    #[test]
    fn arbiter_agrees_with_big_integers(line in lines(), pick: prop::sample::Index) {
        let inputs = inputs(&line);
        let total = Geometry::new(&inputs.problem).outputs();
        let index = pick.index(total);
        let sum = big_sum(&inputs, index);
        for dtype in DType::ALL {
            let expected = big_round(&sum, dtype.format());
            prop_assert_eq!(arbiter::rounded(&inputs, index, dtype), expected);
            if let Some(rounded) = arbiter::output(&inputs, index).value.rounded(dtype) {
                prop_assert_eq!(rounded, expected);
            }
        }
    }

    #[test]
    fn fast_agrees_with_the_arbiter(line in lines()) {
        let inputs = inputs(&line);
        let fast = reference(&inputs, &Sample::All);
        let slow = reference_by_arbiter(&inputs);
        prop_assert_eq!(fast.outputs.len(), slow.outputs.len());
        for (f, s) in fast.outputs.iter().zip(&slow.outputs) {
            prop_assert_eq!((f.index, f.class, f.nonzero), (s.index, s.class, s.nonzero));
            prop_assert!(f.s >= s.s * (1.0 - 1e-15), "S {} below {}", f.s, s.s);
            prop_assert!(f.s <= s.s * (1.0 + exp2(-15)));
            let exact = arbiter::exact(&inputs, &Geometry::new(&inputs.problem), f.index).value;
            let center = rug::Float::with_val(2400, f.value.hi) + f.value.lo;
            let off = rug::Float::with_val(exact.prec().max(2400), &exact - &center).abs();
            prop_assert!(off <= f.value.radius, "radius {} too small at {}", f.value.radius, f.index);
            for dtype in DType::ALL {
                if let Some(rounded) = f.value.rounded(dtype) {
                    prop_assert_eq!(rounded, arbiter::rounded(&inputs, f.index, dtype));
                }
            }
        }
        audit(&inputs, &fast, 5, 1).unwrap();
    }

    #[test]
    fn scaled_fast_agrees_with_the_arbiter(line in lines(), alpha in -2.0f32..2.0, beta in -2.0f32..2.0) {
        let (problem, fill) = line.split_once(" fill=").unwrap();
        let inputs = inputs(&format!("{problem} alpha={alpha} beta={beta} fill={fill}"));
        for output in reference(&inputs, &Sample::All).outputs {
            let exact = arbiter::exact(&inputs, &Geometry::new(&inputs.problem), output.index).value;
            let center = rug::Float::with_val(2400, output.value.hi) + output.value.lo;
            let off = rug::Float::with_val(exact.prec().max(2400), &exact - &center).abs();
            prop_assert!(off <= output.value.radius);
        }
    }

    #[test]
    fn special_data_has_the_class_of_the_ieee_sum(seed: u64, nan: bool, c in 1usize..9) {
        let fill = if nan { "nan" } else { "inf" };
        let inputs = inputs(&format!("fwd c={c} k=3 in=6x5 ker=3x2 pad=1x0 type=fp16 fill={fill}:{seed}"));
        let geometry = Geometry::new(&inputs.problem);
        for output in reference(&inputs, &Sample::All).outputs {
            let mut sum = 0.0;
            geometry.for_each_product(output.index, |a, b| sum += inputs.first.get(a) * inputs.second.get(b));
            prop_assert_eq!(output.class, Class::of(sum));
        }
    }
}

#[test]
fn reference_long_sums_flush_the_limbs() {
    // Beyond 4096 products, of the largest fp16 values: limbs are at their limit.
    let line = "fwd c=9000 k=7 in=1 ker=1 type=fp16 fill=overflow:3";
    let inputs = inputs(line);
    let fast = reference(&inputs, &Sample::All);
    assert_eq!(fast.tally.fixed_point, 7);
    for output in &fast.outputs {
        assert_eq!(output.value.radius, 0.0);
        let sum = big_sum(&inputs, output.index);
        let rounded = output.value.rounded(DType::Fp64).unwrap();
        assert_eq!(rounded, big_round(&sum, DType::Fp64.format()));
    }
}

#[test]
fn reference_one_and_many_threads_agree() {
    let inputs = inputs("fwd n=3 c=24 k=20 in=9x11 ker=3x3 pad=1x1 g=2 fill=normal:5");
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| reference(&inputs, &Sample::All))
    };
    assert_eq!(on(1), on(4));
}

/// A sample of single outputs against the arbiter.
fn check_sample(line: &str, seed: u64) -> Result<(), TestCaseError> {
    let inputs = inputs(line);
    let sample = Sample::choose(&inputs.problem, 40, seed);
    let some = reference(&inputs, &sample);
    prop_assert_eq!(some.outputs.len(), sample.len(some.total));
    for (i, output) in some.outputs.iter().enumerate() {
        prop_assert_eq!(output.index, sample.index(i));
        confirm(&inputs, output).map_err(|e| TestCaseError::fail(e.to_string()))?;
    }
    Ok(())
}

proptest! {
    #[test]
    fn sampled_agrees_with_the_arbiter(line in lines(), seed: u64) {
        check_sample(&line, seed)?;
    }

    #[test]
    fn scaled_sampled_agrees_with_the_arbiter(line in lines(), alpha in -2.0f32..2.0, beta in -2.0f32..2.0) {
        let (problem, fill) = line.split_once(" fill=").unwrap();
        check_sample(&format!("{problem} alpha={alpha} beta={beta} fill={fill}"), 7)?;
    }

    #[test]
    fn special_sampled_agrees_with_the_arbiter(nan: bool, c in 1usize..9, seed: u64) {
        let fill = if nan { "nan" } else { "inf" };
        check_sample(&format!("fwd c={c} k=3 in=16x15 ker=3x2 pad=1x0 type=fp16 fill={fill}:{seed}"), seed)?;
    }
}

/// Only outputs with a product that is not finite need the arbiter.
#[test]
fn reference_of_special_data_is_fast_where_it_is_finite() {
    let inputs = inputs("fwd c=4 k=3 in=64x64 ker=3x3 type=fp16 fill=nan:1");
    let whole = reference(&inputs, &Sample::All);
    let special = whole.outputs.iter().filter(|o| o.class != Class::Finite);
    let special = special.count() as u64;
    assert!(special > 0 && special < whole.total as u64);
    assert_eq!(whole.tally.arbiter, special);
}

#[test]
fn reference_sample_is_part_of_the_whole() {
    for types in ["fp16", "bf16", "fp32", "fp64"] {
        let inputs = inputs(&format!(
            "fwd c=8 k=8 in=20x20 ker=3x3 type={types} fill=normal:5"
        ));
        let all = reference(&inputs, &Sample::All);
        let some = reference(&inputs, &Sample::choose(&inputs.problem, 100, 3));
        assert!(some.coverage() < 0.05);
        assert_eq!(some.tally.arbiter, 0, "{types} sample is not fast");
        for output in &some.outputs {
            let same = &all.outputs[output.index];
            assert_eq!(
                same.value.rounded(DType::Fp32),
                output.value.rounded(DType::Fp32)
            );
        }
    }
}

#[test]
fn audit_a_wrong_value_is_found() {
    let inputs = inputs("fwd c=8 k=8 in=5 ker=3 type=fp16 fill=normal:5");
    let mut reference = reference(&inputs, &Sample::All);
    for output in &mut reference.outputs {
        output.value.hi += FP16.ulp(output.value.hi) * exp2(1);
    }
    assert!(audit(&inputs, &reference, 3, 9).is_err());
}
