//! The monotonic clock: of the system, or of the page that a WebAssembly module runs in.

#[cfg(not(target_family = "wasm"))]
pub use std::time::Instant;
#[cfg(target_family = "wasm")]
pub use web::Instant;

#[cfg(target_family = "wasm")]
mod web {
    use std::ops::{Add, Sub};
    use std::time::Duration;

    #[link(wasm_import_module = "gristmill")]
    unsafe extern "C" {
        /// Milliseconds since some moment: `performance.now()`.
        safe fn now() -> f64;
    }

    /// A moment of the page's clock, as [`std::time::Instant`] is of the system's.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub struct Instant(Duration);

    impl Instant {
        /// Returns the present moment.
        pub fn now() -> Instant {
            Instant(Duration::from_secs_f64(now().max(0.0) / 1e3))
        }
        /// Time since this moment.
        pub fn elapsed(&self) -> Duration {
            Instant::now().duration_since(*self)
        }
        /// Time from `earlier` to this moment; zero if that is the later one.
        pub fn duration_since(&self, earlier: Instant) -> Duration {
            self.0.saturating_sub(earlier.0)
        }
        /// The same as [`Instant::duration_since`].
        pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
            self.duration_since(earlier)
        }
    }

    impl Add<Duration> for Instant {
        type Output = Instant;
        fn add(self, by: Duration) -> Instant {
            Instant(self.0 + by)
        }
    }

    impl Sub for Instant {
        type Output = Duration;
        fn sub(self, earlier: Instant) -> Duration {
            self.duration_since(earlier)
        }
    }
}
