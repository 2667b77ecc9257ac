//! Numbers and names of the backend API, from the C header cudnn_graph.h.
//!
//! All are `i32` and none is a Rust enum: a library newer than this list may
//! return values it does not have.

use std::borrow::Cow;

/// A cudnnBackendDescriptorType_t.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Its number.
    pub number: i32,
    /// Its name, without prefix and suffix.
    pub name: &'static str,
}

/// A cudnnBackendAttributeName_t.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// Its number.
    pub number: i32,
    /// Its name, without prefix.
    pub name: &'static str,
}

macro_rules! numbered {
    ($type:ident { $($name:ident = $number:literal),* $(,)? }) => {
        $(
            #[doc = stringify!($name)]
            pub const $name: $type = $type { number: $number, name: stringify!($name) };
        )*
    };
}

/// Kinds of descriptors.
pub mod kind {
    use super::Kind;
    numbered!(Kind {
        CONVOLUTION = 1,
        ENGINE = 2,
        ENGINECFG = 3,
        ENGINEHEUR = 4,
        EXECUTION_PLAN = 5,
        KNOB_CHOICE = 7,
        KNOB_INFO = 8,
        OPERATION_CONVOLUTION_FORWARD = 10,
        OPERATION_CONVOLUTION_BACKWARD_FILTER = 11,
        OPERATION_CONVOLUTION_BACKWARD_DATA = 12,
        OPERATIONGRAPH = 15,
        VARIANT_PACK = 16,
        TENSOR = 17,
        DEVICEPROP = 38,
    });
}

/// Attributes of descriptors.
pub mod attribute {
    use super::Attribute;
    numbered!(Attribute {
        CONVOLUTION_COMP_TYPE = 100,
        CONVOLUTION_CONV_MODE = 101,
        CONVOLUTION_DILATIONS = 102,
        CONVOLUTION_FILTER_STRIDES = 103,
        CONVOLUTION_POST_PADDINGS = 104,
        CONVOLUTION_PRE_PADDINGS = 105,
        CONVOLUTION_SPATIAL_DIMS = 106,
        ENGINEHEUR_MODE = 200,
        ENGINEHEUR_OPERATION_GRAPH = 201,
        ENGINEHEUR_RESULTS = 202,
        ENGINEHEUR_DEVICEPROP = 204,
        ENGINECFG_ENGINE = 300,
        ENGINECFG_KNOB_CHOICES = 302,
        EXECUTION_PLAN_HANDLE = 400,
        EXECUTION_PLAN_ENGINE_CONFIG = 401,
        EXECUTION_PLAN_WORKSPACE_SIZE = 402,
        EXECUTION_PLAN_JSON_REPRESENTATION = 405,
        EXECUTION_PLAN_DEVICEPROP = 407,
        KNOB_CHOICE_KNOB_TYPE = 600,
        KNOB_CHOICE_KNOB_VALUE = 601,
        OPERATION_CONVOLUTION_FORWARD_ALPHA = 700,
        OPERATION_CONVOLUTION_FORWARD_BETA = 701,
        OPERATION_CONVOLUTION_FORWARD_CONV_DESC = 702,
        OPERATION_CONVOLUTION_FORWARD_W = 703,
        OPERATION_CONVOLUTION_FORWARD_X = 704,
        OPERATION_CONVOLUTION_FORWARD_Y = 705,
        OPERATION_CONVOLUTION_BWD_DATA_ALPHA = 706,
        OPERATION_CONVOLUTION_BWD_DATA_BETA = 707,
        OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC = 708,
        OPERATION_CONVOLUTION_BWD_DATA_W = 709,
        OPERATION_CONVOLUTION_BWD_DATA_DX = 710,
        OPERATION_CONVOLUTION_BWD_DATA_DY = 711,
        OPERATION_CONVOLUTION_BWD_FILTER_ALPHA = 712,
        OPERATION_CONVOLUTION_BWD_FILTER_BETA = 713,
        OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC = 714,
        OPERATION_CONVOLUTION_BWD_FILTER_DW = 715,
        OPERATION_CONVOLUTION_BWD_FILTER_X = 716,
        OPERATION_CONVOLUTION_BWD_FILTER_DY = 717,
        OPERATIONGRAPH_HANDLE = 800,
        OPERATIONGRAPH_OPS = 801,
        OPERATIONGRAPH_ENGINE_GLOBAL_COUNT = 802,
        TENSOR_BYTE_ALIGNMENT = 900,
        TENSOR_DATA_TYPE = 901,
        TENSOR_DIMENSIONS = 902,
        TENSOR_STRIDES = 903,
        TENSOR_UNIQUE_ID = 906,
        VARIANT_PACK_UNIQUE_IDS = 1000,
        VARIANT_PACK_DATA_POINTERS = 1001,
        VARIANT_PACK_WORKSPACE = 1003,
        KNOB_INFO_TYPE = 1200,
        KNOB_INFO_MAXIMUM_VALUE = 1201,
        KNOB_INFO_MINIMUM_VALUE = 1202,
        KNOB_INFO_STRIDE = 1203,
        ENGINE_OPERATION_GRAPH = 1300,
        ENGINE_GLOBAL_INDEX = 1301,
        ENGINE_KNOB_INFO = 1302,
        ENGINE_NUMERICAL_NOTE = 1303,
        ENGINE_BEHAVIOR_NOTE = 1305,
        ENGINE_DEVICEPROP = 1307,
        DEVICEPROP_DEVICE_ID = 2700,
        DEVICEPROP_JSON_REPRESENTATION = 2702,
    });
}

