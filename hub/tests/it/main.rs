//! Downloads from a fake hub.

mod http_source;
mod planted;
mod server;

use gristmill_hub::{Client, Error, FileFormat, Name, Progress, Pulled, Store, StoredModel, pull};
use server::{ELSEWHERE, Fault, REPOSITORY, Server};
use sha2::{Digest, Sha256};
use std::path::PathBuf;
use std::time::Duration;

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// Pseudorandom bytes.
fn some_bytes(n: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..n).map(|_| next()).collect()
}

/// Check of a model's format in these tests: the fifth byte must not be `!`.
fn check(mut file: std::fs::File) -> Result<(), String> {
    let mut bytes = vec![];
    std::io::Seek::rewind(&mut file).map_err(|e| e.to_string())?;
    std::io::Read::read_to_end(&mut file, &mut bytes).map_err(|e| e.to_string())?;
    if bytes.get(4) == Some(&b'!') {
        Err("it is damaged".into())
    } else {
        Ok(())
    }
}

const FORM: FileFormat = FileFormat {
    begins: *b"GGUF",
    check: &check,
};
const SIZE: usize = 5 << 20;
const SPLIT: [&str; 2] = [
    "big/m-BF16-00001-of-00002.gguf",
    "big/m-BF16-00002-of-00002.gguf",
];

struct Case {
    server: Server,
    store: Store,
    folder: tempfile::TempDir,
}

impl Case {
    fn new() -> Case {
        let file = |path: &str, n, seed| {
            let bytes = some_bytes(n, seed);
            let sum = sha256(&bytes);
            (path.to_owned(), bytes, Some(sum))
        };
        let mut files = vec![
            file("m-Q4_0.gguf", SIZE, 1),
            file(SPLIT[0], 1000, 2),
            file(SPLIT[1], 500, 3),
        ];
        files.push(("README.md".into(), b"read me".to_vec(), None));
        files.push(("small.gguf".into(), b"small".to_vec(), None));
        files.push(("../../outside.gguf".into(), b"outside".to_vec(), None));
        let folder = tempfile::tempdir().unwrap();
        Case {
            server: Server::start(files),
            store: Store::new(folder.path().join("models")),
            folder,
        }
    }
    fn client(&self) -> Client {
        Client::new(&self.server.endpoint, Some("secret".into())).pause(Duration::ZERO)
    }
    fn pull(&self, file: &str) -> Result<Pulled, Error> {
        pull(&self.client(), &self.store, &name(file), FORM, &mut |_| ())
    }
    fn find(&self, name: &Name) -> Result<Option<PathBuf>, Error> {
        self.store.find(name, &mut |_| ())
    }
    fn bytes(&self, file: &str) -> Vec<u8> {
        self.server
            .state
            .lock()
            .unwrap()
            .files
            .iter()
            .find(|f| f.0 == file)
            .unwrap()
            .1
            .clone()
    }
    /// Names of all files in the temporary folder, sorted.
    fn files(&self) -> Vec<String> {
        let mut out = vec![];
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder)
                .unwrap()
                .map(|e| e.unwrap().path())
            {
                match entry.is_dir() {
                    true => folders.push(entry),
                    false => out.push(entry.file_name().unwrap().to_str().unwrap().to_owned()),
                }
            }
        }
        out.sort();
        out
    }
}

fn name(file: &str) -> Name {
    Name::parse(&format!("hf:{REPOSITORY}:{file}"))
        .unwrap()
        .unwrap()
}

