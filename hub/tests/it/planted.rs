//! Hostile contents of the store and hostile answers of the hub.
//!
//! Nothing outside the store is read, written or removed, and nothing in it that was
//! not downloaded is removed.

use super::{Case, FORM, REPOSITORY, name, sha256};
use crate::server::Fault;
use gristmill_hub::{Client, Error, Name, Progress, Store, Verdict, pull};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const FILE: &str = "m-Q4_0.gguf";

fn repository() -> Name {
    Name::parse(&format!("hf:{REPOSITORY}")).unwrap().unwrap()
}

/// Path of a file in the store.
fn place(case: &Case, file: &str) -> PathBuf {
    case.store.root().join(REPOSITORY).join(file)
}

/// Creates a foreign folder with the layout of the store and a model with a record.
fn elsewhere(case: &Case) -> PathBuf {
    let folder = case.folder.path().join("elsewhere");
    let models = folder.join("models/big");
    fs::create_dir_all(&models).unwrap();
    for at in [&folder, &folder.join("models"), &models] {
        fs::write(at.join("theirs.gguf"), "theirs").unwrap();
        fs::write(
            at.join("theirs.gguf.sha256"),
            format!("{}  theirs.gguf\n", sha256(b"theirs")),
        )
        .unwrap();
    }
    folder
}

/// Returns all files below a folder, sorted, with the contents of regular ones.
fn everything(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut out = vec![];
    for entry in fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
        let about = entry.symlink_metadata().unwrap();
        match about.is_dir() {
            true => out.extend(everything(&entry)),
            false => out.push((
                entry.clone(),
                if about.is_file() {
                    fs::read(&entry).unwrap()
                } else {
                    vec![]
                },
            )),
        }
    }
    out.sort();
    out
}

fn set_date(path: &Path, date: SystemTime) {
    fs::File::options()
        .append(true)
        .open(path)
        .unwrap()
        .set_modified(date)
        .unwrap();
}

/// Flips a byte of a file, and keeps its date if `dated`.
fn change(path: &Path, dated: bool) {
    let date = fs::metadata(path).unwrap().modified().unwrap();
    let mut bytes = fs::read(path).unwrap();
    bytes[1234] ^= 1;
    fs::write(path, bytes).unwrap();
    // With a coarse clock, writing may not change the date.
    set_date(
        path,
        if dated {
            date
        } else {
            date + Duration::from_secs(1)
        },
    );
}

#[test]
fn links_to_folders_are_neither_listed_nor_followed() {
    for depth in 0..3 {
        let case = Case::new();
        let theirs = elsewhere(&case);
        let before = everything(&theirs);
        let root = case.store.root().to_owned();
        let link = match depth {
            0 => {
                fs::create_dir_all(&root).unwrap();
                symlink(&theirs, root.join("some")).unwrap();
                root.join("some")
            }
            1 => {
                fs::create_dir_all(root.join("some")).unwrap();
                symlink(theirs.join("models"), root.join(REPOSITORY)).unwrap();
                root.join(REPOSITORY)
            }
            _ => {
                case.pull("small").unwrap();
                symlink(theirs.join("models/big"), place(&case, "big")).unwrap();
                place(&case, "big")
            }
        };
        let listed = case.store.list().unwrap();
        assert!(
            listed
                .kept
                .iter()
                .all(|k| k.name.file.as_deref() == Some("small.gguf")),
            "{listed:?}"
        );
        assert_eq!(listed.passed_over, std::slice::from_ref(&link));
        for wanted in ["theirs", "big/theirs.gguf"] {
            assert!(
                !matches!(case.find(&name(wanted)), Ok(Some(_))),
                "{depth} {wanted}"
            );
            case.store.remove(&name(wanted)).unwrap_err();
        }
        // Downloading into the link is refused before any bytes arrive.
        case.server.requests();
        let error = case.pull("bf16").unwrap_err();
        assert!(
            matches!(&error, Error::Disk { path, .. } if path.starts_with(&link)),
            "{error}"
        );
        assert!(
            error.hint().unwrap().contains("link") && case.server.starts().is_empty(),
            "{error}"
        );
        match case.store.remove(&repository()) {
            Ok(removed) => assert_eq!(
                (depth, removed.gone.len(), removed.left),
                (2, 1, vec![link.clone()])
            ),
            Err(error) => assert!(depth < 2, "{error}"),
        }
        assert!(link.is_symlink(), "{depth}");
        assert_eq!(everything(&theirs), before, "{depth}");
    }
}

