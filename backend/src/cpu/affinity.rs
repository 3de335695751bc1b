//! Core of a thread, its affinity mask, and whether cores are contended. Linux
//! only; elsewhere no effect.

#[cfg(target_os = "linux")]
use std::{fs::File, sync::OnceLock};

/// Returns the core that this thread currently runs on.
#[cfg(target_os = "linux")]
pub fn current_core() -> Option<usize> {
    // SAFETY: no arguments.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Pins this thread to the `index`-th core that the process may use.
#[cfg(target_os = "linux")]
pub fn pin_to(index: usize) {
    let Some(allowed) = allowed() else { return };
    let cores: Vec<usize> = members(&allowed).collect();
    let Some(&core) = cores.get(index % cores.len().max(1)) else {
        return;
    };
    allow(&set_of([core]));
}

/// Moves this thread to a core outside `taken`, if it may use one, and restores its affinity.
#[cfg(target_os = "linux")]
pub fn avoid_cores(taken: &[usize]) {
    let Some(allowed) = allowed() else { return };
    let rest = set_of(members(&allowed).filter(|core| !taken.contains(core)));
    // Linux migrates a thread immediately when its core is excluded, but not back when
    // it is allowed again.
    if members(&rest).next().is_some() && allow(&rest) {
        allow(&allowed);
    }
}

/// Returns whether the machine has more runnable threads than cores; true if unknown.
#[cfg(target_os = "linux")]
pub fn contended() -> bool {
    use std::os::unix::fs::FileExt;
    // Kept open, since workers that wait for microseconds read it.
    static LOAD: OnceLock<Option<(File, usize)>> = OnceLock::new();
    let Some((file, online)) =
        LOAD.get_or_init(|| Some((File::open("/proc/loadavg").ok()?, online()?)))
    else {
        return true;
    };
    let mut text = [0; 64];
    let Ok(length) = file.read_at(&mut text, 0) else {
        return true;
    };
    runnable(&text[..length]).is_none_or(|threads| threads > *online)
}

/// Returns the number of online cores, including those that this process may not use.
#[cfg(target_os = "linux")]
fn online() -> Option<usize> {
    // SAFETY: a constant name is the only argument.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).ok()
}

/// Parses the runnable threads in `/proc/loadavg` (proc_loadavg(5)): 3 in `0.20 0.18
/// 0.12 3/80 11206`.
#[cfg(target_os = "linux")]
fn runnable(load: &[u8]) -> Option<usize> {
    std::str::from_utf8(load)
        .ok()?
        .split_ascii_whitespace()
        .nth(3)?
        .split_once('/')?
        .0
        .parse()
        .ok()
}

#[cfg(target_os = "linux")]
fn allowed() -> Option<libc::cpu_set_t> {
    // SAFETY: a bit set for which zeros are valid; the call writes it within its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        (libc::sched_getaffinity(0, size_of_val(&set), &mut set) == 0).then_some(set)
    }
}

#[cfg(target_os = "linux")]
fn allow(set: &libc::cpu_set_t) -> bool {
    // SAFETY: the call reads the set within its size.
    unsafe { libc::sched_setaffinity(0, size_of_val(set), set) == 0 }
}

#[cfg(target_os = "linux")]
fn members(set: &libc::cpu_set_t) -> impl Iterator<Item = usize> {
    // SAFETY: the indices are within the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, set) })
}

#[cfg(target_os = "linux")]
fn set_of(cores: impl IntoIterator<Item = usize>) -> libc::cpu_set_t {
    // SAFETY: a bit set for which zeros are valid, and indices from another such set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cores
            .into_iter()
            .for_each(|core| libc::CPU_SET(core, &mut set));
        set
    }
}

#[cfg(not(target_os = "linux"))]
pub fn current_core() -> Option<usize> {
    None
}

#[cfg(not(target_os = "linux"))]
pub fn contended() -> bool {
    true
}

#[cfg(not(target_os = "linux"))]
pub fn pin_to(_: usize) {}

#[cfg(not(target_os = "linux"))]
pub fn avoid_cores(_: &[usize]) {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn more_threads_than_cores_are_seen() {
        assert_eq!(runnable(b"0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert!(
            ["", "0.20 0.18 0.12", "0.20 0.18 0.12 3 11206", "a b c d/e"]
                .iter()
                .all(|t| runnable(t.as_bytes()).is_none())
        );
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            let busy = || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop()
                }
            };
            (0..2 * online().unwrap()).for_each(|_| drop(s.spawn(busy)));
            let start = std::time::Instant::now();
            while !contended() {
                assert!(start.elapsed().as_secs() < 10, "no thread waits for a core");
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }

    #[test]
    fn a_thread_leaves_its_core_and_may_come_back() {
        std::thread::spawn(|| {
            let may: Vec<usize> = members(&allowed().unwrap()).collect();
            for &core in &may {
                avoid_cores(&[core]);
                assert!(
                    may.len() == 1
                        || current_core().is_some_and(|now| now != core || may.len() > 2)
                );
                assert_eq!(members(&allowed().unwrap()).collect::<Vec<_>>(), may);
            }
            avoid_cores(&may);
            pin_to(may.len() - 1);
            assert_eq!(current_core(), may.last().copied());
            avoid_cores(&[may[may.len() - 1]]);
            assert_eq!(
                members(&allowed().unwrap()).collect::<Vec<_>>(),
                may[may.len() - 1..],
                "pinned threads stay"
            );
        })
        .join()
        .unwrap();
    }
}
