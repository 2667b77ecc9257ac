//! Data that the fills do not reach: any bits, the edges of single precision's
//! range, sums at the limit of exactness. Every figure of every output against
//! big integers and MPFR.

use num_bigint::{BigInt, BigUint, Sign};
use proptest::prelude::*;

use super::*;
use crate::fill::stream::Stream;
use crate::tensor::Tensor;

/// How the values of an operand are drawn.
#[derive(Clone, Copy, Debug)]
enum Draw {
    /// Any finite bits.
    Any,
    /// Any bits, magnitudes below the smallest normal value of the type.
    Subnormal,
    /// Significands of at most `bits`, exponents within `spread` of `at`.
    Near { at: i32, spread: i32, bits: i32 },
    /// Neighbours differ in sign and, at most, in the last bits.
    Pairs,
}

/// One operand: how it is drawn, and one value in how many is zero (0: none is).
type Side = (Draw, u64);

fn sides() -> impl Strategy<Value = [Side; 2]> {
    let near = (-70i32..70, 0i32..12, 1i32..25);
    let single = prop_oneof![
        Just(Draw::Any),
        Just(Draw::Subnormal),
        Just(Draw::Pairs),
        near.prop_map(|(at, spread, bits)| Draw::Near { at, spread, bits }),
    ];
    let zeros = || prop::sample::select(vec![0u64, 0, 2, 9]);
    let apart = ((single.clone(), zeros()), (single, zeros())).prop_map(|(a, b)| [a, b]);
    // Together: products around a power of two, with TF32's significands too.
    let edge = prop::sample::select(vec![-126, -118, 0, 110, 118, 126]);
    let bits = prop::sample::select(vec![1i32, 4, 11, 12, 24]);
    let together =
        (edge, -40i32..40, 0i32..3, bits, zeros()).prop_map(|(edge, at, spread, bits, zeros)| {
            let near = |at| (Draw::Near { at, spread, bits }, zeros);
            [near(edge / 2 + at), near(edge - edge / 2 - at)]
        });
    prop_oneof![apart, together]
}

fn value(draw: Draw, dtype: DType, random: Stream, i: usize) -> f64 {
    let format = dtype.format();
    let bits = random.word(i, 0);
    let sign = if bits >> 63 == 1 { -1.0 } else { 1.0 };
    match draw {
        Draw::Any => {
            let value = dtype.from_bits(bits >> (64 - 8 * dtype.size()));
            // Sums must be doubles.
            if value.abs() < exp2(500) { value } else { sign }
        }
        Draw::Subnormal => {
            let units = bits % (1 << (format.precision - 1));
            sign * units as f64 * format.min_subnormal()
        }
        Draw::Near {
            at,
            spread,
            bits: wide,
        } => {
            let wide = wide.min(format.precision);
            let significand = ((bits >> 8) % (1 << wide)) | (1 << (wide - 1));
            let drawn = at + (random.word(i, 1) >> 40) as i32 % (spread + 1);
            let exponent = drawn.clamp(format.emin + 1, format.emax - 1);
            sign * significand as f64 * exp2(exponent + 1 - wide)
        }
        Draw::Pairs => {
            let pair = format.round(1.0 + random.unit(i / 2, 2));
            let off = (bits % 3) as f64 * format.ulp(1.0);
            if i.is_multiple_of(2) {
                pair
            } else {
                -(pair + off)
            }
        }
    }
}

fn tensor(like: &Tensor, (draw, zeros): Side, random: Stream) -> Tensor {
    let dtype = like.dtype();
    Tensor::from_fn(dtype, like.dims(), |i| {
        if zeros > 0 && random.word(i, 3).is_multiple_of(zeros) {
            return 0.0;
        }
        value(draw, dtype, random, i)
    })
}