#[test]
fn a_link_in_place_of_a_file_is_not_written_through() {
    let mark = |case: &Case| format!("{FILE}.{}.part", &sha256(&case.bytes(FILE))[..12]);
    for which in [
        "part",
        "sha256",
        "file",
        "hard",
        "fifo",
        "folder",
        "new record",
    ] {
        let case = Case::new();
        let theirs = elsewhere(&case).join("theirs.gguf");
        fs::create_dir_all(case.store.root().join(REPOSITORY)).unwrap();
        let planted = match which {
            "part" | "hard" | "fifo" | "folder" => place(&case, &mark(&case)),
            "sha256" => place(&case, &format!("{FILE}.sha256")),
            "new record" => place(&case, &format!("{FILE}.sha256.part")),
            _ => place(&case, FILE),
        };
        match which {
            "hard" => fs::hard_link(&theirs, &planted).unwrap(),
            "folder" => fs::create_dir(&planted).unwrap(),
            "fifo" => {
                let made = std::process::Command::new("mkfifo")
                    .arg(&planted)
                    .status()
                    .unwrap();
                assert!(made.success());
            }
            _ => symlink(&theirs, &planted).unwrap(),
        }
        let error = case.pull("Q4_0").unwrap_err();
        assert!(
            matches!(&error, Error::Disk { path, .. } if path.starts_with(planted.parent().unwrap())),
            "{error}"
        );
        assert!(
            error.to_string().contains("regular file") || error.to_string().contains("hard link"),
            "{which}: {error}"
        );
        assert_eq!(fs::read(&theirs).unwrap(), b"theirs", "{which}");
        assert!(planted.symlink_metadata().is_ok(), "{which}");
        // Removing leaves it too, unless it is a regular file with the name of a partial one.
        let _ = case.store.remove(&repository());
        assert_eq!(fs::read(&theirs).unwrap(), b"theirs", "{which}");
        assert_eq!(
            planted.symlink_metadata().is_ok(),
            which != "hard",
            "{which}"
        );
    }
}

#[test]
fn files_without_a_record_are_listed_and_left() {
    let case = Case::new();
    case.pull("Q4_0").unwrap();
    case.pull("bf16").unwrap();
    for file in [
        "own.gguf",
        "big/own-Q8_0.gguf",
        "notes.txt",
        "own.gguf.part",
    ] {
        fs::write(place(&case, file), "own").unwrap();
    }
    // A record that names another file is ignored.
    fs::write(
        place(&case, "own.gguf.sha256"),
        format!("{}  other.gguf\n", sha256(b"own")),
    )
    .unwrap();
    let listed = case.store.list().unwrap();
    let about: Vec<_> = listed
        .kept
        .iter()
        .map(|k| (k.name.file.as_deref().unwrap(), k.fetched))
        .collect();
    assert_eq!(
        about,
        [
            ("big/m-BF16-00001-of-00002.gguf", true),
            ("big/own-Q8_0.gguf", false),
            (FILE, true),
            ("own.gguf", false)
        ]
    );
    assert_eq!(
        case.find(&name("own.gguf")).unwrap(),
        Some(place(&case, "own.gguf"))
    );
    let error = case.store.remove(&name("own.gguf")).unwrap_err();
    assert!(
        matches!(&error, Error::NotFetched { path, .. } if *path == place(&case, "own.gguf")),
        "{error}"
    );
    let removed = case.store.remove(&repository()).unwrap();
    assert_eq!(
        (removed.gone.len(), removed.left.len()),
        (2, 5),
        "{removed:?}"
    );
    assert_eq!(
        case.files(),
        [
            "notes.txt",
            "own-Q8_0.gguf",
            "own.gguf",
            "own.gguf.part",
            "own.gguf.sha256"
        ]
    );
    let error = case.store.remove(&repository()).unwrap_err();
    assert!(matches!(error, Error::NotFetched { .. }), "{error}");
}

