//! All engines of a problem, on a GPU or for one known by its properties only.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::rc::Rc;

use super::super::driver::Called;
use super::super::legacy::algorithm::Machine;
use super::super::library::{Cudnn, Version};
use super::super::search::Surroundings;
use super::super::session::Session;
use super::super::status::{Failure, Meaning};
use super::calls::Calls;
use super::descriptor::{Descriptor, Draft};
use super::engine::Engine;
use super::heuristics::{self, Mode, Ranked};
use super::names::{attribute as at, kind};
use super::notes::Declared;
use super::operation::{self, Strides, Target, as_2d};
use super::plan::{self, Choice, Plan};
use crate::backend::{Steps, Support};
use crate::bound::Generation;
use crate::error::{Error, Result};
use crate::problem::ConvProblem;

/// The first cuDNN that plans without a GPU.
pub const DEVICELESS: Version = Version {
    major: 9,
    minor: 8,
    patch: 0,
};

/// Maxwell, the oldest GPU that any cuDNN 9 runs on, as cuDNN numbers them.
const OLDEST_GPU: u32 = 500;

/// Asks the library about engines, for one GPU.
pub struct Planner {
    calls: Rc<Calls>,
    target: Target,
    generation: Generation,
}

/// A GPU as a device-property JSON describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProperties {
    json: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// The GPU's name; empty where the file has none.
    pub name: String,
}

/// The engines of one problem, and the plans built so far.
pub struct Prepared {
    /// The problem.
    pub problem: ConvProblem,
    /// What the library was asked: the problem, or a 1D one as 2D.
    asked: ConvProblem,
    graph: Rc<Descriptor>,
    /// Each is asked for when it is needed: a library that does not come back
    /// from one is no obstacle to the others.
    engines: Vec<OnceCell<Called<Engine>>>,
    plans: HashMap<(i64, Choice), Called<Rc<Plan>>>,
    /// Of those modes that were asked.
    ranked: BTreeMap<Mode, Vec<Ranked>>,
}

impl Planner {
    /// A planner for the GPU of `session`, which must outlive it.
    pub(in crate::backend::cudnn) fn on(session: &Session) -> Result<Planner> {
        Ok(Planner {
            calls: Calls::look_up(session.cudnn())?,
            target: Target::Handle(session.handle()),
            generation: generation(session.gpu().capability),
        })
    }

    /// A planner without a GPU, for the one that `properties` describes: JSON
    /// that cuDNN gave on that GPU ([`Planner::properties`]).
    ///
    /// # Errors
    /// Usage, when the library does not take the properties or does not know
    /// their GPU; environment, when there is no library of version 9.8 or later.
    pub fn offline(library: Option<&Path>, properties: &DeviceProperties) -> Result<Planner> {
        let around = Surroundings::read(library);
        let cudnn = Rc::new(Cudnn::load(&around, &mut Vec::new())?);
        check_deviceless(cudnn.version)?;
        let capability = properties.capability;
        check_known(&cudnn, capability)?;
        let calls = Calls::look_up(&cudnn)?;
        let made = Draft::new(&calls, kind::DEVICEPROP)
            .and_then(|draft| draft.text(at::DEVICEPROP_JSON_REPRESENTATION, &properties.json))
            .and_then(Draft::finalize)
            .map_err(|failure| unusable(&failure, cudnn.version))?;
        Ok(Planner {
            calls,
            target: Target::Properties(made),
            generation: generation(capability),
        })
    }

    /// The properties of GPU `device` as JSON, for [`Planner::offline`].
    pub fn properties(&self, device: i32) -> Result<String> {
        check_deviceless(self.version())?;
        let captured = Draft::new(&self.calls, kind::DEVICEPROP)?
            .int32(at::DEVICEPROP_DEVICE_ID, device)?
            .finalize()?;
        Ok(captured.text(at::DEVICEPROP_JSON_REPRESENTATION)?)
    }

    /// The library's version.
    pub fn version(&self) -> Version {
        self.calls.cudnn.version
    }

    /// The functions.
    pub(in crate::backend::cudnn) fn calls(&self) -> &Rc<Calls> {
        &self.calls
    }

