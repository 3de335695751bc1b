//! Downloads from plain HTTP servers.

use super::{Case, FORM, sha256, some_bytes};
use crate::server::{AWAY, Fault, HOPS, PLAIN};
use gristmill_hub::{Client, Error, Name, Progress, Pulled, pull};
use std::path::PathBuf;
use std::time::Duration;

const SIZE: usize = 3 << 20;
const TAG: &str = "\"one\"";

fn model(n: usize, seed: u64) -> Vec<u8> {
    let mut bytes = some_bytes(n, seed);
    bytes[..5].copy_from_slice(b"GGUF.");
    bytes
}

/// A server with a model, a split model, a web page, and a damaged file; `mark` is the validator.
fn case(mark: Option<(&'static str, String)>) -> Case {
    let case = Case::new();
    let mut state = case.server.state.lock().unwrap();
    let file = |path: &str, bytes: Vec<u8>| (path.to_owned(), bytes, None);
    state.files = vec![
        file("a/m.gguf", model(SIZE, 1)),
        file("s-00001-of-00002.gguf", model(1000, 2)),
        file("s-00002-of-00002.gguf", model(500, 3)),
        file("page.gguf", b"<!DOCTYPE html>".to_vec()),
        file("short.gguf", b"GG".to_vec()),
        file("bad.gguf", b"GGUF!".to_vec()),
    ];
    state.mark = mark;
    drop(state);
    case
}

fn tagged() -> Case {
    case(Some(("etag", TAG.into())))
}

fn address(case: &Case, rest: &str) -> Name {
    Name::parse(&format!("{}{rest}", case.server.endpoint))
        .unwrap()
        .unwrap()
}

fn fetch(case: &Case, rest: &str) -> Result<Pulled, Error> {
    pull(
        &case.client(),
        &case.store,
        &address(case, rest),
        FORM,
        &mut |_| (),
    )
}

fn plain(case: &Case, file: &str) -> Result<Pulled, Error> {
    fetch(case, &format!("{PLAIN}{file}"))
}

/// Path of a file in the store.
fn place(case: &Case, file: &str) -> PathBuf {
    let host = case
        .server
        .endpoint
        .trim_start_matches("http://")
        .replace(':', "+");
    case.store
        .root()
        .join("http+")
        .join(host)
        .join("plain")
        .join(file)
}

#[test]
fn a_file_comes_whole_once_and_without_a_key() {
    let case = tagged();
    let pulled = fetch(&case, &format!("{PLAIN}a/m.gguf?key=secret")).unwrap();
    assert_eq!(
        (pulled.fetched, &pulled.unchecked[..]),
        (SIZE as u64, &["plain/a/m.gguf".to_owned()][..])
    );
    assert_eq!(
        (&pulled.file, std::fs::read(&pulled.file).unwrap()),
        (&place(&case, "a/m.gguf"), case.bytes("a/m.gguf"))
    );
    assert_eq!(
        pulled.name.to_string(),
        format!("{}{PLAIN}a/m.gguf", case.server.endpoint)
    );
    // Only the server receives the key, and it does not receive the hub's token.
    let requests = case.server.requests();
    assert!(
        requests
            .iter()
            .all(|r| r.path.ends_with("?key=secret") && r.token.is_none()),
        "{requests:?}"
    );
    let record = std::fs::read_to_string(place(&case, "a/m.gguf.sha256")).unwrap();
    assert!(
        record.starts_with(&sha256(&case.bytes("a/m.gguf"))) && !record.contains("secret"),
        "{record}"
    );
    // The model is listed and found by its URL, but not by a suffix of it.
    let kept = case.store.list().unwrap().kept;
    assert_eq!(
        (kept.len(), &kept[0].name, kept[0].whole && kept[0].fetched),
        (1, &pulled.name, true)
    );
    assert_eq!(
        case.find(&address(&case, "/plain/a/m.gguf")).unwrap(),
        Some(pulled.file.clone())
    );
    assert_eq!(case.find(&address(&case, "/m.gguf")).unwrap(), None);
    assert!(matches!(
        case.store.remove(&address(&case, "/m.gguf")),
        Err(Error::NotKept(_))
    ));
    // A second pull downloads nothing, until the tag changes at the same size.
    assert_eq!(plain(&case, "a/m.gguf").unwrap().fetched, 0);
    let other = model(SIZE, 9);
    {
        let mut state = case.server.state.lock().unwrap();
        (state.files[0].1, state.mark) = (other.clone(), Some(("etag", "\"two\"".into())));
    }
    let again = plain(&case, "a/m.gguf").unwrap();
    assert_eq!(
        (again.fetched, std::fs::read(&again.file).unwrap()),
        (SIZE as u64, other)
    );
    assert_eq!(case.store.remove(&pulled.name).unwrap().gone.len(), 1);
    assert_eq!(std::fs::read_dir(case.store.root()).unwrap().count(), 0);
}

/// Breaks off after two thirds in the first run; later runs start with the partial file.
fn broken(mark: Option<(&'static str, String)>) -> Case {
    let case = case(mark);
    case.server
        .faults(&[&[Fault::Cut(2 << 20)][..], &[Fault::Cut(0); 5]].concat());
    let error = plain(&case, "a/m.gguf").unwrap_err();
    let hint = error.hint().unwrap();
    assert!(
        matches!(error, Error::Transport { .. }) && hint.contains("kept") && !hint.contains("HF_"),
        "{error}"
    );
    assert!(
        case.find(&address(&case, "/plain/a/m.gguf"))
            .unwrap()
            .is_none()
    );
    case.server.faults(&[]);
    case.server.requests();
    case
}

#[test]
fn a_fetch_goes_on_with_the_same_version() {
    for (header, mark, goes_on) in [
        ("etag", TAG, true),
        ("last-modified", "Sun, 22 Nov 2026 15:26:49 GMT", true),
        ("etag", "W/\"one\"", false),
    ] {
        let case = broken(Some((header, mark.into())));
        let pulled = plain(&case, "a/m.gguf").unwrap();
        let asked = case.server.requests();
        let (from, of) = if goes_on {
            (Some(2 << 20), Some(mark.to_owned()))
        } else {
            (None, None)
        };
        assert_eq!(
            (asked.len(), asked[1].from, &asked[1].of),
            (2, from, &of),
            "{mark}"
        );
        assert_eq!(
            pulled.fetched,
            if goes_on { 1 << 20 } else { 3 << 20 },
            "{mark}"
        );
        assert_eq!(
            std::fs::read(pulled.file).unwrap(),
            case.bytes("a/m.gguf"),
            "{mark}"
        );
    }
}

#[test]
fn another_version_is_fetched_from_its_beginning() {
    let case = broken(Some(("etag", TAG.into())));
    let other = model(SIZE, 9);
    {
        let mut state = case.server.state.lock().unwrap();
        (state.files[0].1, state.mark) = (other.clone(), Some(("etag", "\"two\"".into())));
    }
    let pulled = plain(&case, "a/m.gguf").unwrap();
    assert_eq!(
        (pulled.fetched, std::fs::read(pulled.file).unwrap()),
        (SIZE as u64, other)
    );
    // If the version changes during the download, the parts are not mixed.
    let case = tagged();
    case.server.faults(&[Fault::Cut(1 << 20)]);
    let state = case.server.state.clone();
    let error = pull(
        &case.client(),
        &case.store,
        &address(&case, "/plain/a/m.gguf"),
        FORM,
        &mut |p| {
            if matches!(p, Progress::Again { .. }) {
                state.lock().unwrap().mark = Some(("etag", "\"two\"".into()));
            }
        },
    );
    assert!(
        matches!(&error, Err(Error::Elsewhere { message, .. }) if message.contains("has changed")),
        "{error:?}"
    );
}

#[test]
fn a_server_without_ranges_or_marks_begins_again() {
    for mark in [Some(("etag", TAG.to_owned())), None] {
        let case = case(mark);
        case.server.faults(&[Fault::Cut(1 << 20), Fault::NoRanges]);
        let pulled = plain(&case, "a/m.gguf").unwrap();
        assert_eq!(std::fs::read(&pulled.file).unwrap(), case.bytes("a/m.gguf"));
    }
}

#[test]
fn split_models_come_with_all_their_parts() {
    let case = tagged();
    let pulled = plain(&case, "s-00002-of-00002.gguf").unwrap();
    assert_eq!(
        (pulled.file, pulled.fetched, pulled.unchecked.len()),
        (place(&case, "s-00001-of-00002.gguf"), 1500, 2)
    );
    let name = address(&case, "/plain/s-00001-of-00002.gguf");
    assert_eq!(
        case.find(&name).unwrap(),
        Some(place(&case, "s-00001-of-00002.gguf"))
    );
    assert_eq!(case.store.remove(&name).unwrap().gone[0].files.len(), 2);
}

#[test]
fn rejected_downloads_leave_no_files() {
    let case = tagged();
    for (file, message) in [
        ("page.gguf", "returns a web page"),
        ("short.gguf", "does not begin with"),
        ("bad.gguf", "it is damaged"),
        ("none.gguf", "the server answers 404"),
    ] {
        let error = plain(&case, file).unwrap_err();
        assert!(
            error.to_string().contains(message) && error.hint().is_some(),
            "{error}"
        );
        assert_eq!(case.files(), [""; 0], "{file}");
    }
}

#[test]
fn a_server_sends_on_so_often() {
    let case = tagged();
    // Four redirections here, and one to the file itself.
    let file = "a/m.gguf?x=y";
    assert_eq!(
        fetch(&case, &format!("{HOPS}4/{file}")).unwrap().fetched,
        SIZE as u64
    );
    let error = fetch(&case, &format!("{HOPS}5/{file}")).unwrap_err();
    assert!(error.to_string().contains("more than 5 times"), "{error}");
}

#[test]
fn nothing_comes_unencrypted_from_elsewhere() {
    let case = tagged();
    let unencrypted = |case: &Case, name: &Name| {
        let error = pull(&case.client(), &case.store, name, FORM, &mut |_| ()).unwrap_err();
        assert!(
            matches!(&error, Error::Plain(_)) && !error.to_string().contains("secret"),
            "{error}"
        );
        assert!(error.hint().unwrap().contains("GRISTMILL_ALLOW_HTTP"));
    };
    unencrypted(
        &case,
        &Name::parse("http://192.0.2.1/m.gguf?secret")
            .unwrap()
            .unwrap(),
    );
    // The same holds for a redirection from this machine.
    unencrypted(
        &case,
        &address(&case, &format!("{AWAY}192.0.2.1/secret.gguf")),
    );
    // With permission the request is sent; the host does not exist, which is another error.
    let told = Client::new(&case.server.endpoint, None)
        .pause(Duration::ZERO)
        .allow_http(true);
    let nobody = Name::parse("http://127.0.0.1.invalid/m.gguf")
        .unwrap()
        .unwrap();
    let error = pull(&told, &case.store, &nobody, FORM, &mut |_| ()).unwrap_err();
    assert!(
        matches!(error, Error::Transport { is_hub: false, .. }),
        "{error}"
    );
}
