//! How a server is reached: options of every command that asks one.

use super::servers::{Named, Running};
use anyhow::Result;

/// For `#[command(flatten)]`.
#[derive(clap::Args)]
pub struct Access {
    /// The model, where a server has several [default: the first that it names]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The key that servers want
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Servers may be on other machines
    #[arg(long)]
    anywhere: bool,
}

impl Access {
    /// A server that answers, and the name of its model that is asked.
    ///
    /// # Errors
    /// When it cannot be started, does not get ready, or has no model.
    pub fn begin(&self, server: &Named) -> Result<(Running, String)> {
        let running = Running::begin(server, self.anywhere, self.api_key.clone())?;
        let model = self.model.clone().map_or_else(|| running.model(), Ok)?;
        Ok((running, model))
    }
}
