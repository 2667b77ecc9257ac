//! One trial on the GPU, whatever API launches it: inputs up, poison, launch,
//! result down, checks, repeats.

use std::time::{Duration, Instant};

use cudarc::driver::sys::CUdeviceptr;

use super::driver::Called;
use super::memory::{Buffer, Poison, WORKSPACE_POISON, difference};
use super::pack::{from_layout, to_layout};
use super::session::Session;
use super::status::{Failure, Meaning};
use crate::error::{Error, Result};
use crate::fill::Inputs;
use crate::outcome::{Deviation, MemoryFault, MemoryFaultKind, Observation, Outcome, Repeat};
use crate::problem::{ConvProblem, Role};
use crate::tensor::Tensor;

/// Device addresses for a launch.
#[derive(Clone, Copy, Debug)]
pub struct Pointers {
    /// x or dx.
    pub x: CUdeviceptr,
    /// w or dw.
    pub w: CUdeviceptr,
    /// y or dy.
    pub y: CUdeviceptr,
    /// Workspace; 0 when none was asked for.
    pub workspace: CUdeviceptr,
}

/// What a launch is given.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Where everything lies.
    pub pointers: Pointers,
    /// Bytes of workspace, exactly as asked for.
    pub workspace: usize,
    /// Which repeat this is; `None` for the first run.
    pub repeat: Option<Repeat>,
}

/// How a candidate is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// Workspace it asked for, bytes.
    pub workspace: usize,
    /// Time already spent in the library on planning.
    pub planning: Duration,
    /// Further runs, in this order.
    pub repeats: &'a [Repeat],
}

/// Identical runs that tell what depends on the workspace from what never gives
/// the same bits twice.
const CONTROLS: u32 = 3;

/// Workspaces up to this many bytes stay allocated for the next candidate;
/// larger ones are given back, since several processes may share a GPU.
const KEPT_WORKSPACE: usize = 256 << 20;

/// The buffers of the current case: inputs stay on the device while candidates
/// change.
#[derive(Default)]
pub struct Bench {
    case: Option<Case>,
    workspace: Option<Buffer>,
}

/// Operands and result of one case on the device.
struct Case {
    problem: ConvProblem,
    operands: [Operand; 2],
    prior: Option<(Tensor, Vec<u8>)>,
    result: Buffer,
}

/// An operand, with the bytes it must still have after a run.
struct Operand {
    tensor: Tensor,
    packed: Vec<u8>,
    buffer: Buffer,
}

/// Where the tensors of a [`Repeat::Moved`] lie, from 256-byte boundaries: the
/// operands and the result at odd multiples of the 16 bytes that plans are
/// promised ([`super::graph`]), which the legacy API's tensor cores ask for too.
const MOVED: [usize; 3] = [16, 48, 80];

/// The repeats that say something about a candidate: where it has a workspace,
/// both other contents of that; and `count` more in turn, `seed` says from which
/// on: a case has few, its many fills have all. Old contents of the result that
/// are read cannot be varied. None at all for a `count` of 0.
pub fn repeats(
    count: u32,
    seed: u64,
    workspace: usize,
    beta: f64,
    extra: &[Repeat],
) -> Vec<Repeat> {
    let filled = [Repeat::WorkspaceZero, Repeat::WorkspaceLeftover];
    let filled = filled.into_iter().filter(|_| workspace > 0 && count > 0);
    let kinds: Vec<Repeat> = (beta == 0.0)
        .then_some(Repeat::OutputPoison)
        .into_iter()
        .chain(extra.iter().copied())
        .chain([Repeat::Moved, Repeat::Same])
        .collect();
    let first = (seed % kinds.len() as u64) as usize;
    let turns = kinds.into_iter().cycle().skip(first);
    filled.chain(turns.take(count as usize)).collect()
}

impl Bench {
    /// Runs a candidate on a case. `launch` calls the library; it may be called
    /// once for every repeat.
    pub fn observe(
        &mut self,
        session: &Session,
        inputs: &Inputs,
        setup: &Setup<'_>,
        launch: &mut dyn FnMut(&Launch) -> Called,
    ) -> Result<Outcome> {
        session.enter()?;
        if let Err(failure) = self.prepare(session, inputs, setup.workspace) {
            return shortage(session, failure);
        }
        let case = self.case.as_ref().ok_or_else(unprepared)?;
        let trial = Trial {
            session,
            case,
            workspace: self.workspace.as_ref(),
            setup,
        };
        let run = trial.run(launch);
        if setup.workspace > KEPT_WORKSPACE {
            self.workspace = None;
        }
        match run {
            Ok(observation) => Ok(Outcome::Ran(Box::new(observation))),
            Err(Stop::Launch(failure)) => {
                session.survived(&failure);
                Ok(failure.into_outcome(false))
            }
            Err(Stop::Harness(error)) => Err(error),
        }
    }