#[test]
fn a_file_comes_whole_and_once() {
    let case = Case::new();
    let mut seen = vec![];
    let pulled = pull(&case.client(), &case.store, &name("q4_0"), FORM, &mut |p| {
        if let Progress::Fetched { done, total, .. } = p {
            seen.push((done, total));
        }
    });
    let pulled = pulled.unwrap();
    assert_eq!(
        (pulled.name, pulled.fetched),
        (name("m-Q4_0.gguf"), SIZE as u64)
    );
    assert_eq!(
        std::fs::read(&pulled.file).unwrap(),
        case.bytes("m-Q4_0.gguf")
    );
    assert!(
        seen.windows(2).all(|w| w[0].0 < w[1].0)
            && seen.last() == Some(&(SIZE as u64, SIZE as u64))
    );
    assert_eq!(case.files(), ["m-Q4_0.gguf", "m-Q4_0.gguf.sha256"]);
    let line = std::fs::read_to_string(pulled.file.with_file_name("m-Q4_0.gguf.sha256")).unwrap();
    let sum = format!("{}  m-Q4_0.gguf\n", sha256(&case.bytes("m-Q4_0.gguf")));
    assert!(
        line.starts_with(&format!("{sum}# gristmill: size {SIZE} changed ")),
        "{line}"
    );
    let mut check = std::process::Command::new("sha256sum");
    check.args(["-c", "--strict", "--warn", "m-Q4_0.gguf.sha256"]);
    if let Ok(output) = check.current_dir(pulled.file.parent().unwrap()).output() {
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{output:?}"
        );
    }
    // The token goes to the hub, but not to the target of its redirection.
    let requests = case.server.requests();
    assert_eq!(requests.len(), 3);
    for request in requests {
        let token = (!request.path.starts_with(ELSEWHERE)).then(|| "secret".to_owned());
        assert_eq!(request.token, token, "{}", request.path);
    }
    // A second pull downloads nothing, until the hub has another file.
    assert_eq!(case.pull("Q4_0").unwrap().fetched, 0);
    assert_eq!(case.server.starts(), [0; 0]);
    let other = some_bytes(SIZE, 9);
    case.server.state.lock().unwrap().files[0] =
        ("m-Q4_0.gguf".into(), other.clone(), Some(sha256(&other)));
    assert_eq!(case.pull("Q4_0").unwrap().fetched, SIZE as u64);
    assert_eq!(std::fs::read(&pulled.file).unwrap(), other);
}

#[test]
fn a_connection_that_breaks_goes_on_where_it_was() {
    let case = Case::new();
    case.server.faults(&[
        Fault::Cut(1 << 20),
        Fault::Status(503),
        Fault::Cut(2 << 20),
        Fault::Cut(0),
    ]);
    let mut again = 0;
    let pulled = pull(&case.client(), &case.store, &name("Q4_0"), FORM, &mut |p| {
        again += usize::from(matches!(p, Progress::Again { .. }));
    });
    assert_eq!(pulled.unwrap().fetched, SIZE as u64);
    assert_eq!(
        (again, case.server.starts()),
        (4, vec![0, 1 << 20, 1 << 20, 3 << 20, 3 << 20])
    );
}

#[test]
fn a_server_that_trickles_is_given_up() {
    let case = Case::new();
    case.server.faults(&[Fault::Cut(10); 100]);
    let error = case.pull("Q4_0").unwrap_err();
    assert!(matches!(error, Error::Transport { .. }), "{error}");
    assert_eq!(case.server.starts(), [0, 10, 20, 30, 40]);
}

/// The server never pauses for as long as the timeout of a read.
#[test]
fn a_server_that_drips_is_given_up() {
    let case = Case::new();
    case.server.faults(&[Fault::Drip; 100]);
    let client = case.client().patience(Duration::from_millis(100));
    let error = pull(&client, &case.store, &name("Q4_0"), FORM, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("sends too slowly"), "{error}");
    assert_eq!(case.server.starts().len(), 5);
}

#[test]
fn another_run_goes_on_where_the_last_was() {
    let case = Case::new();
    // The run gives up after five attempts without new bytes.
    case.server
        .faults(&[&[Fault::Cut(3 << 20)][..], &[Fault::Cut(0); 5]].concat());
    let error = case.pull("Q4_0").unwrap_err();
    assert!(
        matches!(error, Error::Transport { .. }) && error.hint().unwrap().contains("kept"),
        "{error}"
    );
    assert!(case.files()[0].ends_with(".part") && case.find(&name("Q4_0")).unwrap().is_none());
    case.server.starts();
    case.server.faults(&[]);
    let mut checked = 0;
    let pulled = pull(&case.client(), &case.store, &name("Q4_0"), FORM, &mut |p| {
        if let Progress::Checked { done, .. } = p {
            checked = done;
        }
    });
    let pulled = pulled.unwrap();
    assert_eq!(
        (pulled.fetched, checked, case.server.starts()),
        (2 << 20, 3 << 20, vec![3 << 20])
    );
    assert_eq!(
        std::fs::read(&pulled.file).unwrap(),
        case.bytes("m-Q4_0.gguf")
    );
}

