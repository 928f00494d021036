//! The library against a modelled cluster, under simulated time.

mod fleet;
mod found;
mod planted;
mod pool_cases;
mod seeds;
mod tokens;
