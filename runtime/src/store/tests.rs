use super::*;
use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

impl Store {
    fn file(&self, key: &Key) -> PathBuf {
        self.path().unwrap().join(key.file())
    }
}

/// A directory for one test, removed at its end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path =
            std::env::temp_dir().join(format!("gristmill-store-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Place(path)
    }
    fn open(&self) -> Store {
        Store::open(&self.0, 1 << 20).unwrap()
    }
    fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(&self.0)
            .unwrap()
            .flatten()
            .map(|e| e.file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn keys_depend_on_every_part_and_on_where_parts_end() {
    assert_ne!(Key::from_parts(["ab", "c"]), Key::from_parts(["a", "bc"]));
    assert_ne!(Key::from_parts(["ab"]), Key::from_parts(["ab", ""]));
    assert_eq!(Key::from_parts(["ab", "c"]), Key::from_parts(["ab", "c"]));
}

#[test]
fn keeps_what_was_put() {
    let place = Place::new("keeps");
    let (key, other) = (Key::from_parts(["a"]), Key::from_parts(["b"]));
    let store = place.open();
    assert_eq!(store.get(&key).unwrap(), None);
    store.put(&key, b"payload").unwrap();
    store.put(&other, b"").unwrap();
    assert_eq!(place.open().get(&key).unwrap().unwrap(), b"payload");
    assert_eq!(store.get(&other).unwrap().unwrap(), b"");
    assert_eq!(store.size(), 32 + 7 + 32);
    assert_eq!(std::fs::metadata(&place.0).unwrap().mode() & 0o777, 0o700);
    assert_eq!(
        std::fs::metadata(store.file(&key)).unwrap().mode() & 0o777,
        0o600
    );
    assert_eq!(
        place.files().len(),
        2,
        "no temporary files are left: {:?}",
        place.files()
    );
}

#[test]
fn a_damaged_entry_is_no_entry() {
    let place = Place::new("damaged");
    let store = place.open();
    let key = Key::from_parts(["a"]);
    let good = || {
        store.put(&key, b"payload").unwrap();
        std::fs::read(store.file(&key)).unwrap()
    };
    let mut flipped = good();
    *flipped.last_mut().unwrap() ^= 1;
    let mut header = good();
    header[3] ^= 0x80;
    let truncated = good()[..36].to_vec();
    let longer = [good(), vec![0]].concat();
    for bad in [flipped, header, truncated, longer, vec![], vec![7; 31]] {
        std::fs::write(store.file(&key), &bad).unwrap();
        assert_eq!(store.get(&key).unwrap(), None, "{bad:?}");
        assert!(!store.file(&key).exists(), "a damaged entry is removed");
    }
    // An entry under the name of another.
    std::fs::write(store.file(&key), b"").unwrap();
    store.put(&Key::from_parts(["b"]), b"another").unwrap();
    std::fs::rename(store.file(&Key::from_parts(["b"])), store.file(&key)).unwrap();
    assert_eq!(store.get(&key).unwrap(), None);
    // A link, then a directory.
    let elsewhere = place.0.join("tmp-1-1");
    std::fs::write(&elsewhere, good()).unwrap();
    std::fs::remove_file(store.file(&key)).unwrap();
    std::os::unix::fs::symlink(&elsewhere, store.file(&key)).unwrap();
    assert_eq!(store.get(&key).unwrap(), None);
    std::fs::create_dir(store.file(&key)).unwrap();
    assert_eq!(store.get(&key).unwrap(), None);
    good();
    assert!(store.get(&key).unwrap().is_some());
}

#[test]
fn a_directory_that_others_can_write_to_is_refused() {
    let place = Place::new("modes");
    drop(place.open());
    for bad in [0o777, 0o770, 0o722, 0o1777] {
        mode(&place.0, bad);
        let error = Store::open(&place.0, 1).unwrap_err();
        assert!(matches!(error, Error::Cache { .. }), "{bad:o}: {error}");
        assert!(error.hint().unwrap().contains("GRISTMILL_CACHE"));
    }
    // A directory that others can read is restricted, unless it contains other files.
    mode(&place.0, 0o755);
    drop(place.open());
    assert_eq!(std::fs::metadata(&place.0).unwrap().mode() & 0o777, 0o700);
    std::fs::write(place.0.join("thesis.tex"), "").unwrap();
    mode(&place.0, 0o755);
    assert!(
        Store::open(&place.0, 1)
            .unwrap_err()
            .to_string()
            .contains("thesis.tex")
    );
    assert_eq!(std::fs::metadata(&place.0).unwrap().mode() & 0o777, 0o755);
}

#[test]
fn a_directory_of_someone_else_is_refused() {
    let place = Place::new("owner");
    drop(place.open());
    if std::os::unix::fs::chown(&place.0, Some(12345), None).is_err() {
        return; // only root can give directories away
    }
    assert!(
        Store::open(&place.0, 1)
            .unwrap_err()
            .to_string()
            .contains("belongs to user 12345")
    );
    std::os::unix::fs::chown(&place.0, Some(0), None).unwrap();
    let link = Place(place.0.with_extension("link"));
    std::os::unix::fs::symlink(&place.0, &link.0).unwrap();
    assert!(Store::open(&link.0, 1).is_ok(), "one's own link is fine");
    std::os::unix::fs::lchown(&link.0, Some(12345), None).unwrap();
    assert!(
        Store::open(&link.0, 1)
            .unwrap_err()
            .to_string()
            .contains("symbolic link")
    );
    std::fs::remove_file(&link.0).unwrap();
}

#[test]
fn a_path_that_cannot_be_a_directory_is_refused() {
    let place = Place::new("file");
    std::fs::write(&place.0, "").unwrap();
    for path in [place.0.clone(), place.0.join("below")] {
        let error = Store::open(&path, 1).unwrap_err();
        assert!(matches!(error, Error::Cache { .. }), "{error}");
    }
    assert!(Store::open("/proc/gristmill", 1).is_err());
    std::fs::remove_file(&place.0).unwrap();
}

#[test]
fn least_recently_used_go_first() {
    let place = Place::new("evicts");
    let store = Store::open(&place.0, 3 * (100 + 32)).unwrap();
    let key = |i: u32| Key::from_parts([i.to_le_bytes()]);
    let age = |i: u32, seconds| {
        let file = File::open(store.file(&key(i))).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds))
            .unwrap();
    };
    for i in 0..3 {
        store.put(&key(i), &[i as u8; 100]).unwrap();
        age(i, 1000 - i as u64);
    }
    assert!(
        store.get(&key(0)).unwrap().is_some(),
        "now the most recently used"
    );
    store.put(&key(3), &[3; 100]).unwrap();
    let there: Vec<bool> = (0..4)
        .map(|i| store.get(&key(i)).unwrap().is_some())
        .collect();
    assert_eq!(there, [true, false, true, true]);
    store.put(&key(4), &[4; 1000]).unwrap();
    assert_eq!(
        store.get(&key(4)).unwrap(),
        None,
        "larger than the whole store"
    );
    assert!(store.size() <= store.limit());
}