    /// Asks for every engine of `problem`. A 1D problem is asked about as a 2D
    /// one when no engine takes it as it is.
    pub(in crate::backend::cudnn) fn prepare(&self, problem: &ConvProblem) -> Called<Prepared> {
        if let Some(words) = refusal(problem) {
            return Err(refused("operation", words));
        }
        let as_given = self.ask(problem, problem);
        let taken = |prepared: &Prepared| self.engines(prepared).next().is_some();
        match as_given {
            Ok(prepared) if problem.rank() != 1 || taken(&prepared) => Ok(prepared),
            Err(failure) if problem.rank() != 1 => Err(failure),
            _ => self.ask(problem, &as_2d(problem)),
        }
    }

    fn ask(&self, problem: &ConvProblem, asked: &ConvProblem) -> Called<Prepared> {
        let graph = operation::graph(&self.calls, &self.target, asked, Strides::Packed)?;
        let count = graph.integer(at::OPERATIONGRAPH_ENGINE_GLOBAL_COUNT)?;
        Ok(Prepared {
            problem: problem.clone(),
            asked: asked.clone(),
            engines: (0..count).map(|_| OnceCell::new()).collect(),
            graph,
            plans: HashMap::new(),
            ranked: BTreeMap::new(),
        })
    }

    /// The engine of an index, or why it is refused.
    pub(in crate::backend::cudnn) fn engine<'a>(
        &self,
        prepared: &'a Prepared,
        index: i64,
    ) -> Called<&'a Engine> {
        let cell = usize::try_from(index).ok();
        let cell = cell
            .and_then(|at| prepared.engines.get(at))
            .ok_or_else(|| refused("engine", format!("there is none of index {index}")))?;
        cell.get_or_init(|| Engine::new(&self.calls, &self.target, &prepared.graph, index))
            .as_ref()
            .map_err(Clone::clone)
    }

    /// The engines that take the problem.
    pub(in crate::backend::cudnn) fn engines<'a>(
        &self,
        prepared: &'a Prepared,
    ) -> impl Iterator<Item = &'a Engine> {
        (0..prepared.count() as i64).filter_map(|index| self.engine(prepared, index).ok())
    }

    /// The plan of a choice, built once.
    pub(in crate::backend::cudnn) fn plan(
        &self,
        prepared: &mut Prepared,
        engine: i64,
        choice: &[(u32, i64)],
    ) -> Called<Rc<Plan>> {
        let key = (engine, choice.to_vec());
        if let Some(plan) = prepared.plans.get(&key) {
            return plan.clone();
        }
        let plan = self
            .engine(prepared, engine)
            .and_then(|engine| {
                check_choice(engine, choice)?;
                plan::build(&self.calls, &self.target, engine, choice)
            })
            .map(Rc::new);
        prepared.plans.insert(key, plan.clone());
        plan
    }

    /// Rebuilds a plan from its own JSON; `None` when it cannot be written or
    /// read as such, which engines may decline.
    pub(in crate::backend::cudnn) fn reread(&self, plan: &Plan) -> Option<Plan> {
        let json = plan.json().ok()?;
        plan::from_json(&self.calls, &self.target, &json).ok()
    }

    /// The plan of a choice for the same tensors with other strides of their
    /// dimensions of size 1; `None` where there is no such dimension, or the
    /// library takes no such strides.
    pub(in crate::backend::cudnn) fn restrided(
        &self,
        prepared: &Prepared,
        engine: i64,
        choice: &[(u32, i64)],
    ) -> Option<Plan> {
        if !operation::has_ones(&prepared.asked) {
            return None;
        }
        let strides = Strides::OddWhereOne;
        let graph = operation::graph(&self.calls, &self.target, &prepared.asked, strides).ok()?;
        let engine = Engine::new(&self.calls, &self.target, &graph, engine).ok()?;
        plan::build(&self.calls, &self.target, &engine, choice).ok()
    }

    /// The heuristics' lists, each asked for once; a mode that fails, or must not
    /// be asked, has none.
    pub(in crate::backend::cudnn) fn heuristics(
        &self,
        prepared: &mut Prepared,
        steps: &mut Steps<'_>,
    ) -> Vec<Ranked> {
        for mode in Mode::ALL {
            let new = !prepared.ranked.contains_key(&mode);
            if new && steps.may(&format!("heur_{}", mode.name())) {
                let list = heuristics::ask(&self.calls, &self.target, &prepared.graph, mode);
                prepared.ranked.insert(mode, list.unwrap_or_default());
            }
        }
        prepared.ranked.values().flatten().cloned().collect()
    }

    /// Whether the library takes a choice of an engine, and what it declares;
    /// builds the plan.
    pub(in crate::backend::cudnn) fn support(
        &self,
        prepared: &mut Prepared,
        (engine, choice): (i64, &[(u32, i64)]),
    ) -> Support {
        let workspace = match self.plan(prepared, engine, choice) {
            Ok(plan) => plan.workspace as u64,
            Err(failure) if declines(&failure) => return Support::Refused(failure.to_string()),
            // Not a refusal: offered, so that running it records the failure.
            Err(_) => 0,
        };
        let ranks = self.ranks(prepared, engine, choice);
        match self.engine(prepared, engine) {
            Ok(engine) => self.declared(&prepared.problem, engine, workspace, ranks),
            Err(failure) => Support::Refused(failure.to_string()),
        }
    }

    /// The same, the heuristics asked before if the library takes the choice.
    pub(in crate::backend::cudnn) fn ranked_support(
        &self,
        prepared: &mut Prepared,
        choice: (i64, &[(u32, i64)]),
        steps: &mut Steps<'_>,
    ) -> Support {
        match self.support(prepared, choice) {
            Support::Offered { .. } => {
                self.heuristics(prepared, steps);
                self.support(prepared, choice)
            }
            refused => refused,
        }
    }

    fn declared(
        &self,
        problem: &ConvProblem,
        engine: &Engine,
        workspace: u64,
        ranks: Vec<String>,
    ) -> Support {
        let declared = Declared {
            notes: &engine.numerical,
            generation: self.generation,
        };
        Support::Offered {
            arithmetic: declared.arithmetic(problem),
            workspace,
            nondeterministic: declared.nondeterministic(),
            notes: engine.notes().into_iter().chain(ranks).collect(),
        }
    }

    /// Where the heuristics have a choice, such as `heur_a:3`. An engine's own
    /// knobs are in no list but the fallback's.
    fn ranks(&self, prepared: &Prepared, engine: i64, choice: &[(u32, i64)]) -> Vec<String> {
        let lists = prepared.ranked.values().flatten();
        lists
            .filter(|ranked| ranked.engine == engine && ranked.choice == choice)
            .map(|ranked| format!("heur_{}:{}", ranked.mode.name(), ranked.rank))
            .collect()
    }

    /// A choice that an engine cannot have is the mistake of whoever wrote it.
    pub(in crate::backend::cudnn) fn check_knobs(
        &self,
        prepared: &Prepared,
        engine: i64,
        choice: &[(u32, i64)],
    ) -> Result<()> {
        let Ok(known) = self.engine(prepared, engine) else {
            return Ok(());
        };
        check_choice(known, choice).map_err(|failure| {
            Error::usage(format!(
                "{}. 'convfuzz list' shows the engines; knobs are specific to a version of cuDNN",
                failure.message
            ))
        })
    }
}

