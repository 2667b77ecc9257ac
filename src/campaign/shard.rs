//! A share of a campaign: every n-th case.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Shard `index` of `count`: the cases whose number modulo `count` is `index`,
/// replayed ones (below zero) included. All shards together are the whole, and
/// no case is in two. Its text form, also in JSON, is `index/count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Shard {
    index: u32,
    count: u32,
}

impl Shard {
    /// All cases.
    pub const WHOLE: Shard = Shard { index: 0, count: 1 };

    /// Shard `index`, from 0, of `count`.
    pub fn new(index: u32, count: u32) -> Result<Self> {
        if index >= count {
            return Err(Error::usage(format!(
                "there is no shard {index} of {count}: shards count from 0, as in 0/{}",
                count.max(1)
            )));
        }
        Ok(Shard { index, count })
    }

    /// Which shard, from 0.
    pub fn index(self) -> u32 {
        self.index
    }

    /// Of how many.
    pub fn count(self) -> u32 {
        self.count
    }

    /// Whether a case is in it.
    pub fn has(self, number: i64) -> bool {
        number.rem_euclid(self.count.into()) == i64::from(self.index)
    }

    /// The first of its cases that is not below `number`.
    pub fn at_or_after(self, number: i64) -> i64 {
        let ahead = i64::from(self.index) - number;
        number + ahead.rem_euclid(self.count.into())
    }

    /// How many of the cases from `from` on and below `end` are in it.
    pub fn share(self, from: i64, end: i64) -> u64 {
        let first = self.at_or_after(from);
        let span = u64::try_from(end - first).unwrap_or(0);
        span.div_ceil(self.count.into())
    }
}

impl Default for Shard {
    fn default() -> Self {
        Shard::WHOLE
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let numbers = text
            .split_once('/')
            .and_then(|(index, count)| Some((index.parse().ok()?, count.parse().ok()?)));
        match numbers {
            Some((index, count)) => Shard::new(index, count),
            None => Err(Error::usage(format!(
                "'{text}' is not a shard such as 0/4 (the first of four)"
            ))),
        }
    }
}

impl TryFrom<String> for Shard {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Shard> for String {
    fn from(shard: Shard) -> String {
        shard.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shard() -> impl Strategy<Value = Shard> {
        (1u32..20)
            .prop_flat_map(|count| (0..count, Just(count)))
            .prop_map(|(index, count)| Shard { index, count })
    }

    proptest! {
        #[test]
        fn has_every_case_is_in_one_shard(count in 1u32..20, number in -100i64..1000) {
            let holders = (0..count).filter(|&i| Shard::new(i, count).unwrap().has(number));
            prop_assert_eq!(holders.count(), 1);
        }

        #[test]
        fn share_counts_what_has_says(shard in shard(), from in -50i64..50, length in -5i64..100) {
            let counted = (from..from + length).filter(|&n| shard.has(n)).count() as u64;
            prop_assert_eq!(shard.share(from, from + length), counted);
        }

        #[test]
        fn at_or_after_is_the_next_that_it_has(shard in shard(), number in -50i64..50) {
            let next = shard.at_or_after(number);
            prop_assert!(shard.has(next));
            prop_assert_eq!((number..next).filter(|&n| shard.has(n)).count(), 0);
        }

        #[test]
        fn text_round_trips(shard in shard()) {
            prop_assert_eq!(shard.to_string().parse::<Shard>().unwrap(), shard);
        }
    }

    #[test]
    fn from_str_impossible_shards_say_how_they_count() {
        for text in ["4/4", "1/0", "0/0"] {
            let error = text.parse::<Shard>().unwrap_err().to_string();
            assert!(error.contains("from 0"), "{error}");
        }
        for text in ["", "1", "-1/4", "a/b", "1/2/3"] {
            let error = text.parse::<Shard>().unwrap_err().to_string();
            assert!(error.contains("0/4"), "{error}");
        }
    }
}
