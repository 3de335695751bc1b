//! Pages of other origins: none may ask from a browser, but those that were named.

use axum::http::HeaderValue;
use std::time::Duration;
use tower_http::cors::{AllowOrigin, Any, CorsLayer};

/// How long a browser may remember what it may ask: most remember no longer than two hours.
const PREFLIGHT_MAX_AGE: Duration = Duration::from_secs(7200);

/// What tells browsers so; nothing where none was named.
pub fn layer(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let layer = CorsLayer::new().allow_methods(Any).allow_headers(Any).max_age(PREFLIGHT_MAX_AGE);
    if origins.iter().any(|origin| origin == "*") {
        return Some(layer.allow_origin(Any));
    }
    let origins = origins.iter().filter_map(|origin| HeaderValue::from_str(origin.trim_end_matches('/')).ok());
    Some(layer.allow_origin(AllowOrigin::list(origins)))
}
