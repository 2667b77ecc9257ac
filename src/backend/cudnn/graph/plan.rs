//! Execution plans: built from an engine and knob choices or from JSON, and
//! executed.

use std::rc::Rc;

use super::super::driver::Called;
use super::super::observe::Launch;
use super::super::session::Session;
use super::calls::Calls;
use super::descriptor::{Descriptor, Draft};
use super::engine::Engine;
use super::names::{attribute as at, kind, value};
use super::operation::{Target, unique_id};
use crate::problem::Role;

/// Knob choices as (knob, value), by knob; those left out are the engine's own.
pub type Choice = Vec<(u32, i64)>;

/// A plan that the library built.
pub struct Plan {
    descriptor: Rc<Descriptor>,
    /// Bytes of workspace it asks for.
    pub workspace: usize,
}

/// Builds the plan of an engine with knob choices; a failure of finalizing is
/// a refusal.
pub fn build(
    calls: &Rc<Calls>,
    target: &Target,
    engine: &Engine,
    choice: &[(u32, i64)],
) -> Called<Plan> {
    let configuration = configuration(calls, engine, choice)?;
    let draft = Draft::new(calls, kind::EXECUTION_PLAN)?
        .descriptors(at::EXECUTION_PLAN_ENGINE_CONFIG, &[&configuration])?;
    finalize(target, draft)
}

/// Whether the library accepts the choice, without building a plan: cheap.
pub fn configuration(
    calls: &Rc<Calls>,
    engine: &Engine,
    choice: &[(u32, i64)],
) -> Called<Rc<Descriptor>> {
    let draft = Draft::new(calls, kind::ENGINECFG)?
        .descriptors(at::ENGINECFG_ENGINE, &[engine.descriptor()])?;
    if choice.is_empty() {
        return draft.finalize();
    }
    let choices = choice
        .iter()
        .map(|&(knob, number)| {
            Draft::new(calls, kind::KNOB_CHOICE)?
                .constant(at::KNOB_CHOICE_KNOB_TYPE, value::KNOB_TYPE, knob as i32)?
                .integers(at::KNOB_CHOICE_KNOB_VALUE, &[number])?
                .finalize()
        })
        .collect::<Called<Vec<_>>>()?;
    let parts: Vec<&Rc<Descriptor>> = choices.iter().collect();
    draft
        .descriptors(at::ENGINECFG_KNOB_CHOICES, &parts)?
        .finalize()
}

fn finalize(target: &Target, draft: Draft) -> Called<Plan> {
    let descriptor = target
        .set(
            draft,
            Some(at::EXECUTION_PLAN_HANDLE),
            Some(at::EXECUTION_PLAN_DEVICEPROP),
        )?
        .finalize()?;
    let workspace = descriptor.integer(at::EXECUTION_PLAN_WORKSPACE_SIZE)?;
    Ok(Plan {
        workspace: usize::try_from(workspace).unwrap_or(0),
        descriptor,
    })
}

/// Rebuilds a plan from what [`Plan::json`] gave.
pub fn from_json(calls: &Rc<Calls>, target: &Target, json: &str) -> Called<Plan> {
    let draft = Draft::new(calls, kind::EXECUTION_PLAN)?
        .text(at::EXECUTION_PLAN_JSON_REPRESENTATION, json)?;
    finalize(target, draft)
}

impl Plan {
    /// The plan as JSON; engines may decline.
    pub fn json(&self) -> Called<String> {
        self.descriptor.text(at::EXECUTION_PLAN_JSON_REPRESENTATION)
    }

    /// Launches the plan, made for the handle of `session`.
    pub fn execute(&self, calls: &Rc<Calls>, session: &Session, launch: &Launch) -> Called {
        let pack = pack(calls, launch)?;
        // SAFETY: handle, plan and pack are alive; the addresses are of device
        // buffers as large as the graph's tensors and the plan's workspace.
        let status =
            unsafe { (calls.execute)(session.handle().cast(), self.descriptor.raw(), pack.raw()) };
        calls.check("cudnnBackendExecute", status, "EXECUTION_PLAN")
    }
}

fn pack(calls: &Rc<Calls>, launch: &Launch) -> Called<Rc<Descriptor>> {
    let pointers = &launch.pointers;
    Draft::new(calls, kind::VARIANT_PACK)?
        .integers(
            at::VARIANT_PACK_UNIQUE_IDS,
            &[Role::X, Role::W, Role::Y].map(unique_id),
        )?
        .addresses(
            at::VARIANT_PACK_DATA_POINTERS,
            &[pointers.x, pointers.w, pointers.y],
        )?
        .addresses(at::VARIANT_PACK_WORKSPACE, &[pointers.workspace])?
        .finalize()
}
