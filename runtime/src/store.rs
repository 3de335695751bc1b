//! Compiled kernels on disk.
