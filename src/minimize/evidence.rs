//! What came out of a trial beside what should have.

use crate::attribute::{Attribution, attribute_outcome};
use crate::bound::Bounds;
use crate::campaign::protocol::Observed;
use crate::campaign::solo::Solo;
use crate::candidate::Repro;
use crate::error::Result;
use crate::fill::Inputs;
use crate::judge::{Case, accepted};
use crate::oracle::{self, Sample};
use crate::outcome::Outcome;
use crate::shrink::data::DataPatch;
use crate::tensor::Tensor;

/// One run of a trial, element by element.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// The operands.
    pub inputs: Inputs,
    /// Exact values rounded to the result's type, in logical order.
    pub expected: Vec<f64>,
    /// How far from them a right result may be; infinite where nothing is known.
    pub bound: Vec<f64>,
    /// What came back; NaN throughout where nothing did.
    pub actual: Tensor,
    /// What was observed; `None` when the trial ended its process.
    pub observed: Option<Observed>,
}

impl Evidence {
    /// Runs the trial once more and computes what is right.
    pub fn gather(solo: &mut Solo, repro: &Repro, data: Option<&DataPatch>) -> Result<Self> {
        let inputs = match data {
            Some(patch) => patch.apply(&repro.problem, repro.fill)?,
            None => Inputs::generate(&repro.problem, repro.fill),
        };
        let observed = solo.observe(repro, data)?;
        let reference = oracle::reference(&inputs, &Sample::All);
        let bounds = observed
            .as_ref()
            .and_then(|o| Bounds::new(&inputs, &o.arithmetic));
        let case = Case {
            inputs: &inputs,
            reference: &reference,
        };
        let result_type = repro.problem.result_type();
        let (expected, bound) = match &bounds {
            Some(bounds) => accepted(case, bounds).into_iter().unzip(),
            None => reference
                .outputs
                .iter()
                .map(|o| {
                    (
                        o.value.rounded(result_type).unwrap_or(f64::NAN),
                        f64::INFINITY,
                    )
                })
                .unzip(),
        };
        let actual = match observed.as_ref().map(|o| &o.outcome) {
            Some(Outcome::Ran(seen)) => seen.result.clone(),
            _ => nothing(&inputs),
        };
        Ok(Evidence {
            actual,
            expected,
            bound,
            inputs,
            observed,
        })
    }

    /// What explains the result, if it is wrong; `None` where nothing came back.
    pub fn attribution(&self) -> Option<Attribution> {
        let observed = self.observed.as_ref()?;
        let Observed {
            arithmetic,
            outcome,
            repeats,
            ..
        } = observed;
        attribute_outcome(&self.inputs, arithmetic, outcome, *repeats)
    }
}

/// A result of NaNs.
fn nothing(inputs: &Inputs) -> Tensor {
    let problem = &inputs.problem;
    let dims = problem.dims(problem.direction.result());
    Tensor::from_fn(problem.result_type(), &dims, |_| f64::NAN)
}
