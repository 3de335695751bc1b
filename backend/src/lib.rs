//! Devices: cpu, interp, null.

pub mod interp;
