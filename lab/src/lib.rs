//! Real PostgreSQL clusters, faults, a scripted wire server and a small DNS server.

pub mod wire;