#[test]
fn a_file_of_ones_own_is_not_replaced() {
    let case = Case::new();
    fs::create_dir_all(case.store.root().join(REPOSITORY)).unwrap();
    fs::write(place(&case, FILE), "own").unwrap();
    let error = case.pull("Q4_0").unwrap_err();
    assert!(
        matches!(&error, Error::InTheWay { path } if *path == place(&case, FILE)),
        "{error}"
    );
    assert_eq!(fs::read(place(&case, FILE)).unwrap(), b"own");
    // A copy of the hub's file is not downloaded, but does not count as downloaded.
    fs::write(place(&case, FILE), case.bytes(FILE)).unwrap();
    assert_eq!(case.pull("Q4_0").unwrap().fetched, 0);
    assert!(matches!(
        case.store.remove(&repository()),
        Err(Error::NotFetched { .. })
    ));
    assert_eq!(case.files(), [FILE]);
}

#[test]
fn a_change_at_the_same_size_is_noticed() {
    let case = Case::new();
    let file = case.pull("Q4_0").unwrap().file;
    change(&file, false);
    let error = case.find(&name("Q4_0")).unwrap_err();
    assert!(
        matches!(&error, Error::Changed { path, .. } if *path == file),
        "{error}"
    );
    assert!(
        error
            .hint()
            .unwrap()
            .contains("gristmill pull hf:some/models:m-Q4_0.gguf"),
        "{error}"
    );
    let mut changed = 0;
    let pulled = pull(&case.client(), &case.store, &name("Q4_0"), FORM, &mut |p| {
        changed += usize::from(matches!(p, Progress::Changed { .. }));
    });
    assert_eq!(
        (pulled.unwrap().fetched, changed),
        (case.bytes(FILE).len() as u64, 1)
    );
    assert_eq!(fs::read(&file).unwrap(), case.bytes(FILE));
    // A different size is detected without reading.
    fs::write(&file, "short").unwrap();
    let read = case
        .store
        .find(&name("Q4_0"), &mut |_| panic!("it is read"));
    assert!(matches!(read, Err(Error::Changed { .. })));
    case.pull("Q4_0").unwrap();
    // A change with the old date is detected only by `verify`.
    change(&file, true);
    assert!(case.find(&name("Q4_0")).is_ok());
    let kept = case.store.list().unwrap().kept;
    assert_eq!(
        case.store.verify(&kept[0], &mut |_, _, _| ()).unwrap(),
        Verdict::Changed
    );
}

#[test]
fn another_date_is_read_once() {
    let case = Case::new();
    let file = case.pull("Q4_0").unwrap().file;
    set_date(
        &file,
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_007),
    );
    let read = || {
        let mut bytes = 0;
        let mut progress = |p: Progress| match p {
            Progress::Checked { done, .. } => bytes = done,
            other => panic!("{other:?}"),
        };
        case.store
            .find(&name("Q4_0"), &mut progress)
            .unwrap()
            .unwrap();
        bytes
    };
    assert_eq!([read(), read()], [fs::metadata(&file).unwrap().size(), 0]);
    let kept = case.store.list().unwrap().kept;
    assert_eq!(
        case.store.verify(&kept[0], &mut |_, _, _| ()).unwrap(),
        Verdict::Same
    );
    // A record without a stamp that is older than its file proves nothing.
    let record = strip(&case);
    set_date(
        &record,
        fs::metadata(&file).unwrap().modified().unwrap() - Duration::from_secs(1),
    );
    assert_eq!([read(), read()], [fs::metadata(&file).unwrap().size(), 0]);
    assert_eq!(case.pull("Q4_0").unwrap().fetched, 0);
}

