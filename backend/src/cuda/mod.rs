//! CUDA: kernels written in CUDA C without headers, compiled by NVRTC, a step replayed as one graph.

pub mod dialect;
