//! The arbiter: exact sums with MPFR.
