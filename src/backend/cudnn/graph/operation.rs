//! From a problem to an operation graph of one convolution.

use std::rc::Rc;

use cudarc::cudnn::sys::cudnnHandle_t;

use super::super::driver::Called;
use super::calls::Calls;
use super::descriptor::{Descriptor, Draft};
use super::names::{Attribute, CROSS_CORRELATION, Kind, attribute as at, data_type, kind, value};
use crate::problem::{Compute, ConvProblem, Direction, Role, Scale};

/// What device addresses are promised to be multiples of, bytes. Buffers are
/// aligned to more; this is what frameworks promise.
pub const ALIGNMENT: i64 = 16;

/// Where plans are made for: a GPU at hand, or one known by its properties.
#[derive(Clone)]
pub enum Target {
    /// An open handle. It must outlive all that is made for it.
    Handle(cudnnHandle_t),
    /// Properties that were captured on a GPU; nothing can be executed.
    Properties(Rc<Descriptor>),
}

impl Target {
    /// Sets the attribute that applies, if any does.
    pub fn set(
        &self,
        draft: Draft,
        handle: Option<Attribute>,
        properties: Option<Attribute>,
    ) -> Called<Draft> {
        match (self, handle, properties) {
            (Target::Handle(raw), Some(attribute), _) => draft.handle(attribute, *raw),
            (Target::Properties(made), _, Some(attribute)) => draft.descriptors(attribute, &[made]),
            _ => Ok(draft),
        }
    }
}

/// The attributes of one direction's operation.
struct Slots {
    kind: Kind,
    alpha: Attribute,
    beta: Attribute,
    convolution: Attribute,
    x: Attribute,
    w: Attribute,
    y: Attribute,
}

const FORWARD: Slots = Slots {
    kind: kind::OPERATION_CONVOLUTION_FORWARD,
    alpha: at::OPERATION_CONVOLUTION_FORWARD_ALPHA,
    beta: at::OPERATION_CONVOLUTION_FORWARD_BETA,
    convolution: at::OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
    x: at::OPERATION_CONVOLUTION_FORWARD_X,
    w: at::OPERATION_CONVOLUTION_FORWARD_W,
    y: at::OPERATION_CONVOLUTION_FORWARD_Y,
};

const BACKWARD_DATA: Slots = Slots {
    kind: kind::OPERATION_CONVOLUTION_BACKWARD_DATA,
    alpha: at::OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
    beta: at::OPERATION_CONVOLUTION_BWD_DATA_BETA,
    convolution: at::OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
    x: at::OPERATION_CONVOLUTION_BWD_DATA_DX,
    w: at::OPERATION_CONVOLUTION_BWD_DATA_W,
    y: at::OPERATION_CONVOLUTION_BWD_DATA_DY,
};

const BACKWARD_FILTER: Slots = Slots {
    kind: kind::OPERATION_CONVOLUTION_BACKWARD_FILTER,
    alpha: at::OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
    beta: at::OPERATION_CONVOLUTION_BWD_FILTER_BETA,
    convolution: at::OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
    x: at::OPERATION_CONVOLUTION_BWD_FILTER_X,
    w: at::OPERATION_CONVOLUTION_BWD_FILTER_DW,
    y: at::OPERATION_CONVOLUTION_BWD_FILTER_DY,
};

fn slots(direction: Direction) -> &'static Slots {
    match direction {
        Direction::Fwd => &FORWARD,
        Direction::BwdData => &BACKWARD_DATA,
        Direction::BwdFilter => &BACKWARD_FILTER,
    }
}

/// The unique id of a tensor in graph and variant pack.
pub fn unique_id(role: Role) -> i64 {
    match role {
        Role::X => 1,
        Role::W => 2,
        Role::Y => 3,
    }
}

/// Which strides tensors are described with; all describe the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strides {
    /// Those of a packed tensor.
    Packed,
    /// Those, but of a dimension of size 1, where a stride means nothing, one
    /// that no packed tensor has. Frameworks give such for views.
    OddWhereOne,
}

impl Strides {
    fn of(self, problem: &ConvProblem, role: Role) -> Vec<usize> {
        let dims = problem.dims(role);
        let odd = 2 * problem.elements(role) + 1;
        let mut strides = problem.layout.strides(&dims);
        if self == Strides::OddWhereOne {
            let ones = strides
                .iter_mut()
                .zip(&dims)
                .filter(|(_, size)| **size == 1);
            ones.for_each(|(stride, _)| *stride = odd);
        }
        strides
    }
}

/// Whether a tensor has a dimension of size 1.
pub fn has_ones(problem: &ConvProblem) -> bool {
    let roles = [Role::X, Role::W, Role::Y];
    roles.iter().any(|&role| problem.dims(role).contains(&1))
}

/// A finalized graph of one convolution.
pub fn graph(
    calls: &Rc<Calls>,
    target: &Target,
    problem: &ConvProblem,
    strides: Strides,
) -> Called<Rc<Descriptor>> {
    let operation = operation(calls, problem, strides)?;
    let draft = Draft::new(calls, kind::OPERATIONGRAPH)?
        .descriptors(at::OPERATIONGRAPH_OPS, &[&operation])?;
    target
        .set(draft, Some(at::OPERATIONGRAPH_HANDLE), None)?
        .finalize()
}

