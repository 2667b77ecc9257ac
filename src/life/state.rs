//! The life of a finding as a pure function of what its nights showed.
//!
//! Nights are ordered by number, never by date: a clock may be set back.

use std::collections::BTreeMap;

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use super::SCHEMA;

/// What one night showed of a finding: a row of its `nights.csv`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sighting {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Number of the night, from 1.
    pub night: u32,
    /// Its date, as the clock had it.
    pub date: Date,
    /// GPU, driver, cuDNN and CUDA in words.
    pub combination: String,
    /// Replays of the finding's line that failed in its way.
    pub failed: u64,
    /// Replays of the finding's line that passed.
    pub passed: u64,
    /// Generated and corpus trials with its signature.
    pub found: u64,
}

impl Default for Sighting {
    fn default() -> Self {
        Sighting {
            schema: SCHEMA,
            night: 0,
            date: Date::default(),
            combination: String::new(),
            failed: 0,
            passed: 0,
            found: 0,
        }
    }
}

impl Sighting {
    /// Whether the finding was seen this night.
    pub fn fails(&self) -> bool {
        self.failed + self.found > 0
    }

    /// Whether it was looked for, and only right results came.
    pub fn passes(&self) -> bool {
        !self.fails() && self.passed > 0
    }
}

/// Where a finding stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Seen for the first time.
    New,
    /// Seen again after it had been fixed.
    Regressed,
    /// Seen on several nights.
    Known,
    /// Seen on several nights, in some runs of one and the same trial only.
    Flaky,
    /// Looked for and no longer there.
    Fixed,
}

impl State {
    /// All of them, the most urgent first.
    pub const ALL: [State; 5] = [
        State::New,
        State::Regressed,
        State::Known,
        State::Flaky,
        State::Fixed,
    ];

    /// The word in files.
    pub fn name(self) -> &'static str {
        match self {
            State::New => "new",
            State::Regressed => "regressed",
            State::Known => "known",
            State::Flaky => "flaky",
            State::Fixed => "fixed",
        }
    }
}

/// A flaky finding is fixed once the chance to see only passes, had nothing
/// changed, is at most this. Chosen, not derived.
const CHANCE: f64 = 0.01;

/// A finding's life so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Life {
    /// Where it stands.
    pub state: State,
    /// First night it was seen.
    pub first: u32,
    /// Latest night it was seen.
    pub last: u32,
    /// Latest night that said anything about it.
    pub checked: u32,
    /// Night it was fixed, while it is.
    fixed: Option<u32>,
    runs: Runs,
}

/// Runs of the finding's trial since it was last new or regressed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Runs {
    failed: u64,
    /// Up to the latest failure.
    passed: u64,
    /// After it.
    passes: u64,
}

/// The life that sightings, by night, come to; `None` while it was never seen.
pub fn life(nights: &BTreeMap<u32, Sighting>) -> Option<Life> {
    nights.values().fold(None, |life, sighting| match life {
        Some(life) => Some(life.step(sighting)),
        None => sighting.fails().then(|| Life::begin(sighting)),
    })
}

impl Life {
    /// Failures among the runs of its trial since it was last new or regressed;
    /// below 1 it is flaky.
    pub fn rate(&self) -> f64 {
        self.runs.failed as f64 / (self.runs.failed + self.runs.passed).max(1) as f64
    }

    /// Whether it is not fixed.
    pub fn open(&self) -> bool {
        self.state != State::Fixed
    }

    /// Whether it is news of that night: new or regressed in it.
    pub fn news(&self, night: u32) -> bool {
        matches!(self.state, State::New | State::Regressed) && self.last == night
    }

    /// Whether it was fixed in that night.
    pub fn fixed_in(&self, night: u32) -> bool {
        self.fixed == Some(night)
    }

    fn begin(sighting: &Sighting) -> Self {
        Life {
            state: State::New,
            first: sighting.night,
            last: sighting.night,
            checked: sighting.night,
            fixed: None,
            runs: Runs::default().failing(sighting),
        }
    }

    fn step(self, sighting: &Sighting) -> Self {
        let night = sighting.night;
        if sighting.fails() {
            let life = self.fail(sighting);
            Life {
                last: night,
                checked: night,
                fixed: None,
                ..life
            }
        } else if sighting.passes() {
            let life = self.pass(sighting);
            Life {
                checked: night,
                ..life
            }
        } else {
            self
        }
    }

    fn fail(self, sighting: &Sighting) -> Self {
        if !self.open() {
            let (state, runs) = (State::Regressed, Runs::default().failing(sighting));
            return Life {
                state,
                runs,
                ..self
            };
        }
        let runs = self.runs.failing(sighting);
        let state = match runs.passed {
            0 => State::Known,
            _ => State::Flaky,
        };
        Life {
            state,
            runs,
            ..self
        }
    }

    fn pass(self, sighting: &Sighting) -> Self {
        let mut life = self;
        life.runs.passes += sighting.passed;
        let chance = (1.0 - life.rate()).powf(life.runs.passes as f64);
        if life.open() && chance <= CHANCE {
            life.state = State::Fixed;
            life.fixed = Some(sighting.night);
        }
        life
    }
}

