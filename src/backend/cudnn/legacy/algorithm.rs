//! The algorithms of the legacy API, and what each may do to the numbers.
//!
//! The legacy API declares nothing about arithmetic beyond algorithm, math type
//! and compute type, so what follows is the widest that NVIDIA's documentation
//! of those three permits. A result outside it breaks the documented contract.

use crate::bound::{Accumulator, Arithmetic, Family, Generation, OperandRounding, Units};
use crate::candidate::MathType;
use crate::dtype::DType;
use crate::problem::{Compute, ConvProblem, Direction};

/// One algorithm of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Algorithm {
    /// cuDNN's number.
    pub number: u8,
    /// cuDNN's name, without the enum's prefix.
    pub name: &'static str,
    /// How its error spreads.
    pub family: Family,
    /// Sums into the result with atomics: documented as not reproducible.
    pub atomics: bool,
}

const GEMM: Family = Family::InnerProduct;
const WINOGRAD: Family = Family::Winograd { tile: None };
const FFT: Family = Family::Fft { tile: None };

const fn algorithm(number: u8, name: &'static str, family: Family) -> Algorithm {
    Algorithm {
        number,
        name,
        family,
        atomics: false,
    }
}

const fn atomic(number: u8, name: &'static str) -> Algorithm {
    Algorithm {
        number,
        name,
        family: GEMM,
        atomics: true,
    }
}

const FORWARD: &[Algorithm] = &[
    algorithm(0, "IMPLICIT_GEMM", GEMM),
    algorithm(1, "IMPLICIT_PRECOMP_GEMM", GEMM),
    algorithm(2, "GEMM", GEMM),
    algorithm(3, "DIRECT", GEMM),
    algorithm(4, "FFT", FFT),
    algorithm(5, "FFT_TILING", FFT),
    algorithm(6, "WINOGRAD", WINOGRAD),
    algorithm(7, "WINOGRAD_NONFUSED", WINOGRAD),
];

const BACKWARD_DATA: &[Algorithm] = &[
    atomic(0, "ALGO_0"),
    algorithm(1, "ALGO_1", GEMM),
    algorithm(2, "FFT", FFT),
    algorithm(3, "FFT_TILING", FFT),
    algorithm(4, "WINOGRAD", WINOGRAD),
    algorithm(5, "WINOGRAD_NONFUSED", WINOGRAD),
];

const BACKWARD_FILTER: &[Algorithm] = &[
    atomic(0, "ALGO_0"),
    algorithm(1, "ALGO_1", GEMM),
    algorithm(2, "FFT", FFT),
    atomic(3, "ALGO_3"),
    algorithm(4, "WINOGRAD", WINOGRAD),
    algorithm(5, "WINOGRAD_NONFUSED", WINOGRAD),
    algorithm(6, "FFT_TILING", FFT),
];

/// The algorithms of a direction, by number.
pub fn algorithms(direction: Direction) -> &'static [Algorithm] {
    match direction {
        Direction::Fwd => FORWARD,
        Direction::BwdData => BACKWARD_DATA,
        Direction::BwdFilter => BACKWARD_FILTER,
    }
}

/// What of the GPU and the environment decides the arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Compute capability.
    pub capability: (u32, u32),
    /// NVIDIA_TF32_OVERRIDE=0.
    pub tf32_forbidden: bool,
}

impl Machine {
    /// The tensor cores of this GPU; `None` before Volta.
    pub fn generation(self) -> Option<Generation> {
        match self.capability {
            (0..=6, _) => None,
            (7, _) => Some(Generation::Volta),
            (8, _) => Some(Generation::Ampere),
            // sm_100 and sm_103 follow sm_90; sm_110 and sm_120 were not measured.
            (9 | 10, _) => Some(Generation::Hopper),
            _ => Some(Generation::Unknown),
        }
    }

    /// Whether `math` permits tensor cores here. Documented: DEFAULT uses none
    /// before A100 (sm_80), FMA never.
    fn tensor_cores(self, math: MathType) -> Option<Generation> {
        self.generation().filter(|_| match math {
            MathType::Fma => false,
            MathType::Default => self.capability >= (8, 0),
            MathType::TensorOp | MathType::TensorOpAllowConversion => true,
        })
    }
}

/// The math type that `math` cannot differ from here, and why:
/// - before sm_80, DEFAULT and FMA are documented to behave the same;
/// - ALLOW_CONVERSION differs from TENSOR_OP only in converting fp32 operands
///   down: without fp32 operands there is nothing to convert.
///
/// All other pairs may differ and are run. In particular DEFAULT and TENSOR_OP
/// may pick different kernels on sm_80 and later even where both permit tensor
/// cores.
pub fn same_as(
    problem: &ConvProblem,
    machine: Machine,
    math: MathType,
) -> Option<(MathType, &'static str)> {
    match math {
        MathType::Fma if machine.capability < (8, 0) => Some((
            MathType::Default,
            "before compute capability 8.0 the two are documented to be the same",
        )),
        MathType::TensorOpAllowConversion if !has_fp32_operand(problem) => {
            Some((MathType::TensorOp, "there are no fp32 operands to convert"))
        }
        _ => None,
    }
}