fn operation(calls: &Rc<Calls>, problem: &ConvProblem, strides: Strides) -> Called<Rc<Descriptor>> {
    let slots = slots(problem.direction);
    let tensor = |role| tensor(calls, problem, role, strides);
    let draft = Draft::new(calls, slots.kind)?
        .descriptors(slots.x, &[&tensor(Role::X)?])?
        .descriptors(slots.w, &[&tensor(Role::W)?])?
        .descriptors(slots.y, &[&tensor(Role::Y)?])?
        .descriptors(slots.convolution, &[&convolution(calls, problem)?])?;
    let draft = scale(draft, slots.alpha, problem, problem.alpha)?;
    scale(draft, slots.beta, problem, problem.beta)?.finalize()
}

/// alpha and beta are doubles where the computation is, floats elsewhere, as
/// with the legacy API.
fn scale(draft: Draft, attribute: Attribute, problem: &ConvProblem, scale: Scale) -> Called<Draft> {
    match problem.compute {
        Compute::Fp64 => draft.double(attribute, scale.0),
        _ => draft.float(attribute, scale.0 as f32),
    }
}

fn tensor(
    calls: &Rc<Calls>,
    problem: &ConvProblem,
    role: Role,
    strides: Strides,
) -> Called<Rc<Descriptor>> {
    let dims = problem.dims(role);
    Draft::new(calls, kind::TENSOR)?
        .constant(
            at::TENSOR_DATA_TYPE,
            value::DATA_TYPE,
            data_type(problem.dtype(role)),
        )?
        .sizes(at::TENSOR_DIMENSIONS, &dims)?
        .sizes(at::TENSOR_STRIDES, &strides.of(problem, role))?
        .integers(at::TENSOR_UNIQUE_ID, &[unique_id(role)])?
        .integers(at::TENSOR_BYTE_ALIGNMENT, &[ALIGNMENT])?
        .finalize()
}

fn convolution(calls: &Rc<Calls>, problem: &ConvProblem) -> Called<Rc<Descriptor>> {
    Draft::new(calls, kind::CONVOLUTION)?
        .sizes(at::CONVOLUTION_SPATIAL_DIMS, &[problem.rank()])?
        .constant(
            at::CONVOLUTION_COMP_TYPE,
            value::DATA_TYPE,
            data_type(problem.compute.dtype()),
        )?
        .constant(
            at::CONVOLUTION_CONV_MODE,
            value::CONVOLUTION_MODE,
            CROSS_CORRELATION,
        )?
        .sizes(at::CONVOLUTION_PRE_PADDINGS, &problem.pad_before)?
        .sizes(at::CONVOLUTION_POST_PADDINGS, &problem.pad_after)?
        .sizes(at::CONVOLUTION_FILTER_STRIDES, &problem.stride)?
        .sizes(at::CONVOLUTION_DILATIONS, &problem.dilation)?
        .finalize()
}

/// A 1D problem as a 2D one of height 1, whose tensors have the same bytes;
/// others as they are.
pub fn as_2d(problem: &ConvProblem) -> ConvProblem {
    let mut lifted = problem.clone();
    if problem.rank() == 1 {
        for (list, filler) in [
            (&mut lifted.spatial, 1),
            (&mut lifted.kernel, 1),
            (&mut lifted.stride, 1),
            (&mut lifted.pad_before, 0),
            (&mut lifted.pad_after, 0),
            (&mut lifted.dilation, 1),
        ] {
            list.insert(0, filler);
        }
    }
    lifted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_2d_keeps_sizes_and_memory() {
        let problem: ConvProblem = "bwd_data n=2 c=4 k=6 in=9 ker=3 stride=2 pad=1+2 dil=2 g=2 \
                                    layout=nhwc"
            .parse()
            .unwrap();
        let lifted = as_2d(&problem);
        lifted.validate().unwrap();
        assert_eq!(lifted.rank(), 2);
        assert_eq!(lifted.macs(), problem.macs());
        for role in [Role::X, Role::W, Role::Y] {
            let (flat, square) = (problem.dims(role), lifted.dims(role));
            let flat_strides = problem.layout.strides(&flat);
            let strides = lifted.layout.strides(&square);
            assert_eq!([strides[0], strides[1], strides[3]], flat_strides[..]);
        }
    }

    #[test]
    fn strides_odd_ones_leave_every_address_as_it_was() {
        let problem: ConvProblem = "fwd n=1 c=3 k=1 in=5x1 ker=2x1 layout=nhwc"
            .parse()
            .unwrap();
        assert!(has_ones(&problem));
        for role in [Role::X, Role::W, Role::Y] {
            let dims = problem.dims(role);
            let packed = Strides::Packed.of(&problem, role);
            let odd = Strides::OddWhereOne.of(&problem, role);
            for axis in 0..dims.len() {
                match dims[axis] {
                    1 => assert!(odd[axis] % 2 == 1 && odd[axis] > problem.elements(role)),
                    _ => assert_eq!(odd[axis], packed[axis]),
                }
            }
        }
        assert!(!has_ones(
            &"fwd n=2 c=3 k=2 in=5x5 ker=2x2".parse().unwrap()
        ));
    }

    #[test]
    fn as_2d_leaves_other_ranks_alone() {
        let problem: ConvProblem = "fwd c=4 k=4 in=5x5 ker=3x3".parse().unwrap();
        assert_eq!(as_2d(&problem), problem);
    }
}
