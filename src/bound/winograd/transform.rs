//! The transform matrices of F(m, r), by Toom and Cook's construction in exact
//! rationals.

use rug::Rational;

/// Interpolation points in the order libraries take them (Barabasz et al. 2020,
/// table 3; Lavin and Gray, CVPR 2016, for the first five). cuDNN does not say
/// which it takes.
const POINTS: [(i32, i32); 13] = [
    (0, 1),
    (1, 1),
    (-1, 1),
    (2, 1),
    (-2, 1),
    (1, 2),
    (-1, 2),
    (4, 1),
    (-4, 1),
    (1, 4),
    (-1, 4),
    (3, 4),
    (-4, 3),
];

/// Rows of a matrix.
pub type Matrix<T> = Vec<Vec<T>>;

/// y = Aᵀ[(G g) ⊙ (Bᵀ d)] for one dimension: m outputs of a kernel of extent r.
#[derive(Clone, Debug)]
pub struct Transform<T> {
    /// Outputs per tile and dimension.
    pub m: usize,
    /// Kernel extent.
    pub r: usize,
    /// Aᵀ, m × α.
    pub at: Matrix<T>,
    /// G, α × r.
    pub g: Matrix<T>,
    /// Bᵀ, α × α.
    pub bt: Matrix<T>,
}

impl Transform<Rational> {
    /// The exact matrices, the point at infinity last; `None` where no points
    /// are known. Rows are scaled as by Lavin and Gray: Bᵀ holds the
    /// polynomials' own coefficients.
    pub fn new(m: usize, r: usize) -> Option<Self> {
        let alpha = (m + r).checked_sub(1)?;
        let points: Vec<Rational> = POINTS
            .get(..alpha.checked_sub(1)?)?
            .iter()
            .map(|&p| Rational::from(p))
            .collect();
        // Row j holds the coefficients of Π_{i≠j} (x − p_i); infinity's row
        // those of the product over all points.
        let mut bt: Matrix<Rational> = (0..points.len())
            .map(|j| coefficients(others(&points, j), alpha))
            .collect();
        bt.push(coefficients(points.iter(), alpha));
        Some(Transform {
            m,
            r,
            at: outputs(&points, m),
            g: filters(&points, r),
            bt,
        })
    }

    /// The magnitudes, rounded up.
    pub fn magnitudes(&self) -> Transform<f64> {
        self.map(&up)
    }

    /// The same matrices with other entries.
    pub fn map<T>(&self, entry: &impl Fn(&Rational) -> T) -> Transform<T> {
        let matrix = |rows: &Matrix<Rational>| {
            let row = |row: &Vec<Rational>| row.iter().map(entry).collect();
            rows.iter().map(row).collect()
        };
        Transform {
            m: self.m,
            r: self.r,
            at: matrix(&self.at),
            g: matrix(&self.g),
            bt: matrix(&self.bt),
        }
    }
}

impl Transform<f64> {
    /// Roundings on the way of a value through all transforms of two
    /// dimensions, 2(n_B + 1) + 2(n_G + 1) + 2(n_A + 1): n_X, the most nonzeros
    /// in a row of X, bounds those of a sum of products in any order
    /// (Jeannerod and Rump 2013), and each constant is itself rounded once.
    pub fn roundings(&self) -> f64 {
        let most = |rows: &Matrix<f64>| {
            let nonzeros = |row: &Vec<f64>| row.iter().filter(|v| **v != 0.0).count();
            1 + rows.iter().map(nonzeros).max().unwrap_or(0)
        };
        2.0 * (most(&self.bt) + most(&self.g) + most(&self.at)) as f64
    }
}

impl<T> Transform<T> {
    /// Length α of the transformed tile.
    pub fn alpha(&self) -> usize {
        self.m + self.r - 1
    }
}

