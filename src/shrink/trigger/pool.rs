//! The cases that have been run, with the values of their features.

use std::collections::HashSet;

use super::feature::{Feature, Value};
use crate::candidate::{Candidate, Repro};

/// A case that has been run.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) repro: Repro,
    /// By feature, in the order of [`Pool::features`].
    pub(super) values: Vec<Value>,
    pub(super) fails: bool,
}

/// All cases that have been run, none twice.
pub(super) struct Pool {
    features: Vec<Feature>,
    cases: Vec<Case>,
    seen: HashSet<Repro>,
    /// By feature: values of failing cases, values of passing ones.
    met: Vec<[HashSet<Value>; 2]>,
}

impl Pool {
    /// An empty pool for cases like `repro`.
    pub(super) fn new(repro: &Repro) -> Self {
        let knobs = match &repro.via {
            Some(Candidate::Engine { knobs, .. }) => knobs.iter().map(|k| k.0).collect(),
            _ => Vec::new(),
        };
        let features = Feature::all(knobs);
        Pool {
            met: vec![Default::default(); features.len()],
            features,
            cases: Vec::new(),
            seen: HashSet::new(),
        }
    }

    pub(super) fn add(&mut self, repro: &Repro, fails: bool) {
        if !self.seen.insert(repro.clone()) {
            return;
        }
        let values: Vec<_> = self.features.iter().map(|f| f.of(repro)).collect();
        for (met, value) in self.met.iter_mut().zip(&values) {
            met[usize::from(!fails)].insert(value.clone());
        }
        self.cases.push(Case {
            repro: repro.clone(),
            values,
            fails,
        });
    }

    /// Remembers a case that says nothing.
    pub(super) fn void(&mut self, repro: &Repro) {
        self.seen.insert(repro.clone());
    }

    pub(super) fn has(&self, repro: &Repro) -> bool {
        self.seen.contains(repro)
    }

    /// Features whose value in `repro` no failing case has had.
    pub(super) fn news(&self, repro: &Repro) -> usize {
        let features = self.features.iter().zip(&self.met);
        features
            .filter(|(feature, met)| !met[0].contains(&feature.of(repro)))
            .count()
    }

    /// Whether no case has had the value that `feature` has in `repro`.
    pub(super) fn is_new(&self, feature: Feature, repro: &Repro) -> bool {
        let value = feature.of(repro);
        let met = &self.met[self.column(feature)];
        met.iter().all(|values| !values.contains(&value))
    }

    pub(super) fn features(&self) -> &[Feature] {
        &self.features
    }

    pub(super) fn column(&self, feature: Feature) -> usize {
        let found = self.features.iter().position(|f| *f == feature);
        found.expect("clauses are made from the features of the pool")
    }

    pub(super) fn failing(&self) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(|c| c.fails)
    }

    pub(super) fn passing(&self) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(|c| !c.fails)
    }
}
