//! Queries for available system memory.

use std::fs::File;
use std::ops::Range;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Returns the bytes that this process can allocate without swapping or exceeding a cgroup limit.
///
/// `MemAvailable`, or the remaining room of the tightest cgroup (v1 or v2) that contains the
/// process, whichever is less. `None` if the system does not report it.
pub fn available() -> Option<u64> {
    available_within(Path::new("/"), "MemAvailable:", true)
}

/// Returns the bytes of that memory that are unused, excluding the page cache: `MemFree`, or the
/// room left by cgroups.
pub fn free() -> Option<u64> {
    available_within(Path::new("/"), "MemFree:", false)
}

/// Drops a range of a file from the page cache; it can be read again from disk.
pub fn release(file: &File, range: Range<u64>) {
    #[cfg(target_os = "linux")]
    if let (Ok(start), Ok(len)) = (
        range.start.try_into(),
        range.end.saturating_sub(range.start).try_into(),
    ) {
        // SAFETY: an open file, and advice about the system's page cache; no memory of this process
        // is touched.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), start, len, libc::POSIX_FADV_DONTNEED) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, range);
}

/// Minimum of a `meminfo` field and the room left by cgroups; `reclaims` counts
/// cached files as room.
fn available_within(root: &Path, field: &str, reclaims: bool) -> Option<u64> {
    let text = |path: PathBuf| std::fs::read_to_string(path).ok();
    let machine = text(root.join("proc/meminfo")).and_then(|t| meminfo(&t, field));
    let groups = text(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(|line| {
        // `0::/path` is the v2 hierarchy; `4:memory:/path` a v1 controller.
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let path = path.trim_start_matches('/');
        if controllers.is_empty() {
            let cache = reclaims.then_some("inactive_file");
            tightest(
                &root.join("sys/fs/cgroup"),
                path,
                "memory.max",
                "memory.current",
                cache,
            )
        } else if controllers.split(',').any(|c| c == "memory") {
            let (limit, usage) = ("memory.limit_in_bytes", "memory.usage_in_bytes");
            let cache = reclaims.then_some("total_inactive_file");
            tightest(
                &root.join("sys/fs/cgroup/memory"),
                path,
                limit,
                usage,
                cache,
            )
        } else {
            None
        }
    });
    machine.into_iter().chain(limits).min()
}

/// Least remaining room of the group `path` under `mount` and its ancestors. Inside a container,
/// `path` may name a directory that exists only outside; the mount itself is then the group.
fn tightest(
    mount: &Path,
    path: &str,
    limit: &str,
    usage: &str,
    cache: Option<&str>,
) -> Option<u64> {
    let number = |path: PathBuf| {
        std::fs::read_to_string(path)
            .ok()?
            .trim()
            .parse::<u64>()
            .ok()
    };
    mount
        .join(path)
        .ancestors()
        .take_while(|group| group.starts_with(mount))
        .filter_map(|group| {
            let limit = number(group.join(limit))?; // `max` is not a number: no limit
            let used = number(group.join(usage))?;
            let stat = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
            let reclaimable = stat
                .lines()
                .find_map(|l| l.strip_prefix(cache?)?.trim().parse::<u64>().ok())
                .unwrap_or(0);
            Some(limit.saturating_sub(used.saturating_sub(reclaimable)))
        })
        .min()
}

fn meminfo(text: &str, field: &str) -> Option<u64> {
    let rest = text.lines().find_map(|l| l.strip_prefix(field))?;
    Some(
        rest.trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .ok()?
            * 1024,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root =
            std::env::temp_dir().join(format!("gristmill-memory-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_tightest_limit_counts() {
        let memory = (
            "proc/meminfo",
            "MemTotal: 9 kB\nMemFree: 150 kB\nMemAvailable:    1000 kB\n",
        );
        let v2 = tree(
            "v2",
            &[
                memory,
                ("proc/self/cgroup", "0::/a/b\n"),
                ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                ("sys/fs/cgroup/a/b/memory.current", "10\n"),
                ("sys/fs/cgroup/a/memory.max", "500000\n"),
                ("sys/fs/cgroup/a/memory.current", "300000\n"),
                (
                    "sys/fs/cgroup/a/memory.stat",
                    "anon 5\ninactive_file 100000\n",
                ),
            ],
        );
        assert_eq!(available_within(&v2, "MemAvailable:", true), Some(300_000));
        assert_eq!(available_within(&v2, "MemFree:", false), Some(153_600));
        let v1 = tree(
            "v1",
            &[
                memory,
                ("proc/self/cgroup", "4:cpu,memory:/outside\n3:cpuset:/\n"),
                (
                    "sys/fs/cgroup/memory/memory.limit_in_bytes",
                    "9223372036854771712\n",
                ),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "300000\n"),
            ],
        );
        assert_eq!(
            available_within(&v1, "MemAvailable:", true),
            Some(1_024_000)
        );
        assert_eq!(
            available_within(Path::new("/nonexistent"), "MemFree:", false),
            None
        );
        for root in [v1, v2] {
            std::fs::remove_dir_all(root).unwrap();
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_has_some() {
        assert!(available().unwrap() > 1 << 20);
        assert!(free().unwrap() > 0);
    }
}
