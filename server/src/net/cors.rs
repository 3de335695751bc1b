//! Cross-origin requests (CORS): pages of other origins are refused unless their origin is
//! configured.

use crate::net::ignored::IGNORED;
use crate::net::log::REQUEST_ID;
use axum::http::HeaderValue;
use std::time::Duration;
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

/// Time for which browsers may cache a preflight response; most cap it at two hours.
const PREFLIGHT_MAX_AGE: Duration = Duration::from_secs(7200);

/// Returns the CORS layer for the allowed origins; `None` if there are none.
pub fn layer(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let layer = CorsLayer::new()
        .allow_methods(Any)
        // `*` does not cover Authorization (Fetch standard), so the asked headers are repeated.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([REQUEST_ID, IGNORED])
        .max_age(PREFLIGHT_MAX_AGE);
    if origins.iter().any(|origin| origin == "*") {
        return Some(layer.allow_origin(Any));
    }
    let origins = origins
        .iter()
        .filter_map(|origin| HeaderValue::from_str(origin.trim_end_matches('/')).ok());
    Some(layer.allow_origin(AllowOrigin::list(origins)))
}
