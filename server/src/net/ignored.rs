//! The response header that names the fields of a request that have no effect.

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

/// Header with the names of ignored fields, separated by commas.
pub const IGNORED: HeaderName = HeaderName::from_static("x-gristmill-ignored");

/// Maximum bytes of the header's value; clients' own field names have less than 40 characters each.
const MAX_BYTES: usize = 500;

/// Adds the names of ignored fields to a response, up to the length limit.
pub fn name(response: &mut Response, fields: &[String]) {
    let mut list = String::new();
    for field in fields {
        // Names are the client's: what is not plain is not repeated.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.[]".contains(&byte);
        if field.is_empty() || !field.bytes().all(plain) {
            continue;
        }
        let comma = if list.is_empty() { "" } else { ", " };
        if list.len() + comma.len() + field.len() > MAX_BYTES {
            break;
        }
        list = format!("{list}{comma}{field}");
    }
    if let Ok(list) = HeaderValue::from_str(&list)
        && !list.is_empty()
    {
        response.headers_mut().insert(IGNORED, list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::response::IntoResponse;

    fn header(fields: &[&str]) -> Option<String> {
        let mut response = ().into_response();
        let fields: Vec<String> = fields.iter().map(|&field| field.to_owned()).collect();
        name(&mut response, &fields);
        let value = response.headers().get(IGNORED)?;
        Some(value.to_str().unwrap().to_owned())
    }

    #[test]
    fn names_are_bounded_and_plain() {
        assert_eq!(header(&["a", "options.b"]).as_deref(), Some("a, options.b"));
        assert_eq!(
            header(&["a\r\nset-cookie: x", "é", "b"]).as_deref(),
            Some("b")
        );
        assert_eq!(header(&[]), None);
        let many: Vec<String> = (0..10_000).map(|i| format!("field{i}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(header(&many).unwrap().len() <= MAX_BYTES);
    }
}