#[test]
fn leftovers_of_dead_processes_go_and_those_of_living_ones_stay() {
    let place = Place::new("stale");
    let store = place.open();
    let living = store.temporary().unwrap();
    let dead = place.0.join("tmp-4194305-0");
    std::fs::create_dir(&dead).unwrap();
    std::fs::write(dead.join("entry"), "half of an entry").unwrap();
    for path in [living.path(), &dead] {
        File::open(path)
            .unwrap()
            .set_modified(SystemTime::now() - Duration::from_secs(60))
            .unwrap();
    }
    drop(place.open());
    assert!(living.path().exists() && !dead.exists());
    let path = living.path().to_owned();
    drop(living);
    assert!(!path.exists());
    // Outside the store, in a shared directory for temporary files.
    let living = Temporary::in_one_of(std::slice::from_ref(&place.0)).unwrap();
    let (dead, other) = (
        place.0.join("gristmill-4194305-7"),
        place.0.join("gristmill-4194305-7-of-mine"),
    );
    for path in [&dead, &other] {
        std::fs::create_dir(path).unwrap();
        std::fs::write(path.join("unit.c"), "").unwrap();
    }
    for path in [living.path(), &dead, &other] {
        File::open(path)
            .unwrap()
            .set_modified(SystemTime::now() - Duration::from_secs(60))
            .unwrap();
    }
    drop(Temporary::in_one_of(std::slice::from_ref(&place.0)).unwrap());
    assert!(living.path().exists() && !dead.exists() && other.exists());
}

#[test]
fn writers_side_by_side() {
    let place = Place::new("writers");
    let payload = |k: u32| vec![k as u8; 5000 + k as usize];
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let store = place.open();
                for i in 0..40 {
                    let key = Key::from_parts([(i % 8u32).to_le_bytes()]);
                    store.put(&key, &payload(i % 8)).unwrap();
                    assert_eq!(store.get(&key).unwrap().unwrap(), payload(i % 8));
                }
            });
        }
    });
    assert_eq!(place.files().len(), 8, "{:?}", place.files());
}

/// Runs `work` on a thread with a time limit, so that a hang fails the test.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || send.send(work()));
    receive
        .recv_timeout(Duration::from_secs(20))
        .expect("it hangs")
}