impl Prepared {
    /// How many engines there are, refused ones included.
    pub fn count(&self) -> usize {
        self.engines.len()
    }
}

/// Whether a failure while asking is a refusal.
pub fn declines(failure: &Failure) -> bool {
    matches!(failure.meaning, Meaning::NotSupported | Meaning::BadParam)
}

fn refused(call: &'static str, words: String) -> Failure {
    Failure {
        call,
        status: "NOT_SUPPORTED".to_owned(),
        meaning: Meaning::NotSupported,
        message: words,
    }
}

/// Why a problem cannot be put to this API at all.
fn refusal(problem: &ConvProblem) -> Option<String> {
    [("alpha", problem.alpha), ("beta", problem.beta)]
        .into_iter()
        .filter(|_| problem.compute != crate::problem::Compute::Fp64)
        .find(|(_, scale)| f64::from(scale.0 as f32) != scale.0)
        .map(|(name, scale)| {
            format!(
                "{name}={} is not a single-precision number, which is what the library takes",
                scale.0
            )
        })
}

/// Checks a choice against what the engine says of its knobs. The heuristics'
/// −1 leaves a knob to the engine.
fn check_choice(engine: &Engine, choice: &[(u32, i64)]) -> Called {
    for &(kind, value) in choice {
        let name = super::names::knob(kind as i32);
        let Some(knob) = engine.knobs.iter().find(|knob| knob.kind == kind) else {
            let words = format!("engine {} has no knob {kind} ({name})", engine.index);
            return Err(refused("knobs", words));
        };
        if value != -1 && !knob.holds(value) {
            let words = format!(
                "knob {kind} ({name}) of engine {} goes from {} to {} in steps of {}, not {value}",
                engine.index, knob.minimum, knob.maximum, knob.stride
            );
            return Err(refused("knobs", words));
        }
    }
    Ok(())
}

