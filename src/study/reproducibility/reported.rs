//! The losses of the report: two runs, four steps.

/// One loss of both runs, step by step.
pub struct Losses {
    /// Its name in the report.
    pub name: &'static str,
    /// First and second run.
    pub values: [(f64, f64); STEPS],
}

/// Steps reported.
pub const STEPS: usize = 4;

/// All four, the total last.
pub const LOSSES: [Losses; 4] = [
    Losses {
        name: "da_loss",
        values: [
            (579.81177, 579.81177),
            (534.40143, 534.39661),
            (551.62842, 551.63147),
            (609.66608, 609.66547),
        ],
    },
    Losses {
        name: "id_loss",
        values: [
            (35.67139, 35.67139),
            (35.92854, 35.92825),
            (35.78385, 35.78336),
            (35.81017, 35.81051),
        ],
    },
    Losses {
        name: "age_loss",
        values: [
            (614.51257, 614.51257),
            (568.46362, 568.47205),
            (579.52393, 579.51654),
            (646.82190, 646.82452),
        ],
    },
    Losses {
        name: "loss",
        values: [
            (37.44553, 37.44553),
            (37.56580, 37.56551),
            (37.46664, 37.46613),
            (37.67632, 37.67667),
        ],
    },
];

/// |a − b| as a share of a.
pub fn relative(a: f64, b: f64) -> f64 {
    if a == b { 0.0 } else { (a - b).abs() / a.abs() }
}

/// How far the total losses of a step, from 0, are apart.
pub fn total(step: usize) -> Option<f64> {
    let (a, b) = LOSSES[LOSSES.len() - 1].values.get(step)?;
    Some(relative(*a, *b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_differs_from_the_second_step_on() {
        assert_eq!((total(0), total(STEPS)), (Some(0.0), None));
        for step in 1..STEPS {
            let apart = total(step).unwrap();
            assert!((5e-6..2e-5).contains(&apart), "{apart}");
        }
    }
}
