//! What a step costs, kernel by kernel: [`Report`] does the sums, [`text`] prints them, [`page`] makes one HTML file of
//! them, [`trace`] a Chrome trace. How functions became kernels is a [`compilation`](mod@compilation), and [`viewer`] makes one HTML file of it.
//!
//! It knows devices' times alone. What a kernel is, how it came to be and what it must read comes as strings and numbers.

pub mod compilation;
mod html;
pub mod page;
mod recording;
mod report;
pub mod text;
pub mod trace;
pub mod viewer;

pub use recording::{Kernel, Launch, Limits, Recording, Stage, Step};
pub use report::{Kind, Report, Row, WHY_ABOVE};