/// Replaces the record by one of an earlier version, without comments.
fn strip(case: &Case) -> PathBuf {
    let record = place(case, &format!("{FILE}.sha256"));
    fs::write(&record, format!("{}  {FILE}\n", sha256(&case.bytes(FILE)))).unwrap();
    record
}

/// Prevents or allows writing a new record, also for root.
fn seal(case: &Case, sealed: bool) {
    let folder = place(case, "");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let new = place(case, &format!("{FILE}.sha256.part"));
    match sealed {
        true => fs::create_dir(new).unwrap(),
        false => fs::remove_dir(new).unwrap(),
    }
    if sealed {
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
    }
}

#[test]
fn records_of_earlier_versions_are_not_read_for() {
    let case = Case::new();
    let file = case.pull("Q4_0").unwrap().file;
    let record = strip(&case);
    let find = || {
        case.store
            .find(&name("Q4_0"), &mut |p| panic!("it is read: {p:?}"))
    };
    // If the record cannot be rewritten, the dates are compared at every start.
    seal(&case, true);
    for _ in 0..2 {
        assert_eq!(find().unwrap(), Some(file.clone()));
        let pulled = pull(&case.client(), &case.store, &name("Q4_0"), FORM, &mut |p| {
            assert!(
                matches!(p, Progress::PassedOver { .. }),
                "it is read: {p:?}"
            );
        });
        assert_eq!(pulled.unwrap().fetched, 0);
    }
    seal(&case, false);
    assert!(!fs::read_to_string(&record).unwrap().contains("size"));
    assert_eq!(find().unwrap(), Some(file.clone()));
    assert!(
        fs::read_to_string(&record)
            .unwrap()
            .contains(&format!("# gristmill: size {}", case.bytes(FILE).len()))
    );
    // From now on the recorded date counts.
    change(&file, false);
    assert!(matches!(
        case.find(&name("Q4_0")),
        Err(Error::Changed { .. })
    ));
    // A change after an earlier version wrote its record is detected.
    set_date(
        &strip(&case),
        fs::metadata(&file).unwrap().modified().unwrap() - Duration::from_secs(1),
    );
    assert!(matches!(
        case.find(&name("Q4_0")),
        Err(Error::Changed { .. })
    ));
    // A file of another size is never the hub's, whatever its date.
    fs::write(&file, "short").unwrap();
    strip(&case);
    assert_eq!(
        case.pull("Q4_0").unwrap().fetched,
        case.bytes(FILE).len() as u64
    );
}

#[test]
fn files_hashed_at_every_start_are_reported() {
    let case = Case::new();
    let file = case.pull("Q4_0").unwrap().file;
    set_date(&file, SystemTime::UNIX_EPOCH);
    seal(&case, true);
    for _ in 0..2 {
        let (mut read, mut said) = (0, vec![]);
        let mut progress = |p: Progress| match p {
            Progress::Checked { done, .. } => read = done,
            Progress::Unrecorded { file, .. } => said.push(file.to_owned()),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            case.store.find(&name("Q4_0"), &mut progress).unwrap(),
            Some(file.clone())
        );
        assert_eq!(
            (read, said),
            (case.bytes(FILE).len() as u64, vec![file.clone()])
        );
    }
    seal(&case, false);
}

