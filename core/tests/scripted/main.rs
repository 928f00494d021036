//! Against scripted servers, a name server of our own and bare sockets: what no real server can be made to do, byte by
//! byte and to the moment.

mod bad_input;
mod deceit;
mod dial;
mod resolve;
#[path = "../support/mod.rs"]
mod support;
mod walk;
mod wire;