fn check_deviceless(version: Version) -> Result<()> {
    if version >= DEVICELESS {
        return Ok(());
    }
    Err(Error::environment(format!(
        "cuDNN {version} cannot plan without a GPU: {}.{} or later can",
        DEVICELESS.major, DEVICELESS.minor
    )))
}

impl DeviceProperties {
    /// Reads what cuDNN wrote on a GPU.
    ///
    /// # Errors
    /// Usage, when it is not that.
    pub fn parse(json: &str) -> Result<DeviceProperties> {
        let parsed: serde_json::Value = serde_json::from_str(json).map_err(|e| {
            Error::usage("the device properties are not JSON as cuDNN writes it").with_source(e)
        })?;
        // 900 is 9.0.
        let number = parsed
            .get("deviceVer")
            .and_then(serde_json::Value::as_u64)
            .and_then(|number| u32::try_from(number).ok())
            .ok_or_else(|| {
                Error::usage("the device properties lack 'deviceVer': they are not cuDNN's")
            })?;
        let name = parsed.get("deviceName").and_then(serde_json::Value::as_str);
        Ok(DeviceProperties {
            json: json.to_owned(),
            capability: (number / 100, number % 100 / 10),
            name: name.unwrap_or_default().to_owned(),
        })
    }
}

/// A failure to take device properties: theirs, or the machine's.
fn unusable(failure: &Failure, version: Version) -> Error {
    if declines(failure) {
        return Error::usage(format!(
            "cuDNN {version} does not take these device properties: they are not what cuDNN wrote \
             on a GPU, or another version of it did ({failure})"
        ));
    }
    Error::environment(format!(
        "cuDNN {version} cannot plan without a GPU here: {failure}. From 9.27 on it wants the \
         driver's libcuda.so.1 even so"
    ))
}

/// The library plans for any number, so GPUs beyond the last it knows of must
/// be refused here.
fn check_known(cudnn: &Cudnn, capability: (u32, u32)) -> Result<()> {
    // SAFETY: size_t (void), since 9.0.
    let newest = unsafe {
        cudnn
            .library
            .optional::<unsafe extern "C" fn() -> usize>("cudnnGetMaxDeviceVersion")
    };
    let Some(newest) = newest else {
        return Ok(());
    };
    // SAFETY: takes nothing.
    let newest = unsafe { newest() } as u32;
    if (OLDEST_GPU..=newest).contains(&(capability.0 * 100 + capability.1 * 10)) {
        return Ok(());
    }
    Err(Error::usage(format!(
        "cuDNN {} does not know compute capability {}.{}: the newest it knows is {}.{}",
        cudnn.version,
        capability.0,
        capability.1,
        newest / 100,
        newest % 100 / 10
    )))
}

/// The tensor cores of a compute capability; where there are none, no engine
/// declares any.
fn generation(capability: (u32, u32)) -> Generation {
    let machine = Machine {
        capability,
        tf32_forbidden: false,
    };
    machine.generation().unwrap_or(Generation::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn refusal_scales_must_be_single_precision() {
        let refused = |text: &str| refusal(&text.parse().unwrap());
        assert_eq!(refused("fwd c=4 k=4 in=8 ker=3 alpha=0.5 beta=-2"), None);
        let words = refused("fwd c=4 k=4 in=8 ker=3 alpha=0.1").unwrap();
        assert!(words.starts_with("alpha=0.1 is not"), "{words}");
        assert_eq!(refused("fwd c=4 k=4 in=8 ker=3 alpha=0.1 type=fp64"), None);
    }

    #[test]
    fn capability_is_read_or_the_file_is_refused() {
        let capability = |text: &str| DeviceProperties::parse(text).map(|p| p.capability);
        assert_eq!(capability("{\"deviceVer\":900}").unwrap(), (9, 0));
        assert_eq!(capability("{\"deviceVer\":1210}").unwrap(), (12, 1));
        for text in ["", "{}", "{\"deviceVer\":\"x\"}"] {
            assert_eq!(
                capability(text).unwrap_err().kind(),
                ErrorKind::Usage,
                "{text}"
            );
        }
    }

    #[test]
    fn check_deviceless_old_version_says_which_can() {
        let error = check_deviceless(Version::from_number(90700)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cuDNN 9.7.0 cannot plan without a GPU: 9.8 or later can"
        );
    }
}
