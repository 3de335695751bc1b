//! Tensor graph to kernel text: derive, schedule, price, optimise, lower, render.
