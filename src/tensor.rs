//! Tensors on the host: the very bits the library is given, in logical order.

use bytemuck::cast_slice;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::dtype::DType;

/// A dense tensor in logical (row-major) order over `dims`; backends translate
/// to and from the memory layout of the problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    dims: Vec<usize>,
    data: Data,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Data {
    #[serde(rename = "fp8_e4m3")]
    Fp8E4m3(Vec<u8>),
    #[serde(rename = "fp8_e5m2")]
    Fp8E5m2(Vec<u8>),
    Fp16(Vec<u16>),
    Bf16(Vec<u16>),
    Fp32(Vec<u32>),
    Fp64(Vec<u64>),
}

impl Tensor {
    /// A tensor whose element at logical offset i is `value(i)` rounded to `dtype`.
    pub fn from_fn(dtype: DType, dims: &[usize], value: impl Fn(usize) -> f64 + Sync) -> Self {
        use rayon::prelude::*;
        let len: usize = dims.iter().product();
        let bits = |i: usize| dtype.to_bits(value(i));
        let indices = (0..len).into_par_iter().with_min_len(4096);
        let data = match dtype {
            DType::Fp8E4m3 => Data::Fp8E4m3(indices.map(|i| bits(i) as u8).collect()),
            DType::Fp8E5m2 => Data::Fp8E5m2(indices.map(|i| bits(i) as u8).collect()),
            DType::Fp16 => Data::Fp16(indices.map(|i| bits(i) as u16).collect()),
            DType::Bf16 => Data::Bf16(indices.map(|i| bits(i) as u16).collect()),
            DType::Fp32 => Data::Fp32(indices.map(|i| bits(i) as u32).collect()),
            DType::Fp64 => Data::Fp64(indices.map(bits).collect()),
        };
        Tensor {
            dims: dims.to_vec(),
            data,
        }
    }

    /// A tensor from values in logical order, each rounded to `dtype`.
    pub fn from_values(dtype: DType, dims: &[usize], values: &[f64]) -> Self {
        assert_eq!(values.len(), dims.iter().product::<usize>());
        Self::from_fn(dtype, dims, |i| values[i])
    }

    /// A tensor from raw native-endian bytes in logical order; `None` when the
    /// length does not fit `dims`.
    pub fn from_bytes(dtype: DType, dims: &[usize], bytes: &[u8]) -> Option<Self> {
        let len: usize = dims.iter().product();
        if bytes.len() != len * dtype.size() {
            return None;
        }
        let data = match dtype {
            DType::Fp8E4m3 => Data::Fp8E4m3(bytes.to_vec()),
            DType::Fp8E5m2 => Data::Fp8E5m2(bytes.to_vec()),
            DType::Fp16 => Data::Fp16(bytemuck::allocation::pod_collect_to_vec(bytes)),
            DType::Bf16 => Data::Bf16(bytemuck::allocation::pod_collect_to_vec(bytes)),
            DType::Fp32 => Data::Fp32(bytemuck::allocation::pod_collect_to_vec(bytes)),
            DType::Fp64 => Data::Fp64(bytemuck::allocation::pod_collect_to_vec(bytes)),
        };
        Some(Tensor {
            dims: dims.to_vec(),
            data,
        })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        match self.data {
            Data::Fp8E4m3(_) => DType::Fp8E4m3,
            Data::Fp8E5m2(_) => DType::Fp8E5m2,
            Data::Fp16(_) => DType::Fp16,
            Data::Bf16(_) => DType::Bf16,
            Data::Fp32(_) => DType::Fp32,
            Data::Fp64(_) => DType::Fp64,
        }
    }

    /// Logical dimensions.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bit pattern at logical offset `i`, in the low bits.
    pub fn bits(&self, i: usize) -> u64 {
        match &self.data {
            Data::Fp8E4m3(v) | Data::Fp8E5m2(v) => v[i].into(),
            Data::Fp16(v) | Data::Bf16(v) => v[i].into(),
            Data::Fp32(v) => v[i].into(),
            Data::Fp64(v) => v[i],
        }
    }

    /// Overwrites the bit pattern at logical offset `i`.
    pub fn set_bits(&mut self, i: usize, bits: u64) {
        match &mut self.data {
            Data::Fp8E4m3(v) | Data::Fp8E5m2(v) => v[i] = bits as u8,
            Data::Fp16(v) | Data::Bf16(v) => v[i] = bits as u16,
            Data::Fp32(v) => v[i] = bits as u32,
            Data::Fp64(v) => v[i] = bits,
        }
    }

    /// The value at logical offset `i`, exact.
    pub fn get(&self, i: usize) -> f64 {
        self.dtype().from_bits(self.bits(i))
    }

    /// Overwrites the value at logical offset `i`, rounded to the type.
    pub fn set(&mut self, i: usize, value: f64) {
        self.set_bits(i, self.dtype().to_bits(value));
    }

    /// All values in logical order, exact.
    pub fn to_f64(&self) -> Vec<f64> {
        match &self.data {
            Data::Fp8E4m3(v) => decode(v, DType::Fp8E4m3),
            Data::Fp8E5m2(v) => decode(v, DType::Fp8E5m2),
            Data::Fp16(v) => v.reinterpret_cast::<f16>().to_f64_vec(),
            Data::Bf16(v) => v.reinterpret_cast::<bf16>().to_f64_vec(),
            Data::Fp32(v) => v.iter().map(|&b| f32::from_bits(b).into()).collect(),
            Data::Fp64(v) => v.iter().map(|&b| f64::from_bits(b)).collect(),
        }
    }

    /// The native-endian bytes in logical order.
    pub fn bytes(&self) -> &[u8] {
        match &self.data {
            Data::Fp8E4m3(v) | Data::Fp8E5m2(v) => v,
            Data::Fp16(v) | Data::Bf16(v) => cast_slice(v),
            Data::Fp32(v) => cast_slice(v),
            Data::Fp64(v) => cast_slice(v),
        }
    }
}

fn decode(bits: &[u8], dtype: DType) -> Vec<f64> {
    bits.iter().map(|&b| dtype.from_bits(b.into())).collect()
}

/// A logical offset in a tensor of dimensions `dims` as indices: `[n,k,h,w]`.
pub fn index_text(dims: &[usize], offset: usize) -> String {
    let mut rest = offset;
    let mut at: Vec<String> = dims
        .iter()
        .rev()
        .map(|&size| {
            let i = rest % size;
            rest /= size;
            i.to_string()
        })
        .collect();
    at.reverse();
    format!("[{}]", at.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_fn_rounds_to_the_type_first() {
        let tensor = Tensor::from_fn(DType::Fp16, &[1, 2], |_| 0.1);
        assert_eq!(tensor.get(1), half::f16::from_f64(0.1).to_f64());
        assert_eq!(tensor.to_f64(), [tensor.get(0), tensor.get(1)]);
    }

    #[test]
    fn bytes_round_trip_every_type() {
        for dtype in DType::ALL {
            let tensor = Tensor::from_fn(dtype, &[2, 3], |i| i as f64 - 2.5);
            let again = Tensor::from_bytes(dtype, &[2, 3], tensor.bytes()).unwrap();
            assert_eq!(again, tensor);
            assert!(Tensor::from_bytes(dtype, &[2, 2], tensor.bytes()).is_none());
        }
    }
}