impl Runs {
    /// With a night in which it failed. A generated trial that showed it is one
    /// more failing run: it may be all that was ever seen of a sporadic fault.
    fn failing(self, sighting: &Sighting) -> Self {
        Runs {
            failed: self.failed + sighting.failed + u64::from(sighting.found > 0),
            passed: self.passed + self.passes + sighting.passed,
            passes: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// (failed, passed, found) per night, from night 1.
    fn nights(counts: &[(u64, u64, u64)]) -> BTreeMap<u32, Sighting> {
        let sighting = |(night, &(failed, passed, found)): (u32, &(u64, u64, u64))| Sighting {
            night,
            failed,
            passed,
            found,
            ..Sighting::default()
        };
        (1..)
            .zip(counts)
            .map(sighting)
            .map(|s| (s.night, s))
            .collect()
    }

    fn state(counts: &[(u64, u64, u64)]) -> Option<State> {
        life(&nights(counts)).map(|l| l.state)
    }

    const FAILS: (u64, u64, u64) = (3, 0, 2);
    const PASSES: (u64, u64, u64) = (0, 3, 0);
    const NOTHING: (u64, u64, u64) = (0, 0, 0);

    #[test]
    fn life_planted_removed_and_planted_again_goes_through_all_states() {
        let story = [PASSES, FAILS, FAILS, NOTHING, PASSES, PASSES, FAILS, FAILS];
        let states: Vec<_> = (1..=story.len()).map(|n| state(&story[..n])).collect();
        let expected = [
            None,
            Some(State::New),
            Some(State::Known),
            Some(State::Known),
            Some(State::Fixed),
            Some(State::Fixed),
            Some(State::Regressed),
            Some(State::Known),
        ];
        assert_eq!(states, expected);
    }

    #[test]
    fn life_sporadic_failure_is_not_fixed_by_a_few_passes() {
        // One failure in four runs: (3/4)^3 is no proof, (3/4)^17 < 0.01 is.
        let first = (0, 3, 1);
        assert_eq!(state(&[first, PASSES]), Some(State::New));
        assert_eq!(state(&[first, (1, 2, 0)]), Some(State::Flaky));
        assert_eq!(state(&[first, (0, 16, 0)]), Some(State::New));
        assert_eq!(state(&[first, (0, 17, 0)]), Some(State::Fixed));
        let rate = life(&nights(&[first, (1, 2, 0)])).unwrap().rate();
        assert!((rate - 2.0 / 7.0).abs() < 1e-12, "{rate}");
    }

    #[test]
    fn news_and_fixed_in_name_the_night_alone() {
        let fixed = life(&nights(&[FAILS, PASSES])).unwrap();
        assert!(fixed.fixed_in(2) && !fixed.fixed_in(3) && !fixed.news(2));
        let later = life(&nights(&[FAILS, PASSES, PASSES])).unwrap();
        assert!(later.fixed_in(2) && !later.fixed_in(3));
        let new = life(&nights(&[FAILS, NOTHING])).unwrap();
        assert!(new.news(1) && !new.news(2));
    }

    fn story() -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
        let night = prop_oneof![
            Just(FAILS),
            Just(PASSES),
            Just(NOTHING),
            (0..4u64, 0..4u64, 0..3u64),
        ];
        prop::collection::vec(night, 0..12)
    }

    proptest! {
        #[test]
        fn life_order_in_which_nights_arrive_is_irrelevant(
            (ordered, shuffled) in story().prop_flat_map(|story| {
                let sightings: Vec<_> = nights(&story).into_values().collect();
                (Just(story), Just(sightings).prop_shuffle())
            })
        ) {
            let mut arrived = BTreeMap::new();
            for sighting in shuffled {
                arrived.insert(sighting.night, sighting);
            }
            prop_assert_eq!(life(&arrived), life(&nights(&ordered)));
        }

        #[test]
        fn life_dates_are_irrelevant(story in story(), days in prop::collection::vec(1i8..28, 12)) {
            let mut dated = nights(&story);
            for (sighting, day) in dated.values_mut().zip(days) {
                sighting.date = jiff::civil::date(2026, 1, day);
            }
            prop_assert_eq!(life(&dated), life(&nights(&story)));
        }

        #[test]
        fn life_a_replayed_night_changes_nothing(story in story(), which in 0usize..12) {
            let once = nights(&story);
            let mut twice = once.clone();
            if let Some(sighting) = once.values().nth(which) {
                twice.insert(sighting.night, sighting.clone());
            }
            prop_assert_eq!(life(&twice), life(&once));
        }

        #[test]
        fn life_nights_without_evidence_change_nothing(story in story()) {
            let mut quiet = story.clone();
            quiet.push(NOTHING);
            prop_assert_eq!(life(&nights(&quiet)), life(&nights(&story)));
        }

        #[test]
        fn life_states_mean_what_they_say(story in story()) {
            let all = nights(&story);
            let failing: Vec<_> = all.values().filter(|s| s.fails()).map(|s| s.night).collect();
            let Some(life) = life(&all) else {
                prop_assert!(failing.is_empty());
                return Ok(());
            };
            prop_assert_eq!(Some(&life.first), failing.first());
            prop_assert_eq!(Some(&life.last), failing.last());
            let after = all.values().filter(|s| s.night > life.last);
            let passes = after.filter(|s| s.passes()).count();
            match life.state {
                State::New => prop_assert_eq!(failing.len(), 1),
                State::Known | State::Flaky => prop_assert!(failing.len() > 1),
                State::Regressed => prop_assert!(failing.len() > 1 && life.first < life.last),
                State::Fixed => prop_assert!(passes > 0),
            }
            prop_assert!(life.rate() > 0.0 && life.rate() <= 1.0);
        }

        #[test]
        fn life_a_certain_failure_is_fixed_by_one_pass(story in story(), passed in 1u64..5) {
            let mut story = story;
            story.push(FAILS);
            let before = life(&nights(&story)).unwrap();
            story.push((0, passed, 0));
            let after = life(&nights(&story)).unwrap();
            if before.rate() == 1.0 {
                prop_assert_eq!(after.state, State::Fixed);
                prop_assert!(after.fixed_in(story.len() as u32));
            }
        }
    }
}
