//! Statistics and sums in the arithmetic of a format: every operation is rounded
//! to it. A double holds the exact result of one operation of fp32 closely enough
//! that rounding twice is rounding once (Figueroa, 1995: 53 ≥ 2·24 + 2).

use crate::batch_norm::Algorithm;
use crate::dtype::Format;

/// In which order values are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Order {
    /// One after the other.
    Sequential,
    /// Halves, and halves of these.
    Tree,
}

/// A machine with one format.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// The format of every result.
    pub format: Format,
    /// The order of sums.
    pub order: Order,
}

/// What a group is normalised by, as computed.
#[derive(Clone, Copy, Debug)]
pub struct Moments {
    /// Mean.
    pub mean: f64,
    /// Biased variance.
    pub variance: f64,
}

/// Values whose mean and sum of squared deviations are known.
#[derive(Clone, Copy)]
struct Block {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Machine {
    /// The result of an operation.
    pub fn round(self, value: f64) -> f64 {
        self.format.round(value)
    }

    /// Adds up terms that are computed, and rounded, by `term`.
    pub fn sum(self, values: &[f64], term: &impl Fn(f64) -> f64) -> f64 {
        match (self.order, values) {
            (_, []) => 0.0,
            (_, [value]) => term(*value),
            (Order::Sequential, _) => values
                .iter()
                .fold(0.0, |sum, &value| self.round(sum + term(value))),
            (Order::Tree, _) => {
                let (left, right) = values.split_at(values.len() / 2);
                self.round(self.sum(left, term) + self.sum(right, term))
            }
        }
    }

    /// Mean and variance of values, by one of the algorithms.
    pub fn moments(self, values: &[f64], algorithm: Algorithm) -> Moments {
        let count = values.len() as f64;
        let mean = |sum: f64| self.round(sum / count);
        match algorithm {
            Algorithm::TwoPass => {
                let center = mean(self.sum(values, &|x| x));
                let variance = mean(self.sum(values, &|x| {
                    let distance = self.round(x - center);
                    self.round(distance * distance)
                }));
                Moments {
                    mean: center,
                    variance,
                }
            }
            Algorithm::Squares => {
                let center = mean(self.sum(values, &|x| x));
                let square = mean(self.sum(values, &|x| self.round(x * x)));
                let difference = self.round(square - self.round(center * center));
                Moments {
                    mean: center,
                    variance: difference.max(0.0),
                }
            }
            Algorithm::Welford => {
                let block = match self.order {
                    Order::Sequential => self.welford(values),
                    Order::Tree => self.merged(values),
                };
                Moments {
                    mean: block.mean,
                    variance: mean(block.squares),
                }
            }
        }
    }

    fn welford(self, values: &[f64]) -> Block {
        let empty = Block {
            count: 0.0,
            mean: 0.0,
            squares: 0.0,
        };
        values.iter().fold(empty, |block, &x| {
            let count = block.count + 1.0;
            let distance = self.round(x - block.mean);
            let mean = self.round(block.mean + self.round(distance / count));
            let square = self.round(distance * self.round(x - mean));
            Block {
                count,
                mean,
                squares: self.round(block.squares + square),
            }
        })
    }

    /// Chan's merging of two halves.
    fn merged(self, values: &[f64]) -> Block {
        if let [value] = values {
            return Block {
                count: 1.0,
                mean: *value,
                squares: 0.0,
            };
        }
        let (left, right) = values.split_at(values.len() / 2);
        let (a, b) = (self.merged(left), self.merged(right));
        let count = a.count + b.count;
        let distance = self.round(b.mean - a.mean);
        let share = self.round(b.count / count);
        let between = self.round(self.round(distance * distance) * self.round(a.count * share));
        Block {
            count,
            mean: self.round(a.mean + self.round(distance * share)),
            squares: self.round(self.round(a.squares + b.squares) + between),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::{FP32, FP64};

    const ORDERS: [Order; 2] = [Order::Sequential, Order::Tree];

    #[test]
    fn moments_of_integers_are_exact_in_every_algorithm() {
        let values = [1.0, 3.0, 3.0, 5.0, 0.0, 0.0, 4.0, 8.0];
        for order in ORDERS {
            for algorithm in Algorithm::ALL {
                let machine = Machine {
                    format: FP64,
                    order,
                };
                let found = machine.moments(&values, algorithm);
                assert_eq!(found.mean, 3.0, "{algorithm:?} {order:?}");
                assert!(
                    (found.variance - 6.5).abs() < 1e-14,
                    "{algorithm:?} {order:?}"
                );
            }
        }
    }

    #[test]
    fn squares_lose_the_variance_of_a_large_mean_and_others_do_not() {
        let values: Vec<f64> = (0..256).map(|i| 4096.0 + f64::from(i % 2)).collect();
        let machine = Machine {
            format: FP32,
            order: Order::Tree,
        };
        let variance = |algorithm| machine.moments(&values, algorithm).variance;
        assert_eq!(variance(Algorithm::TwoPass), 0.25);
        assert!((variance(Algorithm::Welford) - 0.25).abs() < 1e-3);
        assert!((variance(Algorithm::Squares) - 0.25).abs() > 0.1);
    }

    #[test]
    fn sums_are_rounded_in_the_format() {
        let machine = |order| Machine {
            format: FP32,
            order,
        };
        let values = [16_777_216.0, 1.0, 1.0, 1.0];
        assert_eq!(
            machine(Order::Sequential).sum(&values, &|x| x),
            16_777_216.0
        );
        assert_eq!(machine(Order::Tree).sum(&values, &|x| x), 16_777_218.0);
    }
}
