//! From a tensor in logical order to the bytes of a memory layout, and back.

use crate::dtype::DType;
use crate::problem::Layout;
use crate::tensor::Tensor;

/// The bytes of `tensor` in `layout`.
pub fn to_layout(tensor: &Tensor, layout: Layout) -> Vec<u8> {
    match layout {
        Layout::Nchw => tensor.bytes().to_vec(),
        Layout::Nhwc => {
            let [outer, channels, inner] = planes(tensor.dims());
            let size = tensor.dtype().size();
            transpose(tensor.bytes(), outer, channels, inner, size)
        }
    }
}

/// The tensor whose bytes in `layout` are `bytes`; `None` when the length does
/// not fit.
pub fn from_layout(dtype: DType, dims: &[usize], layout: Layout, bytes: &[u8]) -> Option<Tensor> {
    let [outer, channels, inner] = planes(dims);
    if bytes.len() != outer * channels * inner * dtype.size() {
        return None;
    }
    match layout {
        Layout::Nchw => Tensor::from_bytes(dtype, dims, bytes),
        Layout::Nhwc => {
            let logical = transpose(bytes, outer, inner, channels, dtype.size());
            Tensor::from_bytes(dtype, dims, &logical)
        }
    }
}

/// Batch, channels and spatial elements of (n, c, spatial…).
fn planes(dims: &[usize]) -> [usize; 3] {
    [dims[0], dims[1], dims[2..].iter().product()]
}

/// Swaps rows and columns of `outer` matrices of `rows` × `columns` elements.
fn transpose(bytes: &[u8], outer: usize, rows: usize, columns: usize, size: usize) -> Vec<u8> {
    match size {
        1 => transpose_of::<1>(bytes, outer, rows, columns),
        2 => transpose_of::<2>(bytes, outer, rows, columns),
        4 => transpose_of::<4>(bytes, outer, rows, columns),
        _ => transpose_of::<8>(bytes, outer, rows, columns),
    }
}

fn transpose_of<const SIZE: usize>(
    bytes: &[u8],
    outer: usize,
    rows: usize,
    columns: usize,
) -> Vec<u8> {
    let (source, _) = bytes.as_chunks::<SIZE>();
    let mut target = Vec::with_capacity(bytes.len());
    for matrix in source.chunks(rows * columns).take(outer) {
        for column in 0..columns {
            for row in 0..rows {
                target.extend_from_slice(&matrix[row * columns + column]);
            }
        }
    }
    target
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn case() -> impl Strategy<Value = (DType, Vec<usize>, Layout)> {
        (
            proptest::sample::select(&DType::ALL[..]),
            proptest::collection::vec(1usize..6, 3..=5),
            proptest::sample::select(vec![Layout::Nchw, Layout::Nhwc]),
        )
    }

    proptest! {
        #[test]
        fn layout_round_trips((dtype, dims, layout) in case()) {
            let tensor = Tensor::from_fn(dtype, &dims, |i| i as f64);
            let bytes = to_layout(&tensor, layout);
            let again = from_layout(dtype, &dims, layout, &bytes);
            prop_assert_eq!(again, Some(tensor));
        }

        #[test]
        fn to_layout_puts_each_element_where_the_strides_say((dtype, dims, layout) in case()) {
            let tensor = Tensor::from_fn(dtype, &dims, |i| (i % 61) as f64);
            let flat = Tensor::from_bytes(dtype, &[1, tensor.len()], &to_layout(&tensor, layout));
            let flat = flat.unwrap();
            let strides = layout.strides(&dims);
            for i in 0..tensor.len() {
                let mut rest = i;
                let mut offset = 0;
                for axis in (0..dims.len()).rev() {
                    offset += rest % dims[axis] * strides[axis];
                    rest /= dims[axis];
                }
                prop_assert_eq!(flat.bits(offset), tensor.bits(i));
            }
        }
    }

    #[test]
    fn from_layout_wrong_length_is_refused() {
        assert!(from_layout(DType::Fp32, &[1, 2, 3], Layout::Nhwc, &[0; 20]).is_none());
    }
}