/// Problems of all directions; sums of more and of fewer steps than are summed
/// in single precision at a time.
fn problems() -> impl Strategy<Value = String> {
    (
        prop::sample::select(vec!["fwd", "bwd_data", "bwd_filter"]),
        prop::sample::select(DType::ALL.to_vec()),
        (1usize..3, 1usize..60, 1usize..4, 1usize..3),
        (1usize..5, 1usize..4, 1usize..3, 0usize..2, 1usize..3),
    )
        .prop_map(|(head, dtype, (n, c, k, g), (size, ker, stride, pad, dil))| {
            format!(
                "{head} n={n} c={} k={} in={}x3 ker={ker}x2 stride={stride}x1 pad={pad}x1 dil={dil}x2 g={g} type={dtype}",
                c * g,
                k * g,
                size + (ker - 1) * dil,
            )
        })
}

fn hard_inputs(problem: &str, sides: [Side; 2], seed: u64) -> Inputs {
    let mut inputs = inputs(&format!("{problem} fill=const:0"));
    inputs.first = tensor(&inputs.first, sides[0], Stream::new(seed, 1));
    inputs.second = tensor(&inputs.second, sides[1], Stream::new(seed, 2));
    inputs
}

/// The sum, the sum of magnitudes and the number of nonzero products, in integers.
fn truth(inputs: &Inputs, index: usize) -> (BigInt, BigUint, u64) {
    let mut truth = (BigInt::from(0), BigUint::from(0u8), 0);
    Geometry::new(&inputs.problem).for_each_product(index, |a, b| {
        let ((ma, ea), (mb, eb)) = (big(inputs.first.get(a)), big(inputs.second.get(b)));
        let product = (ma * mb) << (ea + eb - UNIT) as usize;
        truth.1 += product.magnitude();
        truth.2 += u64::from(product.sign() != Sign::NoSign);
        truth.0 += product;
    });
    truth
}

fn units(value: f64) -> BigInt {
    let (m, e) = big(value);
    m << (e - UNIT) as usize
}

fn check(inputs: &Inputs, output: &Output) -> Result<(), TestCaseError> {
    let (sum, s, nonzero) = truth(inputs, output.index);
    let value = output.value;
    let at = format!("output {} {output:?}", output.index);
    prop_assert_eq!(output.class, Class::Finite);
    prop_assert_eq!(output.nonzero, nonzero, "{}", at);
    let off = &sum - units(value.hi) - units(value.lo);
    prop_assert!(
        off.magnitude() <= units(value.radius).magnitude(),
        "radius: {}",
        at
    );
    let mine = units(output.s).magnitude().clone();
    prop_assert!(mine >= s, "S too low: {}", at);
    // 256 steps in single precision, twice, and the smallest double.
    let most = (mine.clone() >> 14) + units(exp2(-1074)).magnitude();
    prop_assert!(mine - &s <= most, "S too high: {}", at);
    for dtype in DType::ALL {
        if let Some(rounded) = value.rounded(dtype) {
            prop_assert_eq!(
                rounded,
                big_round(&sum, dtype.format()),
                "{} as {}",
                at,
                dtype
            );
        }
    }
    confirm(inputs, output).map_err(|e| TestCaseError::fail(e.to_string()))
}

proptest! {
    #[test]
    fn hard_data_blocked_agrees_with_integers(problem in problems(), sides in sides(), seed: u64) {
        let inputs = hard_inputs(&problem, sides, seed);
        let reference = reference(&inputs, &Sample::All);
        prop_assert_eq!(reference.outputs.len(), reference.total);
        for output in &reference.outputs {
            check(&inputs, output)?;
        }
    }

    #[test]
    fn hard_data_sampled_agrees_with_integers(problem in problems(), sides in sides(), seed: u64) {
        let inputs = hard_inputs(&problem, sides, seed);
        let sample = Sample::choose(&inputs.problem, 20, seed);
        for output in &reference(&inputs, &sample).outputs {
            check(&inputs, output)?;
        }
    }
}