#[test]
fn a_server_without_ranges_begins_again() {
    let case = Case::new();
    case.server.faults(&[Fault::Cut(1 << 20), Fault::NoRanges]);
    let pulled = case.pull("Q4_0").unwrap();
    assert_eq!(
        std::fs::read(&pulled.file).unwrap(),
        case.bytes("m-Q4_0.gguf")
    );
    assert_eq!(case.server.starts(), [0, 1 << 20]);
}

#[test]
fn bytes_that_are_not_the_hubs_are_thrown_away() {
    let case = Case::new();
    let right = case.bytes("m-Q4_0.gguf");
    case.server.state.lock().unwrap().files[0].1[12345] ^= 1;
    let error = case.pull("Q4_0").unwrap_err();
    let Error::Checksum {
        expected, found, ..
    } = &error
    else {
        panic!("{error}")
    };
    assert!(*expected == sha256(&right) && *found != *expected);
    assert_eq!(case.files(), [""; 0]);
    // A partial file may be damaged, too.
    case.server.state.lock().unwrap().files[0].1 = right.clone();
    case.server
        .faults(&[&[Fault::Cut(3 << 20)][..], &[Fault::Cut(0); 5]].concat());
    case.pull("Q4_0").unwrap_err();
    let partial = case.store.root().join(REPOSITORY).join(&case.files()[0]);
    let mut bytes = std::fs::read(&partial).unwrap();
    assert_eq!(bytes, right[..3 << 20]);
    bytes[7] ^= 1;
    std::fs::write(&partial, bytes).unwrap();
    case.server.faults(&[]);
    assert!(matches!(
        case.pull("Q4_0").unwrap_err(),
        Error::Checksum { .. }
    ));
    assert_eq!(
        std::fs::read(case.pull("Q4_0").unwrap().file).unwrap(),
        right
    );
}

#[test]
fn split_models_come_with_all_their_parts() {
    let case = Case::new();
    // The first of two runs ends within the second part.
    case.server.faults(
        &[
            &[Fault::Cut(1000), Fault::Cut(100)][..],
            &[Fault::Cut(0); 5],
        ]
        .concat(),
    );
    case.pull("bf16").unwrap_err();
    assert!(case.find(&name("bf16")).unwrap().is_none());
    case.server.faults(&[]);
    let pulled = case.pull("bf16").unwrap();
    assert_eq!((pulled.name, pulled.fetched), (name(SPLIT[0]), 400));
    let place = |file: &str| case.store.root().join(REPOSITORY).join(file);
    assert_eq!(
        (case.find(&name("bf16")).unwrap(), &pulled.file),
        (Some(place(SPLIT[0])), &place(SPLIT[0]))
    );
    assert!(
        SPLIT
            .iter()
            .all(|file| std::fs::read(place(file)).unwrap() == case.bytes(file))
    );
}

#[test]
fn a_checksum_that_the_hub_lacks_is_missed() {
    let pulled = Case::new().pull("small").unwrap();
    assert_eq!(
        (pulled.unchecked, pulled.fetched),
        (vec!["small.gguf".to_owned()], 5)
    );
}