#[test]
fn non_files_and_oversized_files_are_no_entries() {
    let place = Place::new("kinds");
    let key = Key::from_parts(["a"]);
    let store = place.open();
    let file = store.file(&key);
    let made = std::process::Command::new("mkfifo")
        .arg(&file)
        .status()
        .unwrap();
    assert!(made.success());
    let (found, store) = in_time(move || (store.get(&key).unwrap(), store));
    assert!(found.is_none() && !file.exists());
    let _listener = std::os::unix::net::UnixListener::bind(&file).unwrap();
    assert!(store.get(&key).unwrap().is_none() && !file.exists());
    // A sparse file: long, but without disk blocks.
    File::create(&file).unwrap().set_len(1 << 40).unwrap();
    let (found, store) = in_time(move || (store.get(&key).unwrap(), store));
    assert!(found.is_none() && !file.exists());
    store.put(&key, b"payload").unwrap();
    assert_eq!(store.get(&key).unwrap().unwrap(), b"payload");
    store.remove(&key);
    assert_eq!(store.get(&key).unwrap(), None);
}

/// Runs in a child process that has no file descriptors left.
#[test]
fn an_entry_that_cannot_be_read_now_stays() {
    if std::env::var_os("GRISTMILL_TEST_CHILD").is_none() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "store::tests::an_entry_that_cannot_be_read_now_stays",
            ])
            .env("GRISTMILL_TEST_CHILD", "1")
            .status();
        return assert!(child.unwrap().success());
    }
    let place = Place::new("passing");
    let (key, store) = (Key::from_parts(["a"]), place.open());
    store.put(&key, b"payload").unwrap();
    let mut taken = vec![];
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let few = rustix::process::Rlimit {
        current: Some(64),
        maximum: limit.maximum,
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    assert_eq!(store.get(&key).unwrap(), None);
    drop(taken);
    assert_eq!(store.get(&key).unwrap().unwrap(), b"payload");
}

#[test]
fn a_way_that_others_can_change_is_refused() {
    let place = Place::new("way");
    let inner = place.0.join("a").join("store");
    drop(Store::open(&inner, 1).unwrap());
    // A group with the user's own number counts as the user; another group, if this test may assign
    // one, does not.
    let meta = std::fs::metadata(&place.0).unwrap();
    let given = std::os::unix::fs::chown(&place.0, None, Some(meta.uid() + 1)).is_ok();
    let strange = given || meta.gid() != meta.uid();
    for (bad, refused) in [
        (0o777, true),
        (0o775, strange),
        (0o1777, false),
        (0o755, false),
    ] {
        mode(&place.0, bad);
        let opened = Store::open(&inner, 1);
        assert_eq!(opened.is_err(), refused, "{bad:o}");
        if let Err(error) = opened {
            let said = error.to_string();
            assert!(
                said.ends_with(&format!("`chmod go-w {}`", place.0.display())),
                "{said}"
            );
            assert!(
                said.contains(&format!("{bad:o}"))
                    && said.contains("not read")
                    && error.hint().is_some(),
                "{said}"
            );
        }
    }
    if std::os::unix::fs::chown(&place.0, Some(12345), None).is_ok() {
        assert!(
            Store::open(&inner, 1)
                .unwrap_err()
                .to_string()
                .contains("belongs to user 12345")
        );
        std::os::unix::fs::chown(&place.0, Some(0), None).unwrap();
    }
    if given {
        std::os::unix::fs::chown(&place.0, None, Some(meta.uid())).unwrap();
        mode(&place.0, 0o775);
        drop(Store::open(&inner, 1).unwrap());
    }
}

#[test]
fn a_temporary_place_that_others_can_change_is_passed_over() {
    let (open, own) = (Place::new("open"), Place::new("own"));
    drop((open.open(), own.open()));
    mode(&open.0, 0o777);
    let temporary =
        Temporary::in_one_of(&[open.0.clone(), own.0.join("none"), own.0.clone()]).unwrap();
    let path = temporary.path().to_owned();
    assert!(
        path.starts_with(std::fs::canonicalize(&own.0).unwrap()),
        "{}",
        path.display()
    );
    assert!(
        path.file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with("gristmill-"),
        "{}",
        path.display()
    );
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    drop(temporary);
    assert!(!path.exists() && open.files().is_empty());
    let error = Temporary::in_one_of(std::slice::from_ref(&open.0))
        .err()
        .unwrap();
    let said = error.to_string();
    assert!(
        said.starts_with("no place for a compiler's files") && said.contains("mode 777"),
        "{said}"
    );
    assert!(
        said.ends_with(&format!("`chmod go-w {}`", open.0.display())),
        "{said}"
    );
    assert_eq!(
        error.hint().unwrap(),
        "set TMPDIR to a directory that only you can write to"
    );
    // A sticky directory may be shared, since other users cannot replace its entries.
    mode(&open.0, 0o1777);
    assert!(Temporary::in_one_of(std::slice::from_ref(&open.0)).is_ok());
}