fn operand_types(problem: &ConvProblem) -> [DType; 2] {
    problem.direction.operands().map(|role| problem.dtype(role))
}

fn has_fp32_operand(problem: &ConvProblem) -> bool {
    operand_types(problem).contains(&DType::Fp32)
}

/// What a candidate may do to the numbers.
pub fn arithmetic(
    problem: &ConvProblem,
    algorithm: Algorithm,
    math: MathType,
    machine: Machine,
) -> Arithmetic {
    let accumulator = accumulator(problem.compute);
    Arithmetic {
        family: algorithm.family,
        operands: operands(problem, algorithm.family, math, machine),
        accumulator,
        units: units(problem, math, machine),
        partials: partials(problem, algorithm, accumulator),
        // Kernels for single precision are commonly built to flush; no double
        // precision instruction can.
        flush_to_zero: accumulator != Accumulator::Fp64,
    }
}

/// The compute type is what the documentation promises for all internal
/// computation: single compute keeps single sums, half compute may keep half.
fn accumulator(compute: Compute) -> Accumulator {
    match compute {
        Compute::Fp16 => Accumulator::Fp16,
        Compute::Fp32 => Accumulator::Fp32,
        Compute::Fp64 => Accumulator::Fp64,
    }
}

/// Atomic sums go through the result tensor itself, so its type is where they
/// may be rounded; other split sums stay in the compute type.
fn partials(problem: &ConvProblem, algorithm: Algorithm, accumulator: Accumulator) -> Accumulator {
    let half = matches!(problem.result_type(), DType::Fp16 | DType::Bf16);
    if algorithm.atomics && half {
        Accumulator::Fp16
    } else {
        accumulator
    }
}

fn operands(
    problem: &ConvProblem,
    family: Family,
    math: MathType,
    machine: Machine,
) -> OperandRounding {
    if problem.compute == Compute::Fp64 {
        return OperandRounding::None;
    }
    fp32_operands(problem, math, machine).max(transformed(problem, family))
}

/// What may happen to fp32 operands on their way into tensor cores.
/// TENSOR_OP_ALLOW_CONVERSION is documented to convert fp32 to half, without
/// tensor cores able to take half only before Volta.
fn fp32_operands(problem: &ConvProblem, math: MathType, machine: Machine) -> OperandRounding {
    let Some(_) = machine
        .tensor_cores(math)
        .filter(|_| has_fp32_operand(problem))
    else {
        return OperandRounding::None;
    };
    if math == MathType::TensorOpAllowConversion {
        OperandRounding::Fp16
    } else if machine.capability >= (8, 0) && !machine.tf32_forbidden {
        OperandRounding::Tf32
    } else {
        OperandRounding::None
    }
}

/// Winograd and FFT multiply transformed operands, which half data may be
/// stored as half again.
fn transformed(problem: &ConvProblem, family: Family) -> OperandRounding {
    let types = operand_types(problem);
    if family == Family::InnerProduct {
        OperandRounding::None
    } else if types.contains(&DType::Bf16) {
        OperandRounding::Bf16
    } else if types.contains(&DType::Fp16) {
        OperandRounding::Fp16
    } else {
        OperandRounding::None
    }
}