/// Numbers of cudnnBackendAttributeType_t.
pub mod value {
    /// cudnnHandle_t.
    pub const HANDLE: i32 = 0;
    /// cudnnDataType_t.
    pub const DATA_TYPE: i32 = 1;
    /// int64_t.
    pub const INT64: i32 = 3;
    /// float.
    pub const FLOAT: i32 = 4;
    /// double.
    pub const DOUBLE: i32 = 5;
    /// void *.
    pub const VOID_PTR: i32 = 6;
    /// cudnnConvolutionMode_t.
    pub const CONVOLUTION_MODE: i32 = 7;
    /// cudnnBackendHeurMode_t.
    pub const HEUR_MODE: i32 = 8;
    /// cudnnBackendKnobType_t.
    pub const KNOB_TYPE: i32 = 9;
    /// cudnnBackendNumericalNote_t.
    pub const NUMERICAL_NOTE: i32 = 11;
    /// cudnnBackendDescriptor_t.
    pub const BACKEND_DESCRIPTOR: i32 = 15;
    /// cudnnBackendBehaviorNote_t.
    pub const BEHAVIOR_NOTE: i32 = 19;
    /// int32_t.
    pub const INT32: i32 = 23;
    /// char.
    pub const CHAR: i32 = 24;
}

/// CUDNN_CROSS_CORRELATION: what deep learning calls convolution.
pub const CROSS_CORRELATION: i32 = 1;

/// cudnnDataType_t of the types in use.
pub fn data_type(dtype: crate::dtype::DType) -> i32 {
    use crate::dtype::DType;
    match dtype {
        DType::Fp32 => 0,
        DType::Fp64 => 1,
        DType::Fp16 => 2,
        DType::Bf16 => 9,
        DType::Fp8E4m3 => 12,
        DType::Fp8E5m2 => 13,
    }
}

/// cudnnBackendNumericalNote_t, by number.
pub const NUMERICAL_NOTES: [&str; 10] = [
    "TENSOR_CORE",
    "DOWN_CONVERT_INPUTS",
    "REDUCED_PRECISION_REDUCTION",
    "FFT",
    "NONDETERMINISTIC",
    "WINOGRAD",
    "WINOGRAD_TILE_4x4",
    "WINOGRAD_TILE_6x6",
    "WINOGRAD_TILE_13x13",
    "STRICT_NAN_PROP",
];

/// cudnnBackendBehaviorNote_t, by number.
pub const BEHAVIOR_NOTES: [&str; 5] = [
    "RUNTIME_COMPILATION",
    "REQUIRES_FILTER_INT8x32_REORDER",
    "REQUIRES_BIAS_INT8x32_REORDER",
    "SUPPORTS_CUDA_GRAPH_NATIVE_API",
    "CUBLASLT_DEPENDENCY",
];

/// cudnnBackendKnobType_t, by number; cuDNN 9.28 has all of these.
pub const KNOBS: [&str; 46] = [
    "SPLIT_K",
    "SWIZZLE",
    "TILE_SIZE",
    "USE_TEX",
    "EDGE",
    "KBLOCK",
    "LDGA",
    "LDGB",
    "CHUNK_K",
    "SPLIT_H",
    "WINO_TILE",
    "MULTIPLY",
    "SPLIT_K_BUF",
    "TILEK",
    "STAGES",
    "REDUCTION_MODE",
    "CTA_SPLIT_K_MODE",
    "SPLIT_K_SLC",
    "IDX_MODE",
    "SLICED",
    "SPLIT_RS",
    "SINGLEBUFFER",
    "LDGC",
    "SPECFILT",
    "KERNEL_CFG",
    "WORKSPACE",
    "TILE_CGA",
    "TILE_CGA_M",
    "TILE_CGA_N",
    "BLOCK_SIZE",
    "OCCUPANCY",
    "ARRAY_SIZE_PER_THREAD",
    "NUM_C_PER_BLOCK",
    "SPLIT_COLS",
    "TILE_ROWS",
    "TILE_COLS",
    "LOAD_SIZE",
    "CTA_COUNT",
    "STREAM_K",
    "SPLIT_P_SLC",
    "TILE_M",
    "TILE_N",
    "WARP_SPEC_CFG",
    "SWAP_AB",
    "INPUT_TMA_ENABLE",
    "OUTPUT_TMA_ENABLE",
];

/// The name of a numerical note, or its number.
pub fn numerical_note(number: i32) -> Cow<'static, str> {
    named(&NUMERICAL_NOTES, number, "NUMERICAL_NOTE")
}

/// The name of a behavior note, or its number.
pub fn behavior_note(number: i32) -> Cow<'static, str> {
    named(&BEHAVIOR_NOTES, number, "BEHAVIOR_NOTE")
}

/// The name of a knob, or its number.
pub fn knob(number: i32) -> Cow<'static, str> {
    named(&KNOBS, number, "KNOB")
}

fn named(names: &[&'static str], number: i32, what: &str) -> Cow<'static, str> {
    match usize::try_from(number).ok().and_then(|n| names.get(n)) {
        Some(name) => (*name).into(),
        None => format!("{what}_{number}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_known_numbers_have_names_and_others_keep_their_number() {
        assert_eq!(numerical_note(4), "NONDETERMINISTIC");
        assert_eq!(behavior_note(0), "RUNTIME_COMPILATION");
        assert_eq!(knob(2), "TILE_SIZE");
        assert_eq!(knob(45), "OUTPUT_TMA_ENABLE");
        assert_eq!(knob(46), "KNOB_46");
        assert_eq!(numerical_note(-1), "NUMERICAL_NOTE_-1");
    }
}
