//! Command-line options for reaching a server.

use super::servers::{Named, Running};
use anyhow::Result;

/// Options that commands include with `#[command(flatten)]`.
#[derive(clap::Args)]
pub struct Access {
    /// Model to request [default: the first one that the server lists]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// API key, sent as a bearer token
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Allow servers on other machines
    #[arg(long)]
    anywhere: bool,
}

impl Access {
    /// Connects to a server, or starts it; returns it and the model's name.
    ///
    /// # Errors
    /// If the server cannot be started, does not become ready, or lists no model.
    pub fn begin(&self, server: &Named) -> Result<(Running, String)> {
        let running = Running::begin(server, self.anywhere, self.api_key.clone())?;
        let model = self.model.clone().map_or_else(|| running.model(), Ok)?;
        Ok((running, model))
    }
}