/// Tensor cores where the math type permits them and they can take the
/// operands: fp16 from Volta, bf16 and TF32 from Ampere, fp32 otherwise only by
/// conversion. Double-precision tensor cores round every step like scalar
/// units.
fn units(problem: &ConvProblem, math: MathType, machine: Machine) -> Units {
    let Some(generation) = machine.tensor_cores(math) else {
        return Units::Simt;
    };
    let [first, second] = operand_types(problem);
    let usable = |dtype| match dtype {
        DType::Fp16 => true,
        DType::Bf16 => machine.capability >= (8, 0),
        DType::Fp32 => fp32_operands(problem, math, machine) != OperandRounding::None,
        DType::Fp64 => false,
    };
    if problem.compute != Compute::Fp64 && usable(first) && usable(second) {
        Units::TensorCore(generation)
    } else {
        Units::Simt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Machine = Machine {
        capability: (9, 0),
        tf32_forbidden: false,
    };
    const V100: Machine = Machine {
        capability: (7, 0),
        tf32_forbidden: false,
    };

    fn problem(dtype: DType) -> ConvProblem {
        ConvProblem::new(32, 32, &[16, 16], &[3, 3]).with_type(dtype)
    }

    fn declared(dtype: DType, number: usize, math: MathType, machine: Machine) -> Arithmetic {
        arithmetic(&problem(dtype), FORWARD[number], math, machine)
    }

    #[test]
    fn algorithms_numbers_are_positions() {
        for direction in Direction::ALL {
            for (i, algorithm) in algorithms(direction).iter().enumerate() {
                assert_eq!(usize::from(algorithm.number), i);
            }
        }
    }

    #[test]
    fn arithmetic_fp32_default_allows_tf32_from_ampere_on() {
        let on = |machine| declared(DType::Fp32, 1, MathType::Default, machine);
        assert_eq!(on(H200).operands, OperandRounding::Tf32);
        assert_eq!(on(H200).units, Units::TensorCore(Generation::Hopper));
        assert_eq!(on(V100).operands, OperandRounding::None);
        assert_eq!(on(V100).units, Units::Simt);
    }

    #[test]
    fn arithmetic_override_forbids_tf32_but_not_conversion() {
        let machine = Machine {
            tf32_forbidden: true,
            ..H200
        };
        let with = |math| declared(DType::Fp32, 1, math, machine);
        assert_eq!(with(MathType::Default).operands, OperandRounding::None);
        assert_eq!(with(MathType::Default).units, Units::Simt);
        let converted = with(MathType::TensorOpAllowConversion);
        assert_eq!(converted.operands, OperandRounding::Fp16);
    }

    #[test]
    fn arithmetic_fma_math_is_scalar_for_every_type() {
        for dtype in DType::ALL {
            let fma = declared(dtype, 1, MathType::Fma, H200);
            assert_eq!(fma.units, Units::Simt);
            assert_eq!(fma.operands, OperandRounding::None);
        }
    }

    #[test]
    fn arithmetic_fp16_default_on_volta_is_scalar_tensor_op_is_not() {
        let with = |math| declared(DType::Fp16, 0, math, V100).units;
        assert_eq!(with(MathType::Default), Units::Simt);
        assert_eq!(
            with(MathType::TensorOp),
            Units::TensorCore(Generation::Volta)
        );
        let bf16 = declared(DType::Bf16, 0, MathType::TensorOp, V100);
        assert_eq!(bf16.units, Units::Simt);
    }

    #[test]
    fn arithmetic_true_half_sums_in_half() {
        let mut half = problem(DType::Fp16);
        half.compute = Compute::Fp16;
        let declared = arithmetic(&half, FORWARD[1], MathType::TensorOp, H200);
        assert_eq!(declared.accumulator, Accumulator::Fp16);
        assert_eq!(declared.partials, Accumulator::Fp16);
    }

    #[test]
    fn arithmetic_fp64_is_exact_about_its_operands() {
        let double = declared(DType::Fp64, 5, MathType::TensorOpAllowConversion, H200);
        assert_eq!(double.operands, OperandRounding::None);
        assert_eq!(double.accumulator, Accumulator::Fp64);
        assert_eq!(double.units, Units::Simt);
        assert!(!double.flush_to_zero);
    }

    #[test]
    fn arithmetic_winograd_on_half_data_may_store_tiles_as_half() {
        let with = |dtype| declared(dtype, 7, MathType::TensorOp, H200).operands;
        assert_eq!(with(DType::Fp16), OperandRounding::Fp16);
        assert_eq!(with(DType::Bf16), OperandRounding::Bf16);
    }

    #[test]
    fn arithmetic_atomics_round_to_the_result_type() {
        let mut backward = problem(DType::Fp16);
        backward.direction = Direction::BwdFilter;
        let of = |number: usize| {
            let algorithm = BACKWARD_FILTER[number];
            arithmetic(&backward, algorithm, MathType::Default, H200).partials
        };
        assert_eq!(of(0), Accumulator::Fp16);
        assert_eq!(of(1), Accumulator::Fp32);
    }

    #[test]
    fn same_as_keeps_all_four_for_fp32_on_hopper() {
        for math in MathType::ALL {
            assert_eq!(same_as(&problem(DType::Fp32), H200, math), None);
        }
    }

    #[test]
    fn same_as_merges_only_what_is_documented() {
        let merged =
            |dtype, machine, math| same_as(&problem(dtype), machine, math).map(|(twin, _)| twin);
        assert_eq!(
            merged(DType::Fp32, V100, MathType::Fma),
            Some(MathType::Default)
        );
        assert_eq!(
            merged(DType::Fp16, H200, MathType::TensorOpAllowConversion),
            Some(MathType::TensorOp)
        );
        assert_eq!(merged(DType::Fp16, H200, MathType::TensorOp), None);
        assert_eq!(merged(DType::Fp16, H200, MathType::Fma), None);
    }
}