/// Aᵀ: row i holds p^i; infinity contributes to the last row alone.
fn outputs(points: &[Rational], m: usize) -> Matrix<Rational> {
    let row = |i: usize| {
        let infinity = Rational::from(u32::from(i == m - 1));
        let finite = points.iter().map(|p| power(p, i));
        finite.chain([infinity]).collect()
    };
    (0..m).map(row).collect()
}

/// G: row j holds p^k / N_j, N_j = Π_{i≠j} (p_j − p_i).
fn filters(points: &[Rational], r: usize) -> Matrix<Rational> {
    let row = |(j, p): (usize, &Rational)| {
        let scale = others(points, j).fold(Rational::from(1), |n, q| n * (p.clone() - q));
        (0..r).map(|k| power(p, k) / &scale).collect()
    };
    let infinity = (0..r).map(|k| Rational::from(u32::from(k == r - 1)));
    let rows = points.iter().enumerate().map(row);
    rows.chain([infinity.collect()]).collect()
}

fn power(p: &Rational, exponent: usize) -> Rational {
    (0..exponent).fold(Rational::from(1), |product, _| product * p)
}

fn others(points: &[Rational], j: usize) -> impl Iterator<Item = &Rational> {
    let others = points.iter().enumerate().filter(move |(i, _)| *i != j);
    others.map(|(_, p)| p)
}

/// The coefficients, lowest first, of Π (x − p), padded to `len`.
fn coefficients<'a>(roots: impl Iterator<Item = &'a Rational>, len: usize) -> Vec<Rational> {
    let mut polynomial = vec![Rational::from(1)];
    for root in roots {
        let mut next = vec![Rational::new(); polynomial.len() + 1];
        for (i, c) in polynomial.iter().enumerate() {
            next[i + 1] += c;
            next[i] -= Rational::from(c * root);
        }
        polynomial = next;
    }
    polynomial.resize(len, Rational::new());
    polynomial
}

fn up(value: &Rational) -> f64 {
    if value.cmp0().is_eq() {
        0.0
    } else {
        value.clone().abs().to_f64().next_up()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ‖Aᵀ‖₁ and ‖Bᵀ‖_F of F(2,3) as published (Barabasz et al. 2020).
    #[test]
    fn transform_f23_has_the_published_norms() {
        let t = Transform::new(2, 3).unwrap().magnitudes();
        let norm1 = (0..4)
            .map(|j| t.at.iter().map(|row| row[j]).sum::<f64>())
            .fold(0.0, f64::max);
        assert!((norm1 - 2.0).abs() < 1e-12);
        let frobenius = t.bt.iter().flatten().map(|v| v * v).sum::<f64>().sqrt();
        assert!((frobenius - 8f64.sqrt()).abs() < 1e-12);
        assert_eq!(t.roundings(), 2.0 * (3.0 + 4.0 + 4.0));
    }

    #[test]
    fn transform_matrices_compute_the_correlation_exactly() {
        for (m, r) in [
            (2, 2),
            (2, 3),
            (3, 2),
            (4, 3),
            (3, 4),
            (6, 3),
            (9, 5),
            (5, 9),
        ] {
            let t = Transform::new(m, r).unwrap();
            let d: Vec<Rational> = (0..t.alpha())
                .map(|i| Rational::from(3 * i * i + 1))
                .collect();
            let g: Vec<Rational> = (0..r).map(|i| Rational::from(7 * i + 2)).collect();
            let dot = |row: &[Rational], v: &[Rational]| -> Rational {
                row.iter().zip(v).map(|(a, b)| Rational::from(a * b)).sum()
            };
            let product: Vec<Rational> = (t.bt.iter().zip(&t.g))
                .map(|(b, row)| dot(b, &d) * dot(row, &g))
                .collect();
            for (i, row) in t.at.iter().enumerate() {
                assert_eq!(dot(row, &product), dot(&d[i..i + r], &g), "F({m},{r})");
            }
        }
    }

    #[test]
    fn transform_without_known_points_is_none() {
        assert!(Transform::new(12, 4).is_none());
        assert!(Transform::new(0, 1).is_none());
    }
}
