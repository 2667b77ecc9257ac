//! How far a right answer may be from the exact value.

/// What a candidate declares it does to the numbers: the contract a bound is
/// derived from. Where a candidate does not say, the widest it may do is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arithmetic {
    /// Algorithm family.
    pub family: Family,
    /// What happens to operands before they are multiplied.
    pub operands: OperandRounding,
    /// Type of the accumulator.
    pub accumulator: Accumulator,
    /// What adds the products up.
    pub units: Units,
    /// Type in which partial sums of a split reduction are stored.
    pub partials: Accumulator,
    /// Whether subnormals may be flushed to zero.
    pub flush_to_zero: bool,
}

/// Algorithm family: how error spreads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Every output is a sum of its own products.
    InnerProduct,
    /// Winograd; `tile` is the output tile m of F(m, r) when known.
    Winograd {
        /// Output tile; `None` = any in use.
        tile: Option<u32>,
    },
    /// FFT; `tile` is the transform length when known.
    Fft {
        /// Transform length; `None` = the whole padded image.
        tile: Option<u32>,
    },
}

/// What happens to operands before they are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OperandRounding {
    /// Nothing: products are of the stored values.
    None,
    /// TF32, rounded or truncated.
    Tf32,
    /// fp16, with its range.
    Fp16,
    /// bf16.
    Bf16,
}

/// Type sums are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Accumulator {
    /// Half.
    Fp16,
    /// Single.
    Fp32,
    /// Double.
    Fp64,
}

/// What adds the products up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Units {
    /// Scalar fused multiply-adds, round to nearest, any order.
    Simt,
    /// Tensor cores: block alignment and truncation.
    TensorCore(Generation),
}

/// Tensor-core generation, as far as arithmetic differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Generation {
    /// sm_70, sm_75.
    Volta,
    /// sm_80 to sm_89.
    Ampere,
    /// sm_90 and later.
    Hopper,
    /// Not modelled: the widest constants of all generations.
    Unknown,
}
