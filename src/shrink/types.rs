//! Type configurations, from plain to unusual.

use crate::dtype::DType;
use crate::problem::{Compute, ConvProblem, Role};

/// Type of the operands, type of the result, compute type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Types(DType, DType, Compute);

impl Types {
    /// What networks use, plainest first: a reader thinks in fp32.
    pub(super) const ALL: [Types; 15] = [
        Types(DType::Fp32, DType::Fp32, Compute::Fp32),
        Types(DType::Fp16, DType::Fp16, Compute::Fp32),
        Types(DType::Bf16, DType::Bf16, Compute::Fp32),
        Types(DType::Fp64, DType::Fp64, Compute::Fp64),
        Types(DType::Fp16, DType::Fp16, Compute::Fp16),
        Types(DType::Fp16, DType::Fp32, Compute::Fp32),
        Types(DType::Bf16, DType::Fp32, Compute::Fp32),
        Types(DType::Fp8E4m3, DType::Fp32, Compute::Fp32),
        Types(DType::Fp8E5m2, DType::Fp32, Compute::Fp32),
        Types(DType::Fp8E4m3, DType::Fp16, Compute::Fp32),
        Types(DType::Fp8E5m2, DType::Fp16, Compute::Fp32),
        Types(DType::Fp8E4m3, DType::Bf16, Compute::Fp32),
        Types(DType::Fp8E5m2, DType::Bf16, Compute::Fp32),
        Types(DType::Fp8E4m3, DType::Fp8E4m3, Compute::Fp32),
        Types(DType::Fp8E5m2, DType::Fp8E5m2, Compute::Fp32),
    ];

    /// Gives `problem` these types.
    pub(super) fn apply(self, problem: &mut ConvProblem) {
        let result = problem.direction.result();
        let of = |role| if role == result { self.1 } else { self.0 };
        let [x, w, y] = [Role::X, Role::W, Role::Y].map(of);
        (problem.x_type, problem.w_type, problem.y_type) = (x, w, y);
        problem.compute = self.2;
    }

    /// Place in [`Types::ALL`] of the types of `problem`; others come last.
    pub(super) fn place(problem: &ConvProblem) -> usize {
        let same = |types: &Types| {
            let mut other = problem.clone();
            types.apply(&mut other);
            other == *problem
        };
        let found = Types::ALL.iter().position(same);
        found.unwrap_or(Types::ALL.len())
    }
}
