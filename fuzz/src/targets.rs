//! Fuzz targets, one module per component under test.

pub mod graphs;
pub mod ir;
pub mod model_file;
pub mod placements;
pub mod reply;
pub mod request;
pub mod schema;
pub mod template;
pub mod tokenizer;
pub mod toy;
