//! A step of training on the first adapter of `wgpu`, possibly a software one, against PyTorch.

#[path = "it/training_support.rs"]
mod training_support;

#[test]
fn gradients_of_adapters_on_wgpu() {
    training_support::check_adapters("wgpu");
}
