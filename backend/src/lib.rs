//! Devices: cpu, interp, null.
