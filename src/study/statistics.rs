//! Mean, spread and intervals of repeated measurements.

use serde::Serialize;

/// Mean and spread of some figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// How many figures.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Standard deviation of one figure (n − 1 in the denominator; 0 for fewer
    /// than two).
    pub deviation: f64,
}

/// 97.5% quantile of the standard normal distribution.
const NORMAL_975: f64 = 1.959_964;

impl Spread {
    /// The spread of `figures`.
    pub fn of(figures: &[f64]) -> Self {
        let count = figures.len();
        let mean = figures.iter().sum::<f64>() / count.max(1) as f64;
        let squares: f64 = figures.iter().map(|v| (v - mean).powi(2)).sum();
        let deviation = match count {
            0 | 1 => 0.0,
            _ => (squares / (count - 1) as f64).sqrt(),
        };
        Spread {
            count,
            mean,
            deviation,
        }
    }

    /// Where 95 of 100 further figures lie, if they are normal: the spread of
    /// one figure and the uncertainty of the mean.
    pub fn interval(&self) -> (f64, f64) {
        let uncertainty = (1.0 + 1.0 / self.count.max(1) as f64).sqrt();
        let half = NORMAL_975 * self.deviation * uncertainty;
        (self.mean - half, self.mean + half)
    }

    /// How many standard deviations the mean lies above `figure`.
    pub fn distance(&self, figure: f64) -> f64 {
        (self.mean - figure) / self.deviation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_of_known_figures() {
        let spread = Spread::of(&[1.0, 2.0, 3.0]);
        assert_eq!((spread.mean, spread.deviation), (2.0, 1.0));
        assert_eq!(spread.distance(5.0), -3.0);
        let (low, high) = spread.interval();
        assert!((low + high - 4.0).abs() < 1e-12 && (2.2..2.3).contains(&(high - 2.0)));
    }

    #[test]
    fn spread_of_one_figure_claims_no_width() {
        assert_eq!(Spread::of(&[7.0]).interval(), (7.0, 7.0));
        assert_eq!(Spread::of(&[]).count, 0);
    }
}
