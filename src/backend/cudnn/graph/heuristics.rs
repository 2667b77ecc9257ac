//! What the library itself would choose, in its order.

use std::rc::Rc;

use super::super::driver::Called;
use super::calls::Calls;
use super::descriptor::{Descriptor, Draft, ROOM};
use super::names::{attribute as at, kind, value};
use super::operation::Target;
use super::plan::Choice;

/// A heuristic mode of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// HEUR_MODE_A: what frameworks ask first.
    A,
    /// HEUR_MODE_B: slower, said to be more exact.
    B,
    /// HEUR_MODE_FALLBACK: what should always work.
    Fallback,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 3] = [Mode::A, Mode::B, Mode::Fallback];

    /// The name in records.
    pub fn name(self) -> &'static str {
        match self {
            Mode::A => "a",
            Mode::B => "b",
            Mode::Fallback => "fallback",
        }
    }

    fn number(self) -> i32 {
        match self {
            Mode::A => 3,
            Mode::B => 1,
            Mode::Fallback => 2,
        }
    }
}

/// An engine with knob choices, at a place in a heuristic's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// Whose list.
    pub mode: Mode,
    /// Place in it, from 0.
    pub rank: usize,
    /// Engine.
    pub engine: i64,
    /// Its knobs, as the heuristic sets them.
    pub choice: Choice,
}

/// Longest list that is read; lists of cuDNN 9 have about 40 entries.
const LONGEST: usize = 256;

/// The list of one mode, best first.
pub fn ask(
    calls: &Rc<Calls>,
    target: &Target,
    graph: &Rc<Descriptor>,
    mode: Mode,
) -> Called<Vec<Ranked>> {
    let draft = Draft::new(calls, kind::ENGINEHEUR)?
        .descriptors(at::ENGINEHEUR_OPERATION_GRAPH, &[graph])?
        .constant(at::ENGINEHEUR_MODE, value::HEUR_MODE, mode.number())?;
    let heuristic = target
        .set(draft, None, Some(at::ENGINEHEUR_DEVICEPROP))?
        .finalize()?;
    let configurations = heuristic.descriptors(at::ENGINEHEUR_RESULTS, kind::ENGINECFG, LONGEST)?;
    configurations
        .iter()
        .enumerate()
        .map(|(rank, configuration)| read(configuration, mode, rank))
        .collect()
}

fn read(configuration: &Descriptor, mode: Mode, rank: usize) -> Called<Ranked> {
    let mut engine = -1;
    for copy in configuration.descriptors(at::ENGINECFG_ENGINE, kind::ENGINE, 1)? {
        engine = copy.integer(at::ENGINE_GLOBAL_INDEX)?;
    }
    let mut choice = configuration
        .descriptors(at::ENGINECFG_KNOB_CHOICES, kind::KNOB_CHOICE, ROOM)?
        .iter()
        .map(|choice| {
            let knob = choice.constant(at::KNOB_CHOICE_KNOB_TYPE, value::KNOB_TYPE)?;
            Ok((knob as u32, choice.integer(at::KNOB_CHOICE_KNOB_VALUE)?))
        })
        .collect::<Called<Choice>>()?;
    choice.sort_unstable();
    Ok(Ranked {
        mode,
        rank,
        engine,
        choice,
    })
}