    /// Puts inputs on the device unless they are there, and a workspace of
    /// exactly `bytes`.
    fn prepare(&mut self, session: &Session, inputs: &Inputs, bytes: usize) -> Called {
        if !self.case.as_ref().is_some_and(|case| case.holds(inputs)) {
            // The old case goes first: both may not fit.
            self.case = None;
            self.case = Some(Case::new(session, inputs)?);
        }
        match &mut self.workspace {
            Some(buffer) if buffer.capacity() >= bytes => buffer.set_len(bytes),
            slot => {
                *slot = None;
                *slot = Some(Buffer::new(session.driver(), "workspace", bytes)?);
                Ok(())
            }
        }
    }

    /// Frees all device memory.
    pub fn clear(&mut self) {
        *self = Bench::default();
    }
}

fn unprepared() -> Error {
    Error::internal("a trial was run before its case was prepared")
}

/// Memory that does not fit is a skip; any other failure here is the machine's.
pub(super) fn shortage(session: &Session, failure: Failure) -> Result<Outcome> {
    if failure.meaning != Meaning::OutOfMemory {
        session.survived(&failure);
        return Err(failure.into());
    }
    let free = session.context().free_memory()?;
    Ok(Outcome::OutOfMemory(format!(
        "the buffers do not fit into GPU memory ({} MiB are free)",
        free >> 20
    )))
}

impl Case {
    fn new(session: &Session, inputs: &Inputs) -> Called<Case> {
        let problem = &inputs.problem;
        let [first, second] = problem.direction.operands();
        let result = problem.direction.result();
        let bytes = problem.elements(result) * problem.dtype(result).size();
        Ok(Case {
            problem: problem.clone(),
            operands: [
                Operand::new(session, problem, first, &inputs.first)?,
                Operand::new(session, problem, second, &inputs.second)?,
            ],
            prior: inputs
                .prior
                .as_ref()
                .map(|prior| (prior.clone(), to_layout(prior, problem.layout))),
            result: Buffer::new(session.driver(), result.name(), bytes)?,
        })
    }

    fn holds(&self, inputs: &Inputs) -> bool {
        self.problem == inputs.problem
            && self.operands[0].tensor == inputs.first
            && self.operands[1].tensor == inputs.second
            && self.prior.as_ref().map(|(tensor, _)| tensor) == inputs.prior.as_ref()
    }

    /// Puts the tensors where they are `moved` to, or back.
    fn arrange(&self, moved: bool) -> Called {
        let shift = |at: usize| if moved { MOVED[at] } else { 0 };
        for (at, operand) in self.operands.iter().enumerate() {
            if operand.buffer.place(shift(at))? {
                operand.buffer.upload(&operand.packed)?;
            }
        }
        self.result.place(shift(2)).map(drop)
    }

    fn address(&self, role: Role) -> CUdeviceptr {
        let [first, second] = self.problem.direction.operands();
        if role == first {
            self.operands[0].buffer.address()
        } else if role == second {
            self.operands[1].buffer.address()
        } else {
            self.result.address()
        }
    }
}

impl Operand {
    fn new(
        session: &Session,
        problem: &ConvProblem,
        role: Role,
        tensor: &Tensor,
    ) -> Called<Operand> {
        let packed = to_layout(tensor, problem.layout);
        let buffer = Buffer::new(session.driver(), role.name(), packed.len())?;
        buffer.upload(&packed)?;
        Ok(Operand {
            tensor: tensor.clone(),
            packed,
            buffer,
        })
    }

    /// What a run did to it; mended for the next one.
    fn damage(&self) -> Called<Vec<MemoryFault>> {
        let mut faults = self.buffer.damage()?;
        let found = self.buffer.download()?;
        let kind = MemoryFaultKind::InputChanged;
        faults.extend(difference(
            &found,
            &self.packed,
            self.buffer.name(),
            kind,
            0,
        ));
        if !faults.is_empty() {
            self.buffer.guard()?;
            self.buffer.upload(&self.packed)?;
        }
        Ok(faults)
    }
}

/// Why a trial ended early.
enum Stop {
    /// The library or its kernels failed.
    Launch(Failure),
    /// We or the machine did.
    Harness(Error),
}

struct Trial<'a> {
    session: &'a Session,
    case: &'a Case,
    workspace: Option<&'a Buffer>,
    setup: &'a Setup<'a>,
}

