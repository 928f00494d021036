//! The library as C sees it: programs under `tests/c/`, built by several compilers and run.

mod build;
mod conninfo;
mod installed;
mod libpq;
mod man;
mod memory;
mod programs;
mod servers;
mod symbols;
mod tables;
