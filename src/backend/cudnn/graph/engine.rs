//! What an engine says of itself: notes and knobs.

use std::rc::Rc;

use super::super::driver::Called;
use super::calls::Calls;
use super::descriptor::{Descriptor, Draft, ROOM};
use super::names::{self, attribute as at, kind, value};
use super::operation::Target;

/// One knob of an engine: values `minimum`, `minimum + stride`, … `maximum`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Knob {
    /// cudnnBackendKnobType_t.
    pub kind: u32,
    /// Smallest value.
    pub minimum: i64,
    /// Largest value.
    pub maximum: i64,
    /// Step between values, at least 1.
    pub stride: i64,
}

impl Knob {
    /// How many values it can have.
    pub fn count(&self) -> u64 {
        let span = i128::from(self.maximum) - i128::from(self.minimum);
        u64::try_from(span / i128::from(self.stride.max(1)) + 1).unwrap_or(0)
    }

    /// Value number `index`, below [`Knob::count`].
    pub fn value(&self, index: u64) -> i64 {
        self.minimum + self.stride.max(1) * index as i64
    }

    /// Whether it can have `value`.
    pub fn holds(&self, value: i64) -> bool {
        (self.minimum..=self.maximum).contains(&value)
            && (value - self.minimum) % self.stride.max(1) == 0
    }
}

/// An engine that takes the problem, with what it declares.
#[derive(Clone)]
pub struct Engine {
    /// Global index, specific to a cuDNN version.
    pub index: i64,
    /// Numbers of cudnnBackendNumericalNote_t.
    pub numerical: Vec<i32>,
    /// Numbers of cudnnBackendBehaviorNote_t.
    pub behavior: Vec<i32>,
    /// Its knobs, by kind.
    pub knobs: Vec<Knob>,
    descriptor: Rc<Descriptor>,
}

impl Engine {
    /// Asks for the engine of index `index`; a failure is a refusal.
    pub fn new(
        calls: &Rc<Calls>,
        target: &Target,
        graph: &Rc<Descriptor>,
        index: i64,
    ) -> Called<Engine> {
        let draft = Draft::new(calls, kind::ENGINE)?
            .descriptors(at::ENGINE_OPERATION_GRAPH, &[graph])?
            .integers(at::ENGINE_GLOBAL_INDEX, &[index])?;
        let descriptor = target
            .set(draft, None, Some(at::ENGINE_DEVICEPROP))?
            .finalize()?;
        Ok(Engine {
            index,
            numerical: descriptor.constants(at::ENGINE_NUMERICAL_NOTE, value::NUMERICAL_NOTE)?,
            behavior: descriptor.constants(at::ENGINE_BEHAVIOR_NOTE, value::BEHAVIOR_NOTE)?,
            knobs: knobs(&descriptor)?,
            descriptor,
        })
    }

    /// The descriptor.
    pub fn descriptor(&self) -> &Rc<Descriptor> {
        &self.descriptor
    }

    /// Names of all notes, numerical ones first.
    pub fn notes(&self) -> Vec<String> {
        let numerical = self.numerical.iter().map(|&n| names::numerical_note(n));
        let behavior = self.behavior.iter().map(|&n| names::behavior_note(n));
        numerical.chain(behavior).map(|n| n.into_owned()).collect()
    }
}

fn knobs(engine: &Descriptor) -> Called<Vec<Knob>> {
    let mut knobs = engine
        .descriptors(at::ENGINE_KNOB_INFO, kind::KNOB_INFO, ROOM)?
        .iter()
        .map(|info| {
            Ok(Knob {
                kind: info.constant(at::KNOB_INFO_TYPE, value::KNOB_TYPE)? as u32,
                minimum: info.integer(at::KNOB_INFO_MINIMUM_VALUE)?,
                maximum: info.integer(at::KNOB_INFO_MAXIMUM_VALUE)?,
                stride: info.integer(at::KNOB_INFO_STRIDE)?.max(1),
            })
        })
        .collect::<Called<Vec<_>>>()?;
    knobs.sort_unstable_by_key(|knob| knob.kind);
    Ok(knobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knob_values_are_counted_from_the_minimum_in_steps() {
        let knob = Knob {
            kind: 2,
            minimum: 1,
            maximum: 8,
            stride: 3,
        };
        assert_eq!(knob.count(), 3);
        assert_eq!([0, 1, 2].map(|i| knob.value(i)), [1, 4, 7]);
        assert!(knob.holds(4) && !knob.holds(8) && !knob.holds(10) && !knob.holds(-2));
    }

    #[test]
    fn knob_of_one_value_has_one() {
        let knob = Knob {
            kind: 2,
            minimum: 0,
            maximum: 0,
            stride: 1,
        };
        assert_eq!((knob.count(), knob.value(0)), (1, 0));
    }
}