#[test]
fn a_directory_that_is_exchanged_is_not_followed() {
    let place = Place::new("exchanged");
    let (key, moved) = (
        Key::from_parts(["a"]),
        Place(place.0.with_extension("moved")),
    );
    let store = place.open();
    store.put(&key, b"ours").unwrap();
    std::fs::rename(&place.0, &moved.0).unwrap();
    // Another store in its place, with a valid entry.
    place.open().put(&key, b"theirs").unwrap();
    assert_eq!(store.get(&key).unwrap().unwrap(), b"ours");
    let other = Key::from_parts(["b"]);
    store.put(&other, b"more").unwrap();
    assert!(moved.0.join(other.file()).exists() && !place.0.join(other.file()).exists());
}

#[test]
fn a_failed_write_warns_once() {
    let place = Place::new("unkept");
    let (key, other) = (Key::from_parts(["a"]), Key::from_parts(["b"]));
    let store = place.open();
    store.put_or_warn(&key, b"kept");
    assert!(store.warnings().is_empty());
    // Without its directory nothing can be written.
    std::fs::remove_dir_all(&place.0).unwrap();
    assert!(store.put(&other, b"lost").is_err());
    store.put_or_warn(&other, b"lost");
    store.put_or_warn(&other, b"lost");
    let said = store.warnings();
    let [Error::NotKept(why)] = &said[..] else {
        panic!("{said:?}")
    };
    assert!(
        why.to_string().contains("cannot be written to")
            && said[0].hint().unwrap().contains("GRISTMILL_CACHE")
    );
    assert!(store.warnings().is_empty());
    // A compiler still gets a temporary directory, which is removed with its files.
    let temporary = store.temporary().unwrap();
    let path = temporary.path().to_owned();
    std::fs::create_dir(path.join("below")).unwrap();
    std::fs::write(path.join("below").join("unit.c"), "").unwrap();
    std::os::unix::fs::symlink("/etc", path.join("link")).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    drop(temporary);
    assert!(!path.exists() && Path::new("/etc/passwd").exists());
}

#[test]
fn a_store_without_a_directory_works_and_says_why() {
    let place = Place::new("without");
    drop(place.open());
    mode(&place.0, 0o777);
    let key = Key::from_parts(["a"]);
    let store = Store::open_or_without(&place.0, 1 << 20);
    let said = store.warnings();
    assert!(
        said.len() == 1
            && said[0]
                .to_string()
                .contains("other users can write to it (mode 777)"),
        "{said:?}"
    );
    assert!(
        said[0]
            .to_string()
            .contains("compiled kernels are not kept")
            && said[0].to_string().contains("not read")
    );
    store.put_or_warn(&key, b"payload");
    assert!(
        store.get(&key).unwrap().is_none()
            && store.put(&key, b"payload").is_err()
            && store.warnings().is_empty()
    );
    assert!(
        store.temporary().unwrap().path().is_dir() && store.path().is_none() && store.size() == 0
    );
    assert!(store.describe().starts_with("none"));
    assert!(
        place.files().is_empty(),
        "what others can write to is left alone"
    );
}

#[test]
fn a_user_without_a_home_has_a_store_among_temporary_files() {
    let place = Place::new("homeless");
    let shared = place.0.join("shared");
    std::fs::create_dir_all(&shared).unwrap();
    mode(&shared, 0o1777);
    let missing = place.0.join("missing");
    let open = |places: &[&PathBuf]| Store::in_one_of(places.iter().copied().cloned(), 1 << 20);
    let store = open(&[&missing, &shared]).expect("a store");
    let path = store.path().unwrap().to_owned();
    let name = folder::name_of_user().unwrap();
    assert_eq!(path, shared.canonicalize().unwrap().join(&name));
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o700);
    let key = Key::from_parts(["a"]);
    store.put(&key, b"payload").unwrap();
    let again = open(&[&shared]).expect("a store");
    assert_eq!(again.get(&key).unwrap().as_deref(), Some(&b"payload"[..]));
    // What others can change is passed over, and a missing directory is not made.
    mode(&path, 0o777);
    assert!(open(&[&shared, &missing]).is_none());
    mode(&path, 0o700);
    mode(&shared, 0o777);
    assert!(open(&[&shared]).is_none());
    assert!(!missing.exists());
}
