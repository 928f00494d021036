//! A system whose descriptors aren't numbers: nothing can be guarded there, so none of these ever exists.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::Kernel;
use crate::net::{SocketOptions, SocketReport};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {}

#[derive(Debug)]
pub(crate) enum Descriptor {}

impl Number {
    pub(crate) fn open(&self) -> io::Result<Descriptor> {
        match *self {}
    }
}

impl Descriptor {
    pub(crate) fn open(_: i32) -> io::Result<Self> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "sockets can't be guarded on this system"))
    }

    pub(crate) fn number(&self) -> Number {
        match *self {}
    }

    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        match *self {}
    }

    pub(crate) fn tune(&self, _: &SocketOptions) -> SocketReport {
        match *self {}
    }

    pub(crate) fn set_user_timeout(&self, _: Option<Duration>) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn shut_down(&self) -> io::Result<()> {
        match *self {}
    }

    pub(super) fn counters(&self) -> Option<Kernel> {
        match *self {}
    }
}

pub(crate) fn peers() -> io::Result<Vec<(Descriptor, SocketAddr)>> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system doesn't list a process's descriptors"))
}