impl Trial<'_> {
    fn run(
        &self,
        launch: &mut dyn FnMut(&Launch) -> Called,
    ) -> std::result::Result<Observation, Stop> {
        let (result, mut memory, spent) = self.once(None, launch)?;
        let (mut deviations, mut repeated) = (Vec::new(), 0);
        let mut again = |under: Repeat| {
            repeated += u32::from(under.keeps_bits());
            let (again, more, _) = self.once(Some(under), launch)?;
            let new: Vec<_> = more.into_iter().filter(|f| !memory.contains(f)).collect();
            memory.extend(new);
            let differs = again != result;
            if differs {
                deviations.push(Deviation {
                    under,
                    result: again,
                });
            }
            Ok(differs && under.keeps_bits())
        };
        let (mut differs, mut unchanged_differs) = (false, false);
        for &under in self.setup.repeats {
            let differed = again(under)?;
            differs |= differed;
            unchanged_differs |= differed && under == Repeat::Same;
        }
        // Other bits are laid to what was changed only where without a change
        // the bits are the same.
        if differs && !unchanged_differs {
            for _ in 0..CONTROLS {
                again(Repeat::Same)?;
            }
        }
        Ok(Observation {
            unwritten: self.unwritten(&result),
            result,
            memory,
            deviations,
            repeated,
            workspace: self.setup.workspace as u64,
            elapsed: self.setup.planning + spent,
        })
    }

    /// One launch with everything around it.
    fn once(
        &self,
        repeat: Option<Repeat>,
        launch: &mut dyn FnMut(&Launch) -> Called,
    ) -> std::result::Result<(Tensor, Vec<MemoryFault>, Duration), Stop> {
        let moved = repeat == Some(Repeat::Moved);
        self.case.arrange(moved).map_err(|f| self.machine(f))?;
        self.reset(repeat).map_err(|f| self.machine(f))?;
        self.wait().map_err(|f| self.machine(f))?;
        let start = Instant::now();
        launch(&self.launch(repeat)).map_err(Stop::Launch)?;
        self.wait().map_err(Stop::Launch)?;
        let spent = start.elapsed();
        let (result, memory) = self.collect().map_err(|f| self.machine(f))?;
        Ok((self.unpack(&result)?, memory, spent))
    }

    fn launch(&self, repeat: Option<Repeat>) -> Launch {
        let workspace = match (self.setup.workspace, self.workspace) {
            (1.., Some(buffer)) => buffer.address(),
            _ => 0,
        };
        Launch {
            pointers: Pointers {
                x: self.case.address(Role::X),
                w: self.case.address(Role::W),
                y: self.case.address(Role::Y),
                workspace,
            },
            workspace: self.setup.workspace,
            repeat,
        }
    }

    /// Poisons or restores what a run may write.
    fn reset(&self, repeat: Option<Repeat>) -> Called {
        let poison = match repeat {
            Some(Repeat::OutputPoison) => Poison::Finite,
            _ => Poison::Nan,
        };
        match &self.case.prior {
            Some((_, packed)) => self.case.result.upload(packed)?,
            None => self
                .case
                .result
                .poison(self.case.problem.result_type(), poison)?,
        }
        let Some(workspace) = self.workspace else {
            return Ok(());
        };
        match repeat {
            Some(Repeat::WorkspaceLeftover) => Ok(()),
            Some(Repeat::WorkspaceZero) => workspace.fill(0),
            _ => workspace.fill(WORKSPACE_POISON),
        }
    }

    /// The result's bytes, and damage done anywhere.
    fn collect(&self) -> Called<(Vec<u8>, Vec<MemoryFault>)> {
        let result = self.case.result.download()?;
        let mut faults = Vec::new();
        for operand in &self.case.operands {
            faults.extend(operand.damage()?);
        }
        for buffer in [Some(&self.case.result), self.workspace]
            .into_iter()
            .flatten()
        {
            let damage = buffer.damage()?;
            if !damage.is_empty() {
                buffer.guard()?;
            }
            faults.extend(damage);
        }
        Ok((result, faults))
    }

    fn unpack(&self, bytes: &[u8]) -> std::result::Result<Tensor, Stop> {
        let problem = &self.case.problem;
        let dims = problem.dims(problem.direction.result());
        from_layout(problem.result_type(), &dims, problem.layout, bytes)
            .ok_or_else(|| Stop::Harness(Error::internal("the result buffer has a wrong length")))
    }

    /// Elements that still hold the poison of the first run.
    fn unwritten(&self, result: &Tensor) -> Vec<usize> {
        if self.case.prior.is_some() {
            return Vec::new();
        }
        let poison = Poison::Nan.bits(result.dtype());
        (0..result.len())
            .filter(|&i| result.bits(i) == poison)
            .collect()
    }

    fn wait(&self) -> Called {
        self.session.context().synchronize()
    }

    /// A copy or fill that fails outside any launch.
    fn machine(&self, failure: Failure) -> Stop {
        self.session.survived(&failure);
        Stop::Harness(failure.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_vary_only_what_is_there() {
        use Repeat::*;
        assert_eq!(repeats(0, 0, 8, 0.0, &[]), []);
        assert_eq!(repeats(3, 0, 0, 1.0, &[]), [Moved, Same, Moved]);
        let turns = [OutputPoison, PlanFromJson, Moved, Same];
        assert_eq!(repeats(4, 0, 0, 0.0, &[PlanFromJson]), turns);
        for (seed, turn) in (12..).zip(turns) {
            assert_eq!(
                repeats(1, seed, 8, 0.0, &[PlanFromJson]),
                [WorkspaceZero, WorkspaceLeftover, turn]
            );
        }
    }
}