#[test]
fn unexpected_hub_responses_are_errors() {
    let case = Case::new();
    let other = Name::parse("hf:some/others").unwrap().unwrap();
    let error = pull(&case.client(), &case.store, &other, FORM, &mut |_| ()).unwrap_err();
    assert!(matches!(error, Error::NoRepository(_)), "{error}");
    let repository = Name::parse(&format!("hf:{REPOSITORY}")).unwrap().unwrap();
    let error = pull(&case.client(), &case.store, &repository, FORM, &mut |_| ()).unwrap_err();
    // A path that leads outside is not listed.
    assert!(
        matches!(&error, Error::Several { models, .. } if models.len() == 3),
        "{error}"
    );
    assert!(
        error
            .hint()
            .unwrap()
            .contains("choose a quantisation, hf:some/models:"),
        "{}",
        error.hint().unwrap()
    );
    let error = case.pull("none").unwrap_err();
    assert!(
        matches!(&error, Error::NoFile { files, .. } if files.len() == 3),
        "{error}"
    );
    case.server.faults(&[Fault::Status(403)]);
    assert!(matches!(case.pull("Q4_0").unwrap_err(), Error::Refused(_)));
    case.server.faults(&[Fault::Status(418)]);
    assert!(matches!(
        case.pull("Q4_0").unwrap_err(),
        Error::Answer { .. }
    ));
    // No server listens there.
    let nobody = Client::new("http://127.0.0.1:1", None).pause(Duration::ZERO);
    let error = pull(&nobody, &case.store, &repository, FORM, &mut |_| ()).unwrap_err();
    assert!(matches!(error, Error::Transport { .. }), "{error}");
}

#[test]
fn a_file_is_fetched_by_one_at_a_time() {
    let case = Case::new();
    let client = case.client();
    let mut nested = None;
    pull(&client, &case.store, &name("Q4_0"), FORM, &mut |p| {
        if matches!(p, Progress::Fetched { .. }) {
            nested.get_or_insert_with(|| case.pull("Q4_0").unwrap_err());
        }
    })
    .unwrap();
    assert!(matches!(nested, Some(Error::Busy(_))), "{nested:?}");
}

#[test]
fn downloads_are_listed_and_removed() {
    let case = Case::new();
    assert_eq!(case.store.list().unwrap().kept, []);
    case.pull("bf16").unwrap();
    case.pull("small").unwrap();
    case.server
        .faults(&[&[Fault::Cut(3 << 20)][..], &[Fault::Cut(0); 5]].concat());
    case.pull("Q4_0").unwrap_err();
    let about = |kept: &[StoredModel]| -> Vec<(String, u64, bool)> {
        kept.iter()
            .map(|k| (k.name.file.clone().unwrap(), k.bytes, k.whole))
            .collect()
    };
    let (big, cut, small) = (
        (SPLIT[0].to_owned(), 1500, true),
        ("m-Q4_0.gguf".to_owned(), 3 << 20, false),
        ("small.gguf".to_owned(), 5, true),
    );
    assert_eq!(
        about(&case.store.list().unwrap().kept),
        [big.clone(), cut.clone(), small.clone()]
    );
    // The name is ambiguous.
    let repository = Name::parse(&format!("hf:{REPOSITORY}")).unwrap().unwrap();
    assert!(matches!(case.find(&repository), Err(Error::Several { .. })));
    assert_eq!(
        about(&case.store.remove(&name("BF16")).unwrap().gone),
        [big]
    );
    assert_eq!(
        about(&case.store.remove(&name("q4_0")).unwrap().gone),
        [cut]
    );
    assert_eq!(case.files(), ["small.gguf", "small.gguf.sha256"]);
    assert!(case.find(&repository).unwrap().is_some());
    assert!(matches!(
        case.store.remove(&name("none")),
        Err(Error::NotKept(_))
    ));
    assert_eq!(
        about(&case.store.remove(&repository).unwrap().gone),
        [small]
    );
    assert_eq!(
        (case.files(), case.store.list().unwrap().kept),
        (vec![], vec![])
    );
    assert_eq!(std::fs::read_dir(case.store.root()).unwrap().count(), 0);
    // The root of the store is a file.
    let file = case.folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let store = Store::new(PathBuf::from(&file));
    assert_eq!(store.list().unwrap().kept, []);
    let error = pull(&case.client(), &store, &name("small"), FORM, &mut |_| ()).unwrap_err();
    assert!(matches!(error, Error::Disk { .. }), "{error}");
}