#[test]
fn names_that_do_not_show_what_they_are_are_passed_over() {
    let case = Case::new();
    for file in [
        "m-\u{202e}0_4Q.gguf",
        "\u{1b}[2Jx.gguf",
        "a\u{200b}.gguf",
        "..gguf",
        "-x.gguf",
        &"x".repeat(300),
    ] {
        // Escaped as in JSON.
        let file = file.replace('\u{1b}', "\\u001b");
        case.server
            .state
            .lock()
            .unwrap()
            .files
            .push((file, b"x".to_vec(), None));
    }
    let mut passed_over = 0;
    let error = pull(&case.client(), &case.store, &repository(), FORM, &mut |p| {
        if let Progress::PassedOver { files } = p {
            passed_over = files;
        }
    });
    let Err(Error::Several { models, .. }) = error else {
        panic!("{error:?}")
    };
    // The seventh is the path that leads outside.
    assert_eq!((models.len(), passed_over), (3, 7), "{models:?}");
    // The same names in the store.
    case.pull("small").unwrap();
    for file in ["m\u{202e}.gguf", "\u{1b}[2Jx.gguf", ".hidden.gguf"] {
        fs::write(place(&case, file), "x").unwrap();
    }
    fs::create_dir(case.store.root().join("a\u{1b}b")).unwrap();
    let listed = case.store.list().unwrap();
    assert_eq!(
        (listed.kept.len(), listed.passed_over.len()),
        (1, 4),
        "{listed:?}"
    );
    assert_eq!(case.store.remove(&repository()).unwrap().left.len(), 3);
}

#[test]
fn foreign_files_are_ignored() {
    let case = Case::new();
    case.pull("small").unwrap();
    let root = case.store.root().to_owned();
    for folder in [root.clone(), root.join("some")] {
        for file in ["README.md", ".DS_Store", "own.gguf"] {
            fs::write(folder.join(file), "x").unwrap();
        }
        for inner in ["lost+found", ".cache"] {
            fs::create_dir(folder.join(inner)).unwrap();
        }
        symlink("nowhere", folder.join(".lock")).unwrap();
    }
    let listed = case.store.list().unwrap();
    assert_eq!((listed.kept.len(), listed.passed_over), (1, vec![]));
    // Links and names with invisible characters are reported.
    let planted = [
        root.join("a\u{202e}b"),
        root.join("link"),
        root.join("some/.\u{200b}"),
        root.join("some/link"),
    ];
    for (i, path) in planted.iter().enumerate() {
        match i {
            0 => fs::write(path, "x").unwrap(),
            2 => fs::create_dir(path).unwrap(),
            _ => symlink("nowhere", path).unwrap(),
        }
    }
    let mut passed_over = case.store.list().unwrap().passed_over;
    passed_over.sort();
    assert_eq!(passed_over, planted);
}

#[test]
fn folders_without_end_do_not_exhaust_descriptors() {
    let case = Case::new();
    case.pull("small").unwrap();
    let mut deep = place(&case, "x");
    for _ in 0..200 {
        deep.push("x");
    }
    fs::create_dir_all(&deep).unwrap();
    let listed = case.store.list().unwrap();
    assert_eq!((listed.kept.len(), listed.passed_over.len()), (1, 1));
    assert_eq!(case.store.remove(&repository()).unwrap().gone.len(), 1);
}

#[test]
fn a_token_is_not_sent_in_the_clear() {
    let store = Store::new("none");
    let client = Client::new("http://hub.example", Some("secret".into())).pause(Duration::ZERO);
    let error = pull(&client, &store, &repository(), FORM, &mut |_| ()).unwrap_err();
    assert!(
        matches!(error, Error::PlainToken(_)) && error.hint().unwrap().contains("https"),
        "{error}"
    );
}

#[test]
fn a_hub_that_sends_more_than_it_said_is_left() {
    let case = Case::new();
    let listed = case.bytes("small.gguf");
    case.server.faults(&[Fault::More(1 << 20); 8]);
    let error = case.pull("small").unwrap_err();
    assert!(
        matches!(&error, Error::Transport { message, .. } if message.contains("more than")),
        "{error}"
    );
    let sizes: u64 = everything(case.store.root())
        .iter()
        .map(|f| f.1.len() as u64)
        .sum();
    assert!(sizes <= listed.len() as u64, "{sizes}");
}
